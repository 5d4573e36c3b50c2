//! The question in numbers: pending classes as items, options of pools as offers, the scheduler's rules as data.
//!
//! A class is packed if its rules have a numeric form: rules that forbid or limit company on a node, and spreading
//! over zones by the class's own pods, which becomes a share for each zone. The others are placed pod by pod. The
//! numbers only choose: the choice is carried out with the scheduler's filters, and what those refuse is planned pod
//! by pod too.

mod forms;
mod free;
mod groups;
mod options;
mod zone_relaxation;
mod zones;

use fixedbitset::FixedBitSet;
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::class::PodClassId;
use crate::cluster::{Cluster, NodeId};
use crate::intern::Symbol;
use crate::resources::Amounts;

use super::catalog::Catalog;
use super::pack::{Bin, DIMENSIONS, Item, Load, Offer, Packed, Problem, Rule, within};
use forms::{Forms, Zones, all_forms};
use free::{FreeNode, free_by_zone, free_nodes};
use options::Options;
use zone_relaxation::ZoneRelaxation;
use zones::{dealt, zones_of};

/// Resources that every node has.
const NATIVE: [Symbol; 4] = [
    Symbol::CPU,
    Symbol::MEMORY,
    Symbol::PODS,
    Symbol::EPHEMERAL_STORAGE,
];

/// The place of pods among them.
const PODS: usize = 2;

/// A packing problem, and what its items and offers stand for.
#[derive(Default)]
pub(super) struct Numbers {
    pub(super) problem: Problem,
    /// The pods that each item stands for.
    pub(super) items: Vec<Part>,
    /// Catalog and option of each offer.
    pub(super) offers: Vec<(usize, usize)>,
    /// The nodes that are there.
    pub(super) nodes: Vec<NodeId>,
    /// The problem for a lower bound of the price, without the zones that the packing chose for pods.
    zone_relaxation: Option<ZoneRelaxation>,
    /// The kinds of items: items of one kind are admitted by the same options and are to be in the same zone.
    kinds: FxHashMap<(usize, Option<Symbol>), usize>,
}

/// Pods of a class that are one item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) class: PodClassId,
    /// The zone in which they are to be, if the class's rules are about zones.
    pub(super) zone: Option<Symbol>,
    /// The number of pods that one item stands for: more than one if they must share a node.
    pub(super) pods: u32,
    /// Classes of one group count for each other's zones.
    pub(super) group: Option<usize>,
}

/// What to compute besides the packing.
#[derive(Clone, Copy)]
pub(super) struct NumbersConfig {
    /// Whether to compute a lower bound on the price of every plan: see [`Numbers::bound`].
    pub(super) bound: bool,
    /// Whether to respect spreading over zones that is only preferred.
    pub(super) preferences: bool,
}

impl Numbers {
    /// Converts the pending classes, with their numbers of pods, into numbers; classes without a numeric form are
    /// left out.
    pub(super) fn of(
        pending: &[(PodClassId, u32)],
        nodes: &[NodeId],
        catalogs: &mut [Catalog],
        cluster: &mut Cluster,
        config: NumbersConfig,
    ) -> Self {
        for (class, _) in pending {
            cluster.prepare(*class);
        }
        let mut forms = all_forms(pending, config.preferences, cluster);
        let dimensions = dimensions(&forms, cluster);
        // A class that asks for a resource beyond the dimensions cannot be packed, because its room would not be
        // checked.
        forms.retain(|(class, ..)| {
            load(&cluster.class(*class).shape.requests.real, &dimensions).is_some()
        });
        // Too many limited resources: without all of them a packing could exceed a limit, so nothing is packed.
        let Some(limits) = limit_names(catalogs) else {
            return Numbers::default();
        };
        let mut numbers = Numbers::default();
        let options = Options::of(&forms, catalogs, cluster, &dimensions, &limits);
        let free = free_nodes(nodes, &forms, cluster, &dimensions);
        let dealt = dealt(&forms, &options, &free, catalogs, cluster, &dimensions);
        for (class, count, form) in &forms {
            let request = request_of(*class, cluster, &dimensions);
            let own = (*class, request, form);
            match (form.zones, form.group) {
                (_, Some(_)) => {
                    for (zone, demand) in dealt.get(class).into_iter().flatten() {
                        numbers.add_item(own, (Some(*zone), *demand), &options, catalogs);
                    }
                }
                (Zones::Any, None) => {
                    numbers.add_item(own, (None, *count), &options, catalogs);
                }
                _ => {
                    let prices = match form.zones {
                        // A zone that is full sends them to others, whatever pools sell there.
                        Zones::Spread(_) | Zones::Apart => {
                            options.ranks_by_zone(*class, catalogs, &request)
                        }
                        _ => options.prices_by_zone(*class, catalogs, &request),
                    };
                    let free = free_by_zone(*class, form, &request, &free);
                    for (zone, demand) in zones_of((*class, *count, form), &prices, &free, cluster)
                    {
                        numbers.add_item(own, (Some(zone), demand), &options, catalogs);
                    }
                }
            }
        }
        add_rules(&forms, &numbers.items, &mut numbers.problem);
        numbers.problem.limits = catalogs
            .iter()
            .map(|catalog| catalog.limits.left(&limits))
            .collect();
        numbers.add_offers(&options, catalogs);
        // If no zone was chosen and no pods are tied together, the packing's own bound holds for every plan.
        let is_free = |part: &Part| part.zone.is_none() && part.pods == 1;
        if config.bound && !numbers.items.iter().all(is_free) {
            numbers.zone_relaxation = Some(ZoneRelaxation::of(
                &forms,
                &options,
                catalogs,
                cluster,
                &dimensions,
            ));
        }
        // After the relaxation: a bound is for machines to buy, and nodes at price 0 are no part of it.
        numbers.add_nodes(free);
        numbers.problem.prepare();
        numbers
    }

