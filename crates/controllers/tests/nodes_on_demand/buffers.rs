//! CapacityBuffers: room that is kept free for pods to come.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, ResourceExt};
use mullion_api::{capacity_buffer::CapacityBuffer, karpenter::NodeClaim};
use mullion_cloud::Speed;
use mullion_controllers::provisioner::FeatureGates;
use serde_json::{Value, json};

use crate::{pools, whole::Whole};

const OPEN: FeatureGates = FeatureGates {
    capacity_buffer: true,
    node_overlay: false,
    node_repair: false,
    static_capacity: false,
    reserved_capacity: true,
};

/// A cluster whose pool `linux` of these types gives nodes back at once.
async fn cluster(gates: FeatureGates, types: &[&str]) -> Whole {
    let whole = Whole::start_with(Speed::REAL, gates).await;
    let at_once = json!({ "disruption": { "consolidateAfter": "0s" } });
    pools::linux_with(&whole, types, &["on-demand"], json!({}), at_once).await;
    whole
}

fn api(whole: &Whole) -> Api<CapacityBuffer> {
    Api::namespaced(whole.context.client.clone(), "default")
}

/// A pod that has a node of the pool `linux` nearly to itself, if that is an `m5.large`.
fn pod_spec() -> Value {
    json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "1500m" } } }]
    })
}

async fn template(whole: &Whole) {
    whole
        .create(json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": { "name": "chunk" },
            "template": { "metadata": { "labels": { "app": "chunk" } }, "spec": pod_spec() }
        }))
        .await;
}

async fn buffer(whole: &Whole, spec: Value) {
    whole
        .create(json!({
            "apiVersion": "autoscaling.x-k8s.io/v1beta1", "kind": "CapacityBuffer", "metadata": { "name": "spare" }, "spec": spec
        }))
        .await;
}

/// Waits until a condition of the buffer is as `status reason`; gives its message and the number of chunks.
async fn until_said(whole: &Whole, kind: &str, wanted: &str) -> (String, Option<i32>) {
    whole
        .until(&format!("the buffer is {kind}={wanted}"), || {
            let buffer = whole.karpenter.buffers.get("default", "spare")?;
            let status = buffer.status.as_ref()?;
            let mut conditions = status.conditions.iter();
            let own = conditions.find(|own| own.type_ == kind)?;
            let said = format!("{} {}", own.status, own.reason);
            (said == wanted).then(|| (own.message.clone(), status.replicas))
        })
        .await
}

fn initialized(whole: &Whole) -> Vec<String> {
    let claims = whole.claims();
    let ready = claims.iter().filter(|own| own.is("Initialized"));
    let mut names: Vec<String> = ready.map(|own| own.name_any()).collect();
    names.sort();
    names
}

async fn until_nodes(whole: &Whole, count: usize) -> Vec<String> {
    whole
        .until(&format!("there are {count} nodes"), || {
            let ready = initialized(whole);
            (ready.len() == count && whole.claims().len() == count).then_some(ready)
        })
        .await
}

