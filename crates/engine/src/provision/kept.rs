//! Lets pods keep the places that the plan before gave them, so that no node that was bought for them stays empty.
//!
//! A plan that moves them is taken only if it is better. It must leave none of their nodes without pods, unless it places
//! more pods.

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;

use super::solve::{Attempt, Pending, Solver};
use crate::cluster::NodeId;

impl Solver<'_> {
    /// Returns the cheapest plan in which pods keep these places, the names of nodes by the keys of pods, or a better one that
    /// moves them.
    pub(super) fn cheapest_from(
        &mut self,
        pending: &[Pending],
        nodes: &[NodeId],
        places: &BTreeMap<String, String>,
    ) -> Attempt {
        if places.is_empty() {
            return self.cheapest(pending, nodes);
        }
        let checkpoint = self.cluster.checkpoint();
        let mut kept = Vec::new();
        self.add_places(pending);
        let rest = self.keep(pending, places, &mut kept);
        let mut best = self.cheapest(&rest, nodes);
        self.cluster.rollback(checkpoint);
        let used: FxHashSet<String> = kept.iter().map(|(_, node)| node.clone()).collect();
        best.existing.extend(kept);
        let is_bought = !best.nodes.is_empty() || best.is_open();
        if used.is_empty() || !is_bought {
            return best;
        }
        let moved = self.cheapest(pending, nodes);
        let existing = moved.existing.iter();
        let still_used: FxHashSet<&String> = existing.map(|(_, node)| node).collect();
        let uses_all = used.iter().all(|node| still_used.contains(node));
        if uses_all || moved.places_more_than(&best) {
            best.unless_better(moved)
        } else {
            best
        }
    }

    /// Places pods where they have a place, if their nodes still take them. Returns the other pods.
    pub(super) fn keep(
        &mut self,
        pending: &[Pending],
        places: &BTreeMap<String, String>,
        kept: &mut Vec<(String, String)>,
    ) -> Vec<Pending> {
        // A pod may need others that come later in the queue.
        self.until_settled(pending.to_vec(), |solver, pod| {
            let key = &solver.keys[pod.index as usize];
            let Some(place) = places.get(key) else {
                return false;
            };
            let Some(node) = solver.cluster.node(place) else {
                return false;
            };
            let held = solver.cluster.filter_with_nominated(pod.own, key);
            let is_held = held.iter().any(|(other, _)| *other == node);
            if is_held || !solver.cluster.takes_now(pod.own, node) {
                return false;
            }
            solver.cluster.load_logged(pod.own, node);
            kept.push((key.clone(), place.clone()));
            true
        })
    }
}
