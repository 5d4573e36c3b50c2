//! DaemonSets: where they run, what their pods carry, how they are updated and taken back.

use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet},
    core::v1::Node,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::cluster::{Cluster, daemon_set};

async fn two_systems() -> Cluster {
    let cluster = Cluster::start().await;
    let os = |os: &str| json!({"kubernetes.io/os": os});
    cluster.node("linux-1", os("linux"), json!([])).await;
    cluster.node("linux-2", os("linux"), json!([])).await;
    cluster
        .node(
            "windows-1",
            os("windows"),
            json!([{"key": "os", "value": "windows", "effect": "NoSchedule"}]),
        )
        .await;
    cluster
}

fn nodes_of(cluster: &Cluster, app: &str) -> Vec<String> {
    let pods = cluster.pods(app);
    let mut nodes: Vec<_> = pods
        .iter()
        .map(|pod| {
            pod.spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default()
        })
        .collect();
    nodes.sort();
    nodes
}

async fn until_on(cluster: &Cluster, app: &str, nodes: &[&str]) {
    cluster
        .until(&format!("{app} runs on {nodes:?}"), || {
            (nodes_of(cluster, app) == nodes).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_runs_on_every_node_whose_taints_it_tolerates() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    until_on(&cluster, "agent", &["linux-1", "linux-2"]).await;

    let mut everywhere = daemon_set("proxy", "proxy:1");
    everywhere["spec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    cluster.create(everywhere).await;
    until_on(&cluster, "proxy", &["linux-1", "linux-2", "windows-1"]).await;

    cluster
        .node("linux-3", json!({"kubernetes.io/os": "linux"}), json!([]))
        .await;
    until_on(&cluster, "agent", &["linux-1", "linux-2", "linux-3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_pod_is_tied_to_its_node_and_tolerates_trouble() {
    let cluster = two_systems().await;
    let mut windows = daemon_set("agent", "agent:1");
    windows["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/os": "windows"});
    windows["spec"]["template"]["spec"]["tolerations"] =
        json!([{"key": "os", "operator": "Exists"}]);
    cluster.create(windows).await;
    until_on(&cluster, "agent", &["windows-1"]).await;
    let pod = &cluster.pods("agent")[0];
    let spec = serde_json::to_value(&pod.spec).expect("it serializes");
    assert_eq!(
        spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"],
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["windows-1"]}]}])
    );
    let tolerations = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.tolerations.clone())
        .unwrap_or_default();
    let keys: Vec<_> = tolerations
        .iter()
        .filter_map(|toleration| toleration.key.as_deref())
        .collect();
    assert_eq!(
        keys,
        [
            "os",
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/disk-pressure",
            "node.kubernetes.io/memory-pressure",
            "node.kubernetes.io/pid-pressure",
            "node.kubernetes.io/unschedulable",
        ]
    );
    assert!(
        tolerations
            .iter()
            .all(|toleration| toleration.toleration_seconds.is_none())
    );
    assert!(pod.labels().contains_key("controller-revision-hash"));
    assert_eq!(
        pod.labels()
            .get("pod-template-generation")
            .map(String::as_str),
        Some("1")
    );
}

#[tokio::test(start_paused = true)]
async fn status_counts_nodes_not_pods() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    let status = cluster
        .until("both are available", || {
            let status = cluster.daemon_set("agent")?.status.clone()?;
            (status.number_available == Some(2)).then_some(status)
        })
        .await;
    let counts = [
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_misscheduled,
        status.number_ready,
        status.updated_number_scheduled.unwrap_or_default(),
        status.number_unavailable.unwrap_or_default(),
    ];
    assert_eq!(counts, [2, 2, 0, 2, 2, 0]);
    assert_eq!(status.observed_generation, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_no_longer_fits_loses_its_daemon() {
    let cluster = two_systems().await;
    let mut agent = daemon_set("agent", "agent:1");
    agent["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/os": "linux"});
    cluster.create(agent).await;
    until_on(&cluster, "agent", &["linux-1", "linux-2"]).await;
    let nodes: Api<Node> = Api::all(cluster.context.client.clone());
    let relabel = json!({"metadata": {"labels": {"kubernetes.io/os": "other"}}});
    nodes
        .patch("linux-2", &PatchParams::default(), &Patch::Merge(relabel))
        .await
        .expect("it is accepted");
    until_on(&cluster, "agent", &["linux-1"]).await;
    let cordon = json!({"spec": {"unschedulable": true, "taints": [{"key": "maintenance", "effect": "NoSchedule"}]}});
    nodes
        .patch("linux-1", &PatchParams::default(), &Patch::Merge(cordon))
        .await
        .expect("it is accepted");
    cluster.pass(30).await;
    assert_eq!(
        nodes_of(&cluster, "agent"),
        ["linux-1"],
        "a NoSchedule taint does not evict"
    );
    let status = cluster
        .daemon_set("agent")
        .and_then(|set| set.status.clone())
        .expect("a status");
    assert_eq!(
        (status.desired_number_scheduled, status.number_misscheduled),
        (0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_replaces_one_node_at_a_time() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    cluster
        .until("both are available", || {
            (cluster
                .daemon_set("agent")?
                .status
                .as_ref()?
                .number_available
                == Some(2))
            .then_some(())
        })
        .await;
    let template = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "agent:2"}]}}}});
    cluster.patch::<DaemonSet>("agent", template).await;
    let mut fewest = 2;
    cluster
        .until("all are updated and available", || {
            fewest = fewest.min(cluster.pods("agent").len());
            let set = cluster.daemon_set("agent")?;
            let status = set.status.as_ref()?;
            let done = status.observed_generation == set.metadata.generation
                && status.updated_number_scheduled == Some(2)
                && status.number_available == Some(2);
            done.then_some(())
        })
        .await;
    assert!(fewest >= 1, "never more than one node without its daemon");
    let images: Vec<_> = cluster
        .pods("agent")
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
        .collect();
    assert_eq!(images, ["agent:2", "agent:2"]);
}

