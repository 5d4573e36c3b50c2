//! Random claims and devices, and a search that goes through every choice there is, in order, and looks at each only when it is complete.
//!
//! Written from the rules, not from the engine: no device is taken back, nothing is left out early. Counters need a second search ([`Walk`]):
//! kube-scheduler counts devices that it then cannot take and never takes that back, so what is found depends on what was looked at.

use std::collections::BTreeMap;

use mullion_engine::model::{DeviceSpec, ExactRequest, ResourceClaimSpec};
use serde_json::{Value, json};

use crate::world::{World, is_int};

/// A generator that is the same everywhere (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.roll(100) < percent
    }
}

fn device(dice: &mut Dice, name: &str) -> Value {
    let mut device = json!({ "name": name, "attributes": {} });
    for attribute in ["numa", "size"] {
        if dice.chance(80) {
            device["attributes"][attribute] = json!({ "int": dice.roll(2) });
        }
    }
    if dice.chance(20) {
        device["taints"] = json!([{ "key": "k", "effect": "NoSchedule" }]);
    }
    if dice.chance(40) {
        let value = (1 + dice.roll(2)).to_string();
        device["consumesCounters"] =
            json!([{ "counterSet": "set", "counters": { "units": { "value": value } } }]);
    }
    device
}

fn request(dice: &mut Dice) -> Value {
    let mut request = json!({ "deviceClassName": "any", "allocationMode": "ExactCount", "count": 1 + dice.roll(2) });
    if dice.chance(10) {
        request["allocationMode"] = json!("All");
    }
    if dice.chance(40) {
        let expression = format!("size={}", dice.roll(2));
        request["selectors"] = json!([{ "cel": { "expression": expression } }]);
    }
    if dice.chance(30) {
        request["tolerations"] = json!([{ "key": "k", "operator": "Exists" }]);
    }
    request
}

fn claim(dice: &mut Dice) -> Value {
    let mut requests = Vec::new();
    for name in ["r", "s"].into_iter().take(1 + dice.roll(2) as usize) {
        requests.push(if dice.chance(30) {
            let mut list = Vec::new();
            for own in ["x", "y"] {
                let mut alternative = request(dice);
                alternative["name"] = json!(own);
                list.push(alternative);
            }
            json!({ "name": name, "firstAvailable": list })
        } else {
            json!({ "name": name, "exactly": request(dice) })
        });
    }
    let mut constraints = Vec::new();
    if dice.chance(40) {
        let kind = if dice.chance(60) {
            "matchAttribute"
        } else {
            "distinctAttribute"
        };
        let mut constraint = json!({ kind: "d/numa" });
        if dice.chance(40) {
            let name = ["r", "s", "r/x"][dice.roll(3) as usize];
            constraint["requests"] = json!([name]);
        }
        constraints.push(constraint);
    }
    json!({ "requests": requests, "constraints": constraints })
}

/// One claim's choice: the name of each request's alternative with its devices, by place.
pub(crate) type Choice = Vec<(String, Vec<usize>)>;

/// All ways to choose `count` of `from`, in order.
fn combinations(from: &[usize], count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (index, first) in from.iter().enumerate() {
        for rest in combinations(&from[index + 1..], count - 1) {
            let mut own = vec![*first];
            own.extend(rest);
            all.push(own);
        }
    }
    all
}

/// Whether a request's selectors let a device in question.
fn is_chosen(exact: &ExactRequest, device: &DeviceSpec) -> bool {
    exact.selectors.iter().all(|selector| {
        let (attribute, value) = selector.split_once('=').expect("a test's expression");
        is_int(device, attribute, value)
    })
}

/// All choices for one request, in the order in which they are wanted.
fn choices(
    request: &mullion_engine::model::DeviceRequest,
    devices: &[DeviceSpec],
) -> Vec<(String, Vec<usize>)> {
    let alternatives: Vec<_> = match &request.exactly {
        Some(exact) => vec![(request.name.clone(), exact)],
        None => {
            let list = request.first_available.iter();
            list.map(|own| (format!("{}/{}", request.name, own.name), &own.exactly))
                .collect()
        }
    };
    let mut all = Vec::new();
    for (name, exact) in alternatives {
        let chosen: Vec<usize> = (0..devices.len())
            .filter(|at| is_chosen(exact, &devices[*at]))
            .collect();
        let count = exact.count.map_or(chosen.len(), |count| count as usize);
        if exact.count.is_none() && chosen.is_empty() {
            continue;
        }
        all.extend(
            combinations(&chosen, count)
                .into_iter()
                .map(|own| (name.clone(), own)),
        );
    }
    all
}

