//! Pods that claim devices: the scheduler finds some, writes them to the claims, and takes what was given back.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mullion_controllers::{
    gc, kubelet::pace::Pace, node_lifecycle, resource_claims, scheduler, state::SharedState,
};
use mullion_engine::{
    Options,
    model::{DeviceJudge, DeviceSpec},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    wait::until,
    world::{World, pod},
};

/// Understands one expression: the driver's name.
#[derive(Debug)]
struct Drivers;

impl DeviceJudge for Drivers {
    fn judge(
        &self,
        expression: &str,
        driver: &str,
        devices: &[DeviceSpec],
    ) -> Result<Vec<Result<bool, String>>, String> {
        let matches = expression == format!("device.driver == {driver:?}");
        Ok(devices.iter().map(|_| Ok(matches)).collect())
    }
}

/// Creates an object that has no namespace.
pub(crate) async fn publish<K>(world: &World, object: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("an object");
    let api: Api<K> = Api::all(world.context.client.clone());
    let created = api.create(&PostParams::default(), &object).await;
    created.expect("it is accepted");
}

/// A cluster with a node that has these devices, and the class `gpu.example.com` for them.
pub(crate) async fn world(devices: Value) -> World {
    let world = World::new(Pace::INSTANT).await;
    let state = SharedState::new(&world.context, Options::default());
    state.with(|state| state.cluster_mut().judge_devices_by(Arc::new(Drivers)));
    scheduler::start_over(&world.context, &state, 0);
    node_lifecycle::start(&world.context, None);
    resource_claims::start(&world.context);
    gc::start(&world.context);
    let node = world.linux_node().await;
    let opaque = |setting: &str| json!({ "opaque": { "driver": "gpu.example.com", "parameters": { "mode": setting } } });
    let expression = r#"device.driver == "gpu.example.com""#;
    publish::<DeviceClass>(
        &world,
        json!({ "metadata": { "name": "gpu.example.com" }, "spec": {
            "selectors": [{ "cel": { "expression": expression } }], "config": [opaque("class")],
        } }),
    )
    .await;
    publish::<ResourceSlice>(&world, json!({ "metadata": { "name": "gpus" }, "spec": {
            "driver": "gpu.example.com", "nodeName": node, "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 }, "devices": devices,
        } }))
        .await;
    world
}

fn spec(count: i64) -> Value {
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "gpu.example.com", "count": count } }] } })
}

async fn claim(world: &World, name: &str, spec: Value) {
    world
        .create::<ResourceClaim>(json!({ "metadata": { "name": name }, "spec": spec }))
        .await;
}

async fn claiming(world: &World, name: &str, entry: Value) {
    let mut pod = pod(name, "app:1");
    let mut entry = entry;
    entry["name"] = json!("gpus");
    pod["spec"]["resourceClaims"] = json!([entry]);
    world.create::<Pod>(pod).await;
}

pub(crate) fn claims(world: &World) -> Api<ResourceClaim> {
    Api::namespaced(world.context.client.clone(), "default")
}

