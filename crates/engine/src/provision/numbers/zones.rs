//! How many pods of a class each zone gets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use super::forms::{Forms, Zones};
use super::free::{FreeNode, free_by_zone};
use super::options::Options;
use super::request_of;
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::provision::catalog::Catalog;
use crate::topology::SpreadCounts;

/// Returns the zones of a class whose rules are about zones, with how many of its pods go to each.
pub(super) fn zones_of(
    (class, count, form): (PodClassId, u32, &Forms),
    prices: &BTreeMap<Symbol, u64>,
    free: &BTreeMap<Symbol, i64>,
    cluster: &Cluster,
) -> Vec<(Symbol, u32)> {
    let view = cluster.view(class);
    match form.zones {
        Zones::Any => Vec::new(),
        Zones::Spread(index) => shares(&view.hard[index], count, prices, free, cluster),
        Zones::Prefer(index) => shares(&view.soft[index], count, prices, free, cluster),
        Zones::One(spread) => {
            let there = |zone: &Symbol| {
                view.affinity.is_empty() || view.affinity.count(Symbol::ZONE, *zone) > 0
            };
            let Some(zone) = cheapest_zone(prices, free, there, cluster) else {
                return Vec::new();
            };
            // A class that must be together and is spread as well stops at the skew; the rest has no place, as in the
            // scheduler.
            let most = spread.map_or(i64::MAX, |index| alone_in(&view.hard[index], zone, prices));
            vec![(zone, count.min(u32::try_from(most).unwrap_or(u32::MAX)))]
        }
        Zones::Apart => {
            let taken = |zone: Symbol| {
                view.anti.count(Symbol::ZONE, zone) + view.existing_anti.count(Symbol::ZONE, zone)
                    > 0
            };
            let mut zones: Vec<(u64, Symbol)> = prices
                .iter()
                .map(|(zone, price)| (*price, *zone))
                .filter(|(_, zone)| !taken(*zone))
                .collect();
            // Zones with free room first, because they cost nothing; names break ties because symbols differ between
            // processes.
            zones.sort_unstable_by_key(|(price, zone)| {
                (!free.contains_key(zone), *price, cluster.text(*zone))
            });
            let zones = zones.into_iter().take(count as usize);
            zones.map(|(_, zone)| (zone, 1)).collect()
        }
    }
}

/// Returns the open zone with free room, or else the cheapest one.
fn cheapest_zone(
    prices: &BTreeMap<Symbol, u64>,
    free: &BTreeMap<Symbol, i64>,
    is_open: impl Fn(&Symbol) -> bool,
    cluster: &Cluster,
) -> Option<Symbol> {
    let open = prices.iter().filter(|(zone, _)| is_open(zone));
    let cheapest =
        open.min_by_key(|(zone, price)| (!free.contains_key(zone), **price, cluster.text(**zone)));
    cheapest.map(|(zone, _)| *zone)
}

/// Returns for each class of a group how many of its pods go to each zone. Groups whose classes cannot all be bought
/// in the same zones are left out.
pub(super) fn dealt(
    forms: &[(PodClassId, u32, Forms)],
    options: &Options,
    nodes: &[FreeNode],
    catalogs: &[Catalog],
    cluster: &Cluster,
    dimensions: &[Symbol],
) -> FxHashMap<PodClassId, Vec<(Symbol, u32)>> {
    let mut groups: BTreeMap<usize, Vec<&(PodClassId, u32, Forms)>> = BTreeMap::new();
    for own in forms {
        if let Some(group) = own.2.group {
            groups.entry(group).or_default().push(own);
        }
    }
    let mut dealt = FxHashMap::default();
    for members in groups.into_values() {
        let mut prices: BTreeMap<Symbol, u64> = BTreeMap::new();
        let mut free: BTreeMap<Symbol, i64> = BTreeMap::new();
        let mut is_alike = true;
        let mut zones = members.iter().map(|own| own.2.zones);
        let is_spread = zones.any(|zones| matches!(zones, Zones::Spread(_)));
        for (index, (class, count, form)) in members.iter().enumerate() {
            let request = request_of(*class, cluster, dimensions);
            let own = if is_spread {
                options.ranks_by_zone(*class, catalogs, &request)
            } else {
                options.prices_by_zone(*class, catalogs, &request)
            };
            is_alike &= index == 0 || own.keys().eq(prices.keys());
            for (zone, price) in own {
                let sum = prices.entry(zone).or_default();
                // Prices by the number of pods, so that the zone that is cheapest for the group as a whole is found.
                *sum = sum.saturating_add(price.saturating_mul(u64::from(*count)));
            }
            for (zone, room) in free_by_zone(*class, form, &request, nodes) {
                *free.entry(zone).or_default() += room;
            }
        }
        if !is_alike {
            continue;
        }
        let total: u32 = members.iter().map(|own| own.1).sum();
        let spread = members
            .iter()
            .find_map(|(class, _, form)| match form.zones {
                Zones::Spread(index) => Some(&cluster.view(*class).hard[index]),
                _ => None,
            });
        let mut rest: Vec<(Symbol, u32)> = match spread {
            Some(counts) => shares(counts, total, &prices, &free, cluster),
            None => {
                let zone = cheapest_zone(&prices, &free, |_| true, cluster);
                zone.into_iter().map(|zone| (zone, total)).collect()
            }
        };
        // The zones' shares are dealt out member by member, always from the zone with the most left, so that each
        // class is spread about evenly too.
        for (class, count, _) in members {
            let mut own: Vec<(Symbol, u32)> = rest.iter().map(|(zone, _)| (*zone, 0)).collect();
            for _ in 0..*count {
                // The first of those with the most left.
                // `max_by_key` returns the last of equals, so the order is reversed to get the first zone by name.
                let most = (0..rest.len()).rev().max_by_key(|place| rest[*place].1);
                let Some(place) = most.filter(|place| rest[*place].1 > 0) else {
                    break;
                };
                rest[place].1 -= 1;
                own[place].1 += 1;
            }
            own.retain(|(_, pods)| *pods > 0);
            dealt.insert(*class, own);
        }
    }
    dealt
}