    /// Adds `demand` pods of a class as an item, in a zone or anywhere.
    fn add_item(
        &mut self,
        (class, request, form): (PodClassId, Load, &Forms),
        (zone, demand): (Option<Symbol>, u32),
        options: &Options,
        catalogs: &[Catalog],
    ) {
        let mut part = Part {
            class,
            zone,
            pods: 1,
            group: form.group,
        };
        let next = self.kinds.len();
        let kind = self.kinds.entry((options.kind(class), zone));
        let mut item = Item {
            request,
            demand,
            kind: *kind.or_insert(next),
        };
        // Pods that must share a node are one large item; what the largest machine does not hold is left for
        // one-by-one placement.
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
    }

    fn add_offers(&mut self, options: &Options, catalogs: &[Catalog]) {
        for (row, offer) in options.offers(&self.items, &self.problem.items, catalogs) {
            self.problem.offers.push(offer);
            self.offers.push((row.catalog, row.option));
        }
    }

    /// Returns a lower bound for the price of every plan for these pods, in micro-dollars per hour.
    pub(super) fn bound(&self, packed: &Packed) -> u64 {
        match &self.zone_relaxation {
            None => packed.packing.bound,
            Some(zone_relaxation) => {
                let values = self
                    .items
                    .iter()
                    .copied()
                    .zip(packed.values.iter().copied());
                zone_relaxation.least(&values.collect::<Vec<_>>())
            }
        }
    }

    /// Returns the existing node that a bin stands for; `None` if it is a machine to buy.
    pub(super) fn node(&self, bin: &Bin) -> Option<NodeId> {
        // Existing nodes are numbered behind the offers.
        let node = bin.offer.checked_sub(self.problem.offers.len())?;
        Some(self.nodes[node])
    }

    /// Adds nodes with room for some item.
    fn add_nodes(&mut self, nodes: Vec<FreeNode>) {
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

/// Adds the rules about company on one node to the problem.
fn add_rules(forms: &[(PodClassId, u32, Forms)], parts: &[Part], problem: &mut Problem) {
    let mut items: FxHashMap<PodClassId, Vec<usize>> = FxHashMap::default();
    for (item, part) in parts.iter().enumerate() {
        items.entry(part.class).or_default().push(item);
    }
    let of = |classes: &[PodClassId]| -> Vec<usize> {
        let items = classes.iter().filter_map(|class| items.get(class));
        items.flatten().copied().collect()
    };
    // Classes for which the same is true of the same others have one rule.
    let mut rules: IndexMap<(&[PodClassId], u32), Vec<PodClassId>, FxBuildHasher> =
        IndexMap::default();
    for (.., form) in forms {
        for (subject, members, most) in &form.rules {
            let subjects = rules.entry((&members[..], *most)).or_default();
            subjects.push(*subject);
        }
    }
    for ((members, most), subjects) in rules {
        problem.rules.push(Rule {
            subjects: of(&subjects),
            members: of(members),
            most,
        });
    }
}

/// Returns what a pod of a class takes of a node, including its place among the node's pods.
fn request_of(class: PodClassId, cluster: &Cluster, dimensions: &[Symbol]) -> Load {
    let real = &cluster.class(class).shape.requests.real;
    let mut request = load(real, dimensions).unwrap_or_default();
    request[PODS] += 1;
    request
}

/// Returns how many pods a room holds.
fn how_many(request: &Load, room: &Load) -> i64 {
    let counts = request.iter().zip(room).filter(|(asked, _)| **asked > 0);
    counts.map(|(asked, room)| room / asked).min().unwrap_or(0)
}

/// Returns the resources that are counted: the native ones, then as many others as there is space for.
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

/// Returns amounts in the order of the dimensions; `None` if a resource is not among them.
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

/// Returns the resources that pools limit; `None` if there are more than dimensions.
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
