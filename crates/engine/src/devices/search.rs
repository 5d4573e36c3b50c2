//! Searches devices for the claims of a pod on one node: the first combination that satisfies every request (dynamic-resource-allocation: the
//! allocator that DynamicResources uses, with its stable and incubating parts).
//!
//! The search tries one device after the other, pool by pool in the order of their names, and backtracks at dead ends. Invariant: between two calls
//! of [`Search::go_on`] `candidates`, `taking`, `sharing` and the constraints describe the same devices.

use rustc_hash::FxHashMap;

use super::candidate::{CandidateAllocation, CandidateDevice};
use super::capacity::{Portions, suffices};
use super::constraint::Constraint;
use super::object::{Alternative, Claim, DeviceId, Request, Slice, UsableNodes};
use super::pool::{Pool, State, gather};
use super::{Devices, Key, Verdict};
use crate::intern::Symbol;
use crate::model::{DeviceConstraint, Quantity};
use crate::selector::Site;

/// The maximum number of devices of one claim.
const MOST_RESULTS: usize = 32;
/// The number of devices that a search examines before it gives up. kube-scheduler stops after ten seconds; a count is used here because the engine
/// has no clock.
const MOST_STEPS: u32 = 200_000;
/// The maximum depth of recursion, which goes one level deeper for each claim, request and device.
const MOST_DEPTH: usize = 500;

/// Why a node has no devices for the claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No combination of free devices satisfies the requests.
    NotEnough,
    /// Nothing was found, and some pools were invalid and therefore skipped.
    InvalidPools,
    /// The search would take too long.
    TooLong,
    /// An object is invalid, which ends the attempt on every node.
    Error(String),
}

/// Why a part of the search ended early.
pub(super) enum Stop {
    /// The claim would get more devices than a claim may have.
    TooMany,
    Failed(Failure),
}

/// A claim without an allocation: its requests and constraints.
pub(crate) struct UnallocatedClaim<'a> {
    pub(crate) key: Key,
    pub(crate) requests: Vec<&'a Request>,
    pub(crate) constraints: &'a [DeviceConstraint],
}

impl<'a> UnallocatedClaim<'a> {
    /// Returns the requests and constraints of a claim that exists in the cluster.
    pub(crate) fn of(key: Key, claim: &'a Claim) -> Self {
        UnallocatedClaim {
            key,
            requests: claim.requests.iter().collect(),
            constraints: &claim.constraints,
        }
    }
}

/// A claim without an allocation whose requests were checked: see [`Search::prepare`].
pub(super) struct PreparedClaim<'a> {
    pub(super) key: Key,
    requests: Vec<&'a Request>,
    /// The devices of each alternative of each request that asks for all devices; `None` for alternatives with a count.
    all: Vec<Vec<Option<Vec<DeviceIndex>>>>,
    pub(super) constraints: Vec<Constraint<'a>>,
}

/// The index of a device: of its pool, of its slice in the pool, and of the device in the slice.
pub(super) type DeviceIndex = (usize, usize, usize);

/// The position of a search in the claims and their requests.
#[derive(Clone, Copy, Default)]
pub(super) struct SearchPosition {
    pub(super) claim: usize,
    request: usize,
    alternative: Option<usize>,
    device: usize,
}

/// The state of a search for devices on one node.
pub(crate) struct Search<'a> {
    pub(super) devices: &'a Devices,
    pub(super) site: Site<'a>,
    pub(super) pools: Vec<Pool<'a>>,
    pub(super) prepared: Vec<PreparedClaim<'a>>,
    /// The devices chosen so far, by claim.
    pub(super) candidates: Vec<Vec<CandidateDevice<'a>>>,
    /// Devices taken as a whole, with the indexes of the claims that take them.
    pub(super) taking: FxHashMap<DeviceId, Vec<usize>>,
    /// Shared devices, with the number of shares that this search takes and their sum.
    pub(super) sharing: FxHashMap<DeviceId, (u32, Portions)>,
    /// The amounts taken from counters in this search, by pool name, counter set and counter.
    pub(super) counted: FxHashMap<(Symbol, &'a str, &'a str), Quantity>,
    /// The index of the pool whose counters are used for each pool name: the first that was asked with that name.
    pub(super) asked: FxHashMap<Symbol, usize>,
    steps: u32,
}

