//! ResourceClaims, DeviceClasses, ResourceSlices and the allocated devices, compiled; and their meaning for one pod
//! ([`Plan`], [`Search`]).
//!
//! Invariant: every change increments [`Devices::version`], so a plan is valid for one version. The allocated devices always
//! equal the sum over all claims with an allocation.

mod candidate;
mod capacity;
mod constraint;
mod extended;
mod object;
mod plan;
mod pool;
mod search;
mod taking;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::intern::{Interner, Symbol};
use crate::model::DeviceJudge;
use crate::selector::{NodeTerm, Site};

pub(crate) use candidate::CandidateAllocation;
use capacity::Portions;
pub(crate) use extended::{ExtendedResources, written};
pub(crate) use object::{Allocation, Claim, Class, DeviceId, Slice};
pub use plan::ClaimConflict;
pub(crate) use plan::{Plan, PlannedClaim};
use pool::PoolId;
pub(crate) use search::{Failure, Search, UnallocatedClaim};

/// Namespace and name.
pub(crate) type Key = (Symbol, Symbol);

/// The result of a CEL expression for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Matches,
    Differs,
    /// The expression cannot be evaluated.
    Fails(Box<str>),
}

/// A search needs a plan, and [`Plan::of`] evaluates all expressions; so this error is not expected.
const NOT_ASKED: &str = "the expression was not evaluated";

/// The results of a CEL expression for the devices of a slice.
type Verdicts = Result<Box<[Verdict]>, Box<str>>;

/// The maximum number of cached results, over all expressions and devices.
const MOST_VERDICTS: usize = 2_000_000;

/// All device objects by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    version: u64,
    judge: Option<Arc<dyn DeviceJudge>>,
    claims: FxHashMap<Key, Claim>,
    classes: FxHashMap<Symbol, Class>,
    /// The DeviceClasses that provide each extended resource.
    standing: FxHashMap<Symbol, Vec<Symbol>>,
    /// The slices by name, so that the order of a search is reproducible.
    slices: BTreeMap<Box<str>, Slice>,
    /// The names of each pool's slices, of all generations.
    by_pool: FxHashMap<PoolId, BTreeSet<Box<str>>>,
    /// The names of the slices that are for one node only, by node.
    local: FxHashMap<Symbol, Vec<Box<str>>>,
    /// The names of all other slices, sorted.
    shared: Vec<Box<str>>,
    /// The names of the slices with counters that are for one node only, by pool.
    counting: BTreeMap<PoolId, Vec<Box<str>>>,
    /// The pools among these that are incomplete or invalid, which other nodes notice too.
    unsound: BTreeSet<PoolId>,
    /// Devices that are allocated as a whole, with the number of claims that have them.
    taken: FxHashMap<DeviceId, u32>,
    /// Shared devices: the number of claims that have a share, and the sum of the shares.
    parts: FxHashMap<DeviceId, (u32, Portions)>,
    /// The cached results of each expression for each slice.
    verdicts: FxHashMap<Symbol, FxHashMap<Box<str>, Verdicts>>,
}

/// The new state of one object; `None` if it was deleted.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Claim(Key, Option<Box<Claim>>),
    Class(Symbol, Option<Box<Class>>),
    Slice(Box<str>, Option<Box<Slice>>),
}

impl Devices {
    /// Applies a change and returns its inverse; `None` if nothing changed.
    pub(crate) fn exchange(&mut self, change: Change) -> Option<Change> {
        let inverse = match change {
            Change::Claim(key, claim) => {
                if self.claims.get(&key) == claim.as_deref() {
                    return None;
                }
                let before = match claim {
                    Some(claim) => {
                        // The new allocation is counted before the old one is subtracted, so that devices in both never seem
                        // free in between.
                        self.count(claim.allocation.as_ref(), 1);
                        self.claims.insert(key, *claim)
                    }
                    None => self.claims.remove(&key),
                };
                let lost = before.as_ref().and_then(|claim| claim.allocation.clone());
                self.count(lost.as_ref(), -1);
                Change::Claim(key, before.map(Box::new))
            }
            Change::Class(name, class) => {
                if self.classes.get(&name) == class.as_deref() {
                    return None;
                }
                let before = self.replace_class(name, class.map(|class| *class));
                Change::Class(name, before.map(Box::new))
            }
            Change::Slice(name, slice) => {
                if self.slices.get(&name) == slice.as_deref() {
                    return None;
                }
                let before = self.replace_slice(&name, slice.map(|slice| *slice));
                Change::Slice(name, before.map(Box::new))
            }
        };
        self.version += 1;
        Some(inverse)
    }

