//! Registers a node after it joined the cluster: gives it the labels, taints, owner and finalizer from its claim.
//!
//! Invariant: the taint `karpenter.sh/unregistered` is removed in the same write that adds everything else, so a node is never half
//! registered. No pod is scheduled to the node before that, unless the node joined without the taint: then an event says so.

use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::{
    karpenter::{NodeClaim, NodePool, node_claim_condition as condition},
    labels,
};
use serde_json::{Value, json};

use super::{Error, edit, has_finalizer, pass};
use crate::{
    api_error,
    provisioner::{KarpenterContext, conditions::Status, discovered, metrics::Metric},
};

/// How many times a write is tried that conflicts with writes of the node's kubelet.
const ATTEMPTS: usize = 5;

/// Registers the claim's node once the node exists.
pub(super) async fn step(karpenter: &KarpenterContext, claim: &mut NodeClaim) -> Result<(), Error> {
    if !claim.is(condition::LAUNCHED) || claim.is(condition::REGISTERED) {
        return Ok(());
    }
    let (status, reason, message) = match karpenter.nodes_of(claim).as_slice() {
        [] => (
            Status::Unknown,
            "NodeNotFound",
            "Node not registered with cluster",
        ),
        // The informer only finds the node; `register` reads it afresh for its resource version.
        [node] => return register(karpenter, claim, node.name_any()).await,
        _ => (
            Status::False,
            "MultipleNodesFound",
            "Invariant violated, matched multiple nodes",
        ),
    };
    edit(karpenter, claim, |conditions| {
        conditions.set(condition::REGISTERED, status, reason, message);
    });
    Ok(())
}

/// Gives the node `name` what it gets from its claim, and the claim the condition `Registered`.
async fn register(
    karpenter: &KarpenterContext,
    claim: &mut NodeClaim,
    name: String,
) -> Result<(), Error> {
    for attempt in 1.. {
        let Some(node) = karpenter.node_api().get_opt(&name).await? else {
            return Ok(());
        };
        // Recorded before the node accepts pods, so that the next plan knows the node's real capacity.
        discovered::learn(karpenter, &node, claim);
        if attempt == 1 && !began_unregistered(&node) {
            report_missing_taint(karpenter, claim);
        }
        let patch = synced(&node, claim);
        let patched = karpenter
            .node_api()
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            // The wake-up comes after the write: a plan made before it would not see the node's labels.
            Ok(_) => {
                if !discovered::missing(&node, claim).is_empty() {
                    // Pods that were planned for the node may not fit, so a new plan is made.
                    karpenter.batcher.trigger(claim.uid().unwrap_or_default());
                }
                break;
            }
            Err(error) if api_error::is_conflict(&error) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error.into()),
        }
    }
    claim.status.get_or_insert_default().node_name = name;
    edit(karpenter, claim, |conditions| {
        conditions.set_true(condition::REGISTERED)
    });
    if let Some(pool) = pool_uid(claim) {
        karpenter.registrations.succeeded(pool);
    }
    let labels = [
        ("nodepool", claim.node_pool().unwrap_or_default()),
        ("zone", claim.label(labels::ZONE).unwrap_or_default()),
    ];
    karpenter.metrics.count(Metric::NodesCreated, &labels);
    pass(karpenter, "nodeclaim.lifecycle", claim).info("registered nodeclaim");
    Ok(())
}

/// Returns the uid of the pool that created a claim; `None` for a claim that a user created.
pub(super) fn pool_uid(claim: &NodeClaim) -> Option<&str> {
    let mut owners = claim.owner_references().iter();
    let pool = owners.find(|owner| owner.kind == NodePool::kind(&()));
    pool.map(|pool| pool.uid.as_str())
}

/// Returns whether a node has the taint with which nodes must join, or had it before it was registered.
fn began_unregistered(node: &Node) -> bool {
    taints(node).any(is_unregistered) || node.labels().contains_key(labels::REGISTERED)
}

/// Says that the node of a claim joined without the taint. It is registered all the same, but pods may have been
/// scheduled to it before it had the taints of its claim.
fn report_missing_taint(karpenter: &KarpenterContext, claim: &NodeClaim) {
    let message = format!(
        "Missing {} taint which prevents registration related race conditions on Karpenter-managed nodes",
        labels::UNREGISTERED_TAINT
    );
    karpenter
        .recorder
        .warning(claim, "UnregisteredTaintMissing", message);
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with("taint", labels::UNREGISTERED_TAINT)
        .error(
            "node claim registration error",
            &"missing taint prevents registration-related race conditions on Karpenter-managed nodes",
        );
}

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let spec = node.spec.iter();
    spec.flat_map(|spec| spec.taints.iter().flatten())
}

