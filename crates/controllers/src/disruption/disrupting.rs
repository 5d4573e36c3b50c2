//! Nodes that a command disrupts at this moment, and those whose last command failed.
//!
//! Invariant: these are only hints. A process that lost them finds tainted nodes that no command is about, and removes
//! the taint.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// After a command failed its nodes are left alone for this long, each time twice as long.
const FIRST_REST: Duration = Duration::from_secs(60);
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// The stage of the command that a node is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The node is being tainted; its replacements are not ordered yet.
    Begun,
    /// The replacements are on their way, so the node's pods may be counted on them.
    Ordered,
}

#[derive(Debug, Default)]
struct Inner {
    nodes: BTreeMap<String, Stage>,
    backoffs: BTreeMap<String, (Instant, Duration)>,
}

/// Names of nodes that commands are about. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Disrupting(Arc<Mutex<Inner>>);

impl Disrupting {
    /// Reserves nodes for a command; returns `false` and reserves none if another command has one of them.
    pub(super) fn begin(&self, nodes: &[String]) -> bool {
        self.with(|inner| {
            if nodes.iter().any(|node| inner.nodes.contains_key(node)) {
                return false;
            }
            let begun = nodes.iter().map(|node| (node.clone(), Stage::Begun));
            inner.nodes.extend(begun);
            true
        })
    }

    /// Remembers that the replacements of these nodes are ordered.
    pub(super) fn ordered(&self, nodes: &[String]) {
        let ordered = nodes.iter().map(|node| (node.clone(), Stage::Ordered));
        self.with(|inner| inner.nodes.extend(ordered));
    }

    /// Releases nodes after their command. Those of a command that failed rest for a while.
    pub(super) fn end(&self, nodes: &[String], succeeded: bool) {
        let now = Instant::now();
        self.with(|inner| {
            for node in nodes {
                inner.nodes.remove(node);
                // Success forgets the rest, so that a later failure starts with the shortest one again.
                let last = inner.backoffs.remove(node);
                if !succeeded {
                    let rest = last.map_or(FIRST_REST, |(_, rest)| (rest * 2).min(LONGEST_REST));
                    inner.backoffs.insert(node.clone(), (now + rest, rest));
                }
            }
        });
    }

    /// Returns whether a command is about this node.
    pub fn contains(&self, node: &str) -> bool {
        self.with(|inner| inner.nodes.contains_key(node))
    }

    /// Returns whether the node is left alone because its last command failed a moment ago.
    pub(super) fn is_backing_off(&self, node: &str) -> bool {
        self.with(|inner| {
            let rest = inner.backoffs.get(node);
            rest.is_some_and(|(until, _)| *until > Instant::now())
        })
    }

    /// Returns the nodes that will be removed as soon as their replacements are ready.
    pub fn about_to_go(&self) -> Vec<String> {
        self.with(|inner| {
            let nodes = inner.nodes.iter();
            let ordered = nodes.filter(|(_, stage)| **stage == Stage::Ordered);
            ordered.map(|(node, _)| node.clone()).collect()
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nodes_of_a_failed_command_rest_twice_as_long_each_time() {
        let disrupting = Disrupting::default();
        let nodes = ["a".to_owned()];
        assert!(disrupting.begin(&nodes) && !disrupting.begin(&nodes));
        assert!(disrupting.about_to_go().is_empty());
        disrupting.ordered(&nodes);
        assert_eq!(disrupting.about_to_go(), nodes);
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            disrupting.end(&nodes, false);
            let rest = Duration::from_secs(60 * minutes);
            tokio::time::sleep(rest - Duration::from_millis(10)).await;
            assert!(disrupting.is_backing_off("a"), "{minutes} minutes");
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!disrupting.is_backing_off("a"), "{minutes} minutes");
        }
        disrupting.end(&nodes, true);
        disrupting.end(&nodes, false);
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(!disrupting.is_backing_off("a"));
    }
}