    fn replace_class(&mut self, name: Symbol, class: Option<Class>) -> Option<Class> {
        let before = self.classes.remove(&name);
        for resource in before.iter().flat_map(|before| &before.resources) {
            if let Some(classes) = self.standing.get_mut(resource) {
                classes.retain(|own| *own != name);
                if classes.is_empty() {
                    self.standing.remove(resource);
                }
            }
        }
        if let Some(class) = class {
            for resource in &class.resources {
                self.standing.entry(*resource).or_default().push(name);
            }
            self.classes.insert(name, class);
        }
        before
    }

    fn replace_slice(&mut self, name: &str, slice: Option<Slice>) -> Option<Slice> {
        let before = self.slices.remove(name);
        let pools = [before.as_ref(), slice.as_ref()].map(|slice| slice.map(Slice::pool_id));
        if let Some(before) = &before {
            if let Some(names) = self.by_pool.get_mut(&before.pool_id()) {
                names.remove(name);
                if names.is_empty() {
                    self.by_pool.remove(&before.pool_id());
                }
            }
            if let Some(counting) = self.counting.get_mut(&before.pool_id()) {
                counting.retain(|own| **own != *name);
            }
            let list = match before.only_node() {
                Some(node) => self.local.entry(node).or_default(),
                None => &mut self.shared,
            };
            list.retain(|own| **own != *name);
            if let Some(node) = before.only_node()
                && self.local.get(&node).is_some_and(Vec::is_empty)
            {
                self.local.remove(&node);
            }
        }
        // The slice's devices may differ now, so the cached results for it are void.
        for verdicts in self.verdicts.values_mut() {
            verdicts.remove(name);
        }
        if let Some(slice) = slice {
            let list = match slice.only_node() {
                Some(node) => self.local.entry(node).or_default(),
                None => &mut self.shared,
            };
            // Sorted, so that a search looks at slices in the same order whatever order they arrived in.
            let place = list.partition_point(|own| **own < *name);
            list.insert(place, name.into());
            let of_pool = self.by_pool.entry(slice.pool_id()).or_default();
            of_pool.insert(name.into());
            if slice.only_node().is_some() && !slice.counters.is_empty() {
                let counting = self.counting.entry(slice.pool_id()).or_default();
                counting.push(name.into());
            }
            self.slices.insert(name.into(), slice);
        }
        // The slice may have moved to another pool, so both are checked.
        for pool in pools.into_iter().flatten() {
            self.check_counters(pool);
        }
        before
    }

    /// Notes whether other nodes must see the counters of a pool's nodes.
    fn check_counters(&mut self, id: PoolId) {
        let names = self.counting.get(&id).filter(|names| !names.is_empty());
        let is_unsound = names.is_some_and(|names| {
            let slices = names.iter().filter_map(|name| self.slices.get(name));
            pool::is_unsound(self, slices.collect())
        });
        if names.is_none() {
            self.counting.remove(&id);
        }
        if is_unsound {
            self.unsound.insert(id)
        } else {
            self.unsound.remove(&id)
        };
    }

    /// Adds an allocation to the allocated devices (`sign` 1), or removes it (-1).
    fn count(&mut self, allocation: Option<&Allocation>, sign: i32) {
        let devices = allocation.into_iter().flat_map(|own| &own.devices);
        // Admin access looks at devices that others have and takes nothing from them.
        for device in devices.filter(|device| !device.admin_access) {
            match &device.portions {
                None => {
                    let uses = self.taken.entry(device.id).or_default();
                    *uses = uses.saturating_add_signed(sign);
                    if *uses == 0 {
                        self.taken.remove(&device.id);
                    }
                }
                Some(portions) => {
                    let (uses, sum) = self.parts.entry(device.id).or_default();
                    *uses = uses.saturating_add_signed(sign);
                    sum.change(portions, sign > 0);
                    if *uses == 0 {
                        self.parts.remove(&device.id);
                    }
                }
            }
        }
    }

    /// Sets the evaluator of CEL expressions.
    pub(crate) fn judge_by(&mut self, judge: Arc<dyn DeviceJudge>) {
        self.judge = Some(judge);
        self.verdicts.clear();
        self.version += 1;
    }

