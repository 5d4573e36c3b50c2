//! The question in numbers: pending classes as items, options of pools as offers, the scheduler's rules as data.
//!
//! A class whose rules can be said in numbers is packed: those that forbid or limit company on a node, and spreading over zones by the class's
//! own pods, which becomes a share for each zone. The others are placed pod by pod. Numbers only choose: what they say is carried out with the
//! scheduler's filters, and what those refuse is planned pod by pod too.

mod forms;
mod free;
mod options;
mod zones;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::pack::{Bin, DIMENSIONS, Item, Load, Offer, Problem, Rule, within};
use forms::{Company, Forms, Zones, forms_of};
use free::{Free, free_by_zone, free_nodes};
use options::Options;
use zones::{alone_in, shares};

/// Resources that every node has.
const NATIVE: [Symbol; 4] = [
    Symbol::CPU,
    Symbol::MEMORY,
    Symbol::PODS,
    Symbol::EPHEMERAL_STORAGE,
];

/// The place of pods among them.
const PODS: usize = 2;

/// A problem, and what its numbers stand for.
#[derive(Default)]
pub(super) struct Numbers {
    pub(super) problem: Problem,
    /// What the items are.
    pub(super) items: Vec<Part>,
    /// Catalog and option of each offer.
    pub(super) offers: Vec<(usize, usize)>,
    /// The nodes that are there.
    pub(super) nodes: Vec<NodeId>,
    /// The question without the zones that were chosen for pods, where some were.
    loose: Option<Problem>,
    /// Kinds of items: classes of one kind that are to be in one zone.
    kinds: FxHashMap<(usize, Option<Symbol>), usize>,
}

/// Pods of a class that are one item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) class: PodClassId,
    /// The zone they are to be in, where the class's rules are about zones.
    pub(super) zone: Option<Symbol>,
    /// So many pods that must be on one node are one of the item.
    pub(super) pods: u32,
}

impl Numbers {
    /// Of the pending classes, with how many pods each, those that can be packed.
    pub(super) fn of(
        pending: &[(PodClassId, u32)],
        nodes: &[NodeId],
        catalogs: &mut [Catalog],
        cluster: &mut Cluster,
    ) -> Self {
        for (class, _) in pending {
            cluster.prepare(*class);
        }
        let company = Company::of(pending, cluster);
        let mut forms: Vec<(PodClassId, u32, Forms)> = Vec::new();
        for (class, count) in pending {
            if let Some(form) = forms_of(*class, &company, cluster) {
                forms.push((*class, *count, form));
            }
        }
        let dimensions = dimensions(&forms, cluster);
        forms.retain(|(class, ..)| {
            load(&cluster.class(*class).shape.requests.real, &dimensions).is_some()
        });
        let Some(limits) = limit_names(catalogs) else {
            return Numbers::default();
        };
        let mut numbers = Numbers::default();
        let options = Options::of(&forms, catalogs, cluster, &dimensions, &limits);
        let free = free_nodes(nodes, &forms, cluster, &dimensions);
        for (class, count, form) in &forms {
            numbers.add_items(
                (*class, *count, form),
                &options,
                &free,
                catalogs,
                cluster,
                &dimensions,
            );
        }
        numbers.add_rules(&forms);
        numbers.problem.limits = catalogs
            .iter()
            .map(|catalog| catalog.limits.left(&limits))
            .collect();
        numbers.add_offers(&options, catalogs);
        numbers.add_nodes(free);
        numbers.problem.prepare();
        numbers
    }

