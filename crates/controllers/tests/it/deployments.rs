//! Deployments: rollouts, scaling, history, conditions, events.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use serde_json::json;

use crate::cluster::{Cluster, deployment};

pub(crate) fn image(image: &str) -> serde_json::Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}})
}

fn replicas(set: &k8s_openapi::api::apps::v1::ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_deployment_brings_up_its_pods_through_one_replica_set() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 3, "web:1")).await;
    let web = cluster.rolled_out("web").await;
    let sets = cluster.replica_sets("web");
    assert_eq!(sets.len(), 1);
    let hash = &sets[0].labels()["pod-template-hash"];
    assert_eq!(sets[0].name_any(), format!("web-{hash}"));
    let pods = cluster.pods("web");
    assert_eq!(pods.len(), 3);
    for pod in &pods {
        assert_eq!(pod.labels()["pod-template-hash"], *hash);
        assert!(
            pod.name_any().starts_with(&format!("web-{hash}-")),
            "{}",
            pod.name_any()
        );
        assert_eq!(pod.owner_references()[0].uid, sets[0].uid().expect("a uid"));
    }
    assert_eq!(web.annotations()["deployment.kubernetes.io/revision"], "1");
    let conditions = web
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .expect("conditions");
    let texts: Vec<_> = conditions
        .iter()
        .map(|c| {
            (
                c.type_.as_str(),
                c.status.as_str(),
                c.message.as_deref().unwrap_or_default(),
            )
        })
        .collect();
    let progressed = format!("ReplicaSet \"web-{hash}\" has successfully progressed.");
    assert_eq!(
        texts,
        [
            ("Available", "True", "Deployment has minimum availability."),
            ("Progressing", "True", progressed.as_str()),
        ]
    );
    let scaled = (
        "ScalingReplicaSet".to_owned(),
        format!("Scaled up replica set web-{hash} from 0 to 3"),
    );
    assert_eq!(cluster.events("web").await, [scaled]);
    let created: Vec<_> = cluster.events(&format!("web-{hash}")).await;
    assert_eq!(created.len(), 3);
    assert!(
        created
            .iter()
            .all(|(reason, message)| reason == "SuccessfulCreate"
                && message.starts_with("Created pod: web-"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_image_rolls_out_within_its_bounds_and_keeps_the_old_set() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 4, "web:1")).await;
    cluster.rolled_out("web").await;
    cluster.patch::<Deployment>("web", image("web:2")).await;
    let mut most = 0;
    cluster
        .until("the rollout is done", || {
            let pods = cluster.pods("web");
            most = most.max(pods.len());
            let web = cluster.deployment("web")?;
            let status = web.status.as_ref()?;
            (status.updated_replicas == Some(4) && status.replicas == Some(4)).then_some(())
        })
        .await;
    assert!(most <= 5, "{most} pods at once");
    cluster.rolled_out("web").await;
    let sets = cluster.replica_sets("web");
    assert_eq!(
        sets.iter().map(|set| replicas(set)).collect::<Vec<_>>(),
        [0, 4]
    );
    let revision =
        |index: usize| sets[index].annotations()["deployment.kubernetes.io/revision"].clone();
    assert_eq!((revision(0), revision(1)), ("1".to_owned(), "2".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn going_back_to_an_old_template_uses_its_set_again_under_a_new_revision() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster.rolled_out("web").await;
    let first = cluster.replica_sets("web")[0].name_any();
    cluster.patch::<Deployment>("web", image("web:2")).await;
    cluster.rolled_out("web").await;
    cluster.patch::<Deployment>("web", image("web:1")).await;
    let web = cluster.rolled_out("web").await;
    assert_eq!(web.annotations()["deployment.kubernetes.io/revision"], "3");
    let sets = cluster.replica_sets("web");
    assert_eq!(sets.len(), 2);
    assert_eq!(sets[1].name_any(), first);
    assert_eq!(
        sets[1].annotations()["deployment.kubernetes.io/revision-history"],
        "1"
    );
}

#[tokio::test(start_paused = true)]
async fn recreate_waits_until_the_last_old_pod_is_gone() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 3, "web:1");
    web["spec"]["strategy"] = json!({"type": "Recreate"});
    cluster.create(web).await;
    cluster.rolled_out("web").await;
    cluster.patch::<Deployment>("web", image("web:2")).await;
    let images = |cluster: &Cluster| -> std::collections::BTreeSet<String> {
        let pods = cluster.context.informers.pods.list();
        pods.iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers.first()?.image.clone())
            .collect()
    };
    cluster
        .until("the new pods are there", || {
            let images = images(&cluster);
            assert!(images.len() <= 1, "old and new at once: {images:?}");
            (images.first().map(String::as_str) == Some("web:2")).then_some(())
        })
        .await;
    cluster.rolled_out("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_deployment_scales_but_does_not_roll_out() {
    let cluster = Cluster::start().await;
    cluster.create(deployment("web", 2, "web:1")).await;
    cluster.rolled_out("web").await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"paused": true}}))
        .await;
    cluster.patch::<Deployment>("web", image("web:2")).await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 4}}))
        .await;
    cluster
        .until("it is scaled", || {
            (cluster.pods("web").len() == 4).then_some(())
        })
        .await;
    cluster.pass(5).await;
    assert_eq!(cluster.replica_sets("web").len(), 1);
    let reason = |cluster: &Cluster| {
        let web = cluster.deployment("web")?;
        let conditions = web.status.as_ref()?.conditions.clone()?;
        conditions
            .into_iter()
            .find(|condition| condition.type_ == "Progressing")?
            .reason
    };
    assert_eq!(reason(&cluster).as_deref(), Some("DeploymentPaused"));
    cluster
        .patch::<Deployment>("web", json!({"spec": {"paused": false}}))
        .await;
    cluster.rolled_out("web").await;
    assert_eq!(cluster.replica_sets("web").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_does_not_move_exceeds_its_deadline() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 2, "web:1");
    web["spec"]["progressDeadlineSeconds"] = json!(30);
    cluster.create(web).await;
    cluster.rolled_out("web").await;
    cluster.set_ready("web:broken", false);
    cluster
        .patch::<Deployment>("web", image("web:broken"))
        .await;
    let failed = cluster
        .until("the deadline is exceeded", || {
            let web = cluster.deployment("web")?;
            let conditions = web.status.as_ref()?.conditions.clone()?;
            conditions
                .into_iter()
                .find(|c| c.type_ == "Progressing" && c.status == "False")
        })
        .await;
    assert_eq!(failed.reason.as_deref(), Some("ProgressDeadlineExceeded"));
    let new = cluster.replica_sets("web")[1].name_any();
    assert_eq!(
        failed.message,
        Some(format!("ReplicaSet \"{new}\" has timed out progressing."))
    );
    assert_eq!(
        cluster
            .deployment("web")
            .and_then(|web| web.status.clone()?.available_replicas),
        Some(2)
    );
}

