//! The pools whose devices can be used from a node (dynamic-resource-allocation: `GatherPools`).

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Devices;
use super::object::{Slice, UsableNodes};
use crate::intern::Symbol;
use crate::model::{CounterSet, Quantity};
use crate::selector::Site;

/// The names of the driver and of the pool.
pub(super) type PoolId = (Symbol, Symbol);

/// One pool as a node sees it.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) id: PoolId,
    pub(super) state: State,
    /// The slices with devices that can be used from the node, by name; empty unless the state is `Sound`.
    pub(super) slices: Vec<&'a Slice>,
    /// The amounts left of the pool's counters, by counter set and counter; they may be negative.
    pub(super) counters: FxHashMap<(&'a str, &'a str), Quantity>,
}

/// Whether devices may be taken from a pool, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Sound,
    /// Some slices of the pool are missing.
    Incomplete,
    /// The slices of the pool contradict each other.
    Invalid,
}

/// Returns the pools with a slice that matters to a node, by driver and name. Of each pool only the slices of the newest generation count.
pub(super) fn gather<'a>(devices: &'a Devices, site: Site<'a>) -> Vec<Pool<'a>> {
    let own = devices.slices_for(site);
    let mut pools: BTreeMap<(&str, &str), Vec<&Slice>> = BTreeMap::new();
    for slice in own.filter(|slice| concerns(slice, site)) {
        let id = (site.names.text(slice.driver), site.names.text(slice.pool));
        let slices = pools.entry(id).or_default();
        // A newer generation replaces what was gathered; drivers publish all slices of a pool anew with it.
        let known = slices.first().map_or(i64::MIN, |first| first.generation);
        if slice.generation > known {
            slices.clear();
        }
        if slice.generation >= known {
            slices.push(slice);
        }
    }
    let pools = pools.into_values();
    pools.filter_map(|slices| build(devices, slices)).collect()
}

/// Returns whether a node sees an incomplete or invalid pool if only these counters of the pool concern the node.
pub(super) fn is_unsound(devices: &Devices, mut counters: Vec<&Slice>) -> bool {
    let newest = counters.iter().map(|slice| slice.generation).max();
    counters.retain(|slice| Some(slice.generation) == newest);
    build(devices, counters).is_some_and(|pool| pool.state != State::Sound)
}

/// Returns whether a slice matters to a node: it has devices for the node, or counters, which all devices of the pool use.
fn concerns(slice: &Slice, site: Site<'_>) -> bool {
    let includes = |reach: &UsableNodes| reach.includes(site.name, site.labels, site.names);
    !slice.counters.is_empty()
        || match &slice.reach {
            UsableNodes::PerDevice => slice.places.iter().any(|(_, reach)| includes(reach)),
            reach => includes(reach),
        }
}

/// Builds a pool from the slices that matter to the node. `None` if a newer generation exists that has nothing for the node.
fn build<'a>(devices: &'a Devices, slices: Vec<&'a Slice>) -> Option<Pool<'a>> {
    let first = slices.first()?;
    let id = first.pool_id();
    let mut all = slices.clone();
    // Slices for other nodes only are not in the list; all of the pool are looked at only if some are missing here.
    if slices.len() as i64 != first.slice_count {
        all = devices.slices_of(id).collect();
        if all.iter().any(|slice| slice.generation > first.generation) {
            return None;
        }
        all.retain(|slice| slice.generation == first.generation);
    }
    let mut pool = Pool {
        id,
        state: State::Sound,
        slices: Vec::new(),
        counters: FxHashMap::default(),
    };
    if all.len() as i64 != first.slice_count {
        pool.state = State::Incomplete;
        return Some(pool);
    }
    // A slice has either counters or devices.
    let own = slices.iter().filter(|slice| slice.counters.is_empty());
    let own: Vec<&Slice> = own.copied().collect();
    let mut seen = FxHashSet::default();
    let mut places = own.iter().flat_map(|slice| &slice.places);
    // A device's name must be unique in its pool, because allocations name devices by it.
    let is_sound = places.all(|(name, _)| seen.insert(*name)) && pool.count(&all, devices);
    if is_sound {
        pool.slices = own
    } else {
        pool.state = State::Invalid
    }
    Some(pool)
}

impl<'a> Pool<'a> {
    /// Adds up the counters and subtracts what claims have or share. Returns `false` if the slices contradict each other: a
    /// counter set is there twice, or a device uses an unknown counter.
    fn count(&mut self, all: &[&'a Slice], devices: &Devices) -> bool {
        let mut sets: FxHashSet<&str> = FxHashSet::default();
        for set in all.iter().flat_map(|slice| &slice.counters) {
            if !sets.insert(&set.name) {
                return false;
            }
            let counters = set.counters.iter();
            self.counters.extend(
                counters.map(|(name, amount)| ((set.name.as_str(), name.as_str()), *amount)),
            );
        }
        for slice in all.iter().filter(|slice| slice.counters.is_empty()) {
            for (index, device) in slice.devices.iter().enumerate() {
                // Counters are worked out from allocations each time, as kube-scheduler does, and are stored nowhere.
                let takes = devices.is_allocated(slice.id(index));
                for (key, amount) in consumption(&device.consumes_counters) {
                    let Some(left) = self.counters.get_mut(&key) else {
                        return false;
                    };
                    if takes {
                        *left = left.saturating_sub(amount);
                    }
                }
            }
        }
        true
    }

    /// Returns `DRIVER/POOL`.
    pub(super) fn text(&self, site: Site<'_>) -> String {
        let (driver, pool) = self.id;
        format!("{}/{}", site.names.text(driver), site.names.text(pool))
    }
}

/// Returns the amounts that a device takes from counters, by counter set and counter.
pub(super) fn consumption(
    sets: &[CounterSet],
) -> impl Iterator<Item = ((&str, &str), Quantity)> + '_ {
    sets.iter().flat_map(|set| {
        let counters = set.counters.iter();
        counters.map(move |(name, amount)| ((set.name.as_str(), name.as_str()), *amount))
    })
}
