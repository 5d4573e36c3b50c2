//! Decides which nodes of a static pool are removed first when it has too many.
//!
//! The order: claims that are not launched, then nodes with nothing but daemons, then the others by the cost of moving
//! their pods (core: `ReschedulingCost`) and by how much of their life is left. Nodes with protected pods come last.

use std::{cmp::Ordering, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_api::karpenter::NodeClaim;

use super::census::{ClaimState, claim_state};
use crate::{
    disruption::protection::eviction_cost,
    nodeclaim::do_not_disrupt::Protection,
    pods,
    provisioner::{KarpenterContext, pending::is_daemon},
};

/// Returns the names of the `count` claims to delete.
pub(super) fn candidates(
    karpenter: &KarpenterContext,
    claims: &[Arc<NodeClaim>],
    count: usize,
) -> Vec<String> {
    let now = karpenter.base.clock.now();
    let stays = |claim: &&Arc<NodeClaim>| claim_state(karpenter, claim) == ClaimState::Running;
    let mut ranked: Vec<(Rank, String)> = claims
        .iter()
        .filter(stays)
        .map(|claim| {
            let node = karpenter.node_of(claim);
            let pods = node.map(|node| karpenter.pods_on(&node.name_any()));
            let pods = pods.unwrap_or_default();
            (Rank::of(claim, &pods, now), claim.name_any())
        })
        .collect();
    ranked.sort_by(|a, b| a.0.order(&b.0).then_with(|| a.1.cmp(&b.1)));
    ranked.truncate(count);
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// The order of removal; lower ranks are removed first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rank {
    NotLaunched,
    Empty,
    InUse { is_protected: bool, cost: f64 },
}

impl Rank {
    fn of(claim: &NodeClaim, pods: &[Arc<Pod>], now: Timestamp) -> Self {
        if claim.provider_id().is_none() {
            return Self::NotLaunched;
        }
        let pods = pods.iter().filter(|pod| pods::is_active(pod));
        let is_protected = pods.clone().any(|pod| Protection::of(pod, now).is_active());
        if !is_protected && pods.clone().all(|pod| is_daemon(pod)) {
            return Self::Empty;
        }
        let cost: f64 = pods.map(|pod| eviction_cost(pod)).sum();
        Self::InUse {
            is_protected,
            // A node that expires soon would be replaced anyway, so removing it costs less.
            cost: cost * life_left(claim, now),
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        let key = |rank: &Self| match *rank {
            Self::NotLaunched => (0, false, 0.0),
            Self::Empty => (1, false, 0.0),
            Self::InUse { is_protected, cost } => (2, is_protected, cost),
        };
        let (mine, others) = (key(self), key(other));
        (mine.0, mine.1)
            .cmp(&(others.0, others.1))
            .then_with(|| mine.2.total_cmp(&others.2))
    }
}

/// Returns the share of its life that a claim has left: 1 at its beginning, 0 when it expires (core:
/// `LifetimeRemaining`).
fn life_left(claim: &NodeClaim, now: Timestamp) -> f64 {
    let life = claim.spec.expire_after.as_ref();
    let life = life.and_then(|life| life.duration());
    let born = claim.metadata.creation_timestamp.as_ref();
    let Some((life, born)) = life.zip(born) else {
        return 1.0;
    };
    let (life, age) = (life.as_secs_f64(), now.duration_since(born.0).as_secs_f64());
    if life > 0.0 {
        ((life - age) / life).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn claim(launched: bool, expires: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                "expireAfter": expires
            },
            "status": { "providerID": if launched { "aws:///a/i-1" } else { "" } }
        }))
        .expect("a claim")
    }

    fn pod(owner: &str, annotations: Value) -> Arc<Pod> {
        let owner = json!({ "apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": true });
        let pod = json!({
            "metadata": { "name": "p", "annotations": annotations, "ownerReferences": [owner] },
            "spec": { "containers": [] }, "status": { "phase": "Running" }
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn rank(claim: &NodeClaim, pods: &[Arc<Pod>]) -> Rank {
        Rank::of(claim, pods, NOW.parse().expect("a time"))
    }

    #[test]
    fn unlaunched_then_empty_then_cheap_then_protected_nodes_go() {
        let launched = claim(true, "Never");
        let web = || pod("ReplicaSet", json!({}));
        let cost = |text: &str| {
            pod(
                "ReplicaSet",
                json!({ "controller.kubernetes.io/pod-deletion-cost": text }),
            )
        };
        let held = |owner: &str| pod(owner, json!({ "karpenter.sh/do-not-disrupt": "true" }));
        let in_order = [
            rank(&claim(false, "Never"), &[]),
            rank(&launched, &[pod("DaemonSet", json!({}))]),
            rank(&launched, &[cost("-1000000000")]),
            rank(&claim(true, "2h"), &[web()]),
            rank(&launched, &[web()]),
            rank(&launched, &[web(), web()]),
            rank(&launched, &[held("DaemonSet")]),
            rank(&launched, &[held("ReplicaSet"), web()]),
        ];
        for (at, pair) in in_order.windows(2).enumerate() {
            assert_eq!(pair[0].order(&pair[1]), Ordering::Less, "{at}: {pair:?}");
        }
    }

    #[test]
    fn a_node_near_its_end_is_worth_less() {
        let now = NOW.parse().expect("a time");
        assert_eq!(life_left(&claim(true, "4h"), now), 0.75);
        assert_eq!(life_left(&claim(true, "30m"), now), 0.0);
        assert_eq!(life_left(&claim(true, "Never"), now), 1.0);
    }
}
