//! Existing nodes that refuse a pod until others are planned: near it, or in the zones that have too few of its kind.

use rustc_hash::{FxHashMap, FxHashSet};

use super::solve::{Pending, PlacementMode, Solver};
use crate::class::PodClassId;
use crate::cluster::NodeId;
use crate::resources::Amounts;

/// The maximum number of nodes that are checked in one attempt.
pub(super) const MOST_CHECKS: usize = 1_000_000;

/// The existing nodes that are tried again while pods are planned on new ones. They only lose room meanwhile.
#[derive(Default)]
pub(super) struct Retries {
    /// Whether pods are tried whose rules need no other pods.
    takes_all: bool,
    /// The nodes that took further pods when a pod was first tried again.
    nodes: Option<Vec<NodeId>>,
    /// The nodes among these with room for each class when a pod of it was first tried again.
    by_class: FxHashMap<PodClassId, Vec<NodeId>>,
    /// The number of nodes that were checked.
    checks: usize,
}

impl Retries {
    pub(super) fn of(mode: PlacementMode<'_>) -> Self {
        Retries {
            takes_all: matches!(mode, PlacementMode::OnFirstNode),
            ..Retries::default()
        }
    }
}

impl Solver<'_> {
    /// Places a pod on the first existing node that takes it by now, if its rules need other pods in certain places or no pod
    /// was tried before. Other pods are never taken by a node that refused them before.
    pub(super) fn retry_existing(
        &mut self,
        pod: &Pending,
        retries: &mut Retries,
        placed: &mut Vec<(String, String)>,
    ) -> bool {
        // A bound in checks and not in time, so that the same question gets the same plan on every machine.
        if retries.checks >= MOST_CHECKS || self.cluster.holds_room() {
            return false;
        }
        let class = pod.own;
        // Only rules about other pods can turn a refusal into an acceptance while planning goes on; room only
        // shrinks.
        let needs_others = !self.cluster.class(class).affinity.is_empty()
            || !self.cluster.question(class).view.hard.is_empty();
        if !needs_others && !retries.takes_all {
            return false;
        }
        let Retries {
            nodes,
            by_class,
            checks,
            ..
        } = retries;
        // Both lists are made once: nodes only lose room, so a list stays complete, and `takes_now` checks again.
        let nodes = nodes.get_or_insert_with(|| {
            let one = Amounts {
                pods: 1,
                ..Amounts::default()
            };
            self.existing_with_room(&one)
        });
        let nodes = by_class.entry(class).or_insert_with(|| {
            *checks += nodes.len();
            let mut requests = self.cluster.class(class).shape.requests.real.clone();
            requests.pods += 1;
            let has_room = |node: &NodeId| self.has_room_for(*node, &requests);
            nodes.iter().copied().filter(has_room).collect()
        });
        *checks += nodes.len();
        let unit = self.whole_unit(class);
        // The first one and not the best, as in Karpenter: the scheduler's choice was asked before and refused.
        let found = nodes.iter().copied().find(|node| {
            unit.as_ref()
                .is_none_or(|all| self.has_room_for(*node, all))
                && self.cluster.takes_now(class, *node)
        });
        let Some(node) = found else {
            return false;
        };
        self.cluster.load_logged(class, node);
        let name = self.cluster.node_name(node).to_owned();
        placed.push((self.keys[pod.index as usize].clone(), name));
        true
    }

    /// Returns the nodes that are not planned and have room for these requests. As in Karpenter, none whose room is promised
    /// twice.
    pub(super) fn existing_with_room(&self, requests: &Amounts) -> Vec<NodeId> {
        let planned: FxHashSet<NodeId> = self.claims.iter().map(|claim| claim.node).collect();
        let nodes = self.cluster.nodes().filter(|node| !planned.contains(node));
        nodes
            .filter(|node| self.has_room_for(*node, requests))
            .collect()
    }

    fn has_room_for(&self, node: NodeId, requests: &Amounts) -> bool {
        let there = self.cluster.at(node);
        let mut free = there.fixed.allocatable.clone();
        free.subtract(&there.used);
        !free.is_overdrawn() && requests.exceeds(&free).is_none()
    }
}
