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

#[tokio::test(start_paused = true)]
async fn a_node_with_gpus_boots_the_image_that_has_drivers_for_them_and_drifts_from_any_other() {
    let whole = Whole::start().await;
    let types = ["m5.large", "g4dn.xlarge"];
    pools::linux(&whole, &types, &["on-demand"], json!({})).await;
    let plain_node = node_for(&whole, "plain", json!({ "cpu": "1500m" })).await;
    let plain_node = plain_node.name_any();
    node_for(
        &whole,
        "gpu",
        json!({ "cpu": "1", labels::NVIDIA_GPU: "1" }),
    )
    .await;
    let instances = whole.ec2.instances();
    let booted = |name: &str| {
        let mut own = instances.iter();
        let own =
            own.find(|own| &*own.instance_type.name == name && own.image.name.contains("al2023"));
        own.expect(name).image.clone()
    };
    let (plain, gpu) = (booted("m5.large"), booted("g4dn.xlarge"));
    assert!(plain.name.contains("x86_64-standard"), "{}", plain.name);
    assert!(gpu.name.contains("x86_64-nvidia"), "{}", gpu.name);
    // The class says which types the image is for.
    let status = class_status(&whole);
    let own = status.amis.iter().find(|own| own.id == gpu.id);
    let keys = own.expect("it is listed").requirements.iter();
    let keys: Vec<_> = keys.map(|own| own.key.as_str()).collect();
    assert_eq!(keys, [labels::ARCH, labels::INSTANCE_GPU_COUNT]);
    let has_drifted = || {
        let mut claims = whole.claims().into_iter();
        let drifted = claims.find(|own| own.is("Drifted"))?;
        Some(drifted.condition("Drifted")?.reason.clone())
    };
    whole.pass(600).await;
    assert_eq!(has_drifted(), None);
    // Now the class has one image for all types: that of the plain node is in order, the other node has one of another image.
    let terms = |term: Value| json!({ "amiFamily": "AL2023", "amiSelectorTerms": [term] });
    change_class(&whole, terms(json!({ "id": plain.id }))).await;
    let gpu_image = || {
        let instances = whole.ec2.instances();
        let mut running = instances.iter().filter(|own| own.state.is_alive());
        let gpu = running.find(|own| &*own.instance_type.name == "g4dn.xlarge")?;
        Some(gpu.image.id.clone())
    };
    let is_plain = || (gpu_image()? == plain.id).then_some(());
    whole
        .until("the node with GPUs has the one image", is_plain)
        .await;
    whole.until_running("gpu", 1).await;
    whole.pass(600).await;
    assert_eq!(has_drifted(), None);
    // With images for each hardware again, the image is one of the class's, but not the one for a type with GPUs.
    change_class(&whole, terms(json!({ "alias": "al2023@latest" }))).await;
    let is_gpus = || (gpu_image()? == gpu.id).then_some(());
    whole
        .until("the node with GPUs has its image again", is_gpus)
        .await;
    let node = whole
        .bought()
        .into_iter()
        .find(|own| kind(own) == "m5.large");
    assert_eq!(node.expect("it stays").name_any(), plain_node);
}
