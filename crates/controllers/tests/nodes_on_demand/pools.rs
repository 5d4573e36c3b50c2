//! Pools for tests.

use serde_json::{Value, json};

use crate::whole::Whole;

/// A pool `linux` of nodes labelled `team=web` of these types and capacity types, and its class.
pub(crate) async fn linux(whole: &Whole, types: &[&str], capacity: &[&str], more: Value) {
    linux_with(whole, types, capacity, more, json!({})).await;
}

/// The same with more fields in the template's spec and in the pool's.
pub(crate) async fn linux_with(
    whole: &Whole,
    types: &[&str],
    capacity: &[&str],
    more: Value,
    of_pool: Value,
) {
    let discovery = json!([{ "tags": { "karpenter.sh/discovery": "windows-karpenter-demo" } }]);
    whole
        .create(json!({
            "apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": { "name": "linux" },
            "spec": {
                "role": "KarpenterNodeRole-windows-karpenter-demo",
                "amiSelectorTerms": [{ "alias": "al2023@latest" }],
                "subnetSelectorTerms": discovery, "securityGroupSelectorTerms": discovery,
            }
        }))
        .await;
    let mut spec = json!({
        "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux" },
        "expireAfter": "Never",
        "requirements": [
            { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": types },
            { "key": "karpenter.sh/capacity-type", "operator": "In", "values": capacity }
        ]
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let mut pool = json!({
        "disruption": { "consolidateAfter": "Never" },
        "template": { "metadata": { "labels": { "team": "web" } }, "spec": spec }
    });
    for (key, value) in of_pool.as_object().into_iter().flatten() {
        pool[key] = value.clone();
    }
    whole
        .create(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": "linux" }, "spec": pool
        }))
        .await;
}
