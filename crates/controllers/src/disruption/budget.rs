//! Disruption budgets: how many nodes of a pool may go at a time. Pure.
//!
//! Invariant: the most restrictive budget for the reason wins; percentages round up; what cannot be read allows nothing.
//! A budget with a schedule counts as always open, which errs on the side of keeping nodes.

use mullion_api::karpenter::{Budget, DisruptionReason, NodePool};

/// How many of `nodes` nodes of a pool may be on their way out together, for this reason.
pub fn allowed(pool: &NodePool, reason: DisruptionReason, nodes: usize) -> usize {
    pool.spec
        .disruption
        .budgets
        .iter()
        .filter(|budget| budget.reasons.is_empty() || budget.reasons.contains(&reason))
        .map(|budget| of(budget, nodes))
        .min()
        .unwrap_or(usize::MAX)
}

fn of(budget: &Budget, nodes: usize) -> usize {
    let text = budget.nodes.as_str();
    match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<usize>()
            .map_or(0, |percent| (nodes * percent).div_ceil(100)),
        None => text.parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(budgets: Value) -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": []
                }},
                "disruption": { "budgets": budgets }
            }
        }))
        .expect("a pool")
    }

    #[test]
    fn the_most_restrictive_budget_wins() {
        let pool = pool(json!([
            { "nodes": "50%" },
            { "nodes": "3", "reasons": ["Empty"] },
            { "nodes": "0", "reasons": ["Drifted"] }
        ]));
        assert_eq!(allowed(&pool, DisruptionReason::Empty, 10), 3);
        assert_eq!(allowed(&pool, DisruptionReason::Empty, 4), 2);
        assert_eq!(allowed(&pool, DisruptionReason::Underutilized, 10), 5);
        assert_eq!(allowed(&pool, DisruptionReason::Drifted, 10), 0);
    }

    #[test]
    fn percentages_round_up() {
        assert_eq!(
            allowed(
                &pool(json!([{ "nodes": "10%" }])),
                DisruptionReason::Empty,
                1
            ),
            1
        );
        assert_eq!(
            allowed(&pool(json!([])), DisruptionReason::Empty, 1),
            usize::MAX
        );
    }
}