/// Whether a complete choice for all claims keeps every rule.
fn is_valid(
    claims: &[&ResourceClaimSpec],
    choice: &[Choice],
    devices: &[DeviceSpec],
    units: i64,
) -> bool {
    let mut uses: BTreeMap<usize, usize> = BTreeMap::new();
    let all = choice.iter().flatten().flat_map(|(_, devices)| devices);
    all.for_each(|device| *uses.entry(*device).or_default() += 1);
    let taken: i64 = uses
        .keys()
        .flat_map(|device| &devices[*device].consumes_counters)
        .flat_map(|set| set.counters.values())
        .map(|amount| amount.value())
        .sum();
    let is_counted = uses
        .keys()
        .any(|device| !devices[*device].consumes_counters.is_empty());
    if uses.values().any(|uses| *uses > 1) || (is_counted && taken > units) {
        return false;
    }
    claims.iter().zip(choice).all(|(claim, choice)| {
        let tolerated = claim
            .requests
            .iter()
            .zip(choice)
            .all(|(request, (name, chosen))| {
                let exact = request.exactly.as_ref().unwrap_or_else(|| {
                    let mut list = request.first_available.iter();
                    let own = list.find(|own| *name == format!("{}/{}", request.name, own.name));
                    &own.expect("the alternative that was chosen").exactly
                });
                !exact.tolerations.is_empty()
                    || chosen
                        .iter()
                        .all(|device| devices[*device].taints.is_empty())
            });
        tolerated && meets_constraints(claim, choice, devices)
    })
}

/// Whether what is chosen so far for a claim matches and differs as the claim wants it.
fn meets_constraints(claim: &ResourceClaimSpec, choice: &Choice, devices: &[DeviceSpec]) -> bool {
    claim.constraints.iter().all(|constraint| {
        let applies = |name: &str| {
            let outer = name.split('/').next().unwrap_or_default();
            constraint.requests.is_empty()
                || constraint
                    .requests
                    .iter()
                    .any(|own| own == name || own == outer)
        };
        let concerned = choice.iter().filter(|(name, _)| applies(name));
        let values: Vec<_> = concerned
            .flat_map(|(_, chosen)| chosen)
            .map(|device| devices[*device].attributes.get("numa"))
            .collect();
        let present = values.iter().all(Option::is_some);
        present
            && if constraint.match_attribute.is_some() {
                values.windows(2).all(|pair| pair[0] == pair[1])
            } else {
                (1..values.len()).all(|at| !values[..at].contains(&values[at]))
            }
    })
}

/// The first complete choice that keeps every rule.
pub(crate) fn first(
    claims: &[&ResourceClaimSpec],
    so_far: &mut Vec<Choice>,
    devices: &[DeviceSpec],
    units: i64,
) -> Option<Vec<Choice>> {
    let open = so_far.last().map_or(0, Vec::len);
    let at = so_far.len().saturating_sub(1);
    match claims.get(at) {
        None => is_valid(claims, &so_far[..claims.len()], devices, units)
            .then(|| so_far[..claims.len()].to_vec()),
        Some(claim) if open == claim.requests.len() => {
            so_far.push(Vec::new());
            let found = first(claims, so_far, devices, units);
            so_far.pop();
            found
        }
        Some(claim) => {
            for choice in choices(&claim.requests[open], devices) {
                so_far[at].push(choice);
                let found = first(claims, so_far, devices, units);
                so_far[at].pop();
                if found.is_some() {
                    return found;
                }
            }
            None
        }
    }
}

/// A search that adds one device after the other to a choice, each time checking the whole choice anew.
struct Walk<'a> {
    claims: &'a [&'a ResourceClaimSpec],
    devices: &'a [DeviceSpec],
    units: i64,
    /// What was counted for devices that a taint or a constraint then kept away.
    lost: i64,
}

