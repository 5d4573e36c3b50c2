//! Machines of capacity reservations: how many a plan has left, and which planned node holds one.
//!
//! Invariant: planned nodes hold no more machines of a reservation than may be planned for it, and a node that holds some lists nothing but those. A
//! node that pods are placed on one by one holds one of every reservation it may run in, as Karpenter's do; a packed node holds one.

use std::sync::Arc;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::catalog::Catalog;
use super::claim::Claim;
use super::solve::{Pending, Solver};
use super::{PoolReason, PoolRefusal, ReservedPolicy, Unplaceable};
use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;

/// What is left of capacity reservations.
#[derive(Clone, Default)]
pub(super) struct Reservations {
    /// The machines left, by the id of the reservation. If pools state different numbers, the smallest counts.
    left: FxHashMap<Symbol, u32>,
    pub(super) policy: ReservedPolicy,
    /// Classes of pods that wait for reserved capacity, and the pool they wait for.
    pub(super) waiting: FxHashMap<PodClassId, usize>,
}

impl Reservations {
    pub(super) fn of(catalogs: &[Catalog]) -> Self {
        let mut all = Self::default();
        for (id, left) in catalogs.iter().flat_map(|catalog| &catalog.reservations) {
            let known = all.left.entry(*id).or_insert(*left);
            *known = (*known).min(*left);
        }
        all
    }

    fn has(&self, id: Symbol) -> bool {
        self.left.get(&id).is_some_and(|left| *left > 0)
    }

    /// Removes options whose reservation is used up by other nodes. Under `ReservedPolicy::Wait` they stay: pods are
    /// to wait for them instead of being planned elsewhere.
    pub(super) fn leave_out(&self, options: &mut FixedBitSet, catalog: &Catalog) {
        if !self.left.is_empty() && self.policy == ReservedPolicy::FallBack {
            self.retain_left(options, catalog);
        }
    }

    fn retain_left(&self, options: &mut FixedBitSet, catalog: &Catalog) {
        for option in options.clone().ones() {
            if let Some(id) = catalog.options[option].reservation {
                options.set(option, self.has(id));
            }
        }
    }

    /// Lets a new node hold one machine of every reservation that it may run in.
    ///
    /// # Errors
    /// Returns an error if the node may run in reservations only of which other nodes hold all machines.
    pub(super) fn hold(
        &mut self,
        claim: &mut Claim,
        catalog: &Catalog,
        cluster: &mut Cluster,
    ) -> Result<(), PoolReason> {
        if self.left.is_empty() || catalog.ids(&claim.options).is_empty() {
            return Ok(());
        }
        let mut options = claim.options.clone();
        self.retain_left(&mut options, catalog);
        let held = catalog.ids(&options);
        if held.is_empty() {
            return Err(PoolReason::ReservationHeld);
        }
        // The options that remain must not include reservations without a machine for this node.
        claim.narrow(options, catalog, cluster);
        self.take(held, claim);
        Ok(())
    }

    /// Reduces the options of a packed node to those of one reservation, the cheapest that has a machine left, and
    /// those without reservation. Returns that reservation; `None` if the packing counted on reserved capacity of
    /// which nothing is left, or if pods are to wait for it.
    pub(super) fn choose(
        &self,
        options: &mut FixedBitSet,
        chosen: usize,
        catalog: &Catalog,
    ) -> Option<Vec<Symbol>> {
        if self.left.is_empty() {
            return Some(Vec::new());
        }
        let wants = |option: usize| catalog.options[option].reservation;
        let had_some = options.ones().any(|option| wants(option).is_some());
        let first = options.ones().filter_map(wants).find(|id| self.has(*id));
        // Falling back is for the packer to decide at another price (`pack_reserved_first`), so its machine is not
        // quietly replaced here.
        let is_refused = match self.policy {
            ReservedPolicy::FallBack => wants(chosen).is_some(),
            ReservedPolicy::Wait => had_some,
        };
        if first.is_none() && is_refused {
            return None;
        }
        for option in options.clone().ones() {
            let id = wants(option);
            options.set(option, id.is_none() || id == first);
        }
        Some(first.into_iter().collect())
    }

    /// Takes one machine of each of these reservations for a new node.
    pub(super) fn take(&mut self, held: Vec<Symbol>, claim: &mut Claim) {
        for id in &held {
            if let Some(left) = self.left.get_mut(id) {
                *left = left.saturating_sub(1);
            }
        }
        claim.held = held;
    }

