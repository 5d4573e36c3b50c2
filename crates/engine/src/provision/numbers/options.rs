//! What can be bought for the classes: options that hold some of them.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::forms::Forms;
use super::{PODS, Part, dimensions_of, how_many, load};
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::provision::catalog::Catalog;
use crate::provision::pack::{Item, Load, Offer, within};

/// Prices above this, in micro-dollars an hour, count as equal where zones are ordered by the weights of pools first.
const MOST_PRICE: u64 = 1 << 40;

/// An option of a catalog, in numbers.
pub(super) struct Row {
    pub(super) catalog: usize,
    /// Its index among the catalog's options.
    pub(super) option: usize,
    /// Micro-dollars an hour.
    pub(super) price: u64,
    pub(super) zone: Option<Symbol>,
    pub(super) room: Load,
    /// Kinds of pods that it admits and of which it holds some.
    pub(super) kinds: FixedBitSet,
    /// The amounts of the pool's limits that it uses up.
    pub(super) takes: Load,
}

impl Row {
    /// Returns whether this option makes a later one useless: it costs no more, because rows are sorted by price, and
    /// holds and admits as much.
    fn does_for(&self, other: &Row) -> bool {
        self.catalog == other.catalog
            && self.zone == other.zone
            && self.takes.iter().zip(&other.takes).all(|(a, b)| a <= b)
            && within(&other.room, &self.room)
            && other.kinds.is_subset(&self.kinds)
    }
}

/// Options of the catalogs that hold some class, without those that another one of the same pool and zone makes useless.
pub(super) struct Options {
    /// The cheapest first.
    pub(super) rows: Vec<Row>,
    /// Classes of one kind are admitted by the same options.
    kinds: FxHashMap<PodClassId, usize>,
    /// The highest weight of a pool that can take the class.
    weights: FxHashMap<PodClassId, i32>,
    /// The highest weight of a pool that can take the class in a zone, if pools differ in weight.
    zonal_weights: FxHashMap<(PodClassId, Symbol), i32>,
}

impl Options {
    pub(super) fn of(
        forms: &[(PodClassId, u32, Forms)],
        catalogs: &mut [Catalog],
        cluster: &mut Cluster,
        dimensions: &[Symbol],
        limits: &[String],
    ) -> Self {
        let mut known: FxHashMap<Vec<usize>, usize> = FxHashMap::default();
        let mut kinds: FxHashMap<PodClassId, usize> = FxHashMap::default();
        // For each kind a class of it, and the smallest requests among its classes: a room that holds none of these
        // holds none of the kind.
        let mut leads: Vec<PodClassId> = Vec::new();
        let mut least: Vec<Vec<Load>> = Vec::new();
        let mut requests: Vec<Load> = Vec::with_capacity(forms.len());
        for (class, ..) in forms {
            let of_catalogs = catalogs.iter_mut().map(|own| own.kind(*class, cluster));
            let kind = *known.entry(of_catalogs.collect()).or_insert_with(|| {
                leads.push(*class);
                least.push(Vec::new());
                leads.len() - 1
            });
            kinds.insert(*class, kind);
            let mut request =
                load(&cluster.class(*class).shape.requests.real, dimensions).unwrap_or_default();
            request[PODS] += 1;
            requests.push(request);
            // Only requests that no smaller one makes superfluous are kept, so that each room is compared with few.
            if !least[kind].iter().any(|other| within(other, &request)) {
                least[kind].retain(|other| !within(&request, other));
                least[kind].push(request);
            }
        }
        let mut all: Vec<Row> = Vec::new();
        for (index, catalog) in catalogs.iter_mut().enumerate() {
            all.extend(rows_of(
                (index, catalog),
                (&leads, &least),
                cluster,
                dimensions,
                limits,
            ));
        }
        // The key is unique, and pool and option break ties of price, so an unstable sort gives one order.
        all.sort_unstable_by_key(|row| (row.price, row.catalog, row.option));
        let mut rows: Vec<Row> = Vec::new();
        for row in all {
            if !rows.iter().any(|kept| kept.does_for(&row)) {
                rows.push(row);
            }
        }
        let mut weights: FxHashMap<PodClassId, i32> = FxHashMap::default();
        let mut zonal_weights: FxHashMap<(PodClassId, Symbol), i32> = FxHashMap::default();
        let top = catalogs.iter().map(|catalog| catalog.weight).max();
        let is_even = catalogs.iter().all(|catalog| Some(catalog.weight) == top);
        // A machine may be opened only for pods that no pool of higher weight can take; pods of others may join it.
        for ((class, ..), request) in forms.iter().zip(&requests) {
            let kind = kinds[class];
            let mut highest = None;
            for row in &rows {
                let weight = Some(catalogs[row.catalog].weight);
                let is_higher = weight > highest && row.kinds.contains(kind);
                if is_higher && within(request, &row.room) {
                    highest = weight;
                    if weight == top {
                        break;
                    }
                }
            }
            weights.extend(highest.map(|weight| (*class, weight)));
            if is_even {
                continue;
            }
            for row in &rows {
                if let Some(zone) = row.zone
                    && row.kinds.contains(kind)
                    && within(request, &row.room)
                {
                    let weight = catalogs[row.catalog].weight;
                    let highest = zonal_weights.entry((*class, zone)).or_insert(weight);
                    *highest = weight.max(*highest);
                }
            }
        }
        Options {
            rows,
            kinds,
            weights,
            zonal_weights,
        }
    }

