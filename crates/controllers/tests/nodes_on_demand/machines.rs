//! What a class says of machines: which types it excludes, and the Elastic Fabric Adapters of its nodes.

use std::sync::Arc;

use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::Condition};
use kube::ResourceExt;
use mullion_api::labels;
use serde_json::{Value, json};

use crate::{
    pools::{self, change_class, class_status},
    whole::Whole,
};

/// Waits until a pod with these requests runs on a node of its own, and returns the node.
async fn node_for(whole: &Whole, app: &str, requests: Value) -> Arc<Node> {
    let before: Vec<_> = whole.bought().iter().map(|own| own.name_any()).collect();
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": requests, "limits": requests } }]
    });
    whole.deployment(app, 1, spec).await;
    whole.until_running(app, 1).await;
    let mut bought = whole.bought();
    bought.retain(|own| !before.contains(&own.name_any()));
    bought.pop().expect("a node was bought")
}

fn kind(node: &Node) -> &str {
    &node.labels()[labels::INSTANCE_TYPE]
}

fn efas(node: &Node) -> Option<String> {
    let allocatable = node.status.as_ref()?.allocatable.as_ref()?;
    Some(allocatable.get(labels::EFA)?.0.clone())
}

#[tokio::test(start_paused = true)]
async fn nodes_have_adapters_if_pods_ask_for_them() {
    let whole = Whole::start().await;
    let types = ["m5.large", "c6a.48xlarge"];
    pools::linux(&whole, &types, &["on-demand"], json!({})).await;
    let node = node_for(&whole, "large", json!({ "cpu": "100" })).await;
    assert_eq!((kind(&node), efas(&node)), ("c6a.48xlarge", None));
    let asks = json!({ "cpu": "100", labels::EFA: "1" });
    let node = node_for(&whole, "fabric", asks).await;
    assert_eq!(
        (kind(&node), efas(&node)),
        ("c6a.48xlarge", Some("1".to_owned()))
    );
}

#[tokio::test(start_paused = true)]
async fn a_class_that_lists_adapters_buys_types_that_have_them() {
    let whole = Whole::start().await;
    let types = ["m5.large", "c6a.48xlarge"];
    pools::linux(&whole, &types, &["on-demand"], json!({})).await;
    let interface = |device: u32, kind: &str| json!({ "networkCardIndex": 0, "deviceIndex": device, "interfaceType": kind });
    let listed = [interface(0, "interface"), interface(1, "efa-only")];
    change_class(&whole, json!({ "networkInterfaces": listed })).await;
    let node = node_for(&whole, "small", json!({ "cpu": "500m" })).await;
    assert_eq!(kind(&node), "c6a.48xlarge");
    assert_eq!(efas(&node), Some("1".to_owned()));
    let status = class_status(&whole);
    let ignored = |own: &Condition| own.type_ == "FieldsIgnored";
    assert!(!status.conditions.iter().any(ignored));
}
