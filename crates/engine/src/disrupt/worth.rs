//! Decides whether a move saves enough for the disruption that it causes.

use std::collections::BTreeMap;

use super::balance::{Balance, Score};
use super::question::{Candidate, PoolTerms};
use crate::provision::PlannedNode;

/// The time within which the saving must repay what it costs to run old and new nodes at once, in seconds.
const HORIZON_SECONDS: u128 = 3600;
/// The minimum saving when spot nodes replace spot nodes, in thousandths. It is a margin for changes of the spot price.
const SPOT_TO_SPOT_PER_MILLE: u64 = 150;
/// Karpenter's `MinInstanceTypesForSpotToSpotConsolidation`: a replacement for a spot node needs at least this many cheaper types, or the new node
/// would soon be replaced by a cheaper one again.
const SPOT_TO_SPOT_TYPES: usize = 15;

/// Nodes that are removed together, with the terms of their pools.
pub(super) struct RemovedNodes<'a> {
    nodes: &'a [&'a Candidate],
    pools: &'a BTreeMap<String, PoolTerms>,
}

impl<'a> RemovedNodes<'a> {
    pub(super) fn new(nodes: &'a [&'a Candidate], pools: &'a BTreeMap<String, PoolTerms>) -> Self {
        RemovedNodes { nodes, pools }
    }

    /// Returns the price of the nodes in micro-dollars per hour.
    pub(super) fn price(&self) -> u64 {
        self.nodes.iter().map(|node| node.price_micro_usd).sum()
    }

    /// Returns the disruption of the removal in thousandths: see [`Candidate::disruption_milli`].
    pub(super) fn disruption(&self) -> u64 {
        self.nodes.iter().map(|node| node.disruption_milli).sum()
    }

    pub(super) fn is_spot(&self) -> bool {
        // All of them: with one on-demand node in the set, a spot node saves by its capacity type and needs no
        // margin.
        self.nodes.iter().all(|node| node.is_spot)
    }

    /// Returns the maximum price of the replacements in micro-dollars per hour. It is always below the price of the nodes, unless that is 0.
    pub(super) fn ceiling(&self) -> u64 {
        let pools = self
            .nodes
            .iter()
            .filter_map(|node| self.pools.get(&node.pool));
        let least = pools.map(|pool| u64::from(pool.least_saving_per_mille));
        // The strictest pool's terms hold for a set of several pools.
        let least = least.max().unwrap_or(0).max(if self.is_spot() {
            SPOT_TO_SPOT_PER_MILLE
        } else {
            0
        });
        // At least 1, so that every move lowers the price and moves come to an end.
        let saving = (self.price().saturating_mul(least)).div_ceil(1000).max(1);
        self.price().saturating_sub(saving)
    }

    /// Returns whether buying `bought` in place of the nodes is worth the double payment and the disruption.
    pub(super) fn pays(&self, bought: &[PlannedNode], saving: u64, is_spot_to_spot: bool) -> bool {
        // Only for a single node, as in Karpenter: several spot nodes that become one save by their number.
        if is_spot_to_spot && self.nodes.len() == 1 {
            let types: usize = bought
                .iter()
                .map(|node| node.options.len())
                .min()
                .unwrap_or(0);
            if types < SPOT_TO_SPOT_TYPES {
                return false;
            }
        }
        let twice: u128 = bought
            .iter()
            .map(|node| {
                let pool = self.pools.get(&node.pool);
                let seconds = pool.map_or(0, |pool| pool.boot_seconds);
                u128::from(node.price_micro_usd()) * u128::from(seconds)
            })
            .sum();
        twice <= u128::from(saving) * HORIZON_SECONDS && self.is_balanced(saving)
    }

    /// Returns whether Karpenter's policy `Balanced` allows the move in each pool with that policy.
    pub(super) fn is_balanced(&self, saving: u64) -> bool {
        let nodes = self.nodes.iter().map(|node| {
            let own = Balance {
                price_micro_usd: node.price_micro_usd,
                disruption_milli: node.disruption_milli,
            };
            (node.pool.as_str(), own)
        });
        let all = |pool: &str| self.pools.get(pool)?.balance;
        let scores = Score::of_move(saving, nodes, all);
        scores.values().all(Score::is_enough)
    }
}

/// Returns whether a planned node may be spot capacity.
pub(super) fn is_spot(node: &PlannedNode) -> bool {
    let offerings = node.options.iter().flat_map(|option| &option.offerings);
    offerings
        .into_iter()
        .any(|(_, capacity, _)| capacity == "spot")
}