impl Walk<'_> {
    fn weight(&self, device: usize) -> i64 {
        let sets = self.devices[device].consumes_counters.iter();
        sets.flat_map(|set| set.counters.values())
            .map(|amount| amount.value())
            .sum()
    }

    /// Completes a choice of whose last claim the last request may be open; `None` where nothing does, an error where a device of all is kept
    /// away by a constraint.
    fn go(&mut self, so_far: &[Choice]) -> Result<Option<Vec<Choice>>, ()> {
        let Some((last, before)) = so_far.split_last() else {
            return Ok(Some(Vec::new()));
        };
        let Some(claim) = self.claims.get(before.len()) else {
            return Ok(Some(before.to_vec()));
        };
        let Some(request) = claim.requests.get(last.len()) else {
            let mut next = so_far.to_vec();
            next.push(Vec::new());
            return self.go(&next);
        };
        let alternatives: Vec<_> = match &request.exactly {
            Some(exact) => vec![(request.name.clone(), exact)],
            None => {
                let list = request.first_available.iter();
                list.map(|own| (format!("{}/{}", request.name, own.name), &own.exactly))
                    .collect()
            }
        };
        for (name, exact) in alternatives {
            let chosen: Vec<usize> = (0..self.devices.len())
                .filter(|at| is_chosen(exact, &self.devices[*at]))
                .collect();
            let count = exact.count.map_or(chosen.len(), |count| count as usize);
            if exact.count.is_none() && chosen.is_empty() {
                continue;
            }
            let found = self.fill(so_far, (&name, exact), &chosen, count, Vec::new())?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Takes `count` devices more for one request, each behind the one before it.
    fn fill(
        &mut self,
        so_far: &[Choice],
        request: (&str, &ExactRequest),
        from: &[usize],
        count: usize,
        taken: Vec<usize>,
    ) -> Result<Option<Vec<Choice>>, ()> {
        let with = |taken: &[usize]| {
            let mut next = so_far.to_vec();
            let own = next.last_mut().expect("a claim that is open");
            own.push((request.0.to_owned(), taken.to_vec()));
            next
        };
        if count == 0 {
            return self.go(&with(&taken));
        }
        let all = request.1.count.is_none();
        for (index, device) in from.iter().enumerate() {
            let mut more = taken.clone();
            more.push(*device);
            let next = with(&more);
            if self.takes(&next, *device, request.1, all)? {
                let rest = &from[index + 1..];
                let found = self.fill(so_far, request, rest, count - 1, more)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            if all {
                return Ok(None);
            }
        }
        Ok(None)
    }

    fn takes(
        &mut self,
        next: &[Choice],
        device: usize,
        exact: &ExactRequest,
        all: bool,
    ) -> Result<bool, ()> {
        let used: Vec<usize> = next
            .iter()
            .flatten()
            .flat_map(|(_, devices)| devices.clone())
            .collect();
        if used.iter().filter(|own| **own == device).count() > 1 {
            return Ok(false);
        }
        let counts = !self.devices[device].consumes_counters.is_empty();
        let sum: i64 = used.iter().map(|own| self.weight(*own)).sum();
        if counts && sum + self.lost > self.units {
            return Ok(false);
        }
        let tolerated = !exact.tolerations.is_empty() || self.devices[device].taints.is_empty();
        if !tolerated {
            self.lost += self.weight(device);
            return Ok(false);
        }
        let claim = self.claims[next.len() - 1];
        let choice = next.last().expect("a claim that is open");
        if meets_constraints(claim, choice, self.devices) {
            return Ok(true);
        }
        self.lost += self.weight(device);
        if all { Err(()) } else { Ok(false) }
    }
}

/// Makes a world and holds the engine against the slow search.
pub(crate) fn compare(seed: u64) {
    let mut dice = Dice(seed);
    let mut world = World::new(&["n1"]);
    let names = ["a", "b", "c", "d", "e"];
    let count = 1 + dice.roll(5) as usize;
    let devices: Vec<Value> = names[..count]
        .iter()
        .map(|name| device(&mut dice, name))
        .collect();
    let units = dice.roll(5) as i64;
    let pool = json!({ "name": "n1", "generation": 1, "resourceSliceCount": 2 });
    world.slice(json!({ "nodeName": "n1", "pool": pool, "devices": devices }));
    let sets = json!([{ "name": "set", "counters": { "units": { "value": units.to_string() } } }]);
    world.slice(json!({ "nodeName": "n1", "pool": pool, "sharedCounters": sets }));
    let devices: Vec<DeviceSpec> = serde_json::from_value(json!(devices)).expect("devices");
    let claims = 1 + dice.roll(2) as usize;
    for name in ["c1", "c2"].into_iter().take(claims) {
        world.claim(name, claim(&mut dice));
    }
    let written = world.written.clone();
    let wanted: Vec<&ResourceClaimSpec> = written.iter().collect();
    let mut walk = Walk {
        claims: &wanted,
        devices: &devices,
        units,
        lost: 0,
    };
    // All devices of which one is kept away by a constraint are an error, not a refusal.
    let slow = walk.go(&[Vec::new()]);
    let is_counted = devices.iter().any(|own| !own.consumes_counters.is_empty());
    if let (false, Ok(found)) = (is_counted, &slow) {
        let complete = first(&wanted, &mut vec![Vec::new()], &devices, units);
        assert_eq!(*found, complete, "seed {seed}: {written:#?} {devices:#?}");
    }
    let pod = world.pod("p", &["c1", "c2"][..claims]);
    let fast = world.placed(&pod);
    let fast = fast.map(|choices| {
        let choices = choices.claims.into_iter();
        choices
            .map(|(_, allocation)| {
                let devices = allocation.devices.into_iter();
                devices
                    .map(|device| format!("{}={}", device.request, device.device))
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    });
    let devices = &devices;
    let slow = slow.map(|found| {
        let of_claim = |choice: &Choice| {
            let all = choice.iter();
            let all = all.flat_map(|(name, chosen)| {
                let named = move |at: &usize| format!("{name}={}", devices[*at].name);
                chosen.iter().map(named)
            });
            all.collect::<Vec<_>>()
        };
        found.map(|choices| choices.iter().map(of_claim).collect::<Vec<_>>())
    });
    let case = || format!("seed {seed}: {written:#?} {devices:#?} {units} {fast:?}");
    match (&fast, slow) {
        (Err(why), Err(())) => assert!(
            why.contains("a claim constraint would not be satisfied"),
            "{}",
            case()
        ),
        (_, slow) => assert_eq!(
            fast.as_ref().ok(),
            slow.expect("a choice").as_ref(),
            "{}",
            case()
        ),
    }
}