fn is_unregistered(taint: &Taint) -> bool {
    taint.key == labels::UNREGISTERED_TAINT
}

/// Returns the patch that registers a node.
fn synced(node: &Node, claim: &NodeClaim) -> Value {
    let mut merged: Vec<Taint> = taints(node)
        .filter(|taint| !is_unregistered(taint))
        .cloned()
        .collect();
    // Agents that manage a node's taints themselves opt out with this label; otherwise a startup taint that
    // they removed already would come back.
    if claim.label(labels::DO_NOT_SYNC_TAINTS) != Some("true") {
        for taint in claim.spec.taints.iter().chain(&claim.spec.startup_taints) {
            let same = |own: &Taint| own.key == taint.key && own.effect == taint.effect;
            if !merged.iter().any(same) {
                merged.push(taint.clone());
            }
        }
    }
    let mut finalizers = node.finalizers().to_vec();
    if !has_finalizer(&finalizers) {
        finalizers.push(labels::TERMINATION_FINALIZER.to_owned());
    }
    let owner = owner(claim);
    let mut owners = node.owner_references().to_vec();
    // Replaced and not appended, so that a repeated registration leaves one reference.
    owners.retain(|own| own.uid != owner.uid);
    owners.push(owner);
    let mut own_labels = claim.labels().clone();
    own_labels.insert(labels::REGISTERED.to_owned(), "true".to_owned());
    json!({
        "metadata": {
            "resourceVersion": node.resource_version(),
            "labels": own_labels,
            "annotations": claim.annotations(),
            "finalizers": finalizers,
            "ownerReferences": owners,
        },
        "spec": { "taints": merged },
    })
}

fn owner(claim: &NodeClaim) -> OwnerReference {
    OwnerReference {
        api_version: NodeClaim::api_version(&()).into_owned(),
        kind: NodeClaim::kind(&()).into_owned(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "uid": "u", "labels": { "karpenter.sh/nodepool": "w" },
                "annotations": { "note": "x" } },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                "taints": [{ "key": "os", "value": "windows", "effect": "NoSchedule" }],
                "startupTaints": [{ "key": "cni", "effect": "NoSchedule" }]
            }
        }))
        .expect("a claim")
    }

    fn node(taints: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n", "resourceVersion": "7" }, "spec": { "taints": taints }
        }))
        .expect("a node")
    }

    #[test]
    fn a_node_gets_labels_taints_owner_and_finalizer_in_one_write() {
        let node = node(json!([
            { "key": "karpenter.sh/unregistered", "effect": "NoExecute" },
            { "key": "os", "value": "windows", "effect": "NoSchedule" }
        ]));
        let patch = synced(&node, &claim());
        let keys: Vec<_> = patch["spec"]["taints"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|taint| taint["key"].as_str().unwrap_or_default())
            .collect();
        assert_eq!(keys, ["os", "cni"]);
        let metadata = &patch["metadata"];
        assert_eq!(metadata["resourceVersion"], "7");
        assert_eq!(metadata["labels"]["karpenter.sh/registered"], "true");
        assert_eq!(metadata["finalizers"], json!(["karpenter.sh/termination"]));
        assert_eq!(metadata["ownerReferences"][0]["uid"], "u");
    }

    #[test]
    fn a_node_that_never_was_unregistered_is_found_out_and_registered() {
        let joined = node(json!([]));
        assert!(!began_unregistered(&joined));
        let patch = synced(&joined, &claim());
        assert_eq!(
            patch["metadata"]["labels"]["karpenter.sh/registered"],
            "true"
        );
        let mut registered = node(json!([]));
        let labels = registered.labels_mut();
        labels.insert(labels::REGISTERED.to_owned(), "true".to_owned());
        assert!(began_unregistered(&registered));
    }

    #[test]
    fn taints_are_left_alone_where_the_claim_says_so() {
        let mut claim = claim();
        claim
            .labels_mut()
            .insert(labels::DO_NOT_SYNC_TAINTS.to_owned(), "true".to_owned());
        let node = node(json!([{ "key": "karpenter.sh/unregistered", "effect": "NoExecute" }]));
        let patch = synced(&node, &claim);
        assert_eq!(patch["spec"]["taints"], json!([]));
    }
}