/// What is reserved, by whom.
pub(crate) fn consumers(claim: &ResourceClaim) -> Vec<String> {
    let status = claim.status.iter();
    let consumers = status.flat_map(|status| status.reserved_for.iter().flatten());
    consumers.map(|consumer| consumer.name.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_gets_a_device_by_its_template_and_the_next_one_gets_it_when_the_pod_is_gone() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    world
        .create::<ResourceClaimTemplate>(
            json!({ "metadata": { "name": "gpu" }, "spec": { "spec": spec(1) } }),
        )
        .await;
    let template = json!({ "resourceClaimTemplateName": "gpu" });
    claiming(&world, "first", template.clone()).await;
    let first = world.until_running("first").await;
    let told = first
        .status
        .as_ref()
        .and_then(|status| status.resource_claim_statuses.as_ref());
    let name = told.and_then(|told| told[0].resource_claim_name.clone());
    let own = claims(&world)
        .get(&name.expect("a claim"))
        .await
        .expect("it is there");
    assert_eq!(consumers(&own), ["first"]);
    assert_eq!(
        own.finalizers(),
        ["resource.kubernetes.io/delete-protection"]
    );

    claiming(&world, "second", template).await;
    let refused = world
        .until("it is refused", || world.unmet("second", "PodScheduled"))
        .await;
    let message = "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable, preemption: 0/1 nodes are \
                   available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(refused, ("Unschedulable".to_owned(), message.to_owned()));
    world.delete_pod("first").await;
    world.until_running("second").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_written_tells_devices_nodes_tolerations_and_configurations() {
    let taints = json!([{ "key": "old", "value": "yes", "effect": "NoSchedule" }]);
    let world = world(json!([{ "name": "gpu-0" }, { "name": "gpu-1", "taints": taints }])).await;
    let tolerations = json!([{ "key": "old", "operator": "Exists" }]);
    let exactly = |extra: Value| {
        let mut exactly = json!({ "deviceClassName": "gpu.example.com" });
        if let (Some(exactly), Value::Object(extra)) = (exactly.as_object_mut(), extra) {
            exactly.extend(extra);
        }
        exactly
    };
    let opaque = json!({ "driver": "gpu.example.com", "parameters": { "mode": "claim" } });
    let wanted = json!({ "devices": {
        "requests": [
            { "name": "new", "exactly": exactly(json!({})) },
            { "name": "any", "firstAvailable": [
                { "name": "two", "deviceClassName": "gpu.example.com", "count": 2 },
                { "name": "one", "deviceClassName": "gpu.example.com", "tolerations": tolerations },
            ] },
        ],
        "config": [{ "requests": ["any/one"], "opaque": opaque }],
    } });
    claim(&world, "both", wanted).await;
    claiming(&world, "web", json!({ "resourceClaimName": "both" })).await;
    let web = world.until_running("web").await;
    let node = web.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
    let written = claims(&world).get("both").await.expect("it is there");
    let allocation = written.status.and_then(|status| status.allocation);
    let mut allocation = allocation.expect("it has devices");
    assert!(allocation.allocation_timestamp.take().is_some());
    let expected = json!({
        "devices": {
            "results": [
                { "request": "new", "driver": "gpu.example.com", "pool": node, "device": "gpu-0" },
                { "request": "any/one", "driver": "gpu.example.com", "pool": node, "device": "gpu-1", "tolerations": tolerations },
            ],
            "config": [
                { "source": "FromClass", "opaque": { "driver": "gpu.example.com", "parameters": { "mode": "class" } } },
                { "source": "FromClaim", "requests": ["any/one"], "opaque": opaque },
            ],
        },
        "nodeSelector": { "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] }] },
    });
    assert_eq!(serde_json::to_value(allocation).expect("JSON"), expected);
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_claim_without_a_word_and_shares_it_with_others() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    let shared = json!({ "resourceClaimName": "shared" });
    claiming(&world, "early", shared.clone()).await;
    world.pass(60).await;
    assert!(world.unmet("early", "PodScheduled").is_none());
    assert!(world.events("early").await.is_empty());
    claim(&world, "shared", spec(1)).await;
    world.until_running("early").await;
    claiming(&world, "late", shared).await;
    world.until_running("late").await;
    let both = until(&claims(&world), "shared", |claim| {
        consumers(claim).len() == 2
    })
    .await;
    assert_eq!(consumers(&both), ["early", "late"]);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_has_to_be_made_ready_is_waited_for() {
    let world = world(json!([{ "name": "gpu-0", "bindsToNode": true, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"] }])).await;
    claim(&world, "fabric", spec(1)).await;
    claiming(&world, "web", json!({ "resourceClaimName": "fabric" })).await;
    let is_reserved = |claim: &ResourceClaim| !consumers(claim).is_empty();
    let reserved = until(&claims(&world), "fabric", is_reserved).await;
    world.pass(30).await;
    let events = world.events("web").await;
    assert!(
        events
            .iter()
            .any(|(reason, _)| reason == "BindingConditionsPending"),
        "{events:?}"
    );
    assert!(
        events.iter().all(|(reason, _)| reason != "Scheduled"),
        "{events:?}"
    );
    let allocation = reserved.status.and_then(|status| status.allocation);
    let results = allocation
        .and_then(|allocation| allocation.devices)
        .and_then(|devices| devices.results);
    let given = &results.expect("devices")[0];
    let attached = json!({ "type": "Attached", "status": "True", "reason": "Cabled", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let device = json!({ "driver": given.driver, "pool": given.pool, "device": given.device, "conditions": [attached] });
    let ready = Patch::Merge(json!({ "status": { "devices": [device] } }));
    let patched = claims(&world)
        .patch_status("fabric", &PatchParams::default(), &ready)
        .await;
    patched.expect("it is accepted");
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_device_that_fails_is_given_back_and_another_is_tried() {
    let conditions = |name: &str| json!({ "name": name, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"] });
    let world = world(json!([conditions("gpu-0")])).await;
    claim(&world, "fabric", spec(1)).await;
    claiming(&world, "web", json!({ "resourceClaimName": "fabric" })).await;
    let reserved = until(&claims(&world), "fabric", |claim| {
        !consumers(claim).is_empty()
    })
    .await;
    let since = |claim: &ResourceClaim| {
        let allocation = claim
            .status
            .as_ref()
            .and_then(|status| status.allocation.as_ref());
        allocation.and_then(|allocation| allocation.allocation_timestamp.clone())
    };
    let first = since(&reserved).expect("a time");
    let broken = json!({ "type": "Broken", "status": "True", "reason": "Burnt", "message": "smoke", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let node = world.context.informers.nodes.list()[0].name_any();
    let device = json!({ "driver": "gpu.example.com", "pool": node, "device": "gpu-0", "conditions": [broken] });
    let failed = Patch::Merge(json!({ "status": { "devices": [device] } }));
    let patched = claims(&world)
        .patch_status("fabric", &PatchParams::default(), &failed)
        .await;
    patched.expect("it is accepted");
    // It is told of, given back, and given again: there is no other.
    let again = until(&claims(&world), "fabric", |claim| {
        since(claim).is_some_and(|at| at != first)
    })
    .await;
    assert!(again.status.is_some_and(|status| status.devices.is_none()));
    let events = world.events("web").await;
    let told = r#"running PreBind plugin "DynamicResources": claim fabric binding failed: reason=Burnt, message="smoke""#;
    assert!(events.iter().any(|(_, note)| note == told), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_written_for_a_pod_that_could_not_be_bound_is_free_again() {
    let world = world(json!([{ "name": "gpu-0" }])).await;
    publish::<ValidatingAdmissionPolicy>(&world, json!({ "metadata": { "name": "no-binding" }, "spec": {
            "matchConstraints": { "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"] }] },
            "validations": [{ "expression": "false", "message": "not today" }],
        } }))
        .await;
    publish::<ValidatingAdmissionPolicyBinding>(
        &world,
        json!({ "metadata": { "name": "no-binding" }, "spec": { "policyName": "no-binding", "validationActions": ["Deny"] } }),
    )
    .await;
    claim(&world, "c", spec(1)).await;
    claiming(&world, "web", json!({ "resourceClaimName": "c" })).await;
    let is_reserved = |claim: &ResourceClaim| !consumers(claim).is_empty();
    until(&claims(&world), "c", is_reserved).await;
    let given_back = until(&claims(&world), "c", |claim| !is_reserved(claim)).await;
    let allocation = given_back.status.and_then(|status| status.allocation);
    assert!(allocation.is_some(), "its devices stay chosen");
    let refused = world
        .until("it is refused", || world.unmet("web", "PodScheduled"))
        .await;
    assert!(refused.1.contains("not today"), "{refused:?}");

    let policies: Api<ValidatingAdmissionPolicyBinding> = Api::all(world.context.client.clone());
    let deleted = policies.delete("no-binding", &Default::default()).await;
    deleted.expect("it was there");
    world.until_running("web").await;
    let claim = claims(&world).get("c").await.expect("it is there");
    assert_eq!(consumers(&claim), ["web"]);
}