    /// Returns the version, which every change increments.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn claim(&self, key: Key) -> Option<&Claim> {
        self.claims.get(&key)
    }

    pub(crate) fn class(&self, name: Symbol) -> Option<&Class> {
        self.classes.get(&name)
    }

    /// Returns whether the devices allocated to a claim can be used from a node; `true` without an allocation.
    pub(crate) fn is_usable(&self, planned: PlannedClaim, site: Site<'_>) -> bool {
        let claim = self.claim(planned.key);
        let Some(allocation) = claim.and_then(|claim| claim.allocation.as_ref()) else {
            return true;
        };
        let matches = |term: &NodeTerm| term.matches(site.labels, site.name, site.names);
        let reached = allocation
            .terms
            .as_ref()
            .is_none_or(|terms| terms.iter().any(matches));
        reached && !claim.is_some_and(|claim| claim.unready)
    }

    fn is_taken(&self, device: DeviceId) -> bool {
        self.taken.contains_key(&device)
    }

    /// Returns whether a claim has the device or a share of it.
    fn is_allocated(&self, device: DeviceId) -> bool {
        self.is_taken(device) || self.parts.contains_key(&device)
    }

    /// Returns the slices that may have devices for a node, and the counters of other nodes in unsound pools.
    fn slices_for<'a>(&'a self, site: Site<'_>) -> impl Iterator<Item = &'a Slice> + use<'a> {
        let local = self.local.get(&site.name);
        let names = local.into_iter().flatten().chain(&self.shared);
        let own = names.filter_map(|name| self.slices.get(name));
        let node = site.name;
        // kube-scheduler shows counters to all nodes. Those of a sound pool change nothing for a node without its devices.
        let unsound = self.unsound.iter().filter_map(|id| self.counting.get(id));
        let counters = unsound.flatten().filter_map(|name| self.slices.get(name));
        own.chain(counters.filter(move |slice| slice.only_node() != Some(node)))
    }

    /// Returns the slices of a pool, of all generations and nodes, by name.
    fn slices_of(&self, id: PoolId) -> impl Iterator<Item = &Slice> {
        let names = self.by_pool.get(&id).into_iter().flatten();
        names.filter_map(|name| self.slices.get(name))
    }

    /// Evaluates the expressions for all devices; returns `false` if the results would exceed the cache.
    fn judge_all(&mut self, expressions: &[Symbol], names: &Interner) -> bool {
        let devices: usize = self.slices.values().map(|slice| slice.devices.len()).sum();
        let wanted = expressions.len().saturating_mul(devices);
        if wanted > MOST_VERDICTS {
            return false;
        }
        let is_known = |own: &Symbol| {
            let verdicts = self.verdicts.get(own);
            verdicts.is_some_and(|own| own.len() == self.slices.len())
        };
        if expressions.iter().all(is_known) {
            return true;
        }
        if self
            .verdicts
            .len()
            .saturating_mul(devices)
            .saturating_add(wanted)
            > MOST_VERDICTS
        {
            // The new version makes callers plan again, which evaluates what they need.
            self.verdicts.clear();
            self.version += 1;
        }
        for expression in expressions {
            let own = self.verdicts.entry(*expression).or_default();
            let text = names.text(*expression);
            for (name, slice) in &self.slices {
                if !own.contains_key(name) {
                    let verdicts = judged(self.judge.as_deref(), text, slice, names);
                    own.insert(name.clone(), verdicts);
                }
            }
        }
        true
    }

    /// Returns the result of an expression for a device, which [`Plan::of`] has evaluated.
    ///
    /// # Errors
    /// Returns CEL's message if the expression does not compile.
    fn verdict(&self, expression: Symbol, slice: &Slice, device: usize) -> Result<&Verdict, &str> {
        let of_expression = self.verdicts.get(&expression);
        match of_expression.and_then(|own| own.get(&slice.name)) {
            Some(Ok(verdicts)) => verdicts.get(device).ok_or(NOT_ASKED),
            Some(Err(why)) => Err(why),
            None => Err(NOT_ASKED),
        }
    }
}

fn judged(
    judge: Option<&dyn DeviceJudge>,
    expression: &str,
    slice: &Slice,
    names: &Interner,
) -> Verdicts {
    let judge = judge.ok_or("nobody here evaluates expressions")?;
    let driver = names.text(slice.driver);
    let said = judge.judge(expression, driver, &slice.devices)?;
    let verdicts = said.into_iter().map(|said| match said {
        Ok(true) => Verdict::Matches,
        Ok(false) => Verdict::Differs,
        Err(why) => Verdict::Fails(why.into()),
    });
    Ok(verdicts.collect())
}