impl<'a> Search<'a> {
    /// Searches devices for the claims, which have no allocation yet.
    ///
    /// # Errors
    /// Returns why the node has no devices for them.
    pub(crate) fn run(
        devices: &'a Devices,
        claims: Vec<UnallocatedClaim<'a>>,
        site: Site<'a>,
    ) -> Result<Vec<CandidateAllocation<'a>>, Failure> {
        let mut search = Search {
            devices,
            site,
            pools: gather(devices, site),
            prepared: Vec::new(),
            candidates: Vec::new(),
            taking: FxHashMap::default(),
            sharing: FxHashMap::default(),
            counted: FxHashMap::default(),
            asked: FxHashMap::default(),
            steps: 0,
        };
        for claim in claims {
            let prepared = search.prepare(claim)?;
            search.prepared.push(prepared);
            search.candidates.push(Vec::new());
        }
        // Checked before the search, because running out of stack could not be handled.
        search.is_shallow()?;
        match search.go_on(SearchPosition::default(), DeviceIndex::default()) {
            Ok(true) => {
                let prepared = search.prepared.into_iter().zip(search.candidates);
                Ok(prepared
                    .map(|(prepared, devices)| CandidateAllocation {
                        key: prepared.key,
                        devices,
                    })
                    .collect())
            }
            Err(Stop::Failed(failure)) => Err(failure),
            Err(Stop::TooMany) => Err(Failure::Error("allocation max size exceeded".to_owned())),
            Ok(false) => {
                let invalid = search.pools.iter().any(|pool| pool.state == State::Invalid);
                Err(if invalid {
                    Failure::InvalidPools
                } else {
                    Failure::NotEnough
                })
            }
        }
    }

    /// Checks the requests of a claim and collects the devices for those that ask for all devices.
    fn prepare(&self, claim: UnallocatedClaim<'a>) -> Result<PreparedClaim<'a>, Failure> {
        let key = claim.key;
        let mut prepared = PreparedClaim {
            key,
            requests: claim.requests,
            all: Vec::new(),
            constraints: Vec::new(),
        };
        let mut least = 0_usize;
        for request in &prepared.requests {
            if request.alternatives.is_empty() {
                return Err(Failure::Error(format!(
                    "resource claim {}, request {}: unknown request type",
                    self.claim_text(key),
                    request.name
                )));
            }
            let mut all = Vec::new();
            let mut least_of = usize::MAX;
            for own in &request.alternatives {
                let named = if own.name.is_empty() {
                    &request.name
                } else {
                    &own.name
                };
                let spots = match own.exact.count {
                    Some(_) => None,
                    None => Some(self.all_of(key, named, own)?),
                };
                // Negative counts never pass the API server; taken as very large, they find nothing.
                let count = usize::try_from(own.exact.count.unwrap_or(0)).unwrap_or(usize::MAX);
                // Of a list of alternatives the smallest counts, because any of them may be chosen.
                least_of = least_of.min(spots.as_ref().map_or(count, Vec::len));
                all.push(spots);
            }
            least = least.saturating_add(least_of);
            prepared.all.push(all);
        }
        if least > MOST_RESULTS {
            return Err(Failure::Error(format!(
                "claim {}: number of requested devices {least} exceeds the claim limit of {MOST_RESULTS}",
                self.claim_text(key)
            )));
        }
        for (index, rule) in claim.constraints.iter().enumerate() {
            if rule.match_attribute.is_none() && rule.distinct_attribute.is_none() {
                return Err(Failure::Error(format!(
                    "claim {}, constraint #{index}: empty constraint (unsupported constraint type?)",
                    self.claim_text(key)
                )));
            }
            let values = Vec::new();
            prepared.constraints.push(Constraint { rule, values });
        }
        Ok(prepared)
    }

    /// Returns the devices for an alternative that asks for all devices.
    fn all_of(
        &self,
        key: Key,
        request: &str,
        own: &Alternative,
    ) -> Result<Vec<DeviceIndex>, Failure> {
        let mut spots = Vec::new();
        for (place, pool) in self.pools.iter().enumerate() {
            let state = match pool.state {
                State::Sound => None,
                State::Incomplete => Some("being updated"),
                State::Invalid => Some("invalid"),
            };
            // While slices are missing it is not known what all devices are, so the attempt fails instead of allocating
            // some.
            if let Some(state) = state {
                return Err(Failure::Error(format!(
                    "claim {}, request {request}: asks for all devices, but resource pool {} is currently {state}",
                    self.claim_text(key),
                    pool.text(self.site)
                )));
            }
            for (at, slice) in pool.slices.iter().enumerate() {
                for device in 0..slice.devices.len() {
                    if self.is_chosen(key, own, slice, device)? && self.suffices(own, slice, device)
                    {
                        spots.push((place, at, device));
                    }
                }
            }
        }
        Ok(spots)
    }

    /// Checks that the recursion cannot become too deep.
    fn is_shallow(&self) -> Result<(), Failure> {
        let depth = |prepared: &PreparedClaim<'_>| {
            let requests = prepared.requests.iter().zip(&prepared.all);
            let most = |(request, all): (&&Request, &Vec<Option<Vec<DeviceIndex>>>)| {
                let counts = request.alternatives.iter().zip(all).map(|(own, spots)| {
                    let count =
                        || usize::try_from(own.exact.count.unwrap_or(0)).unwrap_or(usize::MAX);
                    spots
                        .as_ref()
                        .map_or_else(count, Vec::len)
                        .min(MOST_RESULTS)
                });
                counts.max().unwrap_or(0)
            };
            let devices: usize = requests.map(most).sum();
            1 + 2 * prepared.requests.len() + devices.min(MOST_RESULTS)
        };
        let depth: usize = self.prepared.iter().map(depth).sum();
        if depth > MOST_DEPTH {
            Err(Failure::TooLong)
        } else {
            Ok(())
        }
    }

    pub(super) fn claim_text(&self, key: Key) -> String {
        let names = self.site.names;
        format!("{}/{}", names.text(key.0), names.text(key.1))
    }

    /// Returns whether the selectors of class and request match a device and the node can use the device.
    fn is_chosen(
        &self,
        key: Key,
        own: &Alternative,
        slice: &Slice,
        device: usize,
    ) -> Result<bool, Failure> {
        // The class's selectors first, as in kube-scheduler, so that its errors are the ones reported.
        let class = self.devices.class(own.class);
        let of_class = class.into_iter().flat_map(|class| class.selectors.iter());
        let whose = |is_class: bool| {
            if is_class {
                format!("class {}", self.site.names.text(own.class))
            } else {
                format!("claim {}", self.claim_text(key))
            }
        };
        let of_class = of_class.enumerate().map(|selector| (true, selector));
        let of_claim = own
            .selectors
            .iter()
            .enumerate()
            .map(|selector| (false, selector));
        for (is_class, (index, expression)) in of_class.chain(of_claim) {
            match self.devices.verdict(*expression, slice, device) {
                Ok(Verdict::Matches) => {}
                Ok(Verdict::Differs) => return Ok(false),
                Ok(Verdict::Fails(why)) => {
                    return Err(Failure::Error(format!(
                        "{}: selector #{index}: CEL runtime error: {why}",
                        whose(is_class)
                    )));
                }
                Err(why) => {
                    return Err(Failure::Error(format!(
                        "{}: selector #{index}: CEL compile error: {why}",
                        whose(is_class)
                    )));
                }
            }
        }
        let (_, reach) = &slice.places[device];
        Ok(slice.reach != UsableNodes::PerDevice
            || reach.includes(self.site.name, self.site.labels, self.site.names))
    }

    /// Returns whether the capacity left of a device suffices for an alternative.
    pub(super) fn suffices(&self, own: &Alternative, slice: &Slice, device: usize) -> bool {
        let id = slice.id(device);
        let before = self.devices.parts.get(&id).map(|(_, portions)| portions);
        let now = self.sharing.get(&id).map(|(_, portions)| portions);
        suffices(
            &own.exact.capacity,
            &slice.devices[device].capacity,
            [before, now],
        )
    }

    /// Chooses the next device and all after it; returns `false` if that is not possible.
    fn go_on(&mut self, at: SearchPosition, start: DeviceIndex) -> Result<bool, Stop> {
        self.step()?;
        let Some(prepared) = self.prepared.get(at.claim) else {
            return Ok(true);
        };
        let Some(request) = prepared.requests.get(at.request).copied() else {
            let next = SearchPosition {
                claim: at.claim + 1,
                ..SearchPosition::default()
            };
            return match self.go_on(next, DeviceIndex::default()) {
                // Not a dead end for the whole search: with another alternative of an earlier claim, this claim may get by with fewer devices.
                Err(Stop::TooMany) => Ok(false),
                other => other,
            };
        };
        let index = match at.alternative {
            Some(index) => index,
            None if request.is_list => return self.first_available(at, request.alternatives.len()),
            None => 0,
        };
        let own = &request.alternatives[index];
        let all = prepared.all[at.request][index].as_ref();
        let count = match all {
            Some(spots) if spots.is_empty() => return Ok(false),
            Some(spots) => spots.len(),
            None => usize::try_from(own.exact.count.unwrap_or(0)).unwrap_or(usize::MAX),
        };
        if at.device >= count {
            let next = SearchPosition {
                request: at.request + 1,
                alternative: None,
                device: 0,
                ..at
            };
            return self.go_on(next, DeviceIndex::default());
        }
        // Counts the devices that this request still needs, so the branch ends before any of them is tried.
        let will_be = self.candidates[at.claim]
            .len()
            .saturating_add(count - at.device);
        if will_be > MOST_RESULTS {
            return Err(Stop::TooMany);
        }
        let next = SearchPosition {
            device: at.device + 1,
            alternative: Some(index),
            ..at
        };
        // The devices are fixed, so there is nothing to choose, and one that cannot be taken ends the branch.
        if let Some(spots) = all {
            let spot = spots[at.device];
            if !self.take(at, &request.name, own, spot, true)? {
                return Ok(false);
            }
            return self.go_on_or_back(at.claim, next, DeviceIndex::default());
        }
        for pool in start.0..self.pools.len() {
            let first_slice = if pool == start.0 { start.1 } else { 0 };
            for slice in first_slice..self.pools[pool].slices.len() {
                let of = self.pools[pool].slices[slice];
                let is_start = pool == start.0 && slice == start.1;
                for device in if is_start { start.2 } else { 0 }..of.devices.len() {
                    // Each device examined is a step, so a long list of unsuitable devices ends the search too.
                    self.step()?;
                    let usable = self.is_free(at.claim, own, of, device)
                        && self
                            .is_chosen(self.prepared[at.claim].key, own, of, device)
                            .map_err(Stop::Failed)?
                        && self.suffices(own, of, device)
                        && self.take(at, &request.name, own, (pool, slice, device), false)?;
                    // The order of devices within a request does not matter, so the search continues behind this device and skips permutations.
                    if usable && self.go_on_or_back(at.claim, next, (pool, slice, device + 1))? {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn step(&mut self) -> Result<(), Stop> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            Err(Stop::Failed(Failure::TooLong))
        } else {
            Ok(())
        }
    }

    /// Tries the alternatives of a request in order and keeps the first that works.
    fn first_available(&mut self, at: SearchPosition, alternatives: usize) -> Result<bool, Stop> {
        let mut all_too_many = true;
        for index in 0..alternatives {
            let alternative = Some(index);
            match self.go_on(SearchPosition { alternative, ..at }, DeviceIndex::default()) {
                Err(Stop::TooMany) => continue,
                Ok(false) => all_too_many = false,
                other => return other,
            }
        }
        if all_too_many {
            // Only if every alternative is too large is the request; one that merely found nothing may fit elsewhere.
            Err(Stop::TooMany)
        } else {
            Ok(false)
        }
    }

    /// Continues the search like [`Search::go_on`] after a device was taken, and gives the device back if the search fails.
    fn go_on_or_back(
        &mut self,
        claim: usize,
        next: SearchPosition,
        start: DeviceIndex,
    ) -> Result<bool, Stop> {
        let done = self.go_on(next, start);
        if !matches!(done, Ok(true)) {
            self.give_back(claim);
        }
        done
    }
}
