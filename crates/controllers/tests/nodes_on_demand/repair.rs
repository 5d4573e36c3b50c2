//! Nodes that are unhealthy for too long.

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_cloud::Speed;
use mullion_controllers::provisioner::FeatureGates;
use serde_json::json;

use crate::{pools, whole::Whole};

/// Two nodes with a pod each that may not leave.
async fn two_nodes(gates: FeatureGates) -> Whole {
    let whole = Whole::start_with(Speed::REAL, gates).await;
    pools::linux(&whole, &["m5.large"], &["on-demand"], json!({})).await;
    let spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]
    });
    whole.deployment("web", 2, spec).await;
    whole
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "web" } } }
        }))
        .await;
    whole.until_running("web", 2).await;
    assert_eq!(whole.bought().len(), 2);
    whole
}

/// Writes a condition as an agent on the node does.
async fn say(whole: &Whole, node: &str, status: &str) {
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    let patch = json!({ "status": { "conditions": [{
        "type": "StorageReady", "status": status, "reason": "Agent", "message": "",
        "lastTransitionTime": format!("{:.0}", whole.context.clock.now())
    }]}});
    let patch = Patch::Strategic(patch);
    let params = PatchParams::default();
    let patched = nodes.patch_status(node, &params, &patch).await;
    patched.expect("it is accepted");
}

const ON: FeatureGates = FeatureGates {
    node_repair: true,
    static_capacity: false,
    capacity_buffer: false,
    node_overlay: false,
    reserved_capacity: true,
};

#[tokio::test(start_paused = true)]
async fn an_unhealthy_node_is_replaced_after_half_an_hour_whatever_protects_its_pods() {
    let whole = two_nodes(ON).await;
    let old = whole.bought()[0].name_any();
    say(&whole, &old, "False").await;
    whole.pass(1780).await;
    assert!(whole.bought().iter().any(|node| node.name_any() == old));
    let is_there = || whole.bought().iter().any(|node| node.name_any() == old);
    whole
        .until("it is replaced", || (!is_there()).then_some(()))
        .await;
    whole.until_running("web", 2).await;
    assert_eq!(whole.bought().len(), 2);
    let line = whole.line("deleting unhealthy node");
    assert_eq!(line["controller"], "node.health");
    assert_eq!(line["Node"]["name"], old.as_str());
    let line = whole.line("annotated nodeclaim");
    assert!(line["karpenter.sh/nodeclaim-termination-timestamp"].is_string());
    let text = whole.karpenter.metrics_text();
    let counted = "karpenter_nodeclaims_unhealthy_disrupted_total{capacity_type=\"on-demand\",condition=\"storage_ready\",image_id=\"ami-";
    assert!(text.lines().any(|line| line.starts_with(counted)), "{text}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repaired_while_more_than_a_fifth_of_the_pool_is_unhealthy() {
    let whole = two_nodes(ON).await;
    let names: Vec<_> = whole.bought().iter().map(|node| node.name_any()).collect();
    for name in &names {
        say(&whole, name, "False").await;
    }
    whole.pass(3600).await;
    let now: Vec<_> = whole.bought().iter().map(|node| node.name_any()).collect();
    assert_eq!(now, names);
    let told = (
        "NodeRepairBlocked".to_owned(),
        "more than 20% nodes are unhealthy in the nodepool".to_owned(),
    );
    let events = whole.events(&names[0]).await;
    assert!(events.contains(&told), "{events:#?}");
    say(&whole, &names[1], "True").await;
    let is_there = || {
        whole
            .bought()
            .iter()
            .any(|node| node.name_any() == names[0])
    };
    whole
        .until("the other is replaced", || (!is_there()).then_some(()))
        .await;
    assert!(
        whole
            .bought()
            .iter()
            .any(|node| node.name_any() == names[1])
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_repaired_unless_the_gate_is_open() {
    let whole = two_nodes(FeatureGates::default()).await;
    let old = whole.bought()[0].name_any();
    say(&whole, &old, "False").await;
    whole.pass(7200).await;
    assert!(whole.bought().iter().any(|node| node.name_any() == old));
    assert!(
        !whole
            .story()
            .contains(&"deleting unhealthy node".to_owned())
    );
}
