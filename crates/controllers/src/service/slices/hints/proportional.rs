//! Proportional hints: every zone gets a share of a Service's endpoints in proportion to the CPUs of its ready
//! nodes.
//!
//! Endpoints serve their own zone as far as possible; a zone with more endpoints than its share lends some to zones
//! with fewer. All hints are removed, and an event says why, when a zone could be overloaded by more than a fifth
//! or when nodes or endpoints lack information (endpointslice: `topologycache`).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::api::{
    core::v1::Node,
    discovery::v1::{EndpointHints, EndpointSlice, ForZone},
};
use kube::ResourceExt;
use rustc_hash::FxHashMap;

use super::{Notice, Plan, endpoints, include, is_ready, remove};
use crate::{
    Key,
    events::EventType,
    service::slices::{self, zone},
    state::requests::amount,
};

/// The fraction by which an endpoint's traffic may exceed its share.
const OVERLOAD: f64 = 0.2;
const DISABLED: &str = "TopologyAwareHintsDisabled";
/// Nodes with one of these labels run no ordinary pods and do not count.
const EXCLUDED: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

type ByZone<T> = BTreeMap<String, T>;

/// The shares of the zones, and the hints that were set for each Service.
#[derive(Debug, Default)]
pub(in crate::service::slices) struct Topology {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Each zone's share of all CPUs; `None` until it is computed from the nodes, and again after a node changes.
    shares: Option<Shares>,
    /// For each Service, the number of endpoints hinted for each zone.
    given: FxHashMap<Key, ByZone<usize>>,
}

/// `None` when a node lacks its zone or CPU, or when there are fewer than two zones.
type Shares = Option<ByZone<f64>>;

/// The number of endpoints that a zone should have (`desired`) and may have (`most`).
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    desired: f64,
    most: usize,
}

impl Topology {
    /// Recomputes the shares after nodes were added, removed or changed. Returns the Services that now have too few
    /// endpoints for some zone.
    pub(in crate::service::slices) fn nodes_changed(
        &self,
        nodes: impl FnOnce() -> Vec<Arc<Node>>,
    ) -> Vec<Key> {
        let mut state = self.lock();
        // Computed again when a Service needs them, which in most clusters is never.
        state.shares = None;
        if state.given.is_empty() {
            return Vec::new();
        }
        let shares = shares(&nodes());
        let overloaded = state
            .given
            .iter()
            .filter(|(_, given)| is_overloaded(given, shares.as_ref()));
        let keys = overloaded.map(|(key, _)| key.clone()).collect();
        state.shares = Some(shares);
        keys
    }

    /// Sets the hints of a Service that requests them. Returns the event to record, if any.
    pub(super) fn apply(
        &self,
        key: &Key,
        existing: &[Arc<EndpointSlice>],
        plan: &mut Plan,
        nodes: impl FnOnce() -> Vec<Arc<Node>>,
    ) -> Option<Notice> {
        let mut state = self.lock();
        let shares = state.shares.get_or_insert_with(|| shares(&nodes()));
        let ready = |slice: &EndpointSlice| endpoints(slice).iter().filter(|e| is_ready(e)).count();
        let total = plan.written().map(|slice| ready(slice)).sum::<usize>()
            + existing
                .iter()
                .filter(|slice| plan.keeps_unchanged(slice))
                .map(|slice| ready(slice))
                .sum::<usize>();
        let given = allocations(shares.as_ref(), total)
            .and_then(|allocations| give_out(&allocations, existing, plan));
        match given {
            Ok(given) => {
                let text = "Topology Aware Hints has been enabled".to_owned();
                let is_new = state.given.insert(key.clone(), given).is_none();
                is_new.then_some((EventType::Normal, "TopologyAwareHintsEnabled", text))
            }
            Err(why) => {
                state.given.remove(key);
                remove(plan, existing);
                Some((EventType::Warning, DISABLED, why.to_string()))
            }
        }
    }

    /// Forgets a Service that does not request hints. Returns an event if it had some.
    pub(super) fn give_up(&self, key: &Key) -> Option<Notice> {
        let had_some = self.lock().given.remove(key).is_some();
        let text = "Topology Aware Hints has been disabled".to_owned();
        had_some.then_some((EventType::Warning, DISABLED, text))
    }

