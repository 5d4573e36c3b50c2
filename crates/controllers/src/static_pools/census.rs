//! How many claims a static pool has, and how many more its limit lets it have.

use std::sync::Arc;

use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, NodePool};

use crate::{
    nodepool::NODES,
    provisioner::{KarpenterContext, market::amounts},
};

/// The claims of a pool by what becomes of them (core: `NodePoolState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    /// Those that stay, launched or not.
    pub(crate) running: usize,
    /// Those that a disruption replaces: they go once their replacement, which runs already, is ready.
    pub(crate) pending: usize,
    /// Those that go.
    pub(crate) deleting: usize,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Stays,
    IsReplaced,
    Goes,
}

impl Census {
    /// Counts the claims of a pool.
    pub(crate) fn of(karpenter: &KarpenterContext, claims: &[Arc<NodeClaim>]) -> Self {
        let mut census = Self::default();
        for claim in claims {
            match fate(karpenter, claim) {
                Fate::Stays => census.running += 1,
                Fate::IsReplaced => census.pending += 1,
                Fate::Goes => census.deleting += 1,
            }
        }
        census
    }

    /// How many more claims the pool's limit on nodes lets it have.
    pub(crate) fn room(self, pool: &NodePool) -> usize {
        let limits = pool.spec.limits.iter();
        let limit = limits.map(amounts).find_map(|own| own.get(NODES).copied());
        let Some(limit) = limit else {
            return usize::MAX;
        };
        let limit = usize::try_from(limit.value()).unwrap_or(0);
        limit.saturating_sub(self.running + self.pending + self.deleting)
    }
}

/// What becomes of a claim, by what is known of it and of its node.
pub(super) fn fate(karpenter: &KarpenterContext, claim: &NodeClaim) -> Fate {
    if claim.metadata.deletion_timestamp.is_some() {
        return Fate::Goes;
    }
    let Some(node) = karpenter.node_of(claim) else {
        return Fate::Stays;
    };
    if node.metadata.deletion_timestamp.is_some() {
        Fate::Goes
    } else if karpenter.disrupting.contains(&node.name_any()) {
        Fate::IsReplaced
    } else {
        Fate::Stays
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
