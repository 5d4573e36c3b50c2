//! Counts a pool's nodes as its disruption budgets do (Karpenter core: `BuildDisruptionBudgetMapping`).

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};

use crate::{nodeclaim::initialization::is_ready, provisioner::KarpenterContext};

/// The numbers of a pool's nodes that its disruption budgets use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeCounts {
    /// The number of initialized nodes whose instance is not being terminated.
    pub(super) nodes: usize,
    /// The number of those that are being removed or are not ready, which use up the budgets.
    pub(super) disrupted: usize,
}

impl NodeCounts {
    /// Counts the nodes of a pool's claims.
    pub(super) fn of(karpenter: &KarpenterContext, claims: &[Arc<NodeClaim>]) -> Self {
        let with_node = claims
            .iter()
            .map(|claim| (&**claim, karpenter.node_of(claim)));
        let mut counted = Self::default();
        for (claim, node) in with_node {
            let node = node.as_deref();
            let is_in_hand = node.is_some_and(|own| karpenter.disrupting.contains(&own.name_any()));
            counted.add(claim, node, is_in_hand);
        }
        counted
    }

    /// Counts a claim and its node. `is_in_hand` says whether a command is about the node.
    fn add(&mut self, claim: &NodeClaim, node: Option<&Node>, is_in_hand: bool) {
        let Some(node) = node else { return };
        // Nodes that are not counted raise no percentage: a pool that starts ten nodes may not disrupt more
        // for it.
        if !claim.is(condition::INITIALIZED) || claim.is(condition::INSTANCE_TERMINATING) {
            return;
        }
        self.nodes += 1;
        let going = claim.metadata.deletion_timestamp.is_some()
            || node.metadata.deletion_timestamp.is_some();
        // A node that is not ready disrupts its pods already, so it uses up the budget as well.
        if going || is_in_hand || !is_ready(node) {
            self.disrupted += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(conditions: &[&str], going: bool) -> NodeClaim {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|kind| {
                json!({
                    "type": kind, "status": "True", "reason": kind, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "deletionTimestamp": going.then_some("2026-01-01T00:00:00Z") },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "conditions": conditions }
        }))
        .expect("a claim")
    }

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n" }, "status": { "conditions": [{ "type": "Ready", "status": ready }] }
        }))
        .expect("a node")
    }

    #[test]
    fn budgets_count_initialized_nodes_and_those_not_ready_or_leaving_against_them() {
        let mut counted = NodeCounts::default();
        counted.add(&claim(&["Initialized"], false), Some(&node("True")), false);
        counted.add(&claim(&["Initialized"], false), Some(&node("False")), false);
        counted.add(&claim(&["Initialized"], true), Some(&node("True")), false);
        counted.add(&claim(&[], true), Some(&node("True")), false);
        let ended = ["Initialized", "InstanceTerminating"];
        counted.add(&claim(&ended, true), Some(&node("True")), false);
        counted.add(&claim(&["Initialized"], true), None, false);
        counted.add(&claim(&["Initialized"], false), Some(&node("True")), true);
        let expected = NodeCounts {
            nodes: 4,
            disrupted: 3,
        };
        assert_eq!(counted, expected);
    }
}