    /// Forgets a deleted Service.
    pub(in crate::service::slices) fn forget(&self, key: &Key) {
        self.lock().given.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shares(nodes: &[Arc<Node>]) -> Shares {
    let mut cpus: ByZone<i64> = BTreeMap::new();
    for node in nodes {
        let is_excluded = EXCLUDED
            .iter()
            .any(|label| node.labels().contains_key(*label));
        if is_excluded || !slices::is_ready(node) {
            continue;
        }
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref());
        let cpu = allocatable.and_then(|all| all.get("cpu"));
        let millis = cpu.map_or(0, |cpu| amount("cpu", cpu));
        // One node without zone or CPU makes the shares of all zones unknown.
        *cpus.entry(zone(node).filter(|_| millis > 0)?).or_default() += millis;
    }
    let total: i64 = cpus.values().sum();
    // Millicores of any real cluster are exact in a double.
    #[expect(clippy::cast_precision_loss)]
    let share = |cpus: i64| cpus as f64 / total as f64;
    (cpus.len() >= 2).then(|| {
        cpus.into_iter()
            .map(|(zone, cpus)| (zone, share(cpus)))
            .collect()
    })
}

/// The reason why there can be no hints, with the message for the event.
#[derive(Debug, thiserror::Error)]
enum NoHints {
    /// A node has no zone or CPU.
    #[error(
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
    )]
    Nodes,
    /// There are more zones than endpoints.
    #[error("Insufficient number of endpoints ({endpoints} endpoints, {zones} zones)")]
    FewEndpoints { endpoints: usize, zones: usize },
    /// The zones need more endpoints than there are.
    #[error(
        "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold ({endpoints} endpoints, {zones} zones)"
    )]
    Overload { endpoints: usize, zones: usize },
    /// An endpoint has no zone.
    #[error("One or more endpoints do not have a zone specified")]
    NoZone,
    /// No endpoint is ready.
    #[error("No hints allocated for zones")]
    NothingGiven,
}

/// Returns how many endpoints of `total` each zone should have.
fn allocations(shares: Option<&ByZone<f64>>, total: usize) -> Result<ByZone<Share>, NoHints> {
    let shares = shares.ok_or(NoHints::Nodes)?;
    let (endpoints, zones) = (total, shares.len());
    if zones > total {
        return Err(NoHints::FewEndpoints { endpoints, zones });
    }
    let least: ByZone<(f64, usize)> = shares
        .iter()
        .map(|(zone, share)| {
            let desired = share * float(total);
            (zone.clone(), (desired, least(desired)))
        })
        .collect();
    let sum: usize = least.values().map(|(_, least)| least).sum();
    // The minimums are rounded up, so with several small zones they can exceed the number of endpoints.
    let Some(spare) = total.checked_sub(sum) else {
        return Err(NoHints::Overload { endpoints, zones });
    };
    let share = |(desired, least): (f64, usize)| Share {
        desired: desired.max(float(least)),
        most: least + spare,
    };
    Ok(least
        .into_iter()
        .map(|(zone, one)| (zone, share(one)))
        .collect())
}

/// Returns the fewest endpoints that can carry the load of `desired` ones within [`OVERLOAD`].
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn least(desired: f64) -> usize {
    // At most the number of endpoints, and never negative.
    (desired * (1.0 / (1.0 + OVERLOAD))).ceil() as usize
}

#[expect(clippy::cast_precision_loss)]
fn float(count: usize) -> f64 {
    count as f64
}

/// Sets the hints of all slices in the plan, and adds slices whose present hints cannot stay. Returns how many
/// endpoints are hinted for each zone.
fn give_out(
    allocations: &ByZone<Share>,
    existing: &[Arc<EndpointSlice>],
    plan: &mut Plan,
) -> Result<ByZone<usize>, NoHints> {
    let mut given: ByZone<usize> = BTreeMap::new();
    include(plan, existing, |slice| {
        match kept(slice, &given, allocations) {
            Some(kept) => {
                kept.into_iter()
                    .for_each(|(zone, count)| *given.entry(zone).or_default() += count);
                false
            }
            None => true,
        }
    });
    for slice in plan.written() {
        for endpoint in slice.endpoints.iter_mut().flatten().filter(|e| is_ready(e)) {
            let Some(zone) = endpoint.zone.clone().filter(|zone| !zone.is_empty()) else {
                return Err(NoHints::NoZone);
            };
            endpoint.hints = for_zone(&zone);
            *given.entry(zone).or_default() += 1;
        }
    }
    let (mut lenders, mut borrowers) = loans(allocations, &given);
    for slice in plan.written() {
        for endpoint in slice.endpoints.iter_mut().flatten().filter(|e| is_ready(e)) {
            let Some(lender) = endpoint
                .zone
                .clone()
                .filter(|zone| take_one(&mut lenders, zone))
            else {
                continue;
            };
            // Lenders and borrowers are equal in number, so the loans are complete.
            let Some(borrower) = borrowers.keys().next().cloned() else {
                return Ok(given);
            };
            take_one(&mut borrowers, &borrower);
            endpoint.hints = for_zone(&borrower);
            // The endpoint was counted for its own zone above.
            given.entry(lender).and_modify(|count| *count -= 1);
            *given.entry(borrower).or_default() += 1;
        }
    }
    if given.is_empty() {
        return Err(NoHints::NothingGiven);
    }
    Ok(given)
}

