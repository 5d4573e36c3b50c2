//! Counts what a pool may still buy under its `spec.limits`.
//!
//! A planned node counts as the largest type that it can still become, so a launch never exceeds a limit.

use std::{collections::BTreeMap, sync::Arc};

use crate::model::{Quantity, ResourceMap};

use super::pack::{DIMENSIONS, Load};
use super::{InstanceType, NodeTemplate, PoolReason};

/// The limit on the number of nodes.
const NODES: &str = "nodes";

/// Remaining amounts by resource; a resource that is absent is unlimited.
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

    /// Returns what is left of each limited resource.
    pub(super) fn into_remaining(self) -> ResourceMap {
        self.remaining
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.remaining.is_empty()
    }

    /// Returns the first limit that one machine of this capacity would exceed.
    pub(super) fn broken_by(&self, capacity: &ResourceMap) -> Option<PoolReason> {
        self.all_broken_by(capacity).next()
    }

    /// Returns the limits that one machine of this capacity would exceed.
    fn all_broken_by(&self, capacity: &ResourceMap) -> impl Iterator<Item = PoolReason> {
        let broken = self
            .remaining
            .iter()
            .filter(|(name, left)| amount(capacity, name) > **left);
        broken.map(|(name, left)| PoolReason::LimitReached {
            resource: name.clone(),
            remaining: *left,
            others: Vec::new(),
        })
    }

    /// Returns the limits, with what is left of each, that every machine of these capacities would exceed.
    pub(super) fn broken_by_all(&self, capacities: &[&ResourceMap]) -> Vec<(String, Quantity)> {
        let of_all = self.remaining.iter().filter(|(name, left)| {
            let mut capacities = capacities.iter();
            capacities.all(|capacity| amount(capacity, name) > **left)
        });
        of_all.map(|(name, left)| (name.clone(), *left)).collect()
    }

    /// Returns the largest amount of each limited resource among some machines.
    pub(super) fn largest<'a>(
        &self,
        capacities: impl Iterator<Item = &'a ResourceMap>,
    ) -> ResourceMap {
        let mut largest = vec![Quantity::default(); self.remaining.len()];
        let mut is_some = false;
        for capacity in capacities {
            is_some = true;
            for (held, name) in largest.iter_mut().zip(self.remaining.keys()) {
                *held = (*held).max(amount(capacity, name));
            }
        }
        let largest = self.remaining.keys().cloned().zip(largest);
        largest.filter(|_| is_some).collect()
    }

    /// Returns the limited resources.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.remaining.keys()
    }

    /// Returns what is left of each of `names`, in thousandths; `i64::MAX` if there is no limit.
    pub(super) fn left(&self, names: &[String]) -> Load {
        let mut left = [i64::MAX; DIMENSIONS];
        for (left, name) in left.iter_mut().zip(names) {
            if let Some(limit) = self.remaining.get(name) {
                *left = limit.milli_value();
            }
        }
        left
    }

    /// Returns what one machine of this capacity takes of each of `names`, in thousandths; 0 if there is no
    /// limit.
    pub(super) fn taken(&self, capacity: &ResourceMap, names: &[String]) -> Load {
        let mut taken = Load::default();
        for (taken, name) in taken.iter_mut().zip(names) {
            if self.remaining.contains_key(name) {
                *taken = amount(capacity, name).milli_value();
            }
        }
        taken
    }

    /// Returns whether `own` takes at most as much of every limited resource as `other`.
    pub(super) fn takes_no_more(&self, own: &ResourceMap, other: &ResourceMap) -> bool {
        let mut names = self.remaining.keys();
        names.all(|name| amount(own, name) <= amount(other, name))
    }

    pub(super) fn take(&mut self, amounts: &ResourceMap) {
        // Saturating, so that `give_back` after a limit that was overdrawn cannot wrap around.
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

impl NodeTemplate {
    /// Returns the limits because of which the pool buys none of the machines that it could otherwise buy now: those that every machine would
    /// exceed, or else those that one would. Returns nothing if the pool can buy a machine.
    pub fn limits_reached(&self) -> Vec<PoolReason> {
        let limits = Limits::new(&self.limits_remaining);
        let is_sold = |machine: &&Arc<InstanceType>| {
            let mut offerings = machine.offerings.iter();
            offerings.any(|offering| offering.available)
        };
        let mut machines = 0;
        let mut counts: BTreeMap<String, (usize, PoolReason)> = BTreeMap::new();
        for machine in self.instance_types.iter().filter(is_sold) {
            machines += 1;
            let mut is_within = true;
            for limit in limits.all_broken_by(&machine.capacity) {
                is_within = false;
                if let PoolReason::LimitReached { resource, .. } = &limit {
                    counts.entry(resource.clone()).or_insert((0, limit)).0 += 1;
                }
            }
            if is_within {
                return Vec::new();
            }
        }
        let (of_all, of_some): (Vec<_>, Vec<_>) = counts
            .into_values()
            .partition(|(count, _)| *count == machines);
        let reached = if of_all.is_empty() { of_some } else { of_all };
        reached.into_iter().map(|(_, limit)| limit).collect()
    }
}

fn amount(capacity: &ResourceMap, name: &str) -> Quantity {
    if name == NODES {
        Quantity::from_units(1)
    } else {
        capacity.get(name).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provision::Offering;

    fn machine(cpu: i64, available: bool) -> Arc<InstanceType> {
        Arc::new(InstanceType {
            capacity: BTreeMap::from([("cpu".to_owned(), Quantity::from_units(cpu))]),
            offerings: vec![Offering {
                available,
                ..Offering::default()
            }],
            ..InstanceType::default()
        })
    }

    #[test]
    fn a_limit_is_reached_when_no_machine_that_is_sold_stays_within_it() {
        let reached = |name: &str, left: i64, machines: &[Arc<InstanceType>]| {
            let template = NodeTemplate {
                limits_remaining: BTreeMap::from([(name.to_owned(), Quantity::from_units(left))]),
                instance_types: machines.to_vec(),
                ..NodeTemplate::default()
            };
            !template.limits_reached().is_empty()
        };
        let (small, large) = (machine(2, true), machine(8, true));
        assert!(!reached("cpu", 2, &[large.clone(), small.clone()]));
        assert!(reached("cpu", 2, &[large.clone(), machine(2, false)]));
        assert!(reached("cpu", 0, &[small.clone(), large.clone()]));
        let machines = [small, large];
        assert!(reached("cpu", -5, &machines));
        assert!(reached("nodes", 0, &machines));
        assert!(!reached("nodes", 1, &machines));
        assert!(!reached("cpu", 0, &[]));
    }

    #[test]
    fn all_limits_are_named_that_every_machine_would_exceed() {
        let reached = |left: &[(&str, i64)], machines: &[Arc<InstanceType>]| {
            let left = left.iter();
            let left = left.map(|(name, left)| ((*name).to_owned(), Quantity::from_units(*left)));
            let template = NodeTemplate {
                limits_remaining: left.collect(),
                instance_types: machines.to_vec(),
                ..NodeTemplate::default()
            };
            let reached = template.limits_reached().into_iter();
            let names = reached.map(|limit| match limit {
                PoolReason::LimitReached { resource, .. } => resource,
                other => panic!("{other:?}"),
            });
            names.collect::<Vec<_>>()
        };
        let machines = [machine(2, true), machine(8, true)];
        assert_eq!(
            reached(&[("cpu", -4), ("nodes", 0)], &machines),
            ["cpu", "nodes"]
        );
        // The large machine alone exceeds the limit of CPUs.
        assert_eq!(reached(&[("cpu", 4), ("nodes", 0)], &machines), ["nodes"]);
        assert_eq!(reached(&[("cpu", 4), ("nodes", 1)], &machines), [""; 0]);
    }
}