    fn add_items(
        &mut self,
        (class, count, form): (PodClassId, u32, &Forms),
        options: &Options,
        nodes: &[Free],
        catalogs: &[Catalog],
        cluster: &Cluster,
        dimensions: &[Symbol],
    ) {
        let real = &cluster.class(class).shape.requests.real;
        let mut request = load(real, dimensions).unwrap_or_default();
        request[PODS] += 1;
        let mut add = |zone: Option<Symbol>, demand: u32| {
            let mut part = Part {
                class,
                zone,
                pods: 1,
            };
            let next = self.kinds.len();
            let kind = self
                .kinds
                .entry((options.kind(class), zone))
                .or_insert(next);
            let mut item = Item {
                request,
                demand,
                kind: *kind,
            };
            if form.is_unit {
                part.pods = options
                    .most_together(class, &request, zone, catalogs)
                    .min(demand)
                    .max(1);
                item.request = request.map(|amount| amount * i64::from(part.pods));
                item.demand = 1;
            }
            self.problem.items.push(item);
            self.items.push(part);
        };
        if form.zones == Zones::Any {
            add(None, count);
            return;
        }
        let prices = options.prices_by_zone(class, catalogs, &request);
        let free = free_by_zone(class, form, &request, nodes);
        let view = cluster.view(class);
        match form.zones {
            Zones::Any => {}
            Zones::Spread(index) | Zones::Prefer(index) => {
                let is_hard = matches!(form.zones, Zones::Spread(_));
                let counts = if is_hard {
                    &view.hard[index]
                } else {
                    &view.soft[index]
                };
                for (zone, demand) in shares(counts, count, &prices, &free, cluster) {
                    add(Some(zone), demand);
                }
            }
            Zones::One(spread) => {
                let there = |zone: &Symbol| {
                    view.affinity.is_empty() || view.affinity.count(Symbol::ZONE, *zone) > 0
                };
                let open = prices.iter().filter(|(zone, _)| there(zone));
                if let Some((zone, _)) = open.min_by_key(|(zone, price)| {
                    (!free.contains_key(zone), **price, cluster.text(**zone))
                }) {
                    let most = spread.map_or(i64::MAX, |index| {
                        alone_in(&view.hard[index], *zone, &prices)
                    });
                    add(
                        Some(*zone),
                        count.min(u32::try_from(most).unwrap_or(u32::MAX)),
                    );
                }
            }
            Zones::Apart => {
                let taken = |zone: Symbol| {
                    view.anti.count(Symbol::ZONE, zone)
                        + view.existing_anti.count(Symbol::ZONE, zone)
                        > 0
                };
                let mut zones: Vec<(u64, Symbol)> = prices
                    .iter()
                    .map(|(zone, price)| (*price, *zone))
                    .filter(|(_, zone)| !taken(*zone))
                    .collect();
                zones.sort_unstable_by_key(|(price, zone)| {
                    (!free.contains_key(zone), *price, cluster.text(*zone))
                });
                for (_, zone) in zones.into_iter().take(count as usize) {
                    add(Some(zone), 1);
                }
            }
        }
    }

    fn add_rules(&mut self, forms: &[(PodClassId, u32, Forms)]) {
        let mut items: FxHashMap<PodClassId, Vec<usize>> = FxHashMap::default();
        for (item, part) in self.items.iter().enumerate() {
            items.entry(part.class).or_default().push(item);
        }
        let of = |class: &PodClassId| items.get(class).cloned().unwrap_or_default();
        for (.., form) in forms {
            for (subject, members, most) in &form.rules {
                let members: Vec<usize> = members.iter().flat_map(of).collect();
                for subject in of(subject) {
                    self.problem.rules.push(Rule {
                        subject,
                        members: members.clone(),
                        most: *most,
                    });
                }
            }
        }
    }

    fn add_offers(&mut self, options: &Options, catalogs: &[Catalog]) {
        for (row, offer) in options.offers(&self.items, &self.problem.items, catalogs) {
            self.problem.offers.push(offer);
            self.offers.push((row.catalog, row.option));
        }
        let is_free = |part: &Part| part.zone.is_none() && part.pods == 1;
        if !self.items.iter().all(is_free) {
            self.loose = Some(self.without_places(options, catalogs));
        }
    }