/// Returns the number of pods in each zone that counts: those of eligible nodes and those where nodes can be bought.
fn there(counts: &SpreadCounts, prices: &BTreeMap<Symbol, u64>) -> BTreeMap<Symbol, i64> {
    let zones = counts.all_places().chain(prices.keys().copied());
    zones.map(|zone| (zone, counts.pods_at(zone))).collect()
}

/// Returns how many pods may be in one zone while no more come to the others.
fn alone_in(counts: &SpreadCounts, zone: Symbol, prices: &BTreeMap<Symbol, u64>) -> i64 {
    let there = there(counts, prices);
    let others = there
        .iter()
        .filter(|(other, _)| **other != zone)
        .map(|(_, pods)| *pods);
    // With fewer domains than `minDomains` the scheduler takes the global minimum as 0.
    let few = (there.len() as i64) < counts.rule.min_domains;
    let Some(least) = others.min() else {
        return i64::MAX;
    };
    let least = if few { 0 } else { least };
    (least + counts.rule.max_skew - there.get(&zone).copied().unwrap_or(0)).max(0)
}

/// The maximum number of levels above the necessary one that are tried so that more pods go where there is room.
const HIGHER_LEVELS: i64 = 64;

/// Returns how many of a class's pods each zone gets: zones that are cheap or have free room get as many as the skew
/// allows. Equal zones go by name, and so does the answer, because symbols are numbered differently in every process.
fn shares(
    counts: &SpreadCounts,
    count: u32,
    prices: &BTreeMap<Symbol, u64>,
    free: &BTreeMap<Symbol, i64>,
    cluster: &Cluster,
) -> Vec<(Symbol, u32)> {
    let skew = counts.rule.max_skew;
    let there = there(counts, prices);
    let few = (there.len() as i64) < counts.rule.min_domains;
    let zones: BTreeSet<Symbol> = prices.keys().chain(free.keys()).copied().collect();
    let zones: Vec<Symbol> = zones
        .into_iter()
        .filter(|zone| there.contains_key(zone))
        .collect();
    // Nothing more comes to the others.
    let stuck = there
        .iter()
        .filter(|(zone, _)| !zones.contains(*zone))
        .map(|(_, pods)| *pods)
        .min();
    let count = i64::from(count);
    let open = |level: i64| -> i64 {
        zones
            .iter()
            .map(|zone| (level + skew - there[zone]).max(0))
            .sum()
    };
    let needed =
        |level: i64| -> i64 { zones.iter().map(|zone| (level - there[zone]).max(0)).sum() };
    // `level` is the number of pods that the zone with the fewest has in the end; no zone may have more than `level +
    // skew`.
    let mut level = there.values().copied().min().unwrap_or(0);
    if few {
        level = 0;
    } else {
        // A zone that gets nothing more keeps the level down.
        let most = stuck.unwrap_or(i64::MAX);
        while open(level) < count && level < most && needed(level + 1) <= count {
            level += 1;
        }
    }
    let price = |zone: &Symbol| prices.get(zone).copied().unwrap_or(u64::MAX);
    let mut by_price = zones.clone();
    // Of equally cheap zones the fuller one first: others have to be filled up to the level anyway.
    by_price.sort_by_key(|zone| (price(zone), Reverse(there[zone]), cluster.text(*zone)));
    let shares_at = |level: i64| -> BTreeMap<Symbol, i64> {
        let mut share: BTreeMap<Symbol, i64> = BTreeMap::new();
        let mut rest = count;
        for zone in &by_price {
            // First what each zone needs to reach the level; the rest is then dealt to free room and to cheap zones.
            let least = if few {
                0
            } else {
                (level - there[zone]).clamp(0, rest)
            };
            share.insert(*zone, least);
            rest -= least;
        }
        // Room that is there costs nothing.
        for is_free in [true, false] {
            for zone in &by_price {
                let own = share.entry(*zone).or_default();
                let mut most = level + skew - there[zone];
                if is_free || !prices.contains_key(zone) {
                    most = most.min(free.get(zone).copied().unwrap_or(0));
                }
                let more = (most - *own).clamp(0, rest);
                *own += more;
                rest -= more;
            }
        }
        share
    };
    let mut share = shares_at(level);
    // With more pods in every zone, more may be allowed where there is room.
    let to_buy = |share: &BTreeMap<Symbol, i64>| -> i64 {
        let beyond = share
            .iter()
            .map(|(zone, pods)| pods - free.get(zone).copied().unwrap_or(0));
        let placed: i64 = share.values().sum();
        count - placed + beyond.map(|pods| pods.max(0)).sum::<i64>()
    };
    if !few && !free.is_empty() {
        let most = stuck.unwrap_or(i64::MAX).min(level + HIGHER_LEVELS);
        while to_buy(&share) > 0 && level < most && needed(level + 1) <= count {
            level += 1;
            let higher = shares_at(level);
            // A higher level also forces pods into dear zones, so it is taken only if less has to be bought.
            if to_buy(&higher) < to_buy(&share) {
                share = higher;
            }
        }
    }
    let shares = share.into_iter().filter(|(_, pods)| *pods > 0);
    let mut shares: Vec<(Symbol, u32)> = shares.map(|(zone, pods)| (zone, pods as u32)).collect();
    shares.sort_by_key(|(zone, _)| cluster.text(*zone));
    shares
}