    /// Returns whether a machine of a catalog may be bought for pods of a class, in a zone if their rules send them there.
    pub(super) fn may_open(
        &self,
        (class, zone): (PodClassId, Option<Symbol>),
        catalog: usize,
        catalogs: &[Catalog],
    ) -> bool {
        // A pool of higher weight that sells nothing in that zone cannot take them.
        let zonal = zone.and_then(|zone| self.zonal_weights.get(&(class, zone)));
        let highest = zonal.or_else(|| self.weights.get(&class));
        highest == Some(&catalogs[catalog].weight)
    }

    /// Returns the kind of a class.
    pub(super) fn kind(&self, class: PodClassId) -> usize {
        self.kinds[&class]
    }

    /// Returns what can be bought for items, cheapest first, without offers that another one makes useless for them.
    pub(super) fn offers(
        &self,
        parts: &[Part],
        items: &[Item],
        catalogs: &[Catalog],
    ) -> Vec<(&Row, Offer)> {
        let mut sieve = Sieve::of(self, parts, items);
        let mut offers: Vec<(&Row, Offer)> = Vec::new();
        for row in &self.rows {
            let fits = sieve.fitting(row);
            let mut opens = fits.clone();
            opens.intersect_with(sieve.opening(row.catalog, catalogs));
            // Nothing is bought for pods that may only join.
            if opens.is_clear() {
                continue;
            }
            let offer = Offer {
                // The packing divides by prices, and a free machine would be bought without end.
                price: row.price.max(1),
                room: row.room,
                fits,
                opens,
                pool: row.catalog,
                takes: row.takes,
            };
            if !offers.iter().any(|(_, other)| other.does_for(&offer)) {
                offers.push((row, offer));
            }
        }
        offers
    }

    /// Returns the zones of options that admit and hold pods of a class, in the order of their prices.
    pub(super) fn zones(&self, class: PodClassId, request: &Load) -> Vec<Symbol> {
        let kind = self.kind(class);
        let mut zones = Vec::new();
        for row in &self.rows {
            let Some(zone) = row.zone else { continue };
            let holds = row.kinds.contains(kind) && within(request, &row.room);
            if holds && !zones.contains(&zone) {
                zones.push(zone);
            }
        }
        zones
    }

