//! Which of its options a planned node lists for its launch.
//!
//! The launch chooses from the list by available capacity, so a list is a promise: nothing on it costs much more than
//! what the plan counts.

use fixedbitset::FixedBitSet;

use crate::cluster::Cluster;

use super::catalog::Catalog;

/// The maximum number of types that a node lists, the cheapest ones. Karpenter's AWS provider sends as many to EC2
/// Fleet.
const MOST_TYPES: usize = 60;
/// The most that an on-demand offering may cost to be listed, in percent of the cheapest.
const CAP_PERCENT: u64 = 125;
/// The most that a spot offering may cost to be listed, in percent of the cheapest.
const SPOT_CAP_PERCENT: u64 = 150;
/// The number of spot types that are listed at any price: the more pools of spot capacity there are, the less often
/// it is interrupted. Karpenter wants as many for spot-to-spot consolidation.
const LEAST_SPOT_TYPES: usize = 15;

impl Catalog {
    /// Returns which of some options are listed for a node: those of the cheapest types, and where prices are capped only what costs little more
    /// than the cheapest. Where that is less choice than the pool demands the list is as long as it must be.
    pub(super) fn listed(&self, options: &FixedBitSet, cluster: &Cluster) -> FixedBitSet {
        let listed = if self.caps_prices {
            self.of_cheapest_types(&self.capped(options))
        } else {
            self.of_cheapest_types(options)
        };
        self.with_values(listed, options, cluster)
    }

    /// Returns the options that serve and that a node may still become while pods are planned on it: those of the
    /// cheapest types, whatever they cost.
    pub(super) fn candidates_that(
        &self,
        options: &FixedBitSet,
        serves: impl Fn(usize) -> bool,
        cluster: &Cluster,
    ) -> FixedBitSet {
        if self.wants_choice() {
            let options: FixedBitSet = options.ones().filter(|option| serves(*option)).collect();
            return self.with_values(self.of_cheapest_types(&options), &options, cluster);
        }
        let mut types = FixedBitSet::with_capacity(self.types.len());
        let mut cheapest: Vec<usize> = Vec::with_capacity(MOST_TYPES);
        let mut listed = FixedBitSet::with_capacity(options.len());
        let mut end = options.len();
        for option in options.ones().filter(|option| serves(*option)) {
            let kind = self.options[option].type_index;
            if !types.put(kind) {
                if cheapest.len() == MOST_TYPES {
                    // Options are sorted by price, so every further type is dearer than these; `serves` is costly and
                    // is not asked again.
                    end = option;
                    break;
                }
                cheapest.push(kind);
            }
            listed.insert(option);
        }
        // Dearer offerings of the types that are listed.
        for kind in cheapest {
            let own = self.options_of(kind);
            let dearer = &own[own.partition_point(|option| *option < end)..];
            for option in dearer.iter().copied() {
                if options.contains(option) && serves(option) {
                    listed.insert(option);
                }
            }
        }
        listed
    }

    fn of_cheapest_types(&self, options: &FixedBitSet) -> FixedBitSet {
        let mut types = FixedBitSet::with_capacity(self.types.len());
        let mut count = 0;
        let mut listed = FixedBitSet::with_capacity(options.len());
        for option in options.ones() {
            let kind = self.options[option].type_index;
            if count == MOST_TYPES && !types.contains(kind) {
                continue;
            }
            count += usize::from(!types.put(kind));
            listed.insert(option);
        }
        listed
    }

    /// Returns the options whose price is within the cap of their capacity type.
    fn capped(&self, options: &FixedBitSet) -> FixedBitSet {
        // What is reserved costs next to nothing.
        let (reserved, bought): (Vec<usize>, Vec<usize>) = options
            .ones()
            .partition(|option| self.options[*option].reservation.is_some());
        let (spot, others): (Vec<usize>, Vec<usize>) =
            bought.into_iter().partition(|option| self.is_spot(*option));
        let price = |option: &usize| self.options[*option].price_micro_usd;
        let cap = |options: &[usize], percent: u64| {
            options
                .first()
                .map_or(0, |cheapest| price(cheapest).saturating_mul(percent) / 100)
        };
        let (most, most_spot) = (cap(&others, CAP_PERCENT), cap(&spot, SPOT_CAP_PERCENT));
        let mut kept = FixedBitSet::with_capacity(options.len());
        kept.extend(reserved);
        kept.extend(others.into_iter().filter(|option| price(option) <= most));
        let mut cheapest = FixedBitSet::with_capacity(self.types.len());
        let mut count = 0;
        for option in spot {
            let kind = self.options[option].type_index;
            if count < LEAST_SPOT_TYPES {
                count += usize::from(!cheapest.put(kind));
            }
            if price(&option) <= most_spot || cheapest.contains(kind) {
                kept.insert(option);
            }
        }
        kept
    }

    /// Returns the list with as few of the cheapest other options as the pool's `minValues` need; unchanged if it has
    /// enough values.
    pub(super) fn with_values(
        &self,
        listed: FixedBitSet,
        options: &FixedBitSet,
        cluster: &Cluster,
    ) -> FixedBitSet {
        if self.missing_values(&listed, cluster).is_none() {
            return listed;
        }
        if self.missing_values(options, cluster).is_some() {
            // Where there are too few at best, and that is allowed, dearer types do not help.
            return listed;
        }
        let others: Vec<usize> = options.difference(&listed).collect();
        let with = |count: usize| {
            let mut list = listed.clone();
            list.extend(others[..count].iter().copied());
            list
        };
        let counts: Vec<usize> = (0..=others.len()).collect();
        let too_few =
            // More options never have fewer values, so a binary search finds the shortest list.
            counts.partition_point(|count| self.missing_values(&with(*count), cluster).is_some());
        with(too_few.min(others.len()))
    }
}
