//! Nodes that were ordered and do not take pods yet, as the nodes they will be.
//!
//! Invariant: from its order to its initialization a node is planned with in the shape it will have: without startup
//! and not-ready taints and with its expected resources. A node that goes is not planned with at all.

use k8s_openapi::api::core::v1::{Node, Taint};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_engine::model::NodeSpec;

use super::{market::amounts, overhead::Prospect};
use crate::state::convert;

/// Taints that Kubernetes itself sets on a node that starts and takes away again.
pub const EPHEMERAL: [(&str, &str); 4] = [
    (labels::NOT_READY_TAINT, "NoSchedule"),
    (labels::NOT_READY_TAINT, "NoExecute"),
    (labels::UNREACHABLE_TAINT, "NoSchedule"),
    (labels::UNINITIALIZED_TAINT, "NoSchedule"),
];

/// Returns whether a claim's node is on its way: ordered, not ready for pods, and not to be
/// removed.
pub fn is_in_flight(claim: &NodeClaim) -> bool {
    claim.metadata.deletion_timestamp.is_none() && !claim.is(condition::INITIALIZED)
}

/// Returns whether a taint of a starting node will go away without anybody's action.
pub fn is_passing(taint: &Taint, claim: &NodeClaim) -> bool {
    EPHEMERAL.contains(&(taint.key.as_str(), taint.effect.as_str()))
        || taint.key == labels::UNREGISTERED_TAINT
        || claim
            .spec
            .startup_taints
            .iter()
            .any(|startup| startup.key == taint.key && startup.effect == taint.effect)
}

/// Returns the node that a launched claim without a Node object will become; `None` before the
/// launch.
pub fn expected_node(claim: &NodeClaim) -> Option<NodeSpec> {
    let status = claim.status.as_ref()?;
    // The launch writes allocatable, so an empty list means that no machine has been chosen yet.
    if status.allocatable.is_empty() {
        return None;
    }
    Some(NodeSpec {
        labels: claim.metadata.labels.clone().unwrap_or_default(),
        taints: claim
            .spec
            .taints
            .iter()
            .filter_map(convert::taint)
            .collect(),
        capacity: amounts(&status.capacity),
        allocatable: amounts(&status.allocatable),
        ..NodeSpec::named(claim.metadata.name.clone().unwrap_or_default())
    })
}

/// Returns the node that a registered, uninitialized node will become.
pub fn settled_node(node: &Node, claim: &NodeClaim) -> NodeSpec {
    let mut spec = convert::node(node);
    let own = claim.metadata.labels.iter().flatten();
    // The claim's labels are copied to the node at registration; a plan between must already see
    // them.
    spec.labels
        .extend(own.map(|(key, value)| (key.clone(), value.clone())));
    let there = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten());
    spec.taints = there
        .filter(|taint| !is_passing(taint, claim))
        .filter_map(convert::taint)
        .collect();
    let expected = claim
        .status
        .as_ref()
        .map(|status| amounts(&status.allocatable));
    for (name, amount) in expected.into_iter().flatten() {
        // A device plugin reports late; until then the node shows less than it will have.
        let shown = spec.allocatable.entry(name).or_default();
        if shown.is_zero() {
            *shown = amount;
        }
    }
    spec
}

/// Returns what is known of a claim's node, to judge which DaemonSets will run there.
pub fn prospect(claim: &NodeClaim) -> Prospect {
    Prospect {
        labels: claim.metadata.labels.clone().unwrap_or_default(),
        requirements: claim.spec.requirements.clone(),
        taints: claim.spec.taints.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "labels": { "kubernetes.io/os": "windows" } },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" },
                "requirements": [],
                "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }],
                "startupTaints": [{ "key": "cni", "effect": "NoSchedule" }]
            },
            "status": { "allocatable": { "cpu": "3920m", "vpc.amazonaws.com/PrivateIPv4Address": "14" } }
        }))
        .expect("a claim")
    }

    #[test]
    fn an_ordered_node_is_expected_with_its_taints_and_without_startup_taints() {
        let node = expected_node(&claim()).expect("launched");
        assert_eq!(node.name, "w-1");
        let keys: Vec<_> = node.taints.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(keys, ["os"]);
    }

    #[test]
    fn a_starting_node_is_seen_as_it_will_be() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": "ip-10-0-0-9" },
            "spec": { "taints": [
                { "key": "os", "value": "windows", "effect": "NoSchedule" },
                { "key": "cni", "effect": "NoSchedule" },
                { "key": "node.kubernetes.io/not-ready", "effect": "NoSchedule" },
                { "key": "karpenter.sh/unregistered", "effect": "NoExecute" }
            ]},
            "status": { "allocatable": { "cpu": "3920m" } }
        }))
        .expect("a node");
        let seen = settled_node(&node, &claim());
        assert_eq!(seen.taints.len(), 1);
        assert_eq!(seen.allocatable["cpu"].milli_value(), 3920);
        assert_eq!(
            seen.allocatable["vpc.amazonaws.com/PrivateIPv4Address"].value(),
            14
        );
        assert_eq!(seen.labels["kubernetes.io/os"], "windows");
    }
}