#[tokio::test(start_paused = true)]
async fn room_is_bought_ahead_given_to_the_first_pod_and_bought_again() {
    let whole = cluster(OPEN, &["m5.large"]).await;
    template(&whole).await;
    buffer(
        &whole,
        json!({ "podTemplateRef": { "name": "chunk" }, "replicas": 2 }),
    )
    .await;
    let (message, replicas) = until_said(&whole, "ReadyForProvisioning", "True Resolved").await;
    assert_eq!(
        (message.as_str(), replicas),
        ("Pod template resolved successfully", Some(2))
    );
    until_said(&whole, "Provisioning", "False RequiresNewCapacity").await;
    let first = until_nodes(&whole, 2).await;
    let (message, _) = until_said(&whole, "Provisioning", "True FitsExistingCapacity").await;
    assert_eq!(message, "All 2 virtual pods fit on existing capacity");
    // They have no pods, and stay.
    whole.pass(900).await;
    assert_eq!(until_nodes(&whole, 2).await, first);
    let node = whole.bought()[0].name_any();
    let told = whole.events(&node).await;
    let why = (
        "Unconsolidatable".to_owned(),
        format!("Node {node:?} has buffer pods"),
    );
    assert!(told.contains(&why), "{told:?}");
    // No event is about a chunk, and no chunk is a pod.
    assert!(whole.events("capacity-buffer-spare-1").await.is_empty());
    let pods: Api<Pod> = Api::namespaced(whole.context.client.clone(), "default");
    assert!(
        pods.list(&Default::default())
            .await
            .expect("a list")
            .items
            .is_empty()
    );
    // A pod finds a place at once, and its room is bought again.
    whole.deployment("web", 1, pod_spec()).await;
    whole.until_running("web", 1).await;
    let on = whole.pods("web")[0].spec.clone().expect("a spec").node_name;
    let early: Vec<String> = whole.bought().iter().map(|own| own.name_any()).collect();
    assert!(
        on.is_some_and(|on| early.len() == 2 && early.contains(&on)),
        "{early:?}"
    );
    let more = until_nodes(&whole, 3).await;
    assert!(first.iter().all(|own| more.contains(own)));
    until_said(&whole, "Provisioning", "True FitsExistingCapacity").await;
    // With the buffer its nodes go.
    whole.delete(api(&whole), "spare").await;
    until_nodes(&whole, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_share_of_a_workload_follows_its_replicas() {
    let whole = cluster(OPEN, &["m5.large"]).await;
    whole.deployment("web", 2, pod_spec()).await;
    whole.until_running("web", 2).await;
    let workload = json!({ "apiGroup": "apps", "kind": "Deployment", "name": "web" });
    buffer(&whole, json!({ "scalableRef": workload, "percentage": 50 })).await;
    until_nodes(&whole, 3).await;
    let deployments: Api<Deployment> = Api::namespaced(whole.context.client.clone(), "default");
    let scale = |replicas: u32| json!({ "spec": { "replicas": replicas } });
    whole.patch(deployments.clone(), "web", scale(4)).await;
    whole.until_running("web", 4).await;
    until_nodes(&whole, 6).await;
    let (_, replicas) = until_said(&whole, "Provisioning", "True FitsExistingCapacity").await;
    assert_eq!(replicas, Some(2));
    whole.patch(deployments.clone(), "web", scale(0)).await;
    let (message, _) = until_said(&whole, "Provisioning", "False BufferEmpty").await;
    assert_eq!(message, "Buffer has zero desired replicas");
    until_nodes(&whole, 0).await;
}

#[tokio::test(start_paused = true)]
async fn consolidation_moves_chunks_to_a_node_of_their_size() {
    let whole = cluster(OPEN, &["m5.2xlarge", "m5.large"]).await;
    template(&whole).await;
    buffer(
        &whole,
        json!({ "podTemplateRef": { "name": "chunk" }, "replicas": 5 }),
    )
    .await;
    let kinds = || {
        let kind = |own: &NodeClaim| {
            own.label("node.kubernetes.io/instance-type")
                .map(str::to_owned)
        };
        whole
            .claims()
            .iter()
            .filter_map(|own| kind(own))
            .collect::<Vec<_>>()
    };
    until_nodes(&whole, 1).await;
    assert_eq!(kinds(), ["m5.2xlarge"]);
    until_said(&whole, "Provisioning", "True FitsExistingCapacity").await;
    whole
        .patch(api(&whole), "spare", json!({ "spec": { "replicas": 1 } }))
        .await;
    whole
        .until("the one chunk is on a small node", || {
            (kinds() == ["m5.large"] && initialized(&whole).len() == 1).then_some(())
        })
        .await;
    whole.pass(900).await;
    assert_eq!(kinds(), ["m5.large"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_nodes_with_room_that_is_kept_stay() {
    let mut whole = cluster(OPEN, &["m5.large"]).await;
    template(&whole).await;
    buffer(
        &whole,
        json!({ "podTemplateRef": { "name": "chunk" }, "limits": { "cpu": 2 } }),
    )
    .await;
    let nodes = until_nodes(&whole, 1).await;
    until_said(&whole, "Provisioning", "True FitsExistingCapacity").await;
    whole.restart_karpenter().await;
    whole.pass(300).await;
    assert_eq!(until_nodes(&whole, 1).await, nodes);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_without_a_template_says_so_until_there_is_one() {
    let whole = cluster(OPEN, &["m5.large"]).await;
    buffer(
        &whole,
        json!({ "podTemplateRef": { "name": "chunk" }, "replicas": 1 }),
    )
    .await;
    let missing = "False PodTemplateNotFound";
    let (message, replicas) = until_said(&whole, "ReadyForProvisioning", missing).await;
    assert_eq!(
        (message.as_str(), replicas),
        ("PodTemplate \"chunk\" not found", None)
    );
    whole.pass(60).await;
    assert_eq!(whole.claims().len(), 0);
    template(&whole).await;
    until_nodes(&whole, 1).await;
    let other = json!({ "spec": {
        "podTemplateRef": null, "scalableRef": { "kind": "DaemonSet", "name": "agent" }
    }});
    whole.patch(api(&whole), "spare", other).await;
    let failed = "False ResolutionFailed";
    let (message, _) = until_said(&whole, "ReadyForProvisioning", failed).await;
    assert_eq!(message, "unsupported kind \"DaemonSet\"");
    until_nodes(&whole, 0).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_gate_is_closed_a_buffer_keeps_nothing_and_says_so() {
    let whole = cluster(FeatureGates::default(), &["m5.large"]).await;
    template(&whole).await;
    buffer(
        &whole,
        json!({ "podTemplateRef": { "name": "chunk" }, "replicas": 1 }),
    )
    .await;
    until_said(&whole, "FieldsIgnored", "True NoEffect").await;
    until_said(&whole, "ReadyForProvisioning", "False FeatureGateClosed").await;
    whole.pass(120).await;
    assert_eq!(whole.claims().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_schema_refuses_what_karpenters_does() {
    let whole = Whole::start().await;
    let refused = async |spec: Value| {
        let buffer = json!({ "metadata": { "name": "spare" }, "spec": spec });
        let buffer = serde_json::from_value(buffer).expect("a buffer");
        let created = api(&whole).create(&Default::default(), &buffer).await;
        created.expect_err("it is refused").to_string()
    };
    let template = json!({ "name": "chunk" });
    let workload = json!({ "kind": "Deployment", "name": "web" });
    let said = refused(json!({ "podTemplateRef": template })).await;
    assert!(
        said.contains("If podTemplateRef is set, replicas or limits must also be set"),
        "{said}"
    );
    let both = json!({ "podTemplateRef": template, "scalableRef": workload, "replicas": 1 });
    let said = refused(both).await;
    assert!(
        said.contains("You must define either PodTemplateRef or ScalableRef, but not both"),
        "{said}"
    );
    let said = refused(json!({ "scalableRef": workload, "percentage": -1 })).await;
    assert!(said.contains("spec.percentage"), "{said}");
}
