//! ReplicaSets and their pods: replaced, removed, released, adopted, refused.

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::cluster::{Cluster, deployment};

#[tokio::test(start_paused = true)]
async fn a_lost_pod_is_replaced_and_a_surplus_one_removed() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 3, "web:1")).await;
    cluster.rolled_out("web").await;
    let lost = cluster.pods("web")[0].name_any();
    cluster.delete::<Pod>(&lost, &DeleteParams::default()).await;
    cluster
        .until("there are three again", || {
            let pods = cluster.pods("web");
            (pods.len() == 3 && pods.iter().all(|pod| pod.name_any() != lost)).then_some(())
        })
        .await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 1}}))
        .await;
    let web = cluster.rolled_out("web").await;
    assert_eq!(cluster.pods("web").len(), 1);
    assert_eq!(
        web.status.as_ref().and_then(|status| status.replicas),
        Some(1)
    );
}

#[tokio::test(start_paused = true)]
async fn pods_are_released_when_relabelled_and_adopted_when_they_match() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster.rolled_out("web").await;
    let pod = cluster.pods("web")[0].name_any();
    let hash = cluster.pods("web")[0].labels()["pod-template-hash"].clone();
    cluster
        .patch::<Pod>(&pod, json!({"metadata": {"labels": {"app": "debug"}}}))
        .await;
    let released = cluster
        .until("it is released", || {
            let released = cluster.context.informers.pods.get("default", &pod)?;
            released.owner_references().is_empty().then_some(released)
        })
        .await;
    assert_eq!(released.labels()["pod-template-hash"], hash);
    cluster
        .until("a new pod takes its place", || {
            (cluster.pods("web").len() == 2).then_some(())
        })
        .await;

    cluster
        .patch::<Pod>(&pod, json!({"metadata": {"labels": {"app": "web"}}}))
        .await;
    cluster
        .until("one of three is removed", || {
            (cluster.pods("web").len() == 2).then_some(())
        })
        .await;
    cluster.pass(5).await;
    assert_eq!(cluster.pods("web").len(), 2);
    assert!(
        cluster
            .pods("web")
            .iter()
            .all(|pod| pod.owner_references().len() == 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_is_not_adopted() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster.rolled_out("web").await;
    let labels = cluster.pods("web")[0].labels().clone();
    let ended = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ended"},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    });
    cluster.create(ended).await;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    let pods = cluster.api::<Pod>();
    pods.patch_status("ended", &PatchParams::default(), &failed)
        .await
        .expect("it is accepted");
    cluster
        .patch::<Pod>("ended", json!({"metadata": {"labels": labels}}))
        .await;
    cluster
        .delete::<Pod>(&cluster.pods("web")[0].name_any(), &DeleteParams::default())
        .await;
    cluster.rolled_out("web").await;
    cluster.pass(5).await;
    let ended = cluster
        .context
        .informers
        .pods
        .get("default", "ended")
        .expect("it is left alone");
    assert!(ended.owner_references().is_empty(), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_refused_are_reported_and_tried_again() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 2, "web:1");
    web["spec"]["template"]["spec"]["serviceAccountName"] = json!("robot");
    cluster.create(web).await;
    let failure = cluster
        .until("the failure is reported", || {
            let web = cluster.deployment("web")?;
            let conditions = web.status.as_ref()?.conditions.clone()?;
            conditions
                .into_iter()
                .find(|condition| condition.type_ == "ReplicaFailure")
        })
        .await;
    assert_eq!(failure.reason.as_deref(), Some("FailedCreate"));
    assert!(
        failure
            .message
            .as_deref()
            .is_some_and(|text| text.contains("serviceaccount \"robot\" not found")),
        "{failure:?}"
    );
    cluster
        .create(
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}}),
        )
        .await;
    let web = cluster.rolled_out("web").await;
    let conditions = web
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .expect("conditions");
    assert!(
        conditions
            .iter()
            .all(|condition| condition.type_ != "ReplicaFailure")
    );
}
