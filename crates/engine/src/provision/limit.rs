//! What a pool may still buy.
//!
//! A planned node counts as the largest type it can still become, so that a launch never breaks a limit.

use std::collections::BTreeMap;

use crate::model::{Quantity, ResourceMap};

use super::PoolReason;

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