#[tokio::test(start_paused = true)]
async fn on_delete_leaves_old_pods_until_they_are_deleted() {
    let cluster = two_systems().await;
    let mut agent = daemon_set("agent", "agent:1");
    agent["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    cluster.create(agent).await;
    until_on(&cluster, "agent", &["linux-1", "linux-2"]).await;
    let template = json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "agent:2"}]}}}});
    cluster.patch::<DaemonSet>("agent", template).await;
    cluster.pass(30).await;
    let images = |cluster: &Cluster| -> Vec<String> {
        let mut images: Vec<_> = cluster
            .pods("agent")
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
            .collect();
        images.sort();
        images
    };
    assert_eq!(images(&cluster), ["agent:1", "agent:1"]);
    let first = cluster.pods("agent")[0].name_any();
    cluster
        .delete::<k8s_openapi::api::core::v1::Pod>(&first, &DeleteParams::default())
        .await;
    cluster
        .until("one is new", || {
            (images(&cluster) == ["agent:1", "agent:2"]).then_some(())
        })
        .await;
}

fn image(image: &str) -> Value {
    json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}})
}

/// The revisions of `app`, as `kubectl rollout history` asks for them.
async fn history(cluster: &Cluster, app: &str) -> Vec<ControllerRevision> {
    let params = ListParams::default().labels(&format!("app={app}"));
    let listed = cluster.api().list(&params).await;
    let mut revisions: Vec<ControllerRevision> = listed.expect("revisions are listed").items;
    revisions.sort_by_key(|revision| revision.revision);
    revisions
}

fn hash(revision: &ControllerRevision) -> String {
    revision.labels()["controller-revision-hash"].clone()
}