fn for_zone(zone: &str) -> Option<EndpointHints> {
    let zone = ForZone {
        name: zone.to_owned(),
    };
    Some(EndpointHints {
        for_zones: Some(vec![zone]),
        for_nodes: None,
    })
}

/// Returns the hints of a slice counted by zone, or `None` if some of them cannot stay beside those in `given`.
fn kept(
    slice: &EndpointSlice,
    given: &ByZone<usize>,
    allocations: &ByZone<Share>,
) -> Option<ByZone<usize>> {
    let mut kept: ByZone<usize> = BTreeMap::new();
    for endpoint in endpoints(slice)
        .iter()
        .filter(|endpoint| is_ready(endpoint))
    {
        let zones = endpoint.hints.as_ref()?.for_zones.as_ref()?;
        for zone in (!zones.is_empty()).then_some(zones)? {
            *kept.entry(zone.name.clone()).or_default() += 1;
        }
    }
    let fits = |(zone, count): (&String, &usize)| {
        let already = given.get(zone).copied().unwrap_or_default();
        allocations
            .get(zone)
            .is_some_and(|share| already + count <= share.most)
    };
    kept.iter().all(fits).then_some(kept)
}

/// Returns how many endpoints each zone lends, and how many each zone borrows.
fn loans(allocations: &ByZone<Share>, given: &ByZone<usize>) -> (ByZone<usize>, ByZone<usize>) {
    let (mut over, mut under) = (BTreeMap::new(), BTreeMap::new());
    for (zone, share) in allocations {
        let has = float(given.get(zone).copied().unwrap_or_default());
        if has > share.desired {
            over.insert(zone.clone(), has - share.desired);
        } else if has < share.desired {
            under.insert(zone.clone(), share.desired - has);
        }
    }
    let (mut lenders, mut borrowers) = (BTreeMap::new(), BTreeMap::new());
    while let (Some((lender, more)), Some((borrower, fewer))) = (most(&over), most(&under)) {
        // Whole endpoints are lent, so a loan must bring both zones closer to their shares.
        if (more < 1.0 && fewer < 1.0) || more < 0.5 || fewer < 0.5 {
            break;
        }
        for (all, rest, zone) in [
            (&mut lenders, &mut over, lender),
            (&mut borrowers, &mut under, borrower),
        ] {
            rest.entry(zone.clone()).and_modify(|left| *left -= 1.0);
            *all.entry(zone).or_default() += 1;
        }
    }
    (lenders, borrowers)
}

/// Returns the zone with the greatest amount above zero.
fn most(amounts: &ByZone<f64>) -> Option<(String, f64)> {
    let positive = amounts.iter().filter(|(_, amount)| **amount > 0.0);
    positive
        .max_by(|a, b| a.1.total_cmp(b.1))
        .map(|(zone, amount)| (zone.clone(), *amount))
}

/// Takes one from the remaining amount of `zone`. Returns whether there was one.
fn take_one(amounts: &mut ByZone<usize>, zone: &str) -> bool {
    let Some(left) = amounts.get_mut(zone) else {
        return false;
    };
    *left -= 1;
    if *left == 0 {
        amounts.remove(zone);
    }
    true
}

/// Returns whether some zone has fewer endpoints than can carry its load.
fn is_overloaded(given: &ByZone<usize>, shares: Option<&ByZone<f64>>) -> bool {
    let total = float(given.values().sum());
    if given.is_empty() {
        return false;
    }
    shares.is_none_or(|shares| {
        shares.iter().any(|(zone, share)| {
            given
                .get(zone)
                .is_none_or(|has| *has < least(total * share))
        })
    })
}