    /// Returns the options that a class may open, with how many pods of this size each holds.
    fn opened<'a>(
        &'a self,
        class: PodClassId,
        request: &'a Load,
        catalogs: &'a [Catalog],
    ) -> impl Iterator<Item = (&'a Row, i64)> {
        let kind = self.kind(class);
        let admits = move |row: &&Row| {
            row.kinds.contains(kind) && self.may_open((class, None), row.catalog, catalogs)
        };
        let counted = self.rows.iter().filter(admits);
        counted
            .map(|row| (row, how_many(request, &row.room)))
            .filter(|(_, count)| *count > 0)
    }

    /// Returns how many pods of a class the largest option holds.
    pub(super) fn most_together(
        &self,
        class: PodClassId,
        request: &Load,
        zone: Option<Symbol>,
        catalogs: &[Catalog],
    ) -> u32 {
        let opened = self.opened(class, request, catalogs);
        let near = opened.filter(|(row, _)| zone.is_none_or(|zone| row.zone == Some(zone)));
        let most = near.map(|(_, count)| count).max().unwrap_or(0);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Returns for each zone that a pod of a class can be sent to what orders the zones: the least that the pod costs there, zones of
    /// pools of higher weight before all others.
    pub(super) fn ranks_by_zone(
        &self,
        class: PodClassId,
        catalogs: &[Catalog],
        request: &Load,
    ) -> BTreeMap<Symbol, u64> {
        let kind = self.kind(class);
        let top = self.weights.get(&class).copied().unwrap_or(0);
        let mut ranks: BTreeMap<Symbol, u64> = BTreeMap::new();
        for row in self.rows.iter().filter(|row| row.kinds.contains(kind)) {
            let count = how_many(request, &row.room);
            let Some(zone) = row.zone.filter(|_| count > 0) else {
                continue;
            };
            if self.may_open((class, Some(zone)), row.catalog, catalogs) {
                let below = i64::from(top) - i64::from(catalogs[row.catalog].weight);
                let each = (row.price / count as u64).min(MOST_PRICE);
                let rank = each.saturating_add(below.unsigned_abs().saturating_mul(MOST_PRICE));
                let known = ranks.entry(zone).or_insert(rank);
                *known = (*known).min(rank);
            }
        }
        ranks
    }

    /// Returns for each zone in which a pod of a class can be bought the least that it costs there.
    pub(super) fn prices_by_zone(
        &self,
        class: PodClassId,
        catalogs: &[Catalog],
        request: &Load,
    ) -> BTreeMap<Symbol, u64> {
        let mut prices: BTreeMap<Symbol, u64> = BTreeMap::new();
        for (row, count) in self.opened(class, request, catalogs) {
            let Some(zone) = row.zone else {
                continue;
            };
            let each = row.price / count as u64;
            let known = prices.entry(zone).or_insert(each);
            *known = (*known).min(each);
        }
        prices
    }
}

/// Finds the items that options hold, by sets of items each of which is worked out once: there are thousands of items and
/// hundreds of options, but few rooms of one resource.
struct Sieve<'a> {
    options: &'a Options,
    parts: &'a [Part],
    items: &'a [Item],
    /// The most of each resource that an item requests.
    most: Load,
    of_kind: FxHashMap<usize, KindItems>,
    /// The items that may be in a zone.
    of_zone: FxHashMap<Option<Symbol>, FixedBitSet>,
    /// The items that request no more than an amount, by resource and amount.
    within: FxHashMap<(usize, i64), FixedBitSet>,
    /// The items that may open a machine of a catalog.
    opening: FxHashMap<usize, FixedBitSet>,
}

/// The items of one kind.
struct KindItems {
    list: Vec<usize>,
    /// The same, if they are so many that a set is read faster.
    set: Option<FixedBitSet>,
}

impl<'a> Sieve<'a> {
    fn of(options: &'a Options, parts: &'a [Part], items: &'a [Item]) -> Self {
        let mut lists: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        for (item, part) in parts.iter().enumerate() {
            let kind = options.kind(part.class);
            lists.entry(kind).or_default().push(item);
        }
        let with_set = |(kind, list): (usize, Vec<usize>)| {
            let is_long = list.len() > items.len() / usize::BITS as usize;
            let set = is_long.then(|| set_of(items.len(), list.iter().copied()));
            (kind, KindItems { list, set })
        };
        let most = |dimension: usize| {
            let requests = items.iter().map(|item| item.request[dimension]);
            requests.max().unwrap_or(0)
        };
        Sieve {
            options,
            parts,
            items,
            most: std::array::from_fn(most),
            of_kind: lists.into_iter().map(with_set).collect(),
            of_zone: FxHashMap::default(),
            within: FxHashMap::default(),
            opening: FxHashMap::default(),
        }
    }

