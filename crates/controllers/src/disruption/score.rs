//! Records the scores of consolidations under the policy `Balanced`, in Karpenter's words. Pure but for the events.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mullion_engine::disrupt::{BALANCED_K, Balance, Score};

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
        let nodes = command.candidates.iter().map(|candidate| {
            let pool = candidate.pool.metadata.name.as_deref();
            let price = self.prices.get(&candidate.node.name_any());
            let own = Balance {
                price_micro_usd: price.copied().unwrap_or(0),
                disruption_milli: candidate.disruption_milli,
            };
            (pool.unwrap_or_default(), own)
        });
        let all = |pool: &str| self.balances.get(pool).copied();
        for (pool, score) in Score::of_move(command.saving, nodes, all) {
            let mut candidates = command.candidates.iter();
            let own = candidates.find(|candidate| candidate.pool.name_any() == pool);
            let Some(own) = own else { continue };
            let message = message(score);
            if command.candidates.len() == 1 {
                events.approved(&*own.node, &message);
                events.approved(&*own.claim, &message);
            } else {
                events.approved(&*own.pool, &message);
            }
        }
    }
}

/// Returns Karpenter's message about the score of a command in a pool.
fn message(score: Score) -> String {
    format!(
        "score {:.2} >= threshold {:.2} (k: {BALANCED_K}, savings {:.1}%, disruption {:.1}%)",
        score.value(),
        1.0 / BALANCED_K as f64,
        score.savings() * 100.0,
        score.disruption() * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_told_in_karpenters_words() {
        let balance = |price_micro_usd, disruption_milli| Balance {
            price_micro_usd,
            disruption_milli,
        };
        let nodes = [
            ("a", balance(300_000, 2_000)),
            ("b", balance(100_000, 1_000)),
        ];
        let all = |_: &str| Some(balance(1_000_000, 8_000));
        let scores = Score::of_move(200_000, nodes.into_iter(), all);
        // Pool a has three quarters of the saving: 0.15 of its price, for a quarter of its disruption.
        assert_eq!(
            message(scores["a"]),
            "score 0.60 >= threshold 0.50 (k: 2, savings 15.0%, disruption 25.0%)"
        );
    }
}
