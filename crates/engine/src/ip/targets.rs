//! Computes by how many blocks a pool misses or exceeds its targets, with VRC's formulas; waiting pods count as demand.
//!
//! Source: `calculateSecondaryIPDeviation` and `getPDDeviation` of pkg/pool/pool.go.

use super::cidr::{Kind, PREFIX_SIZE};

/// How many addresses a pool keeps ready. [`Goal::deviation`] says what values of zero or less mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Targets {
    /// The number of ready, unused addresses (`warm-ip-target`).
    pub warm_ip: i64,
    /// The minimum number of addresses, used or not (`minimum-ip-target`).
    pub min_ip: i64,
    /// The number of prefixes with no used address (`warm-prefix-target`).
    pub warm_prefix: i64,
}

impl Targets {
    /// The defaults for single addresses.
    pub const ADDRESSES: Targets = Targets {
        warm_ip: 3,
        min_ip: 3,
        warm_prefix: 0,
    };
    /// The defaults for prefixes.
    pub const PREFIXES: Targets = Targets {
        warm_ip: 1,
        min_ip: 3,
        warm_prefix: 0,
    };

    /// Returns the defaults for `kind`.
    pub const fn default_of(kind: Kind) -> Targets {
        match kind {
            Kind::Address => Targets::ADDRESSES,
            Kind::Prefix => Targets::PREFIXES,
        }
    }
}

/// The goal of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Keep addresses ready.
    Keep(Targets),
    /// Give back everything that no pod uses, because the other kind is active.
    Drain,
}

/// The number of addresses in each state. A prefix that is being assigned or given back counts 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Addresses that pods have.
    pub used: usize,
    /// Addresses that are ready for a pod.
    pub warm: usize,
    /// Addresses that were released and are resting.
    pub cooling: usize,
    /// Addresses that were requested, without an answer yet.
    pub creating: usize,
    /// Addresses that are being given back, or whose release had no clear result.
    pub deleting: usize,
    /// Prefixes whose 16 addresses are all warm; 0 for single addresses.
    pub free_prefixes: usize,
}

impl Counts {
    /// Returns the number of all addresses that the pool has or has requested.
    pub fn total(&self) -> usize {
        self.used + self.warm + self.cooling + self.creating + self.deleting
    }
}

impl Goal {
    /// Returns the number of blocks of `kind` to assign (positive) or to give back (negative), while `waiting` pods wait
    /// for an address.
    ///
    /// For single addresses a negative target means 3. For prefixes a target of zero or less is not set. `warm_prefix`
    /// applies only if neither other target is set; otherwise an unset `warm_ip` means 1 and an unset `min_ip` means 3.
    pub fn deviation(self, kind: Kind, counts: &Counts, waiting: usize) -> i64 {
        match kind {
            Kind::Address => self.of_addresses(counts, waiting as i64),
            Kind::Prefix => self.of_prefixes(counts, waiting as i64),
        }
    }

    fn of_addresses(self, counts: &Counts, waiting: i64) -> i64 {
        let or_3 = |target: i64| if target < 0 { 3 } else { target };
        let (warm_target, min_target) = match self {
            Goal::Keep(targets) => (or_3(targets.warm_ip), or_3(targets.min_ip)),
            Goal::Drain => (0, 0),
        };
        // Addresses on their way count as available, or each event would ask for them again.
        let available = (counts.warm + counts.creating) as i64;
        let all = (counts.used + counts.cooling) as i64 + available;
        // Waiting pods are demand too, whatever the targets say; VRC's formula does not count them.
        let ready_target = warm_target.max(waiting);
        let short = (ready_target - available).max(min_target - all).max(0);
        // Never below the minimum, even if more is warm than wanted.
        let over = (available - ready_target).min(all - min_target).max(0);
        short - over
    }

    fn of_prefixes(self, counts: &Counts, waiting: i64) -> i64 {
        let deviation = self.of_prefixes_by_targets(counts);
        if waiting == 0 {
            return deviation;
        }
        let unserved = (waiting - (counts.warm + counts.creating) as i64).max(0);
        deviation.max(prefixes(unserved))
    }

    fn of_prefixes_by_targets(self, counts: &Counts) -> i64 {
        let (warm_ip, min_ip) = match self {
            Goal::Drain => (0, 0),
            Goal::Keep(targets)
                if targets.warm_ip <= 0 && targets.min_ip <= 0 && targets.warm_prefix > 0 =>
            {
                let coming = prefixes(counts.creating as i64);
                return targets.warm_prefix - counts.free_prefixes as i64 - coming;
            }
            Goal::Keep(targets) => {
                let or = |target: i64, default| if target > 0 { target } else { default };
                (
                    or(targets.warm_ip, Targets::PREFIXES.warm_ip),
                    or(targets.min_ip, Targets::PREFIXES.min_ip),
                )
            }
        };
        let used = counts.used as i64;
        let there = prefixes(used + (counts.warm + counts.cooling) as i64 + counts.creating as i64);
        let wanted = prefixes(used.saturating_add(warm_ip)).max(prefixes(min_ip));
        match wanted - there {
            // A prefix with a used address cannot be given back.
            over if over < 0 && counts.free_prefixes == 0 => 0,
            deviation => deviation,
        }
    }
}

/// Returns the number of prefixes needed for this many addresses.
fn prefixes(addresses: i64) -> i64 {
    // Rounded up; for negative numbers Rust rounds towards zero, which is what is wanted here.
    addresses / PREFIX_SIZE as i64 + i64::from(addresses % PREFIX_SIZE as i64 > 0)
}
