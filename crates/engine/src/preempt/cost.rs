//! The cost of an eviction: kube-scheduler's criteria, one after the other.

use std::cmp::Reverse;

/// The cost of an eviction. Costs are compared field by field and the least is best
/// (kube-scheduler: `pickOneNodeForPreemption`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Cost {
    pdb_violations: usize,
    highest_priority: i32,
    sum_of_priorities: i128,
    victims: usize,
    /// The earliest start among the victims of the highest priority, reversed: the node where it is
    /// latest is best.
    start: Reverse<i64>,
}

impl Cost {
    /// Returns the cost of victims, which are given by priority and start time, the most important
    /// first.
    pub(crate) fn of(
        pdb_violations: usize,
        victims: impl Iterator<Item = (i32, i64)> + Clone,
    ) -> Self {
        let highest = victims
            .clone()
            .next()
            .map_or(i32::MIN, |(priority, _)| priority);
        let top = victims.clone().filter(|(priority, _)| *priority == highest);
        Cost {
            pdb_violations,
            highest_priority: highest,
            // Shifted to be positive, as in kube-scheduler: otherwise more victims of negative priority would cost
            // less.
            sum_of_priorities: victims
                .clone()
                .map(|(priority, _)| i128::from(priority) + (1 << 31))
                .sum(),
            victims: victims.count(),
            start: Reverse(top.map(|(_, start)| start).min().unwrap_or(i64::MAX)),
        }
    }
}
