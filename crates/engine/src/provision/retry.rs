//! Existing nodes that refuse a pod until others are planned: near it, or in the zones that have too few of its kind.

use rustc_hash::FxHashMap;

use super::solve::{Pending, Solver};
use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};

/// The maximum number of nodes that are checked in one attempt.
const MOST_CHECKS: usize = 1_000_000;

/// The existing nodes that are tried again while pods are planned on new ones.
pub(super) struct Retries {
    /// Nodes that take further pods at all.
    nodes: Vec<NodeId>,
    /// The nodes with room for each class when a pod of it was first tried again. Later they have no more.
    by_class: FxHashMap<PodClassId, Vec<NodeId>>,
    /// The number of nodes that were checked.
    checks: usize,
}

impl Retries {
    /// Collects the nodes of a cluster before any are planned.
    pub(super) fn of(cluster: &Cluster) -> Self {
        // As in Karpenter, nothing more is placed on a node whose room is promised twice.
        let takes_more = |node: &NodeId| {
            let there = cluster.at(*node);
            let mut free = there.fixed.allocatable.clone();
            free.subtract(&there.used);
            free.pods > 0 && !free.is_overdrawn()
        };
        Retries {
            nodes: cluster.nodes().filter(takes_more).collect(),
            by_class: FxHashMap::default(),
            checks: 0,
        }
    }

    /// Returns the nodes with room for a class, as far as resources go.
    fn with_room(&mut self, class: PodClassId, cluster: &Cluster) -> &[NodeId] {
        let Retries {
            nodes,
            by_class,
            checks,
        } = self;
        let known = by_class.entry(class).or_insert_with(|| {
            *checks += nodes.len();
            let mut requests = cluster.class(class).shape.requests.real.clone();
            requests.pods += 1;
            let has_room = |node: &NodeId| {
                let there = cluster.at(*node);
                let mut free = there.fixed.allocatable.clone();
                free.subtract(&there.used);
                requests.exceeds(&free).is_none()
            };
            nodes.iter().copied().filter(has_room).collect()
        });
        *checks += known.len();
        known
    }
}

impl Solver<'_> {
    /// Places a pod on an existing node that takes it by now, if its rules need other pods in certain places. Other pods are
    /// never taken by a node that refused them before.
    pub(super) fn retry_existing(
        &mut self,
        pod: &Pending,
        retries: &mut Retries,
        placed: &mut Vec<(String, String)>,
    ) -> bool {
        if retries.nodes.is_empty() || retries.checks >= MOST_CHECKS || self.cluster.holds_room() {
            return false;
        }
        let needs_others = !self.cluster.class(pod.own).affinity.is_empty()
            || !self.cluster.question(pod.own).view.hard.is_empty();
        if !needs_others {
            return false;
        }
        let mut nodes = retries.with_room(pod.own, self.cluster).iter();
        let Some(node) = nodes.find(|node| self.cluster.takes_now(pod.own, **node)) else {
            return false;
        };
        self.cluster.load_logged(pod.own, *node);
        let node = self.cluster.node_name(*node).to_owned();
        placed.push((self.keys[pod.index as usize].clone(), node));
        true
    }
}
