//! Finds the paths of which one is the other or leads through it, without comparing every path with every other.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

/// Paths with a value each, as a tree of their parts: `a/b` is below `a`.
pub(super) struct Overlaps<'a, T> {
    values: Vec<T>,
    /// What was added; the same again would overlap with the same.
    seen: HashSet<(&'a str, T)>,
    nodes: Vec<Node>,
    /// The node below another one for a part of a path.
    below: HashMap<(usize, &'a str), usize>,
}

/// The paths at and below a place in the tree, as indices of values.
#[derive(Default)]
struct Node {
    ending: Vec<usize>,
    passing: Vec<usize>,
}

const ROOT: usize = 0;

impl<T> Default for Overlaps<'_, T> {
    fn default() -> Self {
        Overlaps {
            values: Vec::new(),
            seen: HashSet::new(),
            nodes: vec![Node::default()],
            below: HashMap::new(),
        }
    }
}

impl<'a, T: Clone + Eq + Hash> Overlaps<'a, T> {
    /// Adds a path with a value, unless it is there with that value; an empty path overlaps with nothing.
    pub(super) fn add(&mut self, path: &'a str, value: T) {
        if path.is_empty() || !self.seen.insert((path, value.clone())) {
            return;
        }
        let index = self.values.len();
        self.values.push(value);
        let mut node = ROOT;
        for part in path.split('/') {
            let next = self.nodes.len();
            let below = *self.below.entry((node, part)).or_insert(next);
            if below == next {
                self.nodes.push(Node::default());
            }
            node = below;
            self.nodes[node].passing.push(index);
        }
        self.nodes[node].ending.push(index);
    }

    /// Returns the values of the paths that are this path, a folder above it or below it, in the order they were added.
    pub(super) fn overlapping(&self, path: &str) -> impl Iterator<Item = &T> {
        let mut found = Vec::new();
        if !path.is_empty() {
            self.find(path, &mut found);
        }
        found.sort_unstable();
        found.into_iter().map(|index| &self.values[index])
    }

    fn find(&self, path: &str, found: &mut Vec<usize>) {
        let (mut node, mut parts) = (ROOT, path.split('/').peekable());
        while let Some(part) = parts.next() {
            let Some(below) = self.below.get(&(node, part)) else {
                return;
            };
            node = *below;
            found.extend(match parts.peek() {
                Some(_) => &self.nodes[node].ending,
                None => &self.nodes[node].passing,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares two paths: whether one is the other or leads through it.
    fn overlap(one: &str, other: &str) -> bool {
        let begins = |long: &str, short: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        !one.is_empty() && !other.is_empty() && (begins(one, other) || begins(other, one))
    }

    proptest! {
        #[test]
        fn the_same_paths_overlap_as_when_each_is_compared_with_each(
            paths in proptest::collection::vec("[ab/]{0,6}", 0..12)
        ) {
            // Callers cut trailing slashes.
            let paths: Vec<&str> = paths.iter().map(|path| path.trim_end_matches('/')).collect();
            let mut tree = Overlaps::default();
            for (index, path) in paths.iter().enumerate() {
                let compared = (0..index).filter(|other| overlap(paths[*other], path));
                let found: Vec<usize> = tree.overlapping(path).copied().collect();
                prop_assert_eq!(found, compared.collect::<Vec<_>>());
                tree.add(path, index);
            }
        }
    }
}
