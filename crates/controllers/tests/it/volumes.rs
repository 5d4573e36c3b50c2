//! Claims and volumes go when nothing uses them any more, and not before.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttributesClass,
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};

use crate::{cluster::Cluster, wait::until_gone};

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_no_pod_uses_is_deleted() {
    let cluster = Cluster::start().await;
    cluster.create(claim("data")).await;
    let claims = cluster.api::<PersistentVolumeClaim>();
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("it is there");
    until_gone(&claims, "data").await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_stays_as_long_as_a_pod_uses_it() {
    let cluster = Cluster::start().await;
    cluster.node("n", json!({}), json!([])).await;
    cluster.create(claim("data")).await;
    let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {"containers": [{"name": "c", "image": "web:1"}], "volumes": volumes},
    });
    cluster.create(pod).await;
    let informer = cluster.context.informers.pods.clone();
    cluster
        .until("the pod runs", || {
            let pod = informer.get("default", "user")?;
            (mullion_controllers::pods::phase(&pod) == "Running").then_some(())
        })
        .await;
    let claims = cluster.api::<PersistentVolumeClaim>();
    claims
        .delete("data", &DeleteParams::default())
        .await
        .expect("it is there");
    cluster.pass(60).await;
    let held = claims.get("data").await.expect("it is still there");
    assert!(held.metadata.deletion_timestamp.is_some());
    let done = kube::api::Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    let pods = cluster.api::<Pod>();
    pods.patch_status("user", &kube::api::PatchParams::default(), &done)
        .await
        .expect("it is accepted");
    cluster.pass(60).await;
    let held = claims.get_opt("data").await.expect("the API answers");
    assert!(
        held.is_some(),
        "a pod that has finished still uses its claim"
    );
    cluster
        .delete::<Pod>("user", &DeleteParams::default())
        .await;
    until_gone(&claims, "data").await;
}

#[tokio::test(start_paused = true)]
async fn protection_that_somebody_takes_away_comes_back() {
    let cluster = Cluster::start().await;
    cluster.create(claim("data")).await;
    cluster
        .patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}}))
        .await;
    cluster.pass(1).await;
    let claims = cluster.api::<PersistentVolumeClaim>();
    let claim = claims.get("data").await.expect("it is there");
    let finalizers = claim.metadata.finalizers.unwrap_or_default();
    assert_eq!(finalizers, ["kubernetes.io/pvc-protection"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_goes_unless_a_claim_is_bound_to_it() {
    let cluster = Cluster::start().await;
    for name in ["free", "bound"] {
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}},
        });
        cluster.create(volume).await;
    }
    let volumes: Api<PersistentVolume> = Api::all(cluster.context.client.clone());
    let bound = kube::api::Patch::Merge(json!({"status": {"phase": "Bound"}}));
    volumes
        .patch_status("bound", &kube::api::PatchParams::default(), &bound)
        .await
        .expect("it is accepted");
    for name in ["free", "bound"] {
        volumes
            .delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }
    until_gone(&volumes, "free").await;
    assert!(
        volumes
            .get_opt("bound")
            .await
            .expect("the API answers")
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn a_class_of_volume_attributes_goes_unless_a_claim_names_it() {
    let cluster = Cluster::start().await;
    for name in ["free", "used"] {
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
            "driverName": "ebs.csi.aws.com", "parameters": {"iops": "4000"},
        });
        cluster.create(class).await;
    }
    let mut claim = claim("data");
    claim["spec"]["volumeAttributesClassName"] = "used".into();
    cluster.create(claim).await;
    let classes: Api<VolumeAttributesClass> = Api::all(cluster.context.client.clone());
    for name in ["free", "used"] {
        classes
            .delete(name, &DeleteParams::default())
            .await
            .expect("it is there");
    }
    until_gone(&classes, "free").await;
    let used = classes.get_opt("used").await.expect("the API answers");
    assert!(used.is_some());
    cluster
        .delete::<PersistentVolumeClaim>("data", &DeleteParams::default())
        .await;
    until_gone(&classes, "used").await;
}