    /// Returns the items that an option admits and of which it holds a pod.
    fn fitting(&mut self, row: &Row) -> FixedBitSet {
        let (parts, items) = (self.parts, self.items);
        let mut fits = FixedBitSet::with_capacity(items.len());
        for own in row.kinds.ones().filter_map(|kind| self.of_kind.get(&kind)) {
            match &own.set {
                Some(set) => fits.union_with(set),
                None => fits.extend(own.list.iter().copied()),
            }
        }
        let near = self.of_zone.entry(row.zone).or_insert_with(|| {
            let is_near = |zone: Option<Symbol>| zone.is_none_or(|own| Some(own) == row.zone);
            let near = (0..items.len()).filter(|item| is_near(parts[*item].zone));
            set_of(items.len(), near)
        });
        fits.intersect_with(near);
        for (dimension, room) in row.room.iter().copied().enumerate() {
            if self.most[dimension] <= room {
                continue;
            }
            let within = self.within.entry((dimension, room)).or_insert_with(|| {
                let is_within = |item: &usize| items[*item].request[dimension] <= room;
                set_of(items.len(), (0..items.len()).filter(is_within))
            });
            fits.intersect_with(within);
        }
        fits
    }

    /// Returns the items for which a machine of a catalog may be bought.
    fn opening(&mut self, catalog: usize, catalogs: &[Catalog]) -> &FixedBitSet {
        let (options, parts) = (self.options, self.parts);
        self.opening.entry(catalog).or_insert_with(|| {
            let may_open = |item: &usize| {
                let part = &parts[*item];
                options.may_open((part.class, part.zone), catalog, catalogs)
            };
            set_of(parts.len(), (0..parts.len()).filter(may_open))
        })
    }
}

fn set_of(capacity: usize, items: impl Iterator<Item = usize>) -> FixedBitSet {
    let mut set = FixedBitSet::with_capacity(capacity);
    set.extend(items);
    set
}

/// Returns the options of a catalog that hold a class of some kind.
fn rows_of(
    (index, catalog): (usize, &mut Catalog),
    (leads, least): (&[PodClassId], &[Vec<Load>]),
    cluster: &Cluster,
    dimensions: &[Symbol],
    limits: &[String],
) -> Vec<Row> {
    let fits: Vec<FixedBitSet> = leads
        .iter()
        .map(|class| catalog.verdicts(*class, cluster).fits.clone())
        .collect();
    let rooms: Vec<Load> = catalog
        .rooms
        .iter()
        .map(|room| dimensions_of(&room.free, dimensions))
        .collect();
    // Which kinds a room holds: asked once for a room.
    let held: Vec<FixedBitSet> = rooms
        .iter()
        .map(|room| {
            let some = |kind: &usize| least[*kind].iter().any(|request| within(request, room));
            (0..leads.len()).filter(some).collect()
        })
        .collect();
    let mut own: Vec<(usize, Load, FixedBitSet)> = Vec::new();
    for option in catalog.available.ones() {
        let room = catalog.options[option].room;
        let mut kinds = FixedBitSet::with_capacity(leads.len());
        kinds.extend(
            held[room]
                .ones()
                .filter(|kind| fits[*kind].contains(option)),
        );
        if !kinds.is_clear() {
            own.push((option, rooms[room], kinds));
        }
    }
    // A machine that alone exceeds what is left can never be bought; how many of the others fit, the packing decides.
    if !catalog.limits.is_unlimited() {
        own.retain(|(option, ..)| {
            let capacity = &catalog.type_of(*option).capacity;
            catalog.limits.broken_by(capacity).is_none()
        });
    }
    if catalog.wants_choice() {
        own = catalog.with_choice(own, cluster);
    }
    let row = |(option, room, kinds): (usize, Load, FixedBitSet)| {
        let choice = &catalog.options[option];
        Row {
            catalog: index,
            option,
            price: catalog.price_of(option),
            zone: choice.labels.value(Symbol::ZONE),
            room,
            kinds,
            takes: catalog
                .limits
                .taken(&catalog.type_of(option).capacity, limits),
        }
    };
    own.into_iter().map(row).collect()
}
