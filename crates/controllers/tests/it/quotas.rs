//! What a namespace uses is counted, refused where it is too much, and given back.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, ReplicationController, ResourceQuota};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::cluster::Cluster;

async fn used(cluster: &Cluster, resource: &str, amount: &str) {
    for _ in 0..600 {
        let quota = cluster
            .api::<ResourceQuota>()
            .get("all")
            .await
            .expect("it is there");
        let used = quota
            .status
            .and_then(|status| status.used)
            .unwrap_or_default();
        if used.get(resource).is_some_and(|used| used.0 == amount) {
            return;
        }
        cluster.pass(1).await;
    }
    let quota = cluster
        .api::<ResourceQuota>()
        .get("all")
        .await
        .expect("it is there");
    panic!("{resource} never became {amount}: {:?}", quota.status);
}

fn pod(name: &str) -> Value {
    let resources = json!({ "requests": { "cpu": "500m", "memory": "1Gi" } });
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "web:1", "resources": resources }] },
    })
}

#[tokio::test(start_paused = true)]
async fn what_is_used_is_counted_and_given_back() {
    let cluster = Cluster::start().await;
    cluster.create(pod("before")).await;
    let hard = json!({ "pods": "2", "requests.cpu": "10", "requests.memory": "10Gi", "count/configmaps": "3" });
    cluster
        .create(json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "all" }, "spec": { "hard": hard } }))
        .await;
    used(&cluster, "requests.cpu", "500m").await;
    used(&cluster, "requests.memory", "1Gi").await;
    cluster.create(pod("second")).await;
    used(&cluster, "pods", "2").await;
    let third = serde_json::from_value(pod("third")).expect("a pod");
    let refused = cluster
        .api::<Pod>()
        .create(&PostParams::default(), &third)
        .await;
    assert!(refused.is_err_and(|error| error.to_string().contains("exceeded quota: all")));
    cluster
        .delete::<Pod>("before", &DeleteParams::default())
        .await;
    used(&cluster, "pods", "1").await;
    used(&cluster, "requests.cpu", "500m").await;
    cluster.create(pod("third")).await;
}

#[tokio::test(start_paused = true)]
async fn objects_of_any_kind_are_counted() {
    let cluster = Cluster::start().await;
    cluster
        .create(json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "all" }, "spec": { "hard": { "configmaps": "5", "count/deployments.apps": "5" } } }))
        .await;
    // The certificate of the API server is one.
    used(&cluster, "configmaps", "1").await;
    cluster
        .create(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } }))
        .await;
    cluster
        .create(crate::cluster::deployment("web", 0, "web:1"))
        .await;
    used(&cluster, "configmaps", "2").await;
    used(&cluster, "count/deployments.apps", "1").await;
    cluster
        .delete::<ConfigMap>("a", &DeleteParams::default())
        .await;
    used(&cluster, "configmaps", "1").await;
}

#[tokio::test(start_paused = true)]
async fn the_count_of_a_namespace_is_written_as_admission_writes_it() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        let mut pod = pod(name);
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("128M");
        cluster.create(pod).await;
    }
    let hard =
        json!({ "requests.memory": "10Gi", "count/pods": "5", "count/widgets.example.com": "5" });
    cluster
        .create(json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "all" }, "spec": { "hard": hard } }))
        .await;
    used(&cluster, "requests.memory", "256M").await;
    used(&cluster, "count/pods", "2").await;
    let quota = cluster.api::<ResourceQuota>().get("all").await;
    let used = quota
        .expect("it is there")
        .status
        .and_then(|status| status.used);
    // Nothing counts objects of a kind that is not served (kube-controller-manager: CalculateUsage).
    let names: Vec<String> = used.into_iter().flatten().map(|(name, _)| name).collect();
    assert_eq!(names, ["count/pods", "requests.memory"]);
}

#[tokio::test(start_paused = true)]
async fn a_quota_of_a_class_of_volumes_counts_the_claims_that_name_it() {
    let cluster = Cluster::start().await;
    for (name, class) in [("a", "gold"), ("b", "silver")] {
        let resources = json!({ "requests": { "storage": "1Gi" } });
        cluster
            .create(json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
                "spec": { "accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": class, "resources": resources } }))
            .await;
    }
    let selector = json!({ "matchExpressions": [{ "scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"] }] });
    // Admission did not count the claims for this quota: the controller has to.
    cluster
        .create(
            json!({ "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "all" },
            "spec": { "hard": { "persistentvolumeclaims": "5" }, "scopeSelector": selector } }),
        )
        .await;
    used(&cluster, "persistentvolumeclaims", "1").await;
}

#[tokio::test(start_paused = true)]
async fn a_replication_controller_keeps_its_pods() {
    let cluster = Cluster::start().await;
    let mut set = crate::cluster::deployment("old", 3, "web:1");
    set["apiVersion"] = json!("v1");
    set["kind"] = json!("ReplicationController");
    set["spec"]["selector"] = json!({ "app": "old" });
    cluster.create(set).await;
    cluster
        .until("three pods are there", || {
            (cluster.pods("old").len() == 3).then_some(())
        })
        .await;
    cluster
        .patch::<ReplicationController>("old", json!({ "spec": { "replicas": 1 } }))
        .await;
    cluster
        .until("one pod is left", || {
            (cluster.pods("old").len() == 1).then_some(())
        })
        .await;
    cluster.pass(1).await;
    let set = cluster
        .api::<ReplicationController>()
        .get("old")
        .await
        .expect("it is there");
    let status = set.status.expect("a status");
    assert_eq!((status.replicas, status.available_replicas), (1, Some(1)));
}
