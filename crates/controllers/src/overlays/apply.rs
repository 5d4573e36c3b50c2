//! Applies NodeOverlays to the machines of a pool.
//!
//! Invariant: of several overlays that change the price of one offering, or the amount of one resource of a type, the
//! first applies. A resource that the type has already is replaced, as in Karpenter (core:
//! `InstanceType.ApplyCapacityOverlay`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mullion_api::{karpenter::NodePool, labels};
use mullion_cloud::{Offer, Offering};
use mullion_engine::model::{ResourceMap, StringMap};

use super::Overlay;
use crate::provisioner::{
    discovered::HUGE_PAGES,
    market::{Market, node_labels},
};

/// The changes that overlays made to a market.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedOverlays {
    /// The types whose price was changed.
    priced: BTreeSet<Arc<str>>,
    /// The added or replaced resources, by type.
    added: BTreeMap<Arc<str>, ResourceMap>,
}

impl Market {
    /// Applies overlays to the machines of a pool. `overlays` are in the order in which they apply, without those in
    /// conflict.
    pub fn with_overlays(mut self, pool: &NodePool, overlays: &[Arc<Overlay>]) -> Self {
        if overlays.is_empty() {
            return self;
        }
        let mut offers = self.offers.to_vec();
        let mut changed = AppliedOverlays::default();
        for ((offer, labels), new) in self.seen_from(pool).zip(&mut offers) {
            self.overlay(offer, &labels, overlays, new, &mut changed);
        }
        self.offers = offers.into();
        self.changed = changed;
        self
    }

    /// Returns every type with the labels that its nodes have in a pool.
    pub(super) fn seen_from<'a>(
        &'a self,
        pool: &NodePool,
    ) -> impl Iterator<Item = (&'a Offer, StringMap)> {
        let mut of_pool = pool.spec.template.metadata.labels.clone();
        let name = pool.metadata.name.clone().unwrap_or_default();
        of_pool.insert(labels::NODEPOOL.to_owned(), name);
        let fixed = self.fixed_labels();
        self.offers.iter().map(move |offer| {
            let mut labels = of_pool.clone();
            labels.extend(node_labels(&offer.instance_type, &fixed));
            (offer, labels)
        })
    }

    fn overlay(
        &self,
        offer: &Offer,
        labels: &StringMap,
        overlays: &[Arc<Overlay>],
        new: &mut Offer,
        changed: &mut AppliedOverlays,
    ) {
        let name = &offer.instance_type.name;
        let sold: Vec<&Offering> = self.sold_here(offer).collect();
        let mut settled = 0;
        for overlay in overlays {
            let reach = overlay.reach(labels, &sold);
            if reach == 0 {
                continue;
            }
            if let Some(change) = overlay.price {
                let open = reach & !settled;
                let sold_now = sold.iter().enumerate();
                for (_, own) in sold_now.filter(|(at, _)| open & (1 << at) != 0) {
                    let same = |new: &&mut Offering| {
                        new.zone == own.zone && new.capacity_type == own.capacity_type
                    };
                    let new = new.offerings.iter_mut().filter(same);
                    new.for_each(|new| new.price = change.of(own.price));
                }
                // Only overlays with a price settle an offering: one that adds capacity leaves the price to
                // the next.
                settled |= reach;
                changed.priced.insert(Arc::clone(name));
            }
            if !overlay.capacity.is_empty() {
                let added = changed.added.entry(Arc::clone(name)).or_default();
                for (resource, amount) in &overlay.capacity {
                    added.entry(resource.clone()).or_insert(*amount);
                }
            }
        }
    }

    /// Returns whether overlays have changed the price, and the capacity, of one of these types.
    pub(crate) fn overlays<'a>(
        &self,
        types: impl Iterator<Item = &'a str> + Clone,
    ) -> (bool, bool) {
        let AppliedOverlays { priced, added } = &self.changed;
        (
            types.clone().any(|own| priced.contains(own)),
            types.clone().any(|own| added.contains_key(own)),
        )
    }

    /// Adds the resources that overlays set on a type to its `capacity` and `allocatable`. Huge pages reduce the
    /// allocatable memory.
    pub(crate) fn add_overlaid(
        &self,
        instance_type: &str,
        capacity: &mut ResourceMap,
        allocatable: &mut ResourceMap,
    ) {
        let Some(added) = self.changed.added.get(instance_type) else {
            return;
        };
        for (name, amount) in added {
            let before = capacity.insert(name.clone(), *amount).unwrap_or_default();
            allocatable.insert(name.clone(), *amount);
            // Huge pages that nodes of the type were seen to have are out of their memory already.
            let new = amount.saturating_sub(before).max(Default::default());
            if let Some(memory) = allocatable
                .get_mut(labels::MEMORY)
                .filter(|_| name.starts_with(HUGE_PAGES))
            {
                *memory = memory.saturating_sub(new).max(Default::default());
            }
        }
    }
}
