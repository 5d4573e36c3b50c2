//! Which pods nodes are bought for.
//!
//! Invariant: only pods that a scheduler has looked at and refused, and that no preemption makes room for; never
//! daemons, which come with their nodes, nor static pods.

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod};
use mullion_api::labels;

use crate::{ownership, pods};

/// Returns whether a node may be bought for this pod (Karpenter: `IsProvisionable`).
pub fn is_provisionable(pod: &Pod) -> bool {
    pods::is_active(pod)
        && pods::node_name(pod).is_empty()
        // Only the scheduler knows whether a pod fits an existing node; buying before its verdict
        // would buy too much.
        && failed_to_schedule(pod)
        // The scheduler evicts other pods for it, so room is coming without a new node.
        && !is_preempting(pod)
        && !comes_with_its_node(pod)
}

/// Returns whether a pod on a node that is removed will need another place (Karpenter:
/// `IsReschedulable`).
pub fn is_reschedulable(pod: &Pod) -> bool {
    pods::is_active(pod) && !comes_with_its_node(pod)
}

/// Returns whether the pod requires a node that belongs to no pool (Karpenter:
/// `validateKarpenterManagedLabelCanExist`).
pub fn avoids_pools(pod: &Pod) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref());
    let affinity = affinity.and_then(|own| own.node_affinity.as_ref());
    let required = affinity.and_then(|own| {
        own.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let avoids = |term: &NodeSelectorTerm| {
        let mut demands = term.match_expressions.iter().flatten();
        demands.any(|own| own.key == labels::NODEPOOL && own.operator == "DoesNotExist")
    };
    required.is_some_and(|own| {
        let terms = &own.node_selector_terms;
        // Terms are alternatives: a single term without the demand already lets the pod run on a
        // pool's node.
        !terms.is_empty() && terms.iter().all(avoids)
    })
}

/// Returns whether the pod is a daemon or a static pod, which belongs to its node and never moves
/// to another.
pub fn comes_with_its_node(pod: &Pod) -> bool {
    is_daemon(pod) || is_static(pod)
}

/// Returns whether a DaemonSet controls the pod.
pub fn is_daemon(pod: &Pod) -> bool {
    ownership::controller_of(pod).is_some_and(|owner| owner.kind == "DaemonSet")
}

/// Returns whether the pod is the mirror of a static pod, which its node owns.
pub fn is_static(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut owners = owners.map(|owner| owner.kind.as_str());
    owners.any(|kind| kind == "Node")
}

fn failed_to_schedule(pod: &Pod) -> bool {
    pods::condition(pod, "PodScheduled")
        .is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))
}

fn is_preempting(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.nominated_node_name.as_deref())
        .is_some_and(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value, spec: Value, status: Value) -> Pod {
        let pod = json!({ "metadata": metadata, "spec": spec, "status": status });
        serde_json::from_value(pod).expect("a pod")
    }

    fn refused() -> Value {
        json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }] })
    }

    fn plain_spec() -> Value {
        json!({ "containers": [] })
    }

    #[test]
    fn nodes_are_bought_for_pods_the_scheduler_refused() {
        assert!(is_provisionable(&pod(json!({}), plain_spec(), refused())));
        assert!(!is_provisionable(&pod(json!({}), plain_spec(), json!({}))));
        let bound = json!({ "containers": [], "nodeName": "n" });
        assert!(!is_provisionable(&pod(json!({}), bound, refused())));
    }

    #[test]
    fn gated_and_preempting_pods_wait() {
        let gated = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "SchedulingGated" }] });
        assert!(!is_provisionable(&pod(json!({}), plain_spec(), gated)));
        let mut preempting = refused();
        preempting["nominatedNodeName"] = "n".into();
        assert!(!is_provisionable(&pod(json!({}), plain_spec(), preempting)));
    }

    #[test]
    fn pods_may_ask_for_a_node_of_no_pool() {
        let asks = |terms: Value| {
            let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
            let spec = json!({ "containers": [], "affinity": { "nodeAffinity": required } });
            avoids_pools(&pod(json!({}), spec, refused()))
        };
        let of = |operator: &str| json!({ "matchExpressions": [{ "key": "karpenter.sh/nodepool", "operator": operator }] });
        assert!(asks(json!([of("DoesNotExist")])));
        assert!(!asks(json!([of("Exists")])));
        // One of the terms suffices to run.
        assert!(!asks(json!([of("DoesNotExist"), of("Exists")])));
        assert!(!avoids_pools(&pod(json!({}), plain_spec(), refused())));
    }

    #[test]
    fn daemons_and_static_pods_come_with_their_nodes() {
        let owned_by = |kind: &str| {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true });
            pod(
                json!({ "ownerReferences": [owner] }),
                plain_spec(),
                refused(),
            )
        };
        assert!(!is_provisionable(&owned_by("DaemonSet")));
        assert!(!is_provisionable(&owned_by("Node")));
        assert!(is_provisionable(&owned_by("ReplicaSet")));
    }
}
