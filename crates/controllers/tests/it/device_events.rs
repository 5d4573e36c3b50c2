//! Pods that claim devices wait for what they lack, and are tried again as soon as that is there.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaimTemplate, ResourceSlice},
};
use kube::{Api, api::PostParams};
use mullion_controllers::{kubelet::pace::Pace, node_lifecycle, resource_claims, scheduler};
use serde_json::{Value, json};

use crate::world::{World, pod};

/// Simulated time; well below the five minutes after which refused pods are tried anyway.
const SOON: Duration = Duration::from_secs(120);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(SOON, what).await;
    waited.expect("an event wakes the pod")
}

async fn create<K>(world: &World, object: Value)
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("an object of that kind");
    let api: Api<K> = Api::all(world.context.client.clone());
    let created = api.create(&PostParams::default(), &object).await;
    created.expect("it is accepted");
}

/// Creates a pod with a claim of its own.
async fn claiming(world: &World, name: &str) {
    let mut pod = pod(name, "app:1");
    pod["spec"]["resourceClaims"] =
        json!([{ "name": "gpu", "resourceClaimTemplateName": "one-gpu" }]);
    world.create::<Pod>(pod).await;
}

async fn until_refused(world: &World, pod: &str, why: &str) {
    world
        .until(&format!("{pod} is refused: {why}"), || {
            let (_, message) = world.unmet(pod, "PodScheduled")?;
            message.contains(why).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_tried_again_when_its_claim_its_class_and_its_device_come_or_are_given_back() {
    let world = World::new(Pace::INSTANT).await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    resource_claims::start(&world.context);
    let node = world.linux_node().await;
    claiming(&world, "first").await;
    world.pass(1).await;
    // There is nothing to decide yet.
    assert_eq!(world.unmet("first", "PodScheduled"), None);
    let request = json!({ "name": "gpu", "exactly": { "deviceClassName": "gpu.example.com" } });
    let template = json!({
        "metadata": { "name": "one-gpu" },
        "spec": { "spec": { "devices": { "requests": [request] } } },
    });
    world.create::<ResourceClaimTemplate>(template).await;
    let no_class = "device class gpu.example.com does not exist";
    soon(until_refused(&world, "first", no_class)).await;
    let class = json!({ "metadata": { "name": "gpu.example.com" }, "spec": {} });
    create::<DeviceClass>(&world, class).await;
    let no_device = "cannot allocate all claims";
    soon(until_refused(&world, "first", no_device)).await;
    let slice = json!({
        "metadata": { "name": "gpus" },
        "spec": {
            "driver": "gpu.example.com",
            "pool": { "name": "gpus", "generation": 1, "resourceSliceCount": 1 },
            "nodeName": node,
            "devices": [{ "name": "gpu-0" }],
        },
    });
    create::<ResourceSlice>(&world, slice).await;
    soon(world.until_running("first")).await;
    claiming(&world, "second").await;
    soon(until_refused(&world, "second", no_device)).await;
    world.delete_pod("first").await;
    soon(world.until_running("second")).await;
}
