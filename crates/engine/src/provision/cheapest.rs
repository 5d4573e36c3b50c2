//! Chooses the cheapest of up to four ways to place all pending pods: the one that places most pods, then costs least.
//!
//! 1. The scheduler places pods on existing nodes; the others are packed by cost.
//! 2. The same, but the others are placed one by one, as Karpenter does: the largest pods first; on planned nodes with the
//!    fewest pods, then on a new node of the first pool that can buy one. So no plan is more expensive than Karpenter's.
//! 3. Pods are packed onto existing nodes and new ones at once, if the free room of existing nodes is large enough to matter.
//! 4. Then they are also placed one by one on existing nodes and new ones, as Karpenter does: a node that refuses a pod until
//!    another one is planned elsewhere keeps its room for it, because smaller pods come later.

use rustc_hash::{FxHashMap, FxHashSet};

use super::PreferencePolicy;
use super::retry::MOST_CHECKS;
use super::solve::{Attempt, Pending, PlacementMode, Solver};
use crate::class::PodClassId;
use crate::cluster::NodeId;
use crate::intern::Symbol;

/// The maximum number of pods for which both packing and placing one by one are tried.
const MOST_TWICE: usize = 3000;
/// The maximum number of existing nodes for which the third way is tried.
const MOST_NODES: usize = 5000;
/// The maximum number of pairs of a node and a class of pods for which it is tried.
const MOST_PAIRS: usize = 1_500_000;
/// The third way is tried if existing nodes have at least one part in so many of what the pods request of some resource: with
/// less of each, no use of that room makes a plan much cheaper.
const LEAST_ROOM: i128 = 100;

impl Solver<'_> {
    /// Returns the best of the four ways described in the module.
    pub(super) fn cheapest(&mut self, pending: &[Pending], nodes: &[NodeId]) -> Attempt {
        let checkpoint = self.cluster.checkpoint();
        let mut existing = Vec::new();
        self.add_places(pending);
        let rest = self.place_on_nodes(pending, &mut existing);
        let mut best = self.buy(&rest, &[]);
        best.existing.extend(existing);
        // The other ways start from the cluster as it is; this plan is kept as data.
        self.cluster.rollback(checkpoint);
        // If everything fits on existing nodes at no price, no other way can be better.
        let is_bought = !best.nodes.is_empty() || best.is_open();
        let mut classes: FxHashMap<PodClassId, i64> = FxHashMap::default();
        for pod in pending {
            *classes.entry(pod.class).or_default() += 1;
        }
        let is_small = nodes.len() <= MOST_NODES && nodes.len() * classes.len() <= MOST_PAIRS;
        // Held room is promised to certain pods, which numbers of pods cannot express.
        let is_asked = is_bought && is_small && !self.cluster.holds_room();
        if is_asked && self.has_room(nodes, &classes) {
            let together = self.buy(pending, nodes);
            best = best.unless_better(together);
            if pending.len() <= MOST_TWICE && pending.len() * nodes.len() <= MOST_CHECKS {
                let first_fit = self.first_fit(pending, PlacementMode::OnFirstNode, &best);
                best = best.or(first_fit);
            }
        }
        best
    }

    /// Returns whether an existing node has room for a pod of one of the classes, and all nodes together have enough of a
    /// requested resource to matter. `classes` has the number of pods of each.
    fn has_room(&self, nodes: &[NodeId], classes: &FxHashMap<PodClassId, i64>) -> bool {
        let mut requests = Vec::with_capacity(classes.len());
        let mut wanted: FxHashMap<Symbol, i128> = FxHashMap::default();
        for (class, count) in classes {
            let mut of_one = self.cluster.class(*class).shape.requests.real.clone();
            for (resource, amount) in of_one.iter() {
                *wanted.entry(resource).or_default() += i128::from(amount) * i128::from(*count);
            }
            of_one.pods += 1;
            requests.push(of_one);
        }
        let mut has_some = false;
        let mut room: FxHashMap<Symbol, i128> = FxHashMap::default();
        for node in nodes {
            let there = self.cluster.at(*node);
            let mut free = there.fixed.allocatable.clone();
            free.subtract(&there.used);
            for resource in wanted.keys() {
                let amount = free.amount(*resource).max(0);
                *room.entry(*resource).or_default() += i128::from(amount);
            }
            // Checked besides the sums: much free room in total may be in pieces too small for any pod.
            has_some = has_some
                || requests
                    .iter()
                    .any(|of_one| of_one.exceeds(&free).is_none());
        }
        let matters = |(resource, wanted): (&Symbol, &i128)| {
            let room = room.get(resource);
            room.is_some_and(|room| room * LEAST_ROOM >= *wanted)
        };
        has_some && (wanted.is_empty() || wanted.iter().any(matters))
    }

    /// Plans places for all pods on new nodes and on these existing ones, with the pods' preferences, unless a plan without
    /// preferences is cheaper by more than allowed.
    pub(super) fn buy(&mut self, pending: &[Pending], nodes: &[NodeId]) -> Attempt {
        let kept = self.buy_as(pending, nodes);
        if pending.len() > MOST_TWICE || !self.has_preferences(pending) {
            return kept;
        }
        let plain: Vec<Pending> = pending
            .iter()
            .map(|pod| Pending::new(pod.index, pod.own))
            .collect();
        // The second plan uses the same solver, so the policy is switched for it and put back.
        let policy = std::mem::replace(&mut self.preferences.policy, PreferencePolicy::Ignore);
        let mut without = self.buy_as(&plain, nodes);
        self.preferences.policy = policy;
        let is_worth_it = kept.price <= self.most_for_preferences(without.price);
        if is_worth_it && kept.unplaceable.len() <= without.unplaceable.len() {
            // The bound without preferences is a bound for every plan.
            without = Attempt {
                bound: without.bound,
                ..kept
            };
        }
        without
    }

    /// Returns whether preferences may make a plan more expensive.
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

    /// Plans places for all pods, packed by cost or, if only new nodes are used, one by one, whichever is better.
    fn buy_as(&mut self, pending: &[Pending], nodes: &[NodeId]) -> Attempt {
        let packed = self.attempt(pending, PlacementMode::Packed(nodes));
        let is_sure = !packed.is_open() && packed.placed_one_by_one == 0;
        let is_optimal = !packed.is_open() && packed.bound == Some(packed.price);
        // One by one is skipped where it cannot win (the price is the bound) or where it would take long and every
        // pod was packed.
        if !nodes.is_empty() || is_optimal || (is_sure && pending.len() > MOST_TWICE) {
            return packed;
        }
        let first_fit = self.first_fit(pending, PlacementMode::OneByOne, &packed);
        let bound = packed.bound;
        Attempt {
            // The bound holds for any plan of these pods, so it stays when first-fit wins.
            bound,
            ..packed.or(first_fit)
        }
    }
}