    /// Returns the machines that a node holds in reservations in which it can no longer run.
    pub(super) fn release(&mut self, claim: &mut Claim, catalog: &Catalog) {
        if claim.held.is_empty() {
            return;
        }
        let still = catalog.ids(&claim.options);
        claim.held.retain(|id| {
            let stays = still.contains(id);
            if let Some(left) = self.left.get_mut(id).filter(|_| !stays) {
                *left += 1;
            }
            stays
        });
    }
}

impl Claim {
    /// Returns whether a claim that holds reserved machines would lose all of them with these options. Such a pod is
    /// refused: another node for it costs less than the reserved machine that is paid for anyway.
    pub(super) fn loses_reserved(&self, options: &FixedBitSet, catalog: &Catalog) -> bool {
        !self.held.is_empty() && catalog.ids(options).is_empty()
    }

    /// Returns the options to list: only reserved capacity if the claim holds some, because that is paid for anyway.
    pub(super) fn to_list(&self, catalog: &Catalog) -> FixedBitSet {
        let mut options = self.options.clone();
        if !self.held.is_empty() {
            for option in self.options.ones() {
                options.set(option, catalog.options[option].reservation.is_some());
            }
        }
        options
    }
}

impl Catalog {
    /// Returns the reservations that some options use, the cheapest first.
    fn ids(&self, options: &FixedBitSet) -> Vec<Symbol> {
        let mut ids = Vec::new();
        if self.reservations.is_empty() {
            return ids;
        }
        for id in options
            .ones()
            .filter_map(|option| self.options[option].reservation)
        {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids
    }

    /// Returns the ids of these reservations as text, sorted.
    pub(super) fn ids_of(&self, options: &FixedBitSet, cluster: &Cluster) -> Arc<[String]> {
        let ids = self.ids(options).into_iter();
        let mut ids: Vec<String> = ids.map(|id| cluster.text(id).to_owned()).collect();
        ids.sort();
        ids.into()
    }
}

impl Solver<'_> {
    /// Packs pods as if reservations were unlimited, then packs the pods that found their reservation used up again
    /// without it, unless pods wait for reserved capacity. Returns the pods that are not packed, and a lower bound
    /// for the price of nodes for all of them if there is one.
    pub(super) fn pack_reserved_first(
        &mut self,
        pending: &[Pending],
        nodes: &[NodeId],
        existing: &mut Vec<(String, String)>,
    ) -> (Vec<Pending>, Option<u64>) {
        let (mut rest, mut bound) = self.pack(pending, nodes, existing);
        if self.reservations.left.is_empty() || self.reservations.policy == ReservedPolicy::Wait {
            return (rest, bound);
        }
        let available: Vec<FixedBitSet> = self
            .catalogs
            .iter()
            .map(|catalog| catalog.available.clone())
            .collect();
        // Each turn hides at least one more reservation, so the loop ends.
        while !rest.is_empty() && self.hide_what_is_held() {
            // It takes reserved machines for as many as are wanted.
            bound = None;
            rest = self.pack(&rest, nodes, existing).0;
        }
        // Only the packer is kept from used-up reservations; one-by-one placement has its own rule
        // (`Reservations::hold`).
        for (catalog, available) in self.catalogs.iter_mut().zip(available) {
            catalog.available = available;
        }
        (rest, bound)
    }

    /// Hides the options of reservations all of whose machines are held. Returns `false` if all of these were hidden
    /// before.
    fn hide_what_is_held(&mut self) -> bool {
        let mut some = false;
        for catalog in &mut self.catalogs {
            let mut options = catalog.available.clone();
            self.reservations.retain_left(&mut options, catalog);
            some |= options != catalog.available;
            catalog.available = options;
        }
        some
    }

    /// Gives back what a planned node holds of reservations that it can no longer run in.
    pub(super) fn release(&mut self, index: usize) {
        let claim = &mut self.claims[index];
        let catalog = &self.catalogs[claim.catalog];
        self.reservations.release(claim, catalog);
    }

    /// Moves pods that wait for reserved capacity from `pending` to `unplaceable`.
    pub(super) fn take_waiting(
        &mut self,
        pending: &mut Vec<Pending>,
        unplaceable: &mut Vec<Unplaceable>,
    ) {
        pending.retain(|pod| {
            let Some(catalog) = self.reservations.waiting.get(&pod.class) else {
                return true;
            };
            let refusal = PoolRefusal {
                pool: self.catalogs[*catalog].pool.clone(),
                reason: PoolReason::ReservationHeld,
            };
            unplaceable.push(Unplaceable {
                pod: self.keys[pod.index as usize].clone(),
                invalid: None,
                pools: [refusal].into(),
            });
            false
        });
    }
}
