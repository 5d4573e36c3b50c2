//! Initialization: the node is ready for the pods it was bought for.
//!
//! Invariant: initialized means Ready, free of startup and passing taints, and showing every resource that was asked
//! for; on Windows that includes addresses, which appear some time after the node is ready.

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::api::{Patch, PatchParams};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use serde_json::json;

use super::{Error, edit, pass};
use crate::provisioner::{
    KarpenterContext, conditions::Status, in_flight::EPHEMERAL, market::amounts,
};

/// Initializes the claim's node once nothing is missing.
pub(super) async fn step(karpenter: &KarpenterContext, claim: &mut NodeClaim) -> Result<(), Error> {
    if !claim.is(condition::REGISTERED) || claim.is(condition::INITIALIZED) {
        return Ok(());
    }
    let name = claim.node_name().unwrap_or_default().to_owned();
    let Some(node) = karpenter.node_api().get_opt(&name).await? else {
        set(
            karpenter,
            claim,
            "NodeNotFound",
            "Node not registered with cluster",
        );
        return Ok(());
    };
    if let Some((reason, message)) = missing(&node, claim) {
        set(karpenter, claim, reason, &message);
        return Ok(());
    }
    // The node's label is written before the claim's condition: if the second write fails, this step runs
    // again.
    let patch = json!({ "metadata": { "labels": { labels::INITIALIZED: "true" } } });
    karpenter
        .node_api()
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    edit(karpenter, claim, |conditions| {
        conditions.set_true(condition::INITIALIZED)
    });
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with("allocatable", json!(allocatable))
        .info("initialized nodeclaim");
    Ok(())
}

fn set(karpenter: &KarpenterContext, claim: &mut NodeClaim, reason: &str, message: &str) {
    edit(karpenter, claim, |conditions| {
        conditions.set(condition::INITIALIZED, Status::Unknown, reason, message);
    });
}

/// Returns the first thing that keeps a node from being initialized: reason and message.
fn missing(node: &Node, claim: &NodeClaim) -> Option<(&'static str, String)> {
    if !is_ready(node) {
        return Some(("NodeNotReady", "Node status is NotReady".to_owned()));
    }
    let taints = || {
        node.spec
            .iter()
            .flat_map(|spec| spec.taints.iter().flatten())
    };
    let startup = taints().find(|taint| {
        let mut startup = claim.spec.startup_taints.iter();
        startup.any(|own| own.key == taint.key && own.effect == taint.effect)
    });
    if let Some(taint) = startup {
        let message = format!("StartupTaint {:?} still exists", describe(taint));
        return Some(("StartupTaintsExist", message));
    }
    // Kubernetes adds these taints itself; a Ready node may keep one for a moment until its controller
    // removes it.
    let passing =
        taints().find(|taint| EPHEMERAL.contains(&(taint.key.as_str(), taint.effect.as_str())));
    if let Some(taint) = passing {
        let message = format!("KnownEphemeralTaint {:?} still exists", describe(taint));
        return Some(("KnownEphemeralTaintsExist", message));
    }
    let allocatable = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let shown = |name: &str| {
        let text = allocatable.and_then(|map| map.get(name))?;
        text.0.parse::<mullion_engine::model::Quantity>().ok()
    };
    let requests = amounts(&claim.spec.resources.requests);
    let mut absent = requests
        .iter()
        // Device plugins and the VPC resource controller add their resources some time after the node is
        // Ready.
        .filter(|(name, amount)| !amount.is_zero() && shown(name).unwrap_or_default().is_zero());
    absent.next().map(|(name, _)| {
        let message = format!("Resource {name:?} was requested but not registered");
        ("ResourceNotRegistered", message)
    })
}

/// Returns whether the node's Ready condition is True.
pub(crate) fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn describe(taint: &Taint) -> String {
    match taint.value.as_deref() {
        None | Some("") => format!("{}:{}", taint.key, taint.effect),
        Some(value) => format!("{}={value}:{}", taint.key, taint.effect),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1" },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                "startupTaints": [{ "key": "cni", "effect": "NoSchedule" }],
                "resources": { "requests": { "vpc.amazonaws.com/PrivateIPv4Address": "10", "cpu": "0" } }
            }
        }))
        .expect("a claim")
    }

    fn node(ready: &str, taints: Value, allocatable: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n" },
            "spec": { "taints": taints },
            "status": {
                "allocatable": allocatable,
                "conditions": [{ "type": "Ready", "status": ready }]
            }
        }))
        .expect("a node")
    }

    #[test]
    fn a_node_waits_for_readiness_taints_and_resources_in_this_order() {
        let addresses = json!({ "vpc.amazonaws.com/PrivateIPv4Address": "14" });
        let taint = |key: &str| json!([{ "key": key, "value": "v", "effect": "NoSchedule" }]);
        let cases = [
            (
                node("False", json!([]), json!({})),
                "Node status is NotReady",
            ),
            (
                node("True", taint("cni"), json!({})),
                "StartupTaint \"cni=v:NoSchedule\" still exists",
            ),
            (
                node("True", taint("node.kubernetes.io/not-ready"), json!({})),
                "KnownEphemeralTaint \"node.kubernetes.io/not-ready=v:NoSchedule\" still exists",
            ),
            (
                node("True", json!([]), json!({ "cpu": "4" })),
                "Resource \"vpc.amazonaws.com/PrivateIPv4Address\" was requested but not registered",
            ),
        ];
        for (node, expected) in cases {
            assert_eq!(
                missing(&node, &claim()).expect("something is missing").1,
                expected
            );
        }
        assert_eq!(
            missing(&node("True", taint("os"), addresses), &claim()),
            None
        );
    }
}
