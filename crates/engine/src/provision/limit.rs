//! What a pool may still buy.
//!
//! A planned node counts as the largest type it can still become, so that a launch never breaks a limit.

use std::collections::BTreeMap;

use crate::model::{Quantity, ResourceMap};

use super::PoolReason;
use super::pack::{DIMENSIONS, Load};

/// The limit that counts machines.
const NODES: &str = "nodes";

/// Remaining amounts by resource; absent is unlimited.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    remaining: BTreeMap<String, Quantity>,
}

impl Limits {
    pub(super) fn new(remaining: &ResourceMap) -> Self {
        Limits {
            remaining: remaining.clone(),
        }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.remaining.is_empty()
    }

    /// The first limit that one machine of this capacity would break.
    pub(super) fn broken_by(&self, capacity: &ResourceMap) -> Option<PoolReason> {
        let broken = self
            .remaining
            .iter()
            .find(|(name, left)| amount(capacity, name) > **left);
        broken.map(|(name, left)| PoolReason::LimitReached {
            resource: name.clone(),
            remaining: *left,
        })
    }

    /// What the largest of some machines takes.
    pub(super) fn largest<'a>(
        &self,
        capacities: impl Iterator<Item = &'a ResourceMap>,
    ) -> ResourceMap {
        let mut largest = ResourceMap::new();
        for capacity in capacities {
            for name in self.remaining.keys() {
                let held = largest.entry(name.clone()).or_default();
                *held = (*held).max(amount(capacity, name));
            }
        }
        largest
    }

    /// The resources that are limited.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.remaining.keys()
    }

    /// What is left of each of some resources, in thousandths; `i64::MAX` where there is no limit.
    pub(super) fn left(&self, names: &[String]) -> Load {
        let mut left = [i64::MAX; DIMENSIONS];
        for (left, name) in left.iter_mut().zip(names) {
            if let Some(limit) = self.remaining.get(name) {
                *left = limit.milli_value();
            }
        }
        left
    }

    /// What one machine of a capacity takes of each of some resources, in thousandths; 0 where there is no limit.
    pub(super) fn taken(&self, capacity: &ResourceMap, names: &[String]) -> Load {
        let mut taken = Load::default();
        for (taken, name) in taken.iter_mut().zip(names) {
            if self.remaining.contains_key(name) {
                *taken = amount(capacity, name).milli_value();
            }
        }
        taken
    }

    /// Whether a machine takes no more of what is limited than another.
    pub(super) fn takes_no_more(&self, own: &ResourceMap, other: &ResourceMap) -> bool {
        let mut names = self.remaining.keys();
        names.all(|name| amount(own, name) <= amount(other, name))
    }

    pub(super) fn take(&mut self, amounts: &ResourceMap) {
        for (name, left) in &mut self.remaining {
            *left = left.saturating_sub(amounts.get(name).copied().unwrap_or_default());
        }
    }

    pub(super) fn give_back(&mut self, amounts: &ResourceMap) {
        for (name, left) in &mut self.remaining {
            *left = left.saturating_add(amounts.get(name).copied().unwrap_or_default());
        }
    }
}

fn amount(capacity: &ResourceMap, name: &str) -> Quantity {
    if name == NODES {
        Quantity::from_units(1)
    } else {
        capacity.get(name).copied().unwrap_or_default()
    }
}
