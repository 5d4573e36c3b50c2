//! Counts the claims of a static pool, and how many more its limit allows.

use std::sync::Arc;

use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, NodePool};

use crate::{
    nodepool::NODES,
    provisioner::{KarpenterContext, market::amounts},
};

/// The claims of a pool by state (core: `NodePoolState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Claims that stay, launched or not.
    pub(crate) running: usize,
    /// Claims that a disruption replaces: they are deleted once their replacement, which counts as running, is ready.
    pub(crate) pending: usize,
    /// Claims that are being deleted.
    pub(crate) deleting: usize,
}

/// The state of a claim in the census of its pool (core: `NodePoolState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimState {
    Running,
    PendingDisruption,
    Deleting,
}

impl Census {
    /// Counts the claims of a pool.
    pub(crate) fn of(karpenter: &KarpenterContext, claims: &[Arc<NodeClaim>]) -> Self {
        let mut census = Self::default();
        for claim in claims {
            match claim_state(karpenter, claim) {
                ClaimState::Running => census.running += 1,
                ClaimState::PendingDisruption => census.pending += 1,
                ClaimState::Deleting => census.deleting += 1,
            }
        }
        census
    }

    /// Returns how many more claims the pool's limit on nodes lets it have.
    pub(crate) fn room(self, pool: &NodePool) -> usize {
        let limits = pool.spec.limits.iter();
        let limit = limits.map(amounts).find_map(|own| own.get(NODES).copied());
        let Some(limit) = limit else {
            return usize::MAX;
        };
        let limit = usize::try_from(limit.value()).unwrap_or(0);
        // Instances that are being terminated still cost, so they count against the limit.
        limit.saturating_sub(self.running + self.pending + self.deleting)
    }
}

/// Returns the state of a claim, by its deletion timestamp and that of its node, and by the disruption of the node.
pub(super) fn claim_state(karpenter: &KarpenterContext, claim: &NodeClaim) -> ClaimState {
    if claim.metadata.deletion_timestamp.is_some() {
        return ClaimState::Deleting;
    }
    let Some(node) = karpenter.node_of(claim) else {
        return ClaimState::Running;
    };
    if node.metadata.deletion_timestamp.is_some() {
        ClaimState::Deleting
    } else if karpenter.disrupting.contains(&node.name_any()) {
        ClaimState::PendingDisruption
    } else {
        ClaimState::Running
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_limit_on_nodes_counts_all_claims_those_that_go_too() {
        let pool = |limits: Value| -> NodePool {
            serde_json::from_value(json!({
                "metadata": { "name": "p" },
                "spec": { "replicas": 9, "limits": limits, "template": { "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": []
                }}}
            }))
            .expect("a pool")
        };
        let census = Census {
            running: 3,
            pending: 1,
            deleting: 2,
        };
        assert_eq!(census.room(&pool(json!({ "nodes": "8" }))), 2);
        assert_eq!(census.room(&pool(json!({ "nodes": 5 }))), 0);
        assert_eq!(census.room(&pool(Value::Null)), usize::MAX);
    }
}
