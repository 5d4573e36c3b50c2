//! Pools for tests.

use kube::Api;
use mullion_api::karpenter::{EC2NodeClass, EC2NodeClassStatus};
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
    Pool {
        name: "linux",
        team: "web",
        types,
        capacity,
    }
    .create(whole, more, of_pool)
    .await;
}

/// Changes fields in the spec of the class `linux`.
pub(crate) async fn change_class(whole: &Whole, spec: Value) {
    let classes: Api<EC2NodeClass> = Api::all(whole.context.client.clone());
    whole.patch(classes, "linux", json!({ "spec": spec })).await;
}

/// Returns the status of the class `linux`.
pub(crate) fn class_status(whole: &Whole) -> EC2NodeClassStatus {
    let class = whole.karpenter.classes.get("", "linux");
    let status = class.expect("it is there").status.clone();
    status.expect("it has one")
}

/// A pool of nodes of the class `linux`.
pub(crate) struct Pool<'a> {
    pub(crate) name: &'a str,
    /// Value of the nodes' label `team`.
    pub(crate) team: &'a str,
    pub(crate) types: &'a [&'a str],
    pub(crate) capacity: &'a [&'a str],
}

impl Pool<'_> {
    /// Creates the pool with more fields in its template's spec and in its own.
    pub(crate) async fn create(&self, whole: &Whole, more: Value, of_pool: Value) {
        let mut spec = json!({
            "nodeClassRef": { "group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "linux" },
            "expireAfter": "Never",
            "requirements": [
                { "key": "node.kubernetes.io/instance-type", "operator": "In", "values": self.types },
                { "key": "karpenter.sh/capacity-type", "operator": "In", "values": self.capacity }
            ]
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        let mut pool = json!({
            "disruption": { "consolidateAfter": "Never" },
            "template": { "metadata": { "labels": { "team": self.team } }, "spec": spec }
        });
        for (key, value) in of_pool.as_object().into_iter().flatten() {
            pool[key] = value.clone();
        }
        whole
            .create(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": { "name": self.name }, "spec": pool
            }))
            .await;
    }
}

/// A cluster with one pod `web` on an `m5.large` of the pool `linux`.
pub(crate) async fn one_node() -> Whole {
    let whole = Whole::start().await;
    linux(&whole, &["m5.large"], &["on-demand"], json!({})).await;
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "500m" } } }]
    });
    whole.deployment("web", 1, spec).await;
    whole.until_running("web", 1).await;
    whole
}