#[tokio::test(start_paused = true)]
async fn scaling_in_the_middle_of_a_rollout_keeps_the_proportions() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 10, "web:1");
    web["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}});
    cluster.create(web).await;
    cluster.rolled_out("web").await;
    cluster.set_ready("web:broken", false);
    cluster
        .patch::<Deployment>("web", image("web:broken"))
        .await;
    let sizes = |cluster: &Cluster| {
        cluster
            .replica_sets("web")
            .iter()
            .map(|set| replicas(set))
            .collect::<Vec<_>>()
    };
    cluster
        .until("the rollout is stuck", || {
            (sizes(&cluster) == [8, 5]).then_some(())
        })
        .await;
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 15}}))
        .await;
    cluster
        .until("both sets have grown", || {
            (sizes(&cluster) == [11, 7]).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn old_revisions_beyond_the_limit_are_deleted() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 1, "web:1");
    web["spec"]["revisionHistoryLimit"] = json!(2);
    cluster.create(web).await;
    for tag in 2..=6 {
        cluster.rolled_out("web").await;
        cluster
            .patch::<Deployment>("web", image(&format!("web:{tag}")))
            .await;
        cluster
            .until("the new revision is there", || {
                let revision = tag.to_string();
                let web = cluster.deployment("web")?;
                (web.annotations().get("deployment.kubernetes.io/revision") == Some(&revision))
                    .then_some(())
            })
            .await;
    }
    cluster.rolled_out("web").await;
    cluster
        .until("two old sets are left", || {
            (cluster.replica_sets("web").len() == 3).then_some(())
        })
        .await;
    let revisions: Vec<_> = cluster
        .replica_sets("web")
        .iter()
        .map(|set| set.annotations()["deployment.kubernetes.io/revision"].clone())
        .collect();
    assert_eq!(revisions, ["4", "5", "6"]);
}

#[tokio::test(start_paused = true)]
async fn a_set_of_the_right_size_keeps_its_notes_while_the_deployment_is_paused() {
    let cluster = Cluster::start().await;
    let mut web = deployment("web", 4, "web:1");
    web["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1}});
    cluster.create(web).await;
    cluster.rolled_out("web").await;
    let surge = json!({"spec": {"paused": true, "strategy": {"rollingUpdate": {"maxSurge": 3}}}});
    cluster.patch::<Deployment>("web", surge).await;
    let most = |cluster: &Cluster| {
        let sets = cluster.replica_sets("web");
        sets[0].annotations()["deployment.kubernetes.io/max-replicas"].clone()
    };
    cluster
        .until("the pause is observed", || {
            let web = cluster.deployment("web")?;
            let observed = web.status.as_ref()?.observed_generation;
            (observed == web.metadata.generation).then_some(())
        })
        .await;
    cluster.pass(5).await;
    assert_eq!(most(&cluster), "5");
    cluster
        .patch::<Deployment>("web", json!({"spec": {"replicas": 6}}))
        .await;
    cluster
        .until("it is scaled", || (most(&cluster) == "9").then_some(()))
        .await;
}