    /// The same question as if every pod could go anywhere, alone or not: what that costs at least, this does too.
    fn without_places(&self, options: &Options, catalogs: &[Catalog]) -> Problem {
        let mut parts: Vec<Part> = Vec::new();
        let mut loose = Problem::default();
        loose.limits.clone_from(&self.problem.limits);
        let mut known: FxHashMap<PodClassId, usize> = FxHashMap::default();
        for (part, item) in self.items.iter().zip(&self.problem.items) {
            let each = i64::from(part.pods);
            let index = *known.entry(part.class).or_insert_with(|| {
                parts.push(Part {
                    zone: None,
                    pods: 1,
                    ..*part
                });
                loose.items.push(Item {
                    request: item.request.map(|amount| amount / each),
                    demand: 0,
                    kind: options.kind(part.class),
                });
                parts.len() - 1
            });
            loose.items[index].demand += item.demand * part.pods;
        }
        let offers = options.offers(&parts, &loose.items, catalogs);
        loose.offers = offers.into_iter().map(|(_, offer)| offer).collect();
        loose
    }

    /// No way to buy for these pods costs less than this: micro-dollars an hour. `packed` is the bound of the packing.
    pub(super) fn bound(&self, packed: u64) -> u64 {
        match &self.loose {
            None => packed.max(self.problem.least_price()),
            Some(loose) => loose.least_price(),
        }
    }

    /// The node that a bin is, if it is there already.
    pub(super) fn node(&self, bin: &Bin) -> Option<NodeId> {
        let node = bin.offer.checked_sub(self.problem.offers.len())?;
        Some(self.nodes[node])
    }

    /// Adds nodes with room for some item.
    fn add_nodes(&mut self, nodes: Vec<Free>) {
        for free in nodes {
            let mut fits = FixedBitSet::with_capacity(self.items.len());
            for (index, part) in self.items.iter().enumerate() {
                let request = &self.problem.items[index].request;
                let is_near = part.zone.is_none_or(|own| Some(own) == free.zone);
                let is_open = is_near && free.open.contains(&part.class);
                fits.set(index, is_open && within(request, &free.room));
            }
            if fits.is_clear() {
                continue;
            }
            self.nodes.push(free.node);
            self.problem.nodes.push(Offer {
                price: 0,
                room: free.room,
                opens: fits.clone(),
                fits,
                pool: 0,
                takes: Load::default(),
            });
        }
    }
}

/// How many pods a room holds.
fn how_many(request: &Load, room: &Load) -> i64 {
    let counts = request.iter().zip(room).filter(|(asked, _)| **asked > 0);
    counts.map(|(asked, room)| room / asked).min().unwrap_or(0)
}

/// The resources of the classes: the native ones, then as many others as there is space for.
fn dimensions(forms: &[(PodClassId, u32, Forms)], cluster: &Cluster) -> Vec<Symbol> {
    let mut names: Vec<Symbol> = NATIVE.to_vec();
    for (class, ..) in forms {
        for (name, _) in cluster.class(*class).shape.requests.real.iter() {
            if !names.contains(&name) && names.len() < DIMENSIONS {
                names.push(name);
            }
        }
    }
    names
}

/// Amounts in the order of the dimensions; none if there is more than they say.
fn load(amounts: &Amounts, dimensions: &[Symbol]) -> Option<Load> {
    let known = amounts.iter().all(|(name, _)| dimensions.contains(&name));
    known.then(|| dimensions_of(amounts, dimensions))
}

fn dimensions_of(amounts: &Amounts, dimensions: &[Symbol]) -> Load {
    let mut load = Load::default();
    for (place, name) in load.iter_mut().zip(dimensions) {
        *place = amounts.amount(*name);
    }
    load
}

/// The resources that pools limit; none if there are too many.
fn limit_names(catalogs: &[Catalog]) -> Option<Vec<String>> {
    let mut names: Vec<String> = catalogs
        .iter()
        .flat_map(|catalog| catalog.limits.names())
        .cloned()
        .collect();
    names.sort();
    names.dedup();
    (names.len() <= DIMENSIONS).then_some(names)
}
