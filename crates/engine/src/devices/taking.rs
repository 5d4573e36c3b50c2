//! Takes one device for a claim and gives it back, and keeps the counts of a search right meanwhile.
//!
//! Counters follow kube-scheduler 1.36 exactly (decision 16): its allocator counts a device before it checks taints and constraints. It does not
//! undo the count if these exclude the device, nor when a shared device is given back.

use super::Failure;
use super::candidate::CandidateDevice;
use super::capacity::Portions;
use super::object::{Alternative, Slice};
use super::pool::consumption;
use super::search::{DeviceIndex, Search, SearchPosition, Stop};
use crate::intern::Symbol;
use crate::model::DeviceSpec;

impl<'a> Search<'a> {
    pub(super) fn is_free(
        &self,
        claim: usize,
        own: &Alternative,
        slice: &Slice,
        device: usize,
    ) -> bool {
        let id = slice.id(device);
        let taking = self.taking.get(&id);
        if own.exact.admin_access {
            // Admin access may share a device with others, but one claim cannot have it twice.
            taking.is_none_or(|claims| !claims.contains(&claim))
        } else {
            !self.devices.is_taken(id) && taking.is_none_or(Vec::is_empty)
        }
    }

    /// Takes a device and returns `true`, or returns `false` if the device cannot be taken. If the request asks for all devices (`must`), an
    /// unsatisfied constraint is an error.
    pub(super) fn take(
        &mut self,
        at: SearchPosition,
        request: &'a str,
        own: &'a Alternative,
        spot: DeviceIndex,
        must: bool,
    ) -> Result<bool, Stop> {
        let (pool, slice, index) = spot;
        let slice = self.pools[pool].slices[slice];
        let device = &slice.devices[index];
        let id = slice.id(index);
        let shares = device.allow_multiple_allocations;
        let suffices = self.suffices(own, slice, index);
        // If the request is for all devices, kube-scheduler checks the free capacity only after all else, so counters below may be counted
        // first.
        if !self.is_free(at.claim, own, slice, index) || !suffices && !must {
            return Ok(false);
        }
        let is_shared = self.devices.parts.contains_key(&id) || self.sharing.contains_key(&id);
        let is_counted = shares && is_shared;
        let counts = !is_counted && !device.consumes_counters.is_empty();
        // A shared device uses its counters once, with the first share.
        if counts && !self.count(pool, device) {
            return Ok(false);
        }
        let keeps_away = |effect: &str| matches!(effect, "NoSchedule" | "NoExecute");
        let tolerated = device
            .taints
            .iter()
            .filter(|taint| keeps_away(&taint.effect))
            .all(|taint| {
                let mut tolerations = own.exact.tolerations.iter();
                tolerations.any(|toleration| toleration.tolerates(taint))
            });
        if !tolerated {
            return Ok(false);
        }
        if must && !suffices {
            return Ok(false);
        }
        let driver = self.site.names.text(slice.driver);
        let constraints = &mut self.prepared[at.claim].constraints;
        // Collected first and recorded only when every constraint accepts the device, so that a refusal changes
        // nothing.
        let mut values = Vec::with_capacity(constraints.len());
        for constraint in constraints.iter() {
            match constraint.value(request, &own.name, device, driver) {
                Some(value) => values.push(value),
                None if must => {
                    let named = if own.name.is_empty() {
                        request
                    } else {
                        &own.name
                    };
                    return Err(Stop::Failed(Failure::Error(format!(
                        "claim {}, request {named}: cannot add device {} because a claim constraint would not be satisfied",
                        self.claim_text(self.prepared[at.claim].key),
                        id.text(self.site.names)
                    ))));
                }
                None => return Ok(false),
            }
        }
        for (constraint, value) in constraints.iter_mut().zip(values) {
            constraint.values.extend(value);
        }
        let portions = shares.then(|| Portions::asked(&own.exact.capacity, &device.capacity));
        match &portions {
            Some(portions) => {
                let (uses, sum) = self.sharing.entry(id).or_default();
                *uses += 1;
                sum.change(portions, true);
            }
            None => self.taking.entry(id).or_default().push(at.claim),
        }
        self.candidates[at.claim].push(CandidateDevice {
            request,
            alternative: &own.name,
            slice,
            index,
            admin_access: own.exact.admin_access,
            portions,
        });
        Ok(true)
    }

    /// Counts a device if the counters of its pool suffice. Like kube-scheduler this identifies pools by name without the driver: the counters
    /// of the first pool of that name stand for all of them.
    fn count(&mut self, pool: usize, device: &'a DeviceSpec) -> bool {
        let (_, name) = self.pools[pool].id;
        let first = *self.asked.entry(name).or_insert(pool);
        for ((set, counter), amount) in consumption(&device.consumes_counters) {
            let sum = self.counted.entry((name, set, counter)).or_default();
            *sum = sum.saturating_add(amount);
        }
        // kube-scheduler compares all counters of the pool, also those that this device does not use, so one negative counter excludes every
        // device that uses counters.
        let suffice = self.pools[first].counters.iter().all(|(key, left)| {
            let counted = self.counted.get(&(name, key.0, key.1)).copied();
            counted.unwrap_or_default() <= *left
        });
        if !suffice {
            self.uncount(name, device);
        }
        suffice
    }

    fn uncount(&mut self, pool: Symbol, device: &'a DeviceSpec) {
        for ((set, counter), amount) in consumption(&device.consumes_counters) {
            if let Some(sum) = self.counted.get_mut(&(pool, set, counter)) {
                *sum = sum.saturating_sub(amount);
            }
        }
    }

    /// Gives back the device that a claim took last.
    pub(super) fn give_back(&mut self, claim: usize) {
        let Some(candidate) = self.candidates[claim].pop() else {
            return;
        };
        let (id, device) = (candidate.id(), candidate.device());
        // Values were pushed in the order of devices, so the last one is this device's.
        for constraint in &mut self.prepared[claim].constraints {
            if constraint.applies(candidate.request, candidate.alternative) {
                constraint.values.pop();
            }
        }
        match &candidate.portions {
            Some(portions) => {
                if let Some((uses, sum)) = self.sharing.get_mut(&id) {
                    *uses -= 1;
                    sum.change(portions, false);
                    // A device without capacities stays marked as shared.
                    if *uses == 0 && !portions.0.is_empty() {
                        self.sharing.remove(&id);
                    }
                }
            }
            None => {
                if let Some(claims) = self.taking.get_mut(&id) {
                    claims.pop();
                }
                if !device.consumes_counters.is_empty() {
                    self.uncount(candidate.slice.pool, device);
                }
            }
        }
    }
}
