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
    /// Machines by the id of their reservation. Pools that know a reservation differently have the fewest.
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

    /// Takes out of some options those of which other nodes hold all there is, unless pods wait for such.
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

    /// Has a new node hold a machine of every reservation that it may run in.
    ///
    /// # Errors
    /// It may run in some, and other nodes hold all of their machines.
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
        claim.narrow(options, catalog, cluster);
        self.take(held, claim);
        Ok(())
    }

    /// Of the options of a packed node the ones that it keeps: those of one reservation of which something is left, the cheapest, and what is not
    /// reserved. Returns that reservation; none at all where the packing counts on reserved capacity and nothing is left, or pods are to wait.
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

    /// Has a new node hold a machine of each of some reservations.
    pub(super) fn take(&mut self, held: Vec<Symbol>, claim: &mut Claim) {
        for id in &held {
            if let Some(left) = self.left.get_mut(id) {
                *left = left.saturating_sub(1);
            }
        }
        claim.held = held;
    }

    /// Gives back what a node holds of reservations that it can no longer run in.
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
    /// Whether it would lose all reserved capacity from its options, which it keeps: another node for the pod costs less than what is paid for anyway.
    pub(super) fn loses_reserved(&self, options: &FixedBitSet, catalog: &Catalog) -> bool {
        !self.held.is_empty() && catalog.ids(options).is_empty()
    }

    /// The options that it lists: reserved capacity alone where it holds some, since it is paid for anyway.
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
    /// The reservations that some options draw on, the cheapest first.
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

    /// The same in words, in order.
    pub(super) fn ids_of(&self, options: &FixedBitSet, cluster: &Cluster) -> Arc<[String]> {
        let ids = self.ids(options).into_iter();
        let mut ids: Vec<String> = ids.map(|id| cluster.text(id).to_owned()).collect();
        ids.sort();
        ids.into()
    }
}

impl Solver<'_> {
    /// Packs pods as if reservations had no end, and packs those anew for which they had one, with other capacity, if pods do not wait for such. Gives
    /// the pods that are not packed, and what nodes for all of them cost at least where that is known.
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
        while !rest.is_empty() && self.hide_what_is_held() {
            // It takes reserved machines for as many as are wanted.
            bound = None;
            rest = self.pack(&rest, nodes, existing).0;
        }
        for (catalog, available) in self.catalogs.iter_mut().zip(available) {
            catalog.available = available;
        }
        (rest, bound)
    }

    /// Has nothing packed for reservations all of whose machines are held. `false` if there are no such that were not hidden before.
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

    /// Takes out of pods without a place those that wait for reserved capacity.
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
