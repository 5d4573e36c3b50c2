//! How many pods of a class each zone gets.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::topology::SpreadCounts;

/// Pods that zones hold by now: those where nodes count, and those where some can be bought.
fn there(counts: &SpreadCounts, prices: &BTreeMap<Symbol, u64>) -> BTreeMap<Symbol, i64> {
    let zones = counts.all_places().chain(prices.keys().copied());
    zones.map(|zone| (zone, counts.pods_at(zone))).collect()
}

/// How many pods may be in one zone while no more come to the others.
pub(super) fn alone_in(counts: &SpreadCounts, zone: Symbol, prices: &BTreeMap<Symbol, u64>) -> i64 {
    let there = there(counts, prices);
    let others = there
        .iter()
        .filter(|(other, _)| **other != zone)
        .map(|(_, pods)| *pods);
    let few = (there.len() as i64) < counts.rule.min_domains;
    let Some(least) = others.min() else {
        return i64::MAX;
    };
    let least = if few { 0 } else { least };
    (least + counts.rule.max_skew - there.get(&zone).copied().unwrap_or(0)).max(0)
}

/// How many of a class's pods each zone gets: as many as the skew lets those have that are cheap or have room already. Equal zones go by name, and so
/// does the answer: symbols are numbered as they come, differently in every process.
pub(super) fn shares(
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
    let mut level = there.values().copied().min().unwrap_or(0);
    if few {
        level = 0;
    } else {
        let most = stuck.unwrap_or(i64::MAX);
        while open(level) < count && level < most && needed(level + 1) <= count {
            level += 1;
        }
    }
    let mut by_price = zones;
    by_price.sort_by_key(|zone| {
        (
            prices.get(zone).copied().unwrap_or(u64::MAX),
            Reverse(there[zone]),
            cluster.text(*zone),
        )
    });
    let mut share: BTreeMap<Symbol, i64> = BTreeMap::new();
    let mut rest = count;
    for zone in &by_price {
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
    let shares = share.into_iter().filter(|(_, pods)| *pods > 0);
    let mut shares: Vec<(Symbol, u32)> = shares.map(|(zone, pods)| (zone, pods as u32)).collect();
    shares.sort_by_key(|(zone, _)| cluster.text(*zone));
    shares
}
