//! Decides which node may call EC2 next: one token bucket limits all calls, nodes with waiting pods come before all
//! others, and nodes take turns.

use std::collections::{HashSet, VecDeque};

use mullion_engine::ip::CallPriority;
use rustc_hash::FxBuildHasher;

use super::driver::NodeName;

/// The rate of calls per second in the long run, and the burst (VRC: `user-client-qps` and `-burst`).
const PER_SECOND: f64 = 12.0;
const BURST: f64 = 18.0;

/// The nodes that want to call EC2, in the order of their turns, and the tokens for calls.
#[derive(Debug)]
pub(super) struct CallQueue {
    tokens: f64,
    at: u64,
    waiting: WaitingNodes,
}

/// The waiting nodes: those with waiting pods first, and within each group in order of arrival.
#[derive(Debug, Default)]
pub(super) struct WaitingNodes {
    pods: NodeQueue,
    upkeep: NodeQueue,
}

/// Nodes in order of arrival, each once.
#[derive(Debug, Default)]
struct NodeQueue {
    order: VecDeque<NodeName>,
    present: HashSet<NodeName, FxBuildHasher>,
}

impl NodeQueue {
    fn add(&mut self, node: &NodeName) {
        if self.present.insert(node.clone()) {
            self.order.push_back(node.clone());
        }
    }

    fn remove(&mut self, node: &NodeName) {
        // The entry in `order` stays, and is skipped later.
        self.present.remove(node);
    }

    fn next(&mut self) -> Option<NodeName> {
        while let Some(node) = self.order.pop_front() {
            if self.present.remove(&node) {
                return Some(node);
            }
        }
        None
    }
}

impl WaitingNodes {
    /// Puts a node at the end of its lane unless it already waits there.
    pub(super) fn add(&mut self, node: &NodeName, priority: CallPriority) {
        match priority {
            // A node with waiting pods moves to the front lane, and never back while it waits there.
            CallPriority::Pods(_) => {
                self.upkeep.remove(node);
                self.pods.add(node);
            }
            CallPriority::Upkeep if !self.pods.present.contains(node) => self.upkeep.add(node),
            CallPriority::Upkeep => {}
        }
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, node: &NodeName) {
        self.pods.remove(node);
        self.upkeep.remove(node);
    }

    /// Removes and returns the first node.
    pub(super) fn next(&mut self) -> Option<NodeName> {
        self.pods.next().or_else(|| self.upkeep.next())
    }

    pub(super) fn contains(&self, node: &NodeName) -> bool {
        self.pods.present.contains(node) || self.upkeep.present.contains(node)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pods.present.is_empty() && self.upkeep.present.is_empty()
    }
}

impl CallQueue {
    pub(super) fn new(now: u64) -> Self {
        CallQueue {
            tokens: BURST,
            at: now,
            waiting: WaitingNodes::default(),
        }
    }

    /// Adds a node that wants to make a call.
    pub(super) fn add(&mut self, node: &NodeName, priority: CallPriority) {
        self.waiting.add(node, priority);
    }

    /// Removes a node.
    pub(super) fn remove(&mut self, node: &NodeName) {
        self.waiting.remove(node);
    }

    /// Returns whether a node waits for its turn.
    pub(super) fn contains(&self, node: &NodeName) -> bool {
        self.waiting.contains(node)
    }

    /// Returns the node whose turn it is, if a token is available. The caller takes the token with [`CallQueue::spend`]
    /// when it makes the call.
    pub(super) fn next(&mut self, now: u64) -> Option<NodeName> {
        self.refill(now);
        if self.tokens < 1.0 {
            return None;
        }
        self.waiting.next()
    }

    /// Takes the token for one call.
    pub(super) fn spend(&mut self) {
        self.tokens -= 1.0;
    }

    /// Returns when the next token is available, if a node waits for it.
    pub(super) fn next_at(&self) -> Option<u64> {
        let missing = (1.0 - self.tokens).max(0.0);
        (!self.waiting.is_empty()).then(|| self.at + (missing * 1000.0 / PER_SECOND).ceil() as u64)
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.at) as f64 / 1000.0;
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eighteen_calls_come_at_once_and_twelve_a_second_after_that() {
        let mut turns = CallQueue::new(0);
        let mut calls = |until: u64| {
            let mut calls = 0;
            for now in 0..until {
                turns.add(&"a".into(), CallPriority::Upkeep);
                while turns.next(now).is_some() {
                    turns.spend();
                    calls += 1;
                    turns.add(&"a".into(), CallPriority::Upkeep);
                }
            }
            calls
        };
        assert_eq!(calls(10_000), 18 + 119);
    }

    #[test]
    fn waiting_pods_come_before_warm_targets_and_nodes_take_turns() {
        let mut turns = CallQueue::new(0);
        turns.add(&"warm".into(), CallPriority::Upkeep);
        turns.add(&"a".into(), CallPriority::Pods(50));
        turns.add(&"b".into(), CallPriority::Pods(1));
        turns.add(&"warm-first".into(), CallPriority::Upkeep);
        turns.add(&"warm-first".into(), CallPriority::Pods(1));
        let mut order = Vec::new();
        while let Some(node) = turns.next(0) {
            if &*node == "a" && order.len() < 3 {
                turns.add(&node, CallPriority::Pods(49));
            }
            order.push(node.to_string());
        }
        assert_eq!(order, ["a", "b", "warm-first", "a", "warm"]);
    }
}
