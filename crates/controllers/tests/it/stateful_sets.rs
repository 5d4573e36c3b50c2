//! StatefulSets: pods come, change and go in order, each with its name and claims.

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, StatefulSet},
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};

use crate::{cluster::Cluster, wait::until};

fn set(name: &str, replicas: i32, image: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": name },
        "spec": {
            "serviceName": name, "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "containers": [{ "name": "main", "image": image }] },
            },
        },
    })
}

fn names(pods: &[Arc<Pod>]) -> Vec<String> {
    let mut names: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
    names.sort();
    names
}

fn images(cluster: &Cluster, app: &str) -> Vec<String> {
    let mut pods = cluster.pods(app);
    pods.sort_by_key(|pod| pod.name_any());
    let image = |pod: &Arc<Pod>| pod.spec.as_ref()?.containers.first()?.image.clone();
    pods.iter().filter_map(image).collect()
}

async fn until_status(
    cluster: &Cluster,
    name: &str,
    done: impl Fn(&k8s_openapi::api::apps::v1::StatefulSetStatus) -> bool,
) -> StatefulSet {
    let current = |set: &StatefulSet| {
        set.status.as_ref().is_some_and(|status| {
            status.observed_generation == set.metadata.generation && done(status)
        })
    };
    until(&cluster.api(), name, current).await
}

