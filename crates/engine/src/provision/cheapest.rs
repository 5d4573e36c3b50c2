//! The cheapest of the ways to place all pending pods.
//!
//! Three ways are tried, and the answer is the one that places most, then costs least:
//!
//! 1. The scheduler puts pods on nodes that are there; the rest is packed by cost.
//! 2. The same, but the rest goes one by one, as Karpenter does: largest pods first; planned nodes with the fewest pods, then a new node of the
//!    first pool that can. So no plan is dearer than that.
//! 3. Nodes that are there are packed together with those to buy, where their room matters.

use rustc_hash::{FxHashMap, FxHashSet};

use super::PreferencePolicy;
use super::solve::{Attempt, Pending, Solver, Way};
use crate::class::PodClassId;
use crate::cluster::NodeId;

/// Up to so many pods are also placed one by one, and the cheaper plan is taken.
const MOST_TWICE: usize = 3000;
/// Of so many nodes that are there, at most, is asked whether pods are better placed on them than the scheduler would.
const MOST_NODES: usize = 5000;
/// And if so many pairs of a node and a class of pods are to be looked at.
const MOST_PAIRS: usize = 1_500_000;
/// Nodes that are there and have less than one in so many parts of the cpu and of the memory that pods want cannot make a plan much cheaper, however
/// their room is used.
const LEAST_ROOM: i128 = 100;

impl Solver<'_> {
    /// The best of three ways: see the module's words.
    pub(super) fn cheapest(&mut self, pending: &[Pending], nodes: &[NodeId]) -> Attempt {
        let checkpoint = self.cluster.checkpoint();
        let mut existing = Vec::new();
        let rest = self.place_on_nodes(pending, &mut existing);
        let mut best = self.buy(&rest);
        best.existing.extend(existing);
        self.cluster.rollback(checkpoint);
        let is_bought = !best.nodes.is_empty() || best.is_open();
        let mut classes: FxHashMap<PodClassId, i64> = FxHashMap::default();
        for pod in pending {
            *classes.entry(pod.class).or_default() += 1;
        }
        let is_small = nodes.len() <= MOST_NODES && nodes.len() * classes.len() <= MOST_PAIRS;
        let is_asked = is_bought && is_small && !self.cluster.holds_room();
        if is_asked && self.has_room(nodes, &classes) {
            let together = self.attempt(pending, Way::Packed(nodes));
            best = best.or(together);
        }
        best
    }

    /// Whether a node that is there has room for a pod of some class, and all of them for a part of the pods that matters.
    fn has_room(&self, nodes: &[NodeId], classes: &FxHashMap<PodClassId, i64>) -> bool {
        let mut requests = Vec::with_capacity(classes.len());
        let mut wanted = (0, 0);
        for (class, count) in classes {
            let mut of_one = self.cluster.class(*class).shape.requests.real.clone();
            wanted.0 += i128::from(of_one.cpu_milli) * i128::from(*count);
            wanted.1 += i128::from(of_one.memory_bytes) * i128::from(*count);
            of_one.pods += 1;
            requests.push(of_one);
        }
        let mut has_some = false;
        let mut room = (0, 0);
        for node in nodes {
            let there = self.cluster.at(*node);
            let mut free = there.fixed.allocatable.clone();
            free.subtract(&there.used);
            room.0 += i128::from(free.cpu_milli.max(0));
            room.1 += i128::from(free.memory_bytes.max(0));
            let mut fitting = requests.iter();
            has_some |= fitting.any(|of_one| of_one.exceeds(&free).is_none());
        }
        has_some && (room.0 * LEAST_ROOM >= wanted.0 || room.1 * LEAST_ROOM >= wanted.1)
    }

    /// Buys for all pods, keeping what they prefer unless a plan without that is so much cheaper.
    pub(super) fn buy(&mut self, pending: &[Pending]) -> Attempt {
        let kept = self.buy_as(pending);
        if pending.len() > MOST_TWICE || !self.has_preferences(pending) {
            return kept;
        }
        let plain: Vec<Pending> = pending
            .iter()
            .map(|pod| Pending::new(pod.index, pod.own))
            .collect();
        let policy = std::mem::replace(&mut self.preferences.policy, PreferencePolicy::Ignore);
        let mut without = self.buy_as(&plain);
        self.preferences.policy = policy;
        let is_worth_it = kept.price <= self.most_for_preferences(without.price);
        if is_worth_it && kept.unplaceable.len() <= without.unplaceable.len() {
            // However pods are packed that prefer nothing: no plan costs less.
            without = Attempt {
                bound: without.bound,
                ..kept
            };
        }
        without
    }

    /// Whether a plan may be dearer because of what pods prefer.
    fn has_preferences(&mut self, pending: &[Pending]) -> bool {
        if self.preferences.policy != PreferencePolicy::WithinPrice {
            return false;
        }
        let mut looked_at = FxHashSet::default();
        pending.iter().any(|pod| {
            let is_new = looked_at.insert(pod.class);
            is_new && (pod.class != pod.own || self.topology(pod.class).strict)
        })
    }

    /// Buys for all pods: packed by cost or one by one, whichever is better.
    fn buy_as(&mut self, pending: &[Pending]) -> Attempt {
        let packed = self.attempt(pending, Way::Packed(&[]));
        let is_sure = !packed.is_open() && packed.placed_one_by_one == 0;
        if is_sure && pending.len() > MOST_TWICE {
            return packed;
        }
        let first_fit = self.attempt(pending, Way::OneByOne);
        let bound = packed.bound;
        Attempt {
            bound,
            ..packed.or(first_fit)
        }
    }
}
