//! Claims find volumes, or get them made where their pods go, and pods wait for them.

use std::fmt::Debug;

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use mullion_cloud::Speed;
use mullion_controllers::{
    kubelet::pace::Pace, node_lifecycle, scheduler, volume_protection, volumes,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    wait::{until, until_gone},
    world::{World, pod},
};

async fn world() -> World {
    let world = World::new(Pace::INSTANT).await;
    scheduler::start(&world.context, true);
    volumes::start(&world.context);
    volumes::driver::start(&world.context, Speed::REAL);
    volume_protection::start(&world.context);
    node_lifecycle::start(&world.context, None);
    world
}

fn all<K: Resource<DynamicType = ()>>(world: &World) -> Api<K> {
    Api::all(world.context.client.clone())
}

async fn make<K>(world: &World, object: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("an object of that kind");
    all::<K>(world)
        .create(&PostParams::default(), &object)
        .await
        .expect("it is accepted");
}

async fn ebs(world: &World) {
    make::<CSIDriver>(
        world,
        json!({ "metadata": { "name": "ebs.csi.aws.com" }, "spec": { "attachRequired": true } }),
    )
    .await;
    let class = |name: &str, mode: &str| {
        json!({
            "metadata": { "name": name }, "provisioner": "ebs.csi.aws.com", "reclaimPolicy": "Delete",
            "allowVolumeExpansion": true, "volumeBindingMode": mode,
        })
    };
    make::<StorageClass>(world, class("gp3", "WaitForFirstConsumer")).await;
    make::<StorageClass>(world, class("at-once", "Immediate")).await;
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn mounting(name: &str, claim: &str) -> Value {
    let mut pod = pod(name, "nginx:1.27");
    pod["spec"]["volumes"] =
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    pod
}

async fn claim_until(world: &World, name: &str, phase: &str) -> PersistentVolumeClaim {
    let api = Api::namespaced(world.context.client.clone(), "default");
    let is = |claim: &PersistentVolumeClaim| {
        let status = claim.status.as_ref();
        status.and_then(|status| status.phase.as_deref()) == Some(phase)
    };
    until(&api, name, is).await
}

fn reasons(events: &[(String, String)]) -> Vec<&str> {
    events.iter().map(|(reason, _)| reason.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_bound_to_the_smallest_volume_that_will_do_and_releases_it() {
    let world = world().await;
    for (name, size) in [("large", "10Gi"), ("small", "2Gi"), ("tiny", "1Mi")] {
        let volume = json!({
            "metadata": { "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "capacity": { "storage": size }, "nfs": { "server": "s", "path": "/" } },
        });
        make::<PersistentVolume>(&world, volume).await;
    }
    world
        .create::<PersistentVolumeClaim>(claim("data", ""))
        .await;
    let bound = claim_until(&world, "data", "Bound").await;
    let spec = bound.spec.as_ref().expect("a spec");
    assert_eq!(spec.volume_name.as_deref(), Some("small"));
    let capacity = bound
        .status
        .as_ref()
        .and_then(|status| status.capacity.clone());
    assert_eq!(capacity.expect("a capacity")["storage"].0, "2Gi");
    let volumes = all::<PersistentVolume>(&world);
    let small = volumes.get("small").await.expect("it is there");
    let reference = small.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    assert_eq!(reference.and_then(|own| own.uid.clone()), bound.uid());

    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(world.context.client.clone(), "default");
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("it is there");
    until_gone(&claims, "data").await;
    world.pass(1).await;
    let small = volumes.get("small").await.expect("it is kept");
    let phase = small.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Released"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_volume_or_class_says_so() {
    let world = world().await;
    world
        .create::<PersistentVolumeClaim>(claim("data", ""))
        .await;
    claim_until(&world, "data", "Pending").await;
    world.pass(1).await;
    let expected = "no persistent volumes available for this claim and no storage class is set";
    let events = world.events("data").await;
    assert!(
        events.contains(&("FailedBinding".into(), expected.into())),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_made_where_the_pod_goes_and_goes_with_its_claim() {
    let world = world().await;
    ebs(&world).await;
    let node = world.linux_node().await;
    world
        .create::<PersistentVolumeClaim>(claim("data", "gp3"))
        .await;
    world.pass(2).await;
    let waiting = "waiting for first consumer to be created before binding";
    let events = world.events("data").await;
    assert!(
        events.contains(&("WaitForFirstConsumer".into(), waiting.into())),
        "{events:?}"
    );

    world.create::<Pod>(mounting("web", "data")).await;
    world.until_running("web").await;
    let bound = claim_until(&world, "data", "Bound").await;
    assert_eq!(
        bound.annotations()["volume.kubernetes.io/selected-node"],
        node
    );
    let name = format!("pvc-{}", bound.uid().expect("a uid"));
    let volumes = all::<PersistentVolume>(&world);
    let volume = volumes.get(&name).await.expect("it was made");
    let affinity = serde_json::to_value(
        volume
            .spec
            .as_ref()
            .and_then(|spec| spec.node_affinity.clone()),
    );
    let affinity = affinity.expect("it serializes");
    let zone = &affinity["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(zone["values"], json!(["us-west-2a"]));
    let attachments = all::<VolumeAttachment>(&world);
    let list = attachments
        .list(&ListParams::default())
        .await
        .expect("a list");
    assert!(
        list.items
            .iter()
            .all(|one| one.status.as_ref().is_some_and(|status| status.attached))
    );
    assert_eq!(list.items.len(), 1);
    let events = world.events("data").await;
    for reason in [
        "ExternalProvisioning",
        "Provisioning",
        "ProvisioningSucceeded",
    ] {
        assert!(reasons(&events).contains(&reason), "{events:?}");
    }
    let events = world.events("web").await;
    let attached = format!("AttachVolume.Attach succeeded for volume {name:?} ");
    assert!(
        events.contains(&("SuccessfulAttachVolume".into(), attached)),
        "{events:?}"
    );

    world.delete_pod("web").await;
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(world.context.client.clone(), "default");
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("it is there");
    until_gone(&claims, "data").await;
    until_gone(&volumes, &name).await;
    let list = attachments
        .list(&ListParams::default())
        .await
        .expect("a list");
    assert!(list.items.is_empty(), "it was detached");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_bound_at_once_decides_where_its_pod_goes() {
    let world = world().await;
    ebs(&world).await;
    world.linux_node().await;
    world
        .create::<PersistentVolumeClaim>(claim("data", "at-once"))
        .await;
    claim_until(&world, "data", "Bound").await;
    // In another zone there is nobody who could mount it.
    let node = world.linux_node().await;
    let elsewhere =
        json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": "us-west-2b" } } });
    world.patch_node(&node, elsewhere).await;
    world.pass(1).await;
    world.create::<Pod>(mounting("web", "data")).await;
    let running = world.until_running("web").await;
    assert_ne!(
        running
            .spec
            .as_ref()
            .and_then(|spec| spec.node_name.clone()),
        Some(node)
    );
}

#[tokio::test(start_paused = true)]
async fn volumes_made_by_hand_are_bound_where_the_scheduler_wants_them() {
    let world = world().await;
    make::<StorageClass>(
        &world,
        json!({ "metadata": { "name": "local" }, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer" }),
    )
    .await;
    let node = world.linux_node().await;
    for (name, zone) in [("here", "us-west-2a"), ("there", "us-west-2z")] {
        let term = json!({ "matchExpressions": [{ "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone] }] });
        let volume = json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "5Gi" }, "storageClassName": "local",
                "local": { "path": "/mnt" }, "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
            },
        });
        make::<PersistentVolume>(&world, volume).await;
    }
    for name in ["one", "two"] {
        world
            .create::<PersistentVolumeClaim>(claim(name, "local"))
            .await;
        world.create::<Pod>(mounting(name, name)).await;
        world.pass(1).await;
    }
    world.until_running("one").await;
    let bound = claim_until(&world, "one", "Bound").await;
    let volume = bound.spec.and_then(|spec| spec.volume_name);
    assert_eq!(volume.as_deref(), Some("here"));
    let why = world
        .until("two is refused", || world.unmet("two", "PodScheduled"))
        .await;
    assert!(
        why.1
            .contains("1 node(s) didn't find available persistent volumes to bind"),
        "{why:?} on {node}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_on_a_node_waits_for_its_claim() {
    let world = world().await;
    let node = world.linux_node().await;
    let mut fixed = mounting("web", "data");
    fixed["spec"]["nodeName"] = json!(node);
    world.create::<Pod>(fixed).await;
    world.pass(30).await;
    let events = world.events("web").await;
    let missing = "error processing PVC default/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found";
    let told = |text: &str, events: &[(String, String)]| {
        events
            .iter()
            .any(|(reason, message)| reason == "FailedMount" && message.ends_with(text))
    };
    assert!(told(missing, &events), "{events:?}");
    world
        .create::<PersistentVolumeClaim>(claim("data", ""))
        .await;
    world.pass(30).await;
    let events = world.events("web").await;
    assert!(
        told(
            "error processing PVC default/data: PVC is not bound",
            &events
        ),
        "{events:?}"
    );
    let volume = json!({
        "metadata": { "name": "disk" },
        "spec": { "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "5Gi" }, "hostPath": { "path": "/d" } },
    });
    make::<PersistentVolume>(&world, volume).await;
    world.until_running("web").await;
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_volume_comes_with_its_pod() {
    let world = world().await;
    ebs(&world).await;
    world.linux_node().await;
    let mut scratch = pod("web", "nginx:1.27");
    let template = json!({ "spec": claim("x", "gp3")["spec"] });
    scratch["spec"]["volumes"] =
        json!([{ "name": "tmp", "ephemeral": { "volumeClaimTemplate": template } }]);
    world.create::<Pod>(scratch).await;
    let running = world.until_running("web").await;
    let made = claim_until(&world, "web-tmp", "Bound").await;
    let owners = made.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.first().map(|owner| owner.uid.clone()), running.uid());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_asks_for_more_gets_it() {
    let world = world().await;
    ebs(&world).await;
    world.linux_node().await;
    world
        .create::<PersistentVolumeClaim>(claim("data", "at-once"))
        .await;
    let bound = claim_until(&world, "data", "Bound").await;
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(world.context.client.clone(), "default");
    let more = json!({ "spec": { "resources": { "requests": { "storage": "3Gi" } } } });
    claims
        .patch("data", &Default::default(), &kube::api::Patch::Merge(more))
        .await
        .expect("the class allows it");
    world.pass(10).await;
    let grown = claims.get("data").await.expect("it is there");
    let capacity = grown.status.and_then(|status| status.capacity);
    assert_eq!(capacity.expect("a capacity")["storage"].0, "3Gi");
    let volume = bound
        .spec
        .and_then(|spec| spec.volume_name)
        .expect("a volume");
    let volume = all::<PersistentVolume>(&world)
        .get(&volume)
        .await
        .expect("it is there");
    assert_eq!(
        volume
            .spec
            .and_then(|spec| spec.capacity)
            .expect("a capacity")["storage"]
            .0,
        "3Gi"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_says_what_it_can_attach_and_takes_no_more() {
    let world = world().await;
    ebs(&world).await;
    let node = world.linux_node().await;
    world.pass(1).await;
    let nodes = all::<CSINode>(&world);
    let told = nodes.get(&node).await.expect("it is there");
    let count = told.spec.drivers[0]
        .allocatable
        .as_ref()
        .and_then(|own| own.count);
    assert_eq!(count, Some(26));
    let labels = all::<Node>(&world).get(&node).await.expect("it is there");
    assert_eq!(
        labels.labels()["topology.ebs.csi.aws.com/zone"],
        "us-west-2a"
    );
    let mut small = told.clone();
    small.spec.drivers[0]
        .allocatable
        .get_or_insert_default()
        .count = Some(1);
    nodes
        .delete(&node, &DeleteParams::default())
        .await
        .expect("it is there");
    small.metadata.resource_version = None;
    small.metadata.uid = None;
    nodes
        .create(&PostParams::default(), &small)
        .await
        .expect("it is accepted");
    world.pass(1).await;
    for name in ["one", "two"] {
        world
            .create::<PersistentVolumeClaim>(claim(name, "gp3"))
            .await;
        world.create::<Pod>(mounting(name, name)).await;
        world.pass(1).await;
    }
    world.until_running("one").await;
    let why = world
        .until("two is refused", || world.unmet("two", "PodScheduled"))
        .await;
    assert!(why.1.contains("node(s) exceed max volume count"), "{why:?}");
    world.delete_pod("one").await;
    world.until_running("two").await;
}
