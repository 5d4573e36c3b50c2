//! Nodes that go: how long, and for what, they are waited for.

use k8s_openapi::api::{core::v1::Node, storage::v1::VolumeAttachment};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{pools, whole::Whole};

/// A node with one pod that takes 40 s to stop, of a pool with this grace period.
async fn one_node(grace: Option<&str>, pod: Value) -> (Whole, String) {
    let whole = Whole::start().await;
    let more = grace.map_or(
        json!({}),
        |grace| json!({ "terminationGracePeriod": grace }),
    );
    pools::linux(&whole, &["m5.large"], &["on-demand"], more).await;
    let mut spec = json!({
        "nodeSelector": { "team": "web" },
        "containers": [{ "name": "web", "image": "nginx", "resources": { "requests": { "cpu": "500m" } } }]
    });
    for (key, value) in pod.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    whole.deployment("web", 1, spec).await;
    whole.until_running("web", 1).await;
    let name = whole.bought()[0].name_any();
    (whole, name)
}

async fn delete(whole: &Whole, node: &str) {
    let nodes: Api<Node> = Api::all(whole.context.client.clone());
    whole.delete(nodes, node).await;
}

async fn until_gone(whole: &Whole, node: &str) {
    whole
        .until("the node is gone", || {
            let nodes = whole.bought();
            nodes.iter().all(|own| own.name_any() != node).then_some(())
        })
        .await;
}

fn condition(whole: &Whole, node: &str, kind: &str) -> Option<(String, String)> {
    let claims = whole.claims();
    let claim = claims
        .iter()
        .find(|claim| claim.node_name() == Some(node))?;
    let found = claim.condition(kind)?;
    Some((found.status.clone(), found.reason.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_may_not_leave_is_deleted_early_enough_to_end_in_time() {
    let pod = json!({ "terminationGracePeriodSeconds": 60 });
    let (whole, node) = one_node(Some("5m"), pod).await;
    whole
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "web" },
            "spec": { "maxUnavailable": 0, "selector": { "matchLabels": { "app": "web" } } }
        }))
        .await;
    whole.pass(10).await;
    let pod = whole.pods("web")[0].name_any();
    let claim = whole.claims()[0].name_any();
    let began = Instant::now();
    delete(&whole, &node).await;
    whole.pass(230).await;
    let pods = whole.pods("web");
    let is_going = |name: &str| {
        let own = pods.iter().find(|own| own.name_any() == name);
        own.is_none_or(|own| own.metadata.deletion_timestamp.is_some())
    };
    assert!(!is_going(&pod), "it has its time");
    until_gone(&whole, &node).await;
    let took = began.elapsed().as_secs();
    assert!((240..=310).contains(&took), "{took} s");
    let events = whole.events(&pod).await;
    let told = events.iter().find(|event| event.0 == "Disrupted");
    let (_, message) = told.unwrap_or_else(|| panic!("{events:#?}"));
    assert!(
        message.contains("of its 60 terminationGracePeriodSeconds"),
        "{message}"
    );
    let events = whole.events(&claim).await;
    let expiring = |event: &(String, String)| {
        event.0 == "TerminationGracePeriodExpiring"
            && event.1.starts_with("All pods will be deleted by ")
    };
    assert!(events.iter().any(expiring), "{events:#?}");
    whole.until_running("web", 1).await;
}

fn attachment(node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": { "name": "csi-1" },
        "spec": { "attacher": "ebs.csi.aws.com", "nodeName": node, "source": { "persistentVolumeName": "pv-1" } }
    })
}

#[tokio::test(start_paused = true)]
async fn a_node_waits_for_its_volumes_to_be_detached() {
    let (whole, node) = one_node(None, json!({})).await;
    whole.create(attachment(&node)).await;
    delete(&whole, &node).await;
    whole.pass(600).await;
    assert!(whole.bought().iter().any(|own| own.name_any() == node));
    let waits = ("Unknown".to_owned(), "AwaitingVolumeDetachment".to_owned());
    assert_eq!(condition(&whole, &node, "VolumesDetached"), Some(waits));
    let drained = ("True".to_owned(), "Drained".to_owned());
    assert_eq!(condition(&whole, &node, "Drained"), Some(drained));
    let told = (
        "AwaitingVolumeDetachment".to_owned(),
        "Awaiting deletion of bound volumeattachments (csi-1)".to_owned(),
    );
    let events = whole.events(&node).await;
    assert!(events.contains(&told), "{events:#?}");
    let attachments: Api<VolumeAttachment> = Api::all(whole.context.client.clone());
    whole.delete(attachments, "csi-1").await;
    until_gone(&whole, &node).await;
}

#[tokio::test(start_paused = true)]
async fn volumes_are_not_waited_for_after_the_deadline() {
    let (whole, node) = one_node(Some("2m"), json!({})).await;
    whole.create(attachment(&node)).await;
    let began = Instant::now();
    delete(&whole, &node).await;
    let elapsed = (
        "False".to_owned(),
        "TerminationGracePeriodElapsed".to_owned(),
    );
    whole
        .until("the deadline has passed", || {
            let now = condition(&whole, &node, "VolumesDetached")?;
            (now == elapsed).then_some(())
        })
        .await;
    assert!(began.elapsed().as_secs() >= 119, "{:?}", began.elapsed());
    until_gone(&whole, &node).await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_takes_five_seconds_at_least() {
    let (whole, node) = one_node(None, json!({ "terminationGracePeriodSeconds": 1 })).await;
    let deployments: Api<k8s_openapi::api::apps::v1::Deployment> =
        Api::namespaced(whole.context.client.clone(), "default");
    whole.delete(deployments, "web").await;
    whole
        .until("the node is empty", || {
            whole.pods("web").is_empty().then_some(())
        })
        .await;
    let began = Instant::now();
    delete(&whole, &node).await;
    whole
        .until("it is drained", || {
            let (status, _) = condition(&whole, &node, "Drained")?;
            (status == "True").then_some(())
        })
        .await;
    assert!(began.elapsed().as_secs() >= 4, "{:?}", began.elapsed());
}
