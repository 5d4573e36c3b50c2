//! Relaxes the packing problem for a lower bound on its price: each pod may be in any zone that its rules allow.
//!
//! The packing chose zones, and another choice may be as good, so a bound has to hold for all of them. Of a class
//! that is spread, each zone may have at most as many pods as the skew allows; a class that is together is in any one
//! zone; one that is apart has one pod in each.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::forms::{Forms, Zones};
use super::options::Options;
use super::{Part, add_rules, request_of};
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::provision::catalog::Catalog;
use crate::provision::pack::{Item, Problem, ZonalDemand};
use crate::topology::SpreadCounts;

/// The packing problem with an item for every zone that a pod could be in.
pub(super) struct ZoneRelaxation {
    parts: Vec<Part>,
    /// The demand of an item is the maximum number of its pods.
    problem: Problem,
    demands: Vec<ZonalDemand>,
}

impl ZoneRelaxation {
    pub(super) fn of(
        forms: &[(PodClassId, u32, Forms)],
        options: &Options,
        catalogs: &[Catalog],
        cluster: &Cluster,
        dimensions: &[Symbol],
    ) -> Self {
        let mut relaxation = ZoneRelaxation {
            parts: Vec::new(),
            problem: Problem::default(),
            demands: Vec::new(),
        };
        let mut kinds = FxHashMap::default();
        // For each group, how many pods it has.
        let mut pods: FxHashMap<usize, u32> = FxHashMap::default();
        for (_, count, form) in forms {
            if let Some(group) = form.group {
                *pods.entry(group).or_default() += count;
            }
        }
        // For each group that is kept together, the items that all of its pods are in each zone.
        let mut together: BTreeMap<usize, BTreeMap<Symbol, Vec<(usize, u32)>>> = BTreeMap::new();
        for (class, count, form) in forms {
            let request = request_of(*class, cluster, dimensions);
            let mut add = |zone: Option<Symbol>, most: u32| {
                let next = kinds.len();
                let kind = *kinds.entry((options.kind(*class), zone)).or_insert(next);
                relaxation.parts.push(Part {
                    class: *class,
                    zone,
                    pods: 1,
                    group: form.group,
                });
                relaxation.problem.items.push(Item {
                    request,
                    demand: most,
                    kind,
                });
                (relaxation.parts.len() - 1, most)
            };
            let view = cluster.view(*class);
            let zones = || options.zones(*class, &request);
            let demand = match form.zones {
                Zones::Any | Zones::Prefer(_) => {
                    ZonalDemand::Split(*count, vec![add(None, *count)])
                }
                Zones::Spread(index) => {
                    let counts = &view.hard[index];
                    let own = zones().into_iter();
                    let all = form.group.map_or(*count, |group| pods[&group]);
                    let own =
                        own.map(|zone| add(Some(zone), most_in(counts, zone, all).min(*count)));
                    ZonalDemand::Split(*count, own.collect())
                }
                // Members of a group choose the zone together, so their demand is added once, after all of them are
                // known.
                Zones::One(_) if form.group.is_some() => {
                    let group = together.entry(form.group.unwrap_or_default()).or_default();
                    for zone in zones() {
                        let own = add(Some(zone), *count);
                        group.entry(zone).or_default().push(own);
                    }
                    continue;
                }
                Zones::One(_) if view.affinity.is_empty() => {
                    let own = zones().into_iter();
                    ZonalDemand::OneOf(own.map(|zone| vec![add(Some(zone), *count)]).collect())
                }
                // Pods that are there already may be in several zones, and each new one may join any of them.
                Zones::One(_) => {
                    let own = zones().into_iter();
                    ZonalDemand::Split(*count, own.map(|zone| add(Some(zone), *count)).collect())
                }
                Zones::Apart => {
                    let own = zones().into_iter();
                    ZonalDemand::Split(*count, own.map(|zone| add(Some(zone), 1)).collect())
                }
            };
            relaxation.demands.push(demand);
        }
        for ways in together.into_values() {
            // A zone in which not every member of the group can be is no choice.
            let most = ways.values().map(Vec::len).max().unwrap_or(0);
            let ways = ways.into_values().filter(|way| way.len() == most);
            relaxation.demands.push(ZonalDemand::OneOf(ways.collect()));
        }
        add_rules(forms, &relaxation.parts, &mut relaxation.problem);
        let offers = options.offers(&relaxation.parts, &relaxation.problem.items, catalogs);
        relaxation.problem.offers = offers.into_iter().map(|(_, offer)| offer).collect();
        // Limits only make plans dearer, so a lower bound may ignore them.
        relaxation.problem.limits =
            vec![[i64::MAX; crate::provision::pack::DIMENSIONS]; catalogs.len()];
        relaxation.problem.prepare();
        relaxation
    }

    /// Returns a lower bound for the price of every plan for these pods, in micro-dollars per hour. `values` are the
    /// values of pods in the zones that were chosen.
    pub(super) fn least(&self, values: &[(Part, f64)]) -> u64 {
        let mut known: FxHashMap<(PodClassId, Option<Symbol>), f64> = FxHashMap::default();
        let mut lowest: FxHashMap<PodClassId, f64> = FxHashMap::default();
        for (part, value) in values {
            let each = value / f64::from(part.pods.max(1));
            known.insert((part.class, part.zone), each);
            let lowest = lowest.entry(part.class).or_insert(each);
            *lowest = lowest.min(each);
        }
        let value = |part: &Part| {
            let own = known.get(&(part.class, part.zone));
            own.or_else(|| lowest.get(&part.class)).copied()
        };
        // Any values give a valid bound; for zones that were not chosen the lowest known one is a good guess.
        let values: Vec<f64> = self
            .parts
            .iter()
            .map(|part| value(part).unwrap_or(0.0))
            .collect();
        let values = (!known.is_empty()).then_some(&values[..]);
        self.problem.least_for(&self.demands, values)
    }
}

/// Returns the maximum number of a class's pods that may be in a zone once all of them have a place: a pod may join a
/// zone that has at most the fewest and the skew then, and the fewest are at most the average.
fn most_in(counts: &SpreadCounts, zone: Symbol, count: u32) -> u32 {
    let zones: Vec<Symbol> = counts.all_places().collect();
    if zones.is_empty() {
        return count;
    }
    let there: i64 = zones.iter().map(|zone| counts.pods_at(*zone)).sum();
    let average = (there + i64::from(count)).div_euclid(zones.len() as i64);
    let most = average.saturating_add(counts.rule.max_skew) - counts.pods_at(zone);
    most.clamp(0, i64::from(count)) as u32
}
