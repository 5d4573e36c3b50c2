//! Claims of devices, the devices that drivers offer and what is taken of them, compiled; and what they mean for one pod ([`Plan`], [`Search`]).
//!
//! Invariant: every change raises [`Devices::version`], so a plan made at a version holds while the version does. What is taken always
//! equals the sum over the claims that have an allocation.

mod capacity;
mod constraint;
mod extended;
mod found;
mod object;
mod plan;
mod pool;
mod search;
mod taking;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::intern::{Interner, Symbol};
use crate::model::DeviceJudge;
use crate::selector::{NodeTerm, Site};

use capacity::Portions;
pub(crate) use extended::{Standing, written};
pub(crate) use found::Found;
pub(crate) use object::{Allocation, Claim, Class, DeviceId, Slice};
pub use plan::ClaimConflict;
pub(crate) use plan::{Plan, PlannedClaim};
pub(crate) use search::{Failure, Search, Wish};

/// Namespace and name.
pub(crate) type Key = (Symbol, Symbol);

/// What an expression says about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Matches,
    Differs,
    /// It cannot be evaluated.
    Fails(Box<str>),
}

/// Whoever searches has made a plan before, which asks.
const NOT_ASKED: &str = "the expression was not evaluated";

/// What an expression says about the devices of a slice.
type Verdicts = Result<Box<[Verdict]>, Box<str>>;

/// Verdicts that are kept, of all expressions about all devices.
const MOST_VERDICTS: usize = 2_000_000;

/// All objects about devices by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices {
    version: u64,
    judge: Option<Arc<dyn DeviceJudge>>,
    claims: FxHashMap<Key, Claim>,
    classes: FxHashMap<Symbol, Class>,
    /// Which classes stand for an extended resource, by its name.
    standing: FxHashMap<Symbol, Vec<Symbol>>,
    /// By name of the slice, so that a search goes through them in an order that can be seen from outside.
    slices: BTreeMap<Box<str>, Slice>,
    /// Names of the slices for one node only.
    local: FxHashMap<Symbol, Vec<Box<str>>>,
    /// Names of all others, sorted.
    shared: Vec<Box<str>>,
    /// Devices that claims have for themselves, with how many do.
    taken: FxHashMap<DeviceId, u32>,
    /// Devices of which claims have parts: how many claims, and what parts.
    parts: FxHashMap<DeviceId, (u32, Portions)>,
    /// By expression and slice.
    verdicts: FxHashMap<Symbol, FxHashMap<Box<str>, Verdicts>>,
}

/// One object as it is from now on; `None` once it is gone.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Claim(Key, Option<Box<Claim>>),
    Class(Symbol, Option<Box<Class>>),
    Slice(Box<str>, Option<Box<Slice>>),
}

impl Devices {
    /// Makes a change and gives its inverse; none where nothing changed.
    pub(crate) fn exchange(&mut self, change: Change) -> Option<Change> {
        let inverse = match change {
            Change::Claim(key, claim) => {
                if self.claims.get(&key) == claim.as_deref() {
                    return None;
                }
                let before = match claim {
                    Some(claim) => {
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
        if let Some(before) = &before {
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
        for verdicts in self.verdicts.values_mut() {
            verdicts.remove(name);
        }
        if let Some(slice) = slice {
            let list = match slice.only_node() {
                Some(node) => self.local.entry(node).or_default(),
                None => &mut self.shared,
            };
            let place = list.partition_point(|own| **own < *name);
            list.insert(place, name.into());
            self.slices.insert(name.into(), slice);
        }
        before
    }

    /// Counts what an allocation takes, or what it takes no more.
    fn count(&mut self, allocation: Option<&Allocation>, sign: i32) {
        let devices = allocation.into_iter().flat_map(|own| &own.devices);
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

    /// Who evaluates expressions from now on.
    pub(crate) fn judge_by(&mut self, judge: Arc<dyn DeviceJudge>) {
        self.judge = Some(judge);
        self.verdicts.clear();
        self.version += 1;
    }

    /// Raised by every change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn claim(&self, key: Key) -> Option<&Claim> {
        self.claims.get(&key)
    }

    pub(crate) fn class(&self, name: Symbol) -> Option<&Class> {
        self.classes.get(&name)
    }

    /// Whether the devices that a claim has can be used from a node, or none are needed yet.
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

    /// Whether a claim has a device or a part of it.
    fn is_allocated(&self, device: DeviceId) -> bool {
        self.is_taken(device) || self.parts.contains_key(&device)
    }

    /// The slices that may have something for a node.
    fn slices_for<'a>(&'a self, site: Site<'_>) -> impl Iterator<Item = &'a Slice> + use<'a> {
        let local = self.local.get(&site.name);
        let names = local.into_iter().flatten().chain(&self.shared);
        names.filter_map(|name| self.slices.get(name))
    }

    /// Asks about devices what a search for these expressions may want to know; `false` if that is too much to keep.
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
            // Whoever counts on verdicts asks again.
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

    /// What an expression says about a device. [`Plan::of`] has asked.
    ///
    /// # Errors
    /// The expression does not compile.
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
