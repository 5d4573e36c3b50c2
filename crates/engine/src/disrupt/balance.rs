//! Karpenter's score of a move under the policy `Balanced`: the share of a pool's price that the move saves, divided by the share
//! of the pool's disruption that it causes. The decision is made in whole numbers; floating point is for messages only.

use std::collections::BTreeMap;

/// Karpenter's `BalancedK`: the share of the pool's disruption that a move causes may be at most this many times the share of the
/// pool's price that it saves.
pub const BALANCED_K: u128 = 2;

/// The price and the disruption of nodes of one pool: of all of them, or of those that a move removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// The total price in micro-dollars per hour.
    pub price_micro_usd: u64,
    /// The total disruption: see [`Candidate::disruption_milli`](super::Candidate::disruption_milli).
    pub disruption_milli: u64,
}

/// The score of a move in one pool.
#[derive(Clone, Copy, Debug)]
pub struct Score {
    /// The saving of the whole move in micro-dollars per hour.
    saving: u64,
    /// The price of all nodes that the move removes, in micro-dollars per hour. A pool has the part of the saving that its removed
    /// nodes have in this price.
    price: u64,
    /// The pool's nodes that the move removes.
    removed: Balance,
    /// All nodes of the pool.
    all: Balance,
}

impl Score {
    /// Returns the score of a move in each pool for which `all` gives the totals. `nodes` has the pool of each removed node with
    /// the node's price and disruption; `saving` is in micro-dollars per hour.
    pub fn of_move<'a>(
        saving: u64,
        nodes: impl Iterator<Item = (&'a str, Balance)>,
        all: impl Fn(&str) -> Option<Balance>,
    ) -> BTreeMap<&'a str, Score> {
        let mut price = 0;
        let mut by_pool: BTreeMap<&str, Balance> = BTreeMap::new();
        for (pool, node) in nodes {
            let removed = by_pool.entry(pool).or_default();
            removed.price_micro_usd += node.price_micro_usd;
            removed.disruption_milli += node.disruption_milli;
            price += node.price_micro_usd;
        }
        let score = |(pool, removed): (&'a str, Balance)| {
            let all = all(pool)?;
            let score = Score {
                saving,
                price,
                removed,
                all,
            };
            Some((pool, score))
        };
        by_pool.into_iter().filter_map(score).collect()
    }

    /// Returns whether the policy allows the move: something is saved, and the score is at least 1 / [`BALANCED_K`].
    pub fn is_enough(&self) -> bool {
        // `savings / disruption >= 1 / k`, multiplied out to stay in whole numbers.
        let saved = u128::from(self.saving)
            * u128::from(self.removed.price_micro_usd)
            * u128::from(self.all.disruption_milli)
            * BALANCED_K;
        let disturbed = u128::from(self.removed.disruption_milli)
            * u128::from(self.all.price_micro_usd)
            * u128::from(self.price);
        self.saving > 0 && saved >= disturbed
    }

    /// Returns the score.
    pub fn value(&self) -> f64 {
        self.savings() / self.disruption()
    }

    /// Returns the share of the pool's price that the move saves.
    pub fn savings(&self) -> f64 {
        let saving = self.saving as f64 * ratio(self.removed.price_micro_usd, self.price);
        saving / self.all.price_micro_usd.max(1) as f64
    }

    /// Returns the share of the pool's disruption that the move causes.
    pub fn disruption(&self) -> f64 {
        ratio(self.removed.disruption_milli, self.all.disruption_milli)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balance(price_micro_usd: u64, disruption_milli: u64) -> Balance {
        Balance {
            price_micro_usd,
            disruption_milli,
        }
    }

    #[test]
    fn pools_share_the_saving_by_the_prices_of_their_nodes() {
        let all = |pool: &str| (pool == "a").then(|| balance(1_000_000, 8_000));
        let nodes = [
            ("a", balance(200_000, 1_000)),
            ("a", balance(100_000, 1_000)),
            ("b", balance(100_000, 1_000)),
        ];
        let scores = Score::of_move(200_000, nodes.into_iter(), all);
        // Pool a has three quarters of the saving: 0.15 of its price, for a quarter of its disruption. Pool b is not scored.
        let [(pool, score)] = Vec::from_iter(scores)[..] else {
            panic!("one score")
        };
        assert_eq!(pool, "a");
        assert!((score.savings() - 0.15).abs() < 1e-12, "{score:?}");
        assert!((score.disruption() - 0.25).abs() < 1e-12, "{score:?}");
        assert!((score.value() - 0.6).abs() < 1e-12, "{score:?}");
    }

    #[test]
    fn a_score_of_half_is_just_enough_and_no_saving_never_is() {
        let of = |saving, disruption| {
            let node = ("a", balance(100, disruption));
            let all = |_: &str| Some(balance(1_000, 10_000));
            Score::of_move(saving, [node].into_iter(), all)["a"].is_enough()
        };
        assert!(of(50, 1_000), "0.05 of the price for 0.1 of the disruption");
        assert!(!of(49, 1_000));
        assert!(!of(50, 1_001));
        assert!(!of(0, 0));
    }
}
