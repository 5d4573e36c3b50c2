//! Rollbacks asked for by annotation, the way before clients patched templates themselves.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use serde_json::json;

use crate::{
    cluster::{Cluster, deployment},
    deployments::image,
};

const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

async fn ask_for_rollback(cluster: &Cluster, to: &str) {
    let asked = json!({"metadata": {"annotations": {ROLLBACK_TO: to}}});
    cluster.patch::<Deployment>("web", asked).await;
}

#[tokio::test(start_paused = true)]
async fn the_rollback_annotation_takes_the_template_of_an_older_revision() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster.rolled_out("web").await;
    cluster.patch::<Deployment>("web", image("web:2")).await;
    cluster.rolled_out("web").await;
    ask_for_rollback(&cluster, "1").await;
    cluster
        .until("it is rolled back", || {
            let web = cluster.deployment("web")?;
            let image = web.spec.as_ref()?.template.spec.as_ref()?.containers[0]
                .image
                .clone();
            (image.as_deref() == Some("web:1")).then_some(())
        })
        .await;
    let web = cluster.rolled_out("web").await;
    assert!(!web.annotations().contains_key(ROLLBACK_TO));
    let message = "Rolled back deployment \"web\" to revision 1".to_owned();
    assert!(
        cluster
            .events("web")
            .await
            .contains(&("DeploymentRollback".to_owned(), message))
    );
}

#[tokio::test(start_paused = true)]
async fn a_rollback_that_cannot_be_done_says_why_and_is_taken_off() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster.rolled_out("web").await;
    let refusals = [
        (
            "0",
            "DeploymentRollbackRevisionNotFound",
            "Unable to find last revision.",
        ),
        (
            "7",
            "DeploymentRollbackRevisionNotFound",
            "Unable to find the revision to rollback to.",
        ),
        (
            "1",
            "DeploymentRollbackTemplateUnchanged",
            "The rollback revision contains the same template as current deployment \"web\"",
        ),
    ];
    for (asked, reason, message) in refusals {
        ask_for_rollback(&cluster, asked).await;
        cluster
            .until("the request is taken off", || {
                let web = cluster.deployment("web")?;
                (!web.annotations().contains_key(ROLLBACK_TO)).then_some(())
            })
            .await;
        cluster.pass(1).await;
        let events = cluster.events("web").await;
        let refused = (reason.to_owned(), message.to_owned());
        assert!(events.contains(&refused), "{asked}: {events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollback_to_something_that_is_no_revision_does_not_hold_up_rollouts() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 1, "web:1")).await;
    cluster.rolled_out("web").await;
    ask_for_rollback(&cluster, "the-good-one").await;
    cluster.patch::<Deployment>("web", image("web:2")).await;
    cluster
        .until("the second template is rolled out", || {
            let pods = cluster.pods("web");
            let image = pods.first()?.spec.as_ref()?.containers[0].image.clone();
            (pods.len() == 1 && image.as_deref() == Some("web:2")).then_some(())
        })
        .await;
    let web = cluster.rolled_out("web").await;
    assert_eq!(web.annotations()[ROLLBACK_TO], "the-good-one");
}
