//! Claims of devices are made for pods, and given back when these are done with them.

use k8s_openapi::api::{
    core::v1::{Pod, ResourceQuota},
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mullion_controllers::{gc, kubelet::pace::Pace, node_lifecycle, resource_claims, scheduler};
use serde_json::{Value, json};

use crate::{
    wait::{until, until_gone},
    world::{World, pod},
};

const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

async fn world() -> World {
    let world = World::new(Pace::INSTANT).await;
    resource_claims::start(&world.context);
    world
}

fn spec() -> Value {
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu.example.com" } }] } })
}

async fn template(world: &World, name: &str) {
    let template = json!({ "metadata": { "name": name }, "spec": {
        "metadata": { "labels": { "team": "ml" }, "annotations": { "note": "from the template" } }, "spec": spec(),
    } });
    world.create::<ResourceClaimTemplate>(template).await;
}

/// A pod with entries `NAME=template/TEMPLATE` or `NAME=CLAIM` of `spec.resourceClaims`.
async fn claiming(world: &World, name: &str, entries: &[&str]) -> Pod {
    world.create(claiming_on(name, None, entries)).await
}

fn claiming_on(name: &str, node: Option<&str>, entries: &[&str]) -> Value {
    let mut pod = pod(name, "app:1");
    let entry = |entry: &&str| {
        let (name, of) = entry.split_once('=').expect("name=claim");
        match of.strip_prefix("template/") {
            Some(template) => json!({ "name": name, "resourceClaimTemplateName": template }),
            None => json!({ "name": name, "resourceClaimName": of }),
        }
    };
    pod["spec"]["resourceClaims"] = entries.iter().map(entry).collect();
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn claims(world: &World) -> Api<ResourceClaim> {
    Api::namespaced(world.context.client.clone(), "default")
}

fn pods(world: &World) -> Api<Pod> {
    Api::namespaced(world.context.client.clone(), "default")
}

async fn all_claims(world: &World) -> Vec<String> {
    let all = claims(world).list(&ListParams::default()).await;
    all.expect("a list")
        .iter()
        .map(ResourceExt::name_any)
        .collect()
}

/// What the pod's status tells of its claims.
fn told(pod: &Pod) -> Vec<(String, String)> {
    let status = pod.status.iter();
    let told = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    told.map(|told| {
        (
            told.name.clone(),
            told.resource_claim_name.clone().unwrap_or_default(),
        )
    })
    .collect()
}

async fn until_told(world: &World, pod: &str, entries: usize) -> Vec<(String, String)> {
    let pod = until(&pods(world), pod, |pod| told(pod).len() == entries).await;
    told(&pod)
}

/// Gives a claim a device and reserves it, as a scheduler and a driver do.
async fn allocate(world: &World, claim: &str, consumers: Value) {
    let protected = json!({ "metadata": { "finalizers": [PROTECTION] } });
    let params = PatchParams::default();
    let patched = claims(world)
        .patch(claim, &params, &Patch::Merge(protected))
        .await;
    patched.expect("it is there");
    let device = json!({ "driver": "gpu.example.com", "pool": "node", "device": "gpu-0" });
    let mut result = device.clone();
    result["request"] = json!("gpu");
    let status = json!({ "status": {
        "allocation": { "devices": { "results": [result] } }, "devices": [device], "reservedFor": consumers,
    } });
    let written = claims(world)
        .patch_status(claim, &params, &Patch::Merge(status))
        .await;
    written.expect("it is accepted");
}

fn consumer(pod: &Pod) -> Value {
    json!({ "resource": "pods", "name": pod.name_any(), "uid": pod.uid() })
}

async fn shared_claim(world: &World, name: &str) {
    world
        .create::<ResourceClaim>(json!({ "metadata": { "name": name }, "spec": spec() }))
        .await;
}

fn consumers(claim: &ResourceClaim) -> Vec<String> {
    let status = claim.status.iter();
    let consumers = status.flat_map(|status| status.reserved_for.iter().flatten());
    consumers.map(|consumer| consumer.name.clone()).collect()
}

fn has_devices(claim: &ResourceClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.allocation.is_some() || status.devices.is_some())
}

async fn finish(world: &World, pod: &str) {
    let done = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    let written = pods(world)
        .patch_status(pod, &PatchParams::default(), &done)
        .await;
    written.expect("it is there");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_made_from_the_template_and_the_pod_is_told_its_name() {
    let world = world().await;
    template(&world, "one-gpu").await;
    let pod = claiming(&world, "train", &["gpu=template/one-gpu"]).await;
    let told = until_told(&world, "train", 1).await;
    let (entry, name) = &told[0];
    assert_eq!(entry, "gpu");
    assert!(name.starts_with("train-gpu-"), "{name}");
    let claim = claims(&world).get(name).await.expect("it was made");
    assert_eq!(claim.labels()["team"], "ml");
    assert_eq!(claim.annotations()["note"], "from the template");
    let made_for = &claim.annotations()["resource.kubernetes.io/pod-claim-name"];
    assert_eq!(made_for, "gpu");
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "train", "uid": pod.uid(), "controller": true }]);
    assert_eq!(json!(claim.owner_references()), owner);
    let request = &claim.spec.devices.as_ref().expect("devices").requests;
    assert_eq!(request.as_ref().expect("a request")[0].name, "gpu");
    let pod = pods(&world).get("train").await.expect("it is there");
    let managers = pod
        .managed_fields()
        .iter()
        .filter_map(|of| of.manager.as_deref());
    assert!(
        managers
            .collect::<Vec<_>>()
            .contains(&"ResourceClaimController")
    );
    world.pass(5).await;
    assert_eq!(all_claims(&world).await, [name.as_str()]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_template_is_told_and_waited_for_and_holds_back_only_what_comes_of_it() {
    let world = world().await;
    template(&world, "one-gpu").await;
    claiming(
        &world,
        "train",
        &["gpu=template/one-gpu", "net=template/one-nic"],
    )
    .await;
    world.pass(300).await;
    let missing = "PodResourceClaim net: resource claim template \"one-nic\": resourceclaimtemplate.resource.k8s.io \"one-nic\" not found";
    let events = world.events("train").await;
    let event = ("FailedResourceClaimCreation".into(), missing.into());
    assert!(events.contains(&event), "{events:?}");
    assert_eq!(all_claims(&world).await.len(), 1);
    template(&world, "one-nic").await;
    // Not only when the back-off, which is minutes by now, is over.
    world.pass(1).await;
    let pod = pods(&world).get("train").await.expect("it is there");
    let mut names: Vec<_> = told(&pod).into_iter().map(|(_, name)| name).collect();
    names.sort();
    assert_eq!(names.len(), 2);
    assert_eq!(all_claims(&world).await, names);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_refused_is_told_and_tried_again() {
    let world = world().await;
    template(&world, "one-gpu").await;
    let counted = "count/resourceclaims.resource.k8s.io";
    let none = json!({ "metadata": { "name": "few" }, "spec": { "hard": { counted: "0" } } });
    world.create::<ResourceQuota>(none).await;
    let quotas: Api<ResourceQuota> = Api::namespaced(world.context.client.clone(), "default");
    let allow = async |amount: &str| {
        let status = json!({ "status": { "hard": { counted: amount }, "used": { counted: "0" } } });
        let written = quotas
            .patch_status("few", &PatchParams::default(), &Patch::Merge(status))
            .await;
        written.expect("it is there");
    };
    allow("0").await;
    claiming(&world, "train", &["gpu=template/one-gpu"]).await;
    world.pass(60).await;
    let refused =
        "PodResourceClaim gpu: create ResourceClaim : resourceclaims.resource.k8s.io \"train-gpu-";
    let events = world.events("train").await;
    let told = |(reason, message): &(String, String)| {
        reason == "FailedResourceClaimCreation"
            && message.starts_with(refused)
            && message.contains("exceeded quota: few")
    };
    assert!(events.iter().any(told), "{events:?}");
    allow("1").await;
    until_told(&world, "train", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_made_is_found_again_and_one_that_is_lost_is_made_anew() {
    let world = world().await;
    let pod = claiming(
        &world,
        "train",
        &["a=template/one-gpu", "b=template/one-gpu"],
    )
    .await;
    // Made by a controller that ended before it could tell.
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "train", "uid": pod.uid(), "controller": true });
    let found = json!({
        "metadata": {
            "name": "found", "ownerReferences": [owner], "annotations": { "resource.kubernetes.io/pod-claim-name": "a" },
        },
        "spec": spec(),
    });
    world.create::<ResourceClaim>(found).await;
    // Of that name, but nobody's.
    shared_claim(&world, "train-b").await;
    template(&world, "one-gpu").await;
    let first = until_told(&world, "train", 2).await;
    assert_eq!(first[0], ("a".into(), "found".into()));
    let lost = first[1].1.clone();
    let deleted = claims(&world).delete(&lost, &DeleteParams::default()).await;
    deleted.expect("it is there");
    let anew = until(&pods(&world), "train", |pod| {
        told(pod).len() == 2 && told(pod)[1].1 != lost
    })
    .await;
    let anew = told(&anew);
    assert_eq!(anew[0], first[0], "what was told of the other is kept");
    world.pass(5).await;
    let mut expected = vec!["found".to_owned(), "train-b".to_owned(), anew[1].1.clone()];
    expected.sort();
    assert_eq!(all_claims(&world).await, expected);
}

#[tokio::test(start_paused = true)]
async fn consumers_that_are_gone_or_over_are_taken_off_a_claim_and_others_stay() {
    let world = world().await;
    shared_claim(&world, "gpus").await;
    let mut all = Vec::new();
    for name in ["waiting", "over", "replaced", "gone"] {
        all.push(claiming(&world, name, &["gpu=gpus"]).await);
    }
    let mut reserved: Vec<Value> = all.iter().map(consumer).collect();
    reserved[2]["uid"] = json!("of-another");
    reserved.push(
        json!({ "apiGroup": "example.com", "resource": "trains", "name": "a-train", "uid": "t" }),
    );
    allocate(&world, "gpus", json!(reserved)).await;
    finish(&world, "over").await;
    world.delete_pod("gone").await;
    let claim = until(&claims(&world), "gpus", |claim| consumers(claim).len() == 2).await;
    assert_eq!(consumers(&claim), ["waiting", "a-train"]);
    assert!(has_devices(&claim));
    world.pass(5).await;
    let claim = claims(&world).get("gpus").await.expect("it is kept");
    assert_eq!(consumers(&claim), ["waiting", "a-train"]);
}

#[tokio::test(start_paused = true)]
async fn the_devices_of_a_claim_go_back_with_its_last_consumer_and_not_before_the_first() {
    let world = world().await;
    shared_claim(&world, "gpus").await;
    allocate(&world, "gpus", json!([])).await;
    world.pass(5).await;
    let unused = claims(&world).get("gpus").await.expect("it is there");
    assert!(has_devices(&unused));
    let pod = claiming(&world, "train", &["gpu=gpus"]).await;
    let reserve = Patch::Merge(json!({ "status": { "reservedFor": [consumer(&pod)] } }));
    let written = claims(&world)
        .patch_status("gpus", &PatchParams::default(), &reserve)
        .await;
    written.expect("it is accepted");
    world.pass(5).await;
    let used = claims(&world).get("gpus").await.expect("it is there");
    assert_eq!(consumers(&used), ["train"]);
    world.delete_pod("train").await;
    let free = |claim: &ResourceClaim| !has_devices(claim) && claim.finalizers().is_empty();
    let claim = until(&claims(&world), "gpus", free).await;
    assert!(consumers(&claim).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_pod_that_is_over_is_deleted_and_does_not_come_back() {
    let world = world().await;
    template(&world, "one-gpu").await;
    let pod = claiming(&world, "train", &["gpu=template/one-gpu"]).await;
    let name = until_told(&world, "train", 1).await.remove(0).1;
    allocate(&world, &name, json!([consumer(&pod)])).await;
    world.pass(5).await;
    assert_eq!(all_claims(&world).await.len(), 1);
    finish(&world, "train").await;
    until_gone(&claims(&world), &name).await;
    world.pass(60).await;
    assert!(all_claims(&world).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_pod_that_is_gone_is_let_go_and_collected() {
    let world = world().await;
    gc::start(&world.context);
    template(&world, "one-gpu").await;
    let pod = claiming(&world, "train", &["gpu=template/one-gpu"]).await;
    let name = until_told(&world, "train", 1).await.remove(0).1;
    allocate(&world, &name, json!([consumer(&pod)])).await;
    world.delete_pod("train").await;
    until_gone(&claims(&world), &name).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_deleted_while_it_is_used_goes_when_it_is_not() {
    let world = world().await;
    for (claim, used) in [("used", true), ("unused", false)] {
        shared_claim(&world, claim).await;
        let name = format!("of-{claim}");
        let pod = claiming(&world, &name, &[&format!("gpu={claim}")]).await;
        let reserved = if used {
            json!([consumer(&pod)])
        } else {
            json!([])
        };
        allocate(&world, claim, reserved).await;
        let deleted = claims(&world).delete(claim, &DeleteParams::default()).await;
        deleted.expect("it is there");
    }
    until_gone(&claims(&world), "unused").await;
    world.pass(30).await;
    assert_eq!(all_claims(&world).await, ["used"]);
    world.delete_pod("of-used").await;
    until_gone(&claims(&world), "used").await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_for_extended_resources_goes_with_its_pod() {
    let world = world().await;
    let mut wanted = pod("train", "app:1");
    let amount = json!({ "example.com/gpu": "1" });
    wanted["spec"]["containers"][0]["resources"] = json!({ "limits": amount, "requests": amount });
    let pod: Pod = world.create(wanted).await;
    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "train", "uid": pod.uid(), "controller": true });
    let claim = json!({
        "metadata": {
            "name": "train-extended-resources-x", "ownerReferences": [owner],
            "annotations": { "resource.kubernetes.io/extended-resource-claim": "true" },
        },
        "spec": spec(),
    });
    world.create::<ResourceClaim>(claim).await;
    allocate(
        &world,
        "train-extended-resources-x",
        json!([consumer(&pod)]),
    )
    .await;
    let mapping =
        json!({ "containerName": "web", "resourceName": "example.com/gpu", "requestName": "gpu" });
    let status = json!({ "status": { "extendedResourceClaimStatus": {
        "resourceClaimName": "train-extended-resources-x", "requestMappings": [mapping],
    } } });
    let written = pods(&world)
        .patch_status("train", &PatchParams::default(), &Patch::Merge(status))
        .await;
    written.expect("it is accepted");
    world.pass(5).await;
    assert_eq!(all_claims(&world).await.len(), 1);
    finish(&world, "train").await;
    until_gone(&claims(&world), "train-extended-resources-x").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_came_to_its_node_by_itself_waits_for_its_claims_and_has_them_reserved() {
    let world = world().await;
    let node = world.linux_node().await;
    let on_node = claiming_on(
        "train",
        Some(&node),
        &["own=template/one-gpu", "shared=gpus"],
    );
    let pod: Pod = world.create(on_node).await;
    let waits = async |told: &str| {
        let told =
            format!("Failed to prepare dynamic resources: prepare dynamic resources: {told}");
        let event = ("FailedPrepareDynamicResources".to_owned(), told);
        world.pass(61).await;
        let events = world.events("train").await;
        assert!(events.contains(&event), "{event:?} {events:?}");
        assert_eq!(world.phase("train").as_deref(), Some("Pending"));
    };
    waits("pod \"default/train\": ResourceClaim not created yet").await;
    template(&world, "one-gpu").await;
    let own = until_told(&world, "train", 1).await.remove(0).1;
    let uids = async |claim: &str| {
        let claim = claims(&world).get(claim).await.expect("it is there");
        let [pod, claim] = [pod.uid(), claim.uid()].map(Option::unwrap_or_default);
        (pod, claim)
    };
    let (uid, of_claim) = uids(&own).await;
    waits(&format!(
        "pod train ({uid}) is not allowed to use ResourceClaim {own} ({of_claim})"
    ))
    .await;
    allocate(&world, &own, json!([])).await;
    let reserved = |claim: &ResourceClaim| consumers(claim) == ["train"];
    until(&claims(&world), &own, reserved).await;
    waits("fetch ResourceClaim gpus: resourceclaims.resource.k8s.io \"gpus\" not found").await;
    shared_claim(&world, "gpus").await;
    allocate(&world, "gpus", json!([])).await;
    until(&claims(&world), "gpus", reserved).await;
    world.until_running("train").await;
}

#[tokio::test(start_paused = true)]
async fn a_device_goes_from_one_pod_to_the_next() {
    let world = world().await;
    scheduler::start(&world.context, true);
    node_lifecycle::start(&world.context, None);
    let node = world.linux_node().await;
    let class: DeviceClass =
        serde_json::from_value(json!({ "metadata": { "name": "gpu.example.com" }, "spec": {} }))
            .expect("a class");
    let slice: ResourceSlice = serde_json::from_value(json!({
        "metadata": { "name": "gpus" },
        "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": [{ "name": "gpu-0" }],
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
        },
    }))
    .expect("a slice");
    let (client, params) = (&world.context.client, PostParams::default());
    let made = Api::all(client.clone()).create(&params, &class).await;
    made.expect("it is accepted");
    let made = Api::all(client.clone()).create(&params, &slice).await;
    made.expect("it is accepted");
    template(&world, "one-gpu").await;
    claiming(&world, "first", &["gpu=template/one-gpu"]).await;
    world.until_running("first").await;
    let name = until_told(&world, "first", 1).await.remove(0).1;
    let claim = claims(&world).get(&name).await.expect("it is there");
    assert_eq!(consumers(&claim), ["first"]);
    claiming(&world, "second", &["gpu=template/one-gpu"]).await;
    world
        .until("second is refused", || {
            world.unmet("second", "PodScheduled")
        })
        .await;
    finish(&world, "first").await;
    world.until_running("second").await;
    until_gone(&claims(&world), &name).await;
}
