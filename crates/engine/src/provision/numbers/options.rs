//! What can be bought for the classes: options that hold some of them.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::forms::Forms;
use super::{PODS, dimensions_of, how_many, load};
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::provision::catalog::Catalog;
use crate::provision::pack::{Load, Offer};

impl Offer {
    /// Whether it does all that another one does. It is not dearer: offers are looked at from the cheapest on.
    pub(super) fn does_for(&self, other: &Offer) -> bool {
        let limited =
            self.pool != other.pool || self.takes.iter().zip(&other.takes).any(|(a, b)| a > b);
        let counts = self.takes.iter().any(|takes| *takes != 0);
        !(limited && counts)
            && self.room.iter().zip(&other.room).all(|(a, b)| a >= b)
            && other.fits.is_subset(&self.fits)
            && other.opens.is_subset(&self.opens)
    }
}

/// Options of the catalogs that hold some class.
pub(super) struct Options {
    pub(super) classes: Vec<PodClassId>,
    /// By catalog: option, its room, and which of the classes it holds.
    pub(super) rows: Vec<Vec<(usize, Load, FixedBitSet)>>,
    /// The highest weight of a pool that can take the class.
    weights: FxHashMap<PodClassId, i32>,
}

impl Options {
    pub(super) fn of(
        forms: &[(PodClassId, u32, Forms)],
        catalogs: &mut [Catalog],
        cluster: &mut Cluster,
        dimensions: &[Symbol],
    ) -> Self {
        let classes: Vec<PodClassId> = forms.iter().map(|form| form.0).collect();
        let mut rows = Vec::with_capacity(catalogs.len());
        let mut weights: FxHashMap<PodClassId, i32> = FxHashMap::default();
        for catalog in catalogs.iter_mut() {
            let fits: Vec<FixedBitSet> = classes
                .iter()
                .map(|class| catalog.verdicts(*class, cluster).fits.clone())
                .collect();
            let requests: Vec<Load> = classes
                .iter()
                .map(|class| {
                    let mut request = load(&cluster.class(*class).shape.requests.real, dimensions)
                        .unwrap_or_default();
                    request[PODS] += 1;
                    request
                })
                .collect();
            let rooms: Vec<Load> = catalog
                .rooms
                .iter()
                .map(|room| dimensions_of(&room.free, dimensions))
                .collect();
            // Which classes a room holds, alone: asked once for a room.
            let holds: Vec<FixedBitSet> = rooms
                .iter()
                .map(|room| {
                    (0..classes.len())
                        .filter(|class| requests[*class].iter().zip(room).all(|(a, b)| a <= b))
                        .collect()
                })
                .collect();
            let mut own: Vec<(usize, Load, FixedBitSet)> = Vec::new();
            for option in catalog.available.ones() {
                let room = catalog.options[option].room;
                let mut held = FixedBitSet::with_capacity(classes.len());
                held.extend(
                    holds[room]
                        .ones()
                        .filter(|class| fits[*class].contains(option)),
                );
                if !held.is_clear() {
                    own.push((option, rooms[room], held));
                }
            }
            if catalog.wants_choice() {
                own = catalog.with_choice(own, cluster);
            }
            for (_, _, held) in &own {
                for class in held.ones() {
                    let weight = weights.entry(classes[class]).or_insert(catalog.weight);
                    *weight = (*weight).max(catalog.weight);
                }
            }
            rows.push(own);
        }
        Options {
            classes,
            rows,
            weights,
        }
    }

    pub(super) fn may_open(&self, class: PodClassId, catalog: usize, catalogs: &[Catalog]) -> bool {
        self.weights.get(&class) == Some(&catalogs[catalog].weight)
    }

    /// How many pods of a class the largest option holds.
    pub(super) fn most_together(
        &self,
        class: PodClassId,
        request: &Load,
        zone: Option<Symbol>,
        catalogs: &[Catalog],
    ) -> u32 {
        let Some(index) = self.classes.iter().position(|own| *own == class) else {
            return 0;
        };
        let mut most = 0;
        for (catalog, rows) in self.rows.iter().enumerate() {
            for (option, room, _) in rows.iter().filter(|row| row.2.contains(index)) {
                let own = catalogs[catalog].options[*option]
                    .labels
                    .value(Symbol::ZONE);
                if zone.is_none_or(|zone| own == Some(zone))
                    && self.may_open(class, catalog, catalogs)
                {
                    most = most.max(how_many(request, room));
                }
            }
        }
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// For each zone the least that a pod of a class costs there, where it can be bought at all.
    pub(super) fn prices_by_zone(
        &self,
        class: PodClassId,
        catalogs: &[Catalog],
        request: &Load,
    ) -> BTreeMap<Symbol, u64> {
        let mut prices: BTreeMap<Symbol, u64> = BTreeMap::new();
        let Some(index) = self.classes.iter().position(|own| *own == class) else {
            return prices;
        };
        for (catalog, rows) in self.rows.iter().enumerate() {
            if !self.may_open(class, catalog, catalogs) {
                continue;
            }
            for (option, room, _) in rows.iter().filter(|row| row.2.contains(index)) {
                let choice = &catalogs[catalog].options[*option];
                let Some(zone) = choice.labels.value(Symbol::ZONE) else {
                    continue;
                };
                let count = how_many(request, room).max(1);
                let each = choice.price_micro_usd / count as u64;
                let known = prices.entry(zone).or_insert(each);
                *known = (*known).min(each);
            }
        }
        prices
    }
}
