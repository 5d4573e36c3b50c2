//! Pods that ask for extended resources for which a DeviceClass stands: the scheduler makes a claim for them, and takes it away again.

use k8s_openapi::api::{
    core::v1::{Node, Pod},
    resource::v1::{DeviceClass, ResourceClaim},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    devices::{claims, consumers, publish, world},
    wait::until_gone,
    world::{World, pod},
};

const CLASS: &str = "gpu.example.com";

/// Lets the class stand for `example.com/gpu`.
async fn stand(world: &World) {
    let classes: Api<DeviceClass> = Api::all(world.context.client.clone());
    let patch = json!({ "spec": { "extendedResourceName": "example.com/gpu" } });
    let patched = classes
        .patch(CLASS, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.expect("it may");
}

async fn asking(world: &World, name: &str, resource: &str, count: u8) -> Pod {
    let mut pod = pod(name, "app:1");
    let amounts = json!({ resource: count.to_string() });
    pod["spec"]["containers"][0]["resources"] = json!({ "requests": amounts, "limits": amounts });
    world.create::<Pod>(pod).await
}

async fn all_claims(world: &World) -> Vec<ResourceClaim> {
    let listed = claims(world).list(&ListParams::default()).await;
    listed.expect("they can be listed").items
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_made_for_the_pod_and_goes_with_it() {
    let world = world(json!([{ "name": "gpu-0" }, { "name": "gpu-1" }])).await;
    stand(&world).await;
    let first = asking(&world, "first", "example.com/gpu", 2).await;
    let told = world.until_running("first").await;
    let all = all_claims(&world).await;
    let [claim] = all.as_slice() else {
        panic!("{all:?}");
    };
    assert!(claim.name_any().starts_with("first-extended-resources-"));
    let annotations = json!({ "resource.kubernetes.io/extended-resource-claim": "true" });
    assert_eq!(json!(claim.annotations()), annotations);
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "first", "uid": first.uid(), "controller": true }]);
    assert_eq!(json!(claim.owner_references()), owner);
    let exactly = json!({ "deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 2 });
    let request = json!([{ "name": "container-0-request-0", "exactly": exactly }]);
    assert_eq!(json!(claim.spec.devices), json!({ "requests": request }));
    assert_eq!(consumers(claim), ["first"]);
    let mapping = json!([{ "containerName": "web", "resourceName": "example.com/gpu", "requestName": "container-0-request-0" }]);
    let status = told.status.as_ref();
    let status = status.and_then(|status| status.extended_resource_claim_status.clone());
    let expected = json!({ "resourceClaimName": claim.name_any(), "requestMappings": mapping });
    assert_eq!(json!(status), expected);

    asking(
        &world,
        "second",
        "deviceclass.resource.kubernetes.io/gpu.example.com",
        1,
    )
    .await;
    let refused = world
        .until("it is refused", || world.unmet("second", "PodScheduled"))
        .await;
    let message = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1 nodes are \
                   available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(refused, ("Unschedulable".to_owned(), message.to_owned()));
    world.delete_pod("first").await;
    world.until_running("second").await;
    until_gone(&claims(&world), &claim.name_any()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_until_a_class_stands_for_what_it_asks_for() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    asking(&world, "early", "example.com/gpu", 1).await;
    let refused = world
        .until("it is refused", || world.unmet("early", "PodScheduled"))
        .await;
    assert!(
        refused.1.contains("Insufficient example.com/gpu"),
        "{refused:?}"
    );
    let other = json!({ "metadata": { "name": "other" }, "spec": {} });
    publish::<DeviceClass>(&world, other).await;
    world.pass(20).await;
    stand(&world).await;
    world.until_running("early").await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_the_resource_itself_needs_no_claim() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    stand(&world).await;
    let nodes: Api<Node> = Api::all(world.context.client.clone());
    let node = nodes.list(&ListParams::default()).await.expect("nodes");
    let amounts = json!({ "example.com/gpu": "1" });
    let patch = json!({ "status": { "allocatable": amounts, "capacity": amounts } });
    let patched = nodes
        .patch_status(
            &node.items[0].name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    patched.expect("it may");
    world.pass(1).await;
    asking(&world, "plain", "example.com/gpu", 1).await;
    world.until_running("plain").await;
    assert_eq!(all_claims(&world).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_left_behind_is_deleted_and_the_pod_gets_another() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    let pod = asking(&world, "again", "example.com/gpu", 1).await;
    world
        .until("it is refused", || world.unmet("again", "PodScheduled"))
        .await;
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "again", "uid": pod.uid(), "controller": true });
    let request =
        json!({ "name": "container-0-request-0", "exactly": { "deviceClassName": CLASS } });
    let left: Value = json!({
        "metadata": {
            "name": "again-extended-resources-old",
            "annotations": { "resource.kubernetes.io/extended-resource-claim": "true" },
            "ownerReferences": [owner],
        },
        "spec": { "devices": { "requests": [request] } },
    });
    world.create::<ResourceClaim>(left).await;
    stand(&world).await;
    world.until_running("again").await;
    let all = all_claims(&world).await;
    let names: Vec<_> = all.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    assert_ne!(names[0], "again-extended-resources-old");
}