/// Waits until every node runs `image` and the status says so.
async fn until_rolled_out(cluster: &Cluster, app: &str, image: &str) {
    cluster
        .until(&format!("{app} runs {image} everywhere"), || {
            let set = cluster.daemon_set(app)?;
            let status = set.status.as_ref()?;
            let desired = Some(status.desired_number_scheduled);
            let reported = status.observed_generation == set.metadata.generation
                && desired > Some(0)
                && status.updated_number_scheduled == desired
                && status.number_available == desired;
            let runs = |pod: &std::sync::Arc<k8s_openapi::api::core::v1::Pod>| {
                let spec = pod.spec.as_ref();
                spec.is_some_and(|spec| spec.containers[0].image.as_deref() == Some(image))
            };
            (reported && cluster.pods(app).iter().all(runs)).then_some(())
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_goes_back_to_the_template_a_revision_remembers() {
    let cluster = two_systems().await;
    let mut agent = daemon_set("agent", "agent:1");
    agent["metadata"]["annotations"] = json!({"kubernetes.io/change-cause": "first"});
    agent["spec"]["template"]["spec"]["priorityClassName"] = json!("system-node-critical");
    cluster.create(agent).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let [first]: [ControllerRevision; 1] = history(&cluster, "agent")
        .await
        .try_into()
        .expect("one template, one revision");
    assert_eq!(first.revision, 1);
    assert_eq!(first.name_any(), format!("agent-{}", hash(&first)));
    assert_eq!(first.annotations()["kubernetes.io/change-cause"], "first");
    assert_eq!(first.owner_references()[0].name, "agent");

    let mut second = image("agent:2");
    second["spec"]["template"]["metadata"] = json!({"annotations": {"only": "in the second"}});
    second["spec"]["template"]["spec"]["priorityClassName"] = Value::Null;
    cluster.patch::<DaemonSet>("agent", second).await;
    until_rolled_out(&cluster, "agent", "agent:2").await;
    let revisions = history(&cluster, "agent").await;
    assert_eq!([revisions[0].revision, revisions[1].revision], [1, 2]);
    for pod in cluster.pods("agent") {
        assert_eq!(
            pod.labels()["controller-revision-hash"],
            hash(&revisions[1])
        );
    }

    let undo = first.data.clone().expect("it has data").0;
    cluster.patch::<DaemonSet>("agent", undo).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let set = cluster.daemon_set("agent").expect("it is there");
    let template = &set.spec.as_ref().expect("a spec").template;
    let annotations = template
        .metadata
        .as_ref()
        .expect("metadata")
        .annotations
        .clone();
    assert_eq!(
        annotations, None,
        "what only the second template had is gone"
    );
    let priority = template
        .spec
        .as_ref()
        .expect("a spec")
        .priority_class_name
        .clone();
    assert_eq!(priority.as_deref(), Some("system-node-critical"));
    let revisions = history(&cluster, "agent").await;
    let numbered = |revision: &ControllerRevision| (revision.revision, hash(revision));
    assert_eq!(revisions.len(), 2, "the first one is used again");
    assert_eq!(numbered(&revisions[1]), (3, hash(&first)));
    for pod in cluster.pods("agent") {
        assert_eq!(pod.labels()["controller-revision-hash"], hash(&first));
    }
}

#[tokio::test(start_paused = true)]
async fn only_as_many_old_revisions_are_kept_as_the_daemon_set_says() {
    let cluster = two_systems().await;
    let mut agent = daemon_set("agent", "agent:1");
    agent["spec"]["revisionHistoryLimit"] = json!(1);
    cluster.create(agent).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    for version in ["agent:2", "agent:3"] {
        cluster.patch::<DaemonSet>("agent", image(version)).await;
        until_rolled_out(&cluster, "agent", version).await;
    }
    cluster.pass(5).await;
    let numbers: Vec<_> = history(&cluster, "agent")
        .await
        .iter()
        .map(|revision| revision.revision)
        .collect();
    assert_eq!(numbers, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_name_taken_by_another_template_is_counted_as_a_collision() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let taken = history(&cluster, "agent").await[0].name_any();
    cluster
        .delete::<DaemonSet>("agent", &DeleteParams::default())
        .await;
    cluster
        .until("its pods are gone", || {
            cluster.pods("agent").is_empty().then_some(())
        })
        .await;
    cluster.pass(5).await;
    assert_eq!(history(&cluster, "agent").await.len(), 0);

    let squatter = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": taken}, "data": {"something": "else"}, "revision": 1,
    });
    cluster.create(squatter).await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let set = cluster.daemon_set("agent").expect("it is there");
    let collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count);
    assert_eq!(collisions, Some(1));
    let revisions = history(&cluster, "agent").await;
    assert_eq!(revisions.len(), 1);
    assert_ne!(revisions[0].name_any(), taken);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_made_anew_adopts_the_pods_and_revisions_left_to_it() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let names = |cluster: &Cluster| {
        let mut names: Vec<_> = cluster
            .pods("agent")
            .iter()
            .map(|pod| pod.name_any())
            .collect();
        names.sort();
        names
    };
    let (before, remembered) = (names(&cluster), history(&cluster, "agent").await);
    cluster
        .delete::<DaemonSet>("agent", &DeleteParams::orphan())
        .await;
    cluster
        .until("it is gone", || {
            cluster.daemon_set("agent").is_none().then_some(())
        })
        .await;

    let anew = cluster.create(daemon_set("agent", "agent:1")).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    assert_eq!(names(&cluster), before, "no pod was replaced");
    let revisions = history(&cluster, "agent").await;
    assert_eq!(revisions.len(), 1);
    assert_eq!(revisions[0].uid(), remembered[0].uid());
    assert_eq!(
        Some(&revisions[0].owner_references()[0].uid),
        anew.uid().as_ref()
    );
}

#[tokio::test(start_paused = true)]
async fn of_two_revisions_of_the_same_template_the_newer_stays_and_takes_the_pods() {
    let cluster = two_systems().await;
    cluster.create(daemon_set("agent", "agent:1")).await;
    until_rolled_out(&cluster, "agent", "agent:1").await;
    let first = history(&cluster, "agent").await.remove(0);
    let uids = |cluster: &Cluster| {
        let mut uids: Vec<_> = cluster.pods("agent").iter().map(|pod| pod.uid()).collect();
        uids.sort();
        uids
    };
    let before = uids(&cluster);

    let twin = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": "twin", "labels": {"app": "agent"}},
        "data": first.data, "revision": 9,
    });
    cluster.create(twin).await;
    cluster
        .until("the pods are the twin's", || {
            let pods = cluster.pods("agent");
            let mut hashes = pods
                .iter()
                .map(|pod| &pod.labels()["controller-revision-hash"]);
            hashes.all(|hash| hash == "twin").then_some(())
        })
        .await;
    cluster.pass(5).await;
    assert_eq!(uids(&cluster), before, "no pod was replaced");
    let revisions = history(&cluster, "agent").await;
    assert_eq!(revisions.len(), 1);
    assert_eq!(
        (revisions[0].name_any(), revisions[0].revision),
        ("twin".to_owned(), 9)
    );
    assert_eq!(revisions[0].owner_references(), first.owner_references());
}
