//! Karpenter's score of a consolidation under the policy `Balanced`: the share of a pool's price that is saved, divided by the
//! share of its disruption. Pure. The engine decides by the same rule in whole numbers; here it is put into words.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mullion_engine::disrupt::{BALANCED_K, Balance};

use super::{command::Command, events::DisruptionEvents};

/// The inputs from which the scores of commands are computed.
#[derive(Default)]
pub(super) struct Scale {
    /// The price of each candidate's node in micro-dollars an hour.
    pub(super) prices: BTreeMap<String, u64>,
    /// The totals of each pool that has the policy `Balanced`.
    pub(super) balances: BTreeMap<String, Balance>,
}

impl Scale {
    /// Records the scores of a command: on the node and its claim if it removes one node, otherwise on the pools (Karpenter
    /// core: `ConsolidationApproved`, `ConsolidationApprovedMultiNode`).
    pub(super) fn record(&self, command: &Command, events: &mut DisruptionEvents) {
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        for candidate in &command.candidates {
            let share = shares.entry(candidate.pool.name_any()).or_default();
            let price = self.prices.get(&candidate.node.name_any());
            share.price += price.copied().unwrap_or(0);
            share.disruption_milli += candidate.disruption_milli;
        }
        for (pool, score) in messages(command.saving, &shares, &self.balances) {
            let mut candidates = command.candidates.iter();
            let own = candidates.find(|candidate| candidate.pool.name_any() == pool);
            let Some(own) = own else { continue };
            if command.candidates.len() == 1 {
                events.approved(&*own.node, &score);
                events.approved(&*own.claim, &score);
            } else {
                events.approved(&*own.pool, &score);
            }
        }
    }
}

/// The share that a command has in one pool.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// The price of the removed nodes in micro-dollars an hour.
    price: u64,
    /// Their disruption in thousandths.
    disruption_milli: u64,
}

/// Returns Karpenter's message for each pool of the policy `Balanced` that a command removes nodes from. `saving` is that of
/// the whole command in micro-dollars an hour; pools have parts of it by the prices of their removed nodes.
fn messages<'a>(
    saving: u64,
    shares: &'a BTreeMap<String, Share>,
    balances: &'a BTreeMap<String, Balance>,
) -> impl Iterator<Item = (&'a str, String)> {
    let total: u64 = shares.values().map(|share| share.price).sum();
    shares.iter().filter_map(move |(pool, share)| {
        let all = balances.get(pool)?;
        let saved = saving as f64 * ratio(share.price, total);
        // A pool whose prices are all unknown totals zero; the score is then huge instead of no number.
        let savings = saved / all.price_micro_usd.max(1) as f64;
        let disruption = ratio(share.disruption_milli, all.disruption_milli);
        let message = format!(
            "score {:.2} >= threshold {:.2} (k: {BALANCED_K}, savings {:.1}%, disruption {:.1}%)",
            savings / disruption,
            1.0 / BALANCED_K as f64,
            savings * 100.0,
            disruption * 100.0,
        );
        Some((pool.as_str(), message))
    })
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_share_the_saving_by_the_prices_of_their_nodes() {
        let share = |price, disruption_milli| Share {
            price,
            disruption_milli,
        };
        let shares = BTreeMap::from([
            ("a".to_owned(), share(300_000, 2_000)),
            ("b".to_owned(), share(100_000, 1_000)),
        ]);
        let balance = Balance {
            price_micro_usd: 1_000_000,
            disruption_milli: 8_000,
        };
        let balances = BTreeMap::from([("a".to_owned(), balance)]);
        let messages: Vec<_> = messages(200_000, &shares, &balances).collect();
        // Pool a has three quarters of the saving: 0.15 of its price, for a quarter of its disruption.
        let said = "score 0.60 >= threshold 0.50 (k: 2, savings 15.0%, disruption 25.0%)";
        assert_eq!(messages, [("a", said.to_owned())]);
    }
}
