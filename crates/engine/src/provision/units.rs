//! Pods of one class that must share a node: the first one goes only where there is room for all.
//!
//! Pods are placed one by one, and the first decides for the others. Karpenter and the scheduler do not look ahead, so the
//! others may find no room and wait for ever.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::catalog::Catalog;
use super::solve::{Pending, Solver};
use crate::class::PodClassId;
use crate::cluster::NodeId;
use crate::intern::Symbol;
use crate::resources::Amounts;

/// The number of pending pods of each class whose pods may have to share a node.
pub(super) type Units = FxHashMap<PodClassId, u32>;

impl Solver<'_> {
    /// Counts the pods of classes that require others on the same node.
    pub(super) fn count_units(&mut self, pending: &[Pending]) {
        for pod in pending {
            let mut terms = self.cluster.class(pod.own).affinity.iter();
            if terms.any(|term| term.key == Symbol::HOSTNAME) {
                *self.units.entry(pod.own).or_default() += 1;
            }
        }
    }

    /// Returns what all pending pods of a class request together if they must share a node and none of them has one yet.
    pub(super) fn whole_unit(&mut self, class: PodClassId) -> Option<Amounts> {
        let count = *self.units.get(&class)?;
        let view = self.cluster.question(class).view;
        // If one of them has a place already, or the term is about other pods, the affinity filter decides and there
        // is nothing to look ahead for.
        if !view.self_affine || !view.affinity.is_empty() {
            return None;
        }
        let one = &self.cluster.class(class).shape.requests.real;
        let mut all = Amounts::default();
        (0..count).for_each(|_| all.add(one));
        all.pods += i64::from(count);
        Some(all)
    }

    /// Returns an existing node that takes a pod and has room for all these requests.
    pub(super) fn existing_for_unit(&mut self, class: PodClassId, all: &Amounts) -> Option<NodeId> {
        let nodes = self.existing_with_room(all);
        nodes
            .into_iter()
            .find(|node| self.cluster.takes_now(class, *node))
    }
}

/// Leaves the options of a pool that have room for these requests beside those that are planned on them.
pub(super) fn with_room(
    options: &FixedBitSet,
    planned: &Amounts,
    all: &Amounts,
    catalog: &Catalog,
) -> FixedBitSet {
    let mut sum = planned.clone();
    sum.add(all);
    catalog.holding(options, &sum)
}