#[tokio::test(start_paused = true)]
async fn pods_come_one_after_the_other_and_go_the_other_way() {
    let cluster = Cluster::start().await;
    cluster.set_ready("web:1", false);
    cluster.create(set("web", 3, "web:1")).await;
    cluster.pass(5).await;
    assert_eq!(
        names(&cluster.pods("web")),
        ["web-0"],
        "the second waits for the first"
    );
    cluster.set_ready("web:1", true);
    // The played kubelet looks at a pod when it changes.
    cluster
        .patch::<Pod>(
            "web-0",
            json!({ "metadata": { "annotations": { "look": "1" } } }),
        )
        .await;
    until_status(&cluster, "web", |status| {
        status.available_replicas == Some(3)
    })
    .await;
    assert_eq!(names(&cluster.pods("web")), ["web-0", "web-1", "web-2"]);
    let first = &cluster.pods("web")[0];
    let spec = first.spec.as_ref().expect("a spec");
    assert_eq!(spec.subdomain.as_deref(), Some("web"));
    assert_eq!(spec.hostname, first.metadata.name);

    cluster
        .patch::<StatefulSet>("web", json!({ "spec": { "replicas": 1 } }))
        .await;
    until_status(&cluster, "web", |status| status.replicas == 1).await;
    assert_eq!(names(&cluster.pods("web")), ["web-0"]);
    let events = cluster.events("web").await;
    for message in [
        "create Pod web-0 in StatefulSet web successful",
        "delete Pod web-2 in StatefulSet web successful",
    ] {
        assert!(events.iter().any(|(_, text)| text == message), "{events:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_template_rolls_from_the_highest_number_down_to_the_partition() {
    let cluster = Cluster::start().await;
    cluster.create(set("web", 3, "web:1")).await;
    until_status(&cluster, "web", |status| {
        status.available_replicas == Some(3)
    })
    .await;
    let update = json!({ "spec": {
        "updateStrategy": { "rollingUpdate": { "partition": 2 } },
        "template": { "spec": { "containers": [{ "name": "main", "image": "web:2" }] } },
    } });
    cluster.patch::<StatefulSet>("web", update).await;
    let half = until_status(&cluster, "web", |status| status.updated_replicas == Some(1)).await;
    cluster.pass(10).await;
    assert_eq!(images(&cluster, "web"), ["web:1", "web:1", "web:2"]);
    let status = half.status.expect("a status");
    assert_ne!(status.current_revision, status.update_revision);
    let all = json!({ "spec": { "updateStrategy": { "rollingUpdate": { "partition": 0 } } } });
    cluster.patch::<StatefulSet>("web", all).await;
    let done = until_status(&cluster, "web", |status| {
        status.updated_replicas == Some(3) && status.current_revision == status.update_revision
    })
    .await;
    assert_eq!(images(&cluster, "web"), ["web:2", "web:2", "web:2"]);
    assert_eq!(
        done.status.and_then(|status| status.ready_replicas),
        Some(3)
    );
    let revisions = cluster.api::<ControllerRevision>();
    let list = revisions
        .list(&ListParams::default())
        .await
        .expect("a list");
    let mut numbers: Vec<_> = list
        .items
        .iter()
        .map(|revision| revision.revision)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn undoing_a_change_raises_the_old_revision() {
    let cluster = Cluster::start().await;
    cluster.create(set("web", 1, "web:1")).await;
    until_status(&cluster, "web", |status| {
        status.available_replicas == Some(1)
    })
    .await;
    for image in ["web:2", "web:1"] {
        let change = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": image }] } } } });
        cluster.patch::<StatefulSet>("web", change).await;
        until_status(&cluster, "web", |status| {
            status.updated_replicas == Some(1) && status.current_revision == status.update_revision
        })
        .await;
    }
    assert_eq!(images(&cluster, "web"), ["web:1"]);
    let revisions = cluster.api::<ControllerRevision>();
    let list = revisions
        .list(&ListParams::default())
        .await
        .expect("a list");
    let mut numbers: Vec<_> = list
        .items
        .iter()
        .map(|revision| revision.revision)
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn claims_are_made_for_each_pod_and_kept_or_let_go_as_the_policy_says() {
    let cluster = Cluster::start().await;
    let mut disks = set("db", 2, "db:1");
    disks["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    }]);
    disks["spec"]["persistentVolumeClaimRetentionPolicy"] =
        json!({ "whenScaled": "Delete", "whenDeleted": "Retain" });
    cluster.create(disks).await;
    until_status(&cluster, "db", |status| {
        status.available_replicas == Some(2)
    })
    .await;
    let claims = cluster.api::<PersistentVolumeClaim>();
    for name in ["data-db-0", "data-db-1"] {
        let claim = claims.get(name).await.expect("it was made");
        assert_eq!(claim.labels()["app"], "db");
        assert!(claim.owner_references().is_empty());
    }
    cluster
        .patch::<StatefulSet>("db", json!({ "spec": { "replicas": 1 } }))
        .await;
    until_status(&cluster, "db", |status| status.replicas == 1).await;
    for _ in 0..100 {
        if claims
            .get_opt("data-db-1")
            .await
            .expect("an answer")
            .is_none()
        {
            break;
        }
        cluster.pass(1).await;
    }
    assert!(
        claims
            .get_opt("data-db-1")
            .await
            .expect("an answer")
            .is_none()
    );
    cluster
        .delete::<StatefulSet>("db", &DeleteParams::default())
        .await;
    cluster.pass(60).await;
    assert!(cluster.pods("db").is_empty());
    assert!(
        claims
            .get_opt("data-db-0")
            .await
            .expect("an answer")
            .is_some(),
        "it is kept"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_that_come_in_parallel_do_not_wait_for_each_other() {
    let cluster = Cluster::start().await;
    cluster.set_ready("web:1", false);
    let mut parallel = set("web", 3, "web:1");
    parallel["spec"]["podManagementPolicy"] = json!("Parallel");
    parallel["spec"]["ordinals"] = json!({ "start": 5 });
    cluster.create(parallel).await;
    cluster
        .until("all pods are there", || {
            (cluster.pods("web").len() == 3).then_some(())
        })
        .await;
    assert_eq!(names(&cluster.pods("web")), ["web-5", "web-6", "web-7"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_deleted_comes_back_under_its_name() {
    let cluster = Cluster::start().await;
    cluster.create(set("web", 2, "web:1")).await;
    until_status(&cluster, "web", |status| {
        status.available_replicas == Some(2)
    })
    .await;
    let pods = cluster.api::<Pod>();
    let before = pods.get("web-0").await.expect("it is there").uid();
    cluster
        .delete::<Pod>("web-0", &DeleteParams::default())
        .await;
    cluster
        .until("another web-0 is there", || {
            let pod = cluster.context.informers.pods.get("default", "web-0")?;
            (pod.uid() != before).then_some(())
        })
        .await;
    until_status(&cluster, "web", |status| {
        status.available_replicas == Some(2)
    })
    .await;
}
