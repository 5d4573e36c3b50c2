//! Finds overlapping paths: equal ones, and folders with files in them. Not every pair of paths is compared.

use std::{
    collections::{HashMap, HashSet},
    hash::Hash,
};

/// Paths with a value each.
pub(super) struct Overlaps<'a, T> {
    /// The paths, in the order in which they were added.
    paths: Vec<(&'a str, T)>,
    tree: Option<Tree<'a, T>>,
}

/// Up to this number, paths are compared one by one, which is faster than building a tree: most volumes have three files.
const FEW: usize = 8;

impl<T> Default for Overlaps<'_, T> {
    fn default() -> Self {
        Overlaps {
            paths: Vec::new(),
            tree: None,
        }
    }
}

impl<'a, T: Clone + Eq + Hash> Overlaps<'a, T> {
    /// Adds a path with a value, unless both were added before; an empty path overlaps with nothing.
    pub(super) fn add(&mut self, path: &'a str, value: T) {
        if path.is_empty() {
            return;
        }
        let added = (path, value);
        let is_there = match &mut self.tree {
            None => self.paths.contains(&added),
            Some(tree) => !tree.seen.insert(added.clone()),
        };
        if is_there {
            return;
        }
        let index = self.paths.len();
        self.paths.push(added);
        match &mut self.tree {
            Some(tree) => tree.add(path, index),
            None if self.paths.len() > FEW => self.tree = Some(Tree::of(&self.paths)),
            None => {}
        }
    }

    /// Returns the values of the paths that are this path, a folder above it or below it, in the order they were added.
    pub(super) fn overlapping(&self, path: &str) -> impl Iterator<Item = &T> {
        let mut found = Vec::new();
        match &self.tree {
            _ if path.is_empty() => {}
            Some(tree) => tree.find(path, &mut found),
            None => {
                let all = self.paths.iter().enumerate();
                let same = all.filter(|(_, (other, _))| overlap(other, path));
                found.extend(same.map(|(index, _)| index));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|index| &self.paths[index].1)
    }
}

/// Returns whether one of two paths is the other or leads through it. Neither is empty.
fn overlap(one: &str, other: &str) -> bool {
    let begins = |long: &str, short: &str| {
        long.strip_prefix(short)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    begins(one, other) || begins(other, one)
}

/// A tree of path segments: `a/b` is below `a`.
struct Tree<'a, T> {
    /// The entries added so far; adding one again would report the same overlap twice.
    seen: HashSet<(&'a str, T)>,
    nodes: Vec<Node>,
    /// The node below another one for a part of a path.
    below: HashMap<(usize, &'a str), usize>,
}

/// The paths at and below a place in the tree, by their indices.
#[derive(Default)]
struct Node {
    ending: Vec<usize>,
    passing: Vec<usize>,
}

const ROOT: usize = 0;

impl<'a, T: Clone + Eq + Hash> Tree<'a, T> {
    fn of(paths: &[(&'a str, T)]) -> Self {
        let mut tree = Tree {
            seen: paths.iter().cloned().collect(),
            nodes: vec![Node::default()],
            below: HashMap::new(),
        };
        for (index, (path, _)) in paths.iter().enumerate() {
            tree.add(path, index);
        }
        tree
    }

    fn add(&mut self, path: &'a str, index: usize) {
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

    proptest! {
        #[test]
        fn the_same_paths_overlap_as_when_each_is_compared_with_each(
            paths in proptest::collection::vec("[ab/]{0,6}", 0..20)
        ) {
            // Callers cut trailing slashes.
            let paths: Vec<&str> = paths.iter().map(|path| path.trim_end_matches('/')).collect();
            let mut tree = Overlaps::default();
            for (index, path) in paths.iter().enumerate() {
                let compared = (0..index).filter(|other| {
                    let other = paths[*other];
                    !other.is_empty() && !path.is_empty() && overlap(other, path)
                });
                let found: Vec<usize> = tree.overlapping(path).copied().collect();
                prop_assert_eq!(found, compared.collect::<Vec<_>>());
                tree.add(path, index);
            }
        }
    }
}
