//! Pods through their subresources, as schedulers, kubelets, `kubectl drain` and `kubectl logs` use them.

use std::{pin::Pin, sync::Arc};

use futures::{AsyncReadExt, Stream, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::{DeleteParams, EvictParams, LogParams, Patch, PatchParams, PostParams},
};
use mullion_apiserver::{
    ApiServer, Config,
    admission::User,
    logs::{Container, Line, Log, LogSource, Reading},
};
use serde_json::{Value, json};

/// Every container has written the same three lines and writes one more.
struct ThreeLines;

impl LogSource for ThreeLines {
    fn read<'a>(&'a self, container: Container<'a>) -> Reading<'a> {
        let line = |second: i64, text: &str| Line {
            time: Timestamp::from_second(second).unwrap(),
            text: format!("{} {text}", container.name),
        };
        let written = vec![line(1, "one"), line(2, "two"), line(3, "three")];
        let last = line(4, "four");
        let coming = container
            .follow
            .then(|| Box::pin(stream::iter([last])) as Pin<Box<dyn Stream<Item = Line> + Send>>);
        Box::pin(future::ready(Some(Log { written, coming })))
    }
}

async fn client() -> Client {
    let config = Config {
        logs: Some(Arc::new(ThreeLines)),
        ..Config::default()
    };
    let user = User {
        name: "admin".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    };
    let client = Client::new(ApiServer::new(config).router_as(user), "default");
    let account = json!({"metadata": {"name": "default"}});
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
        Api::default_namespaced(client.clone());
    let account = serde_json::from_value(account).unwrap();
    accounts
        .create(&PostParams::default(), &account)
        .await
        .unwrap();
    client
}

async fn create(pods: &Api<Pod>, name: &str, containers: &[&str]) -> Pod {
    let containers: Vec<Value> = containers
        .iter()
        .map(|name| json!({"name": name, "image": "nginx:1.25"}))
        .collect();
    let pod = json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": {"containers": containers}});
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap()
}

async fn bind(pods: &Api<Pod>, name: &str, node: &str) -> kube::Result<Value> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    pods.create_subresource("binding", name, &PostParams::default(), &binding)
        .await
}

/// Reports a pod with one container as its kubelet would.
async fn report(pods: &Api<Pod>, name: &str, state: Value) {
    let runs = state.get("running").is_some();
    let status = json!({
        "phase": if runs { "Running" } else { "Pending" },
        "conditions": [{"type": "Ready", "status": if runs { "True" } else { "False" }}],
        "containerStatuses": [{
            "name": "a", "image": "nginx:1.25", "imageID": "", "ready": runs, "restartCount": 0, "state": state,
        }],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    pods.patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
}

fn refusal<T: std::fmt::Debug>(answer: kube::Result<T>) -> (u16, String) {
    match answer.unwrap_err() {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_pod_is_bound_once_and_keeps_its_node() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    let created = create(&pods, "x", &["a"]).await;
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));
    bind(&pods, "x", "n1").await.unwrap();
    let bound = pods.get("x").await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n1"));
    let conditions = bound.status.unwrap().conditions.unwrap();
    assert_eq!(
        (&*conditions[0].type_, &*conditions[0].status),
        ("PodScheduled", "True")
    );
    let (code, message) = refusal(bind(&pods, "x", "n2").await);
    assert_eq!(code, 409);
    assert!(
        message.ends_with(r#"pod x is already assigned to node "n1""#),
        "{message}"
    );
}

#[tokio::test]
async fn a_bound_pod_is_deleted_when_its_grace_period_is_cut_to_nothing() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    create(&pods, "waiting", &["a"]).await;
    create(&pods, "bound", &["a"]).await;
    bind(&pods, "bound", "n1").await.unwrap();
    pods.delete("waiting", &DeleteParams::default())
        .await
        .unwrap();
    assert!(pods.get_opt("waiting").await.unwrap().is_none());
    pods.delete("bound", &DeleteParams::default())
        .await
        .unwrap();
    let leaving = pods.get("bound").await.unwrap().metadata;
    assert_eq!(leaving.deletion_grace_period_seconds, Some(30));
    pods.delete("bound", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    assert!(pods.get_opt("bound").await.unwrap().is_none());
}

#[tokio::test]
async fn evictions_stop_when_the_budget_is_used_up() {
    let client = client().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(client);
    for name in ["a", "b", "pending"] {
        create(&pods, name, &["a"]).await;
    }
    for name in ["a", "b"] {
        bind(&pods, name, "n1").await.unwrap();
        report(&pods, name, running()).await;
    }
    let budget = json!({"metadata": {"name": "x"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}});
    let budget = serde_json::from_value(budget).unwrap();
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();

    // Nobody has looked at the budget yet.
    let (code, _) = refusal(pods.evict("a", &EvictParams::default()).await);
    assert_eq!(code, 429);
    // A pod that waits costs nothing.
    pods.evict("pending", &EvictParams::default())
        .await
        .unwrap();
    assert!(pods.get_opt("pending").await.unwrap().is_none());

    let seen = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    budgets
        .patch_status("x", &PatchParams::default(), &Patch::Merge(seen))
        .await
        .unwrap();
    pods.evict("a", &EvictParams::default()).await.unwrap();
    let (code, message) = refusal(pods.evict("b", &EvictParams::default()).await);
    assert_eq!(code, 429);
    assert_eq!(
        message,
        "Cannot evict pod as it would violate the pod's disruption budget."
    );
    let status = budgets.get("x").await.unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, Some(0));
    assert!(status.disrupted_pods.unwrap().contains_key("a"));
    assert!(
        pods.get("a")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
}

#[tokio::test]
async fn an_eviction_that_is_tried_out_changes_nothing() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    create(&pods, "x", &["a"]).await;
    let mut params = EvictParams::default();
    params.post_options.dry_run = true;
    pods.evict("x", &params).await.unwrap();
    assert!(pods.get_opt("x").await.unwrap().is_some());
}

#[tokio::test]
async fn an_eviction_of_another_pod_of_the_name_is_a_conflict_and_leaves_no_trace() {
    let client = client().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    create(&pods, "x", &["a"]).await;
    let before = pods.get("x").await.unwrap();
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "x"},
        "deleteOptions": {"preconditions": {"uid": "other"}},
    });
    let request = http::Request::post("/api/v1/namespaces/default/pods/x/eviction")
        .header("content-type", "application/json")
        .body(eviction.to_string().into_bytes())
        .unwrap();
    let (code, message) = refusal(client.request::<Value>(request).await);
    assert_eq!(code, 409);
    let uid = before.metadata.uid.clone().unwrap();
    assert_eq!(
        message,
        format!(
            r#"Operation cannot be fulfilled on Pod "x": the UID in the precondition (other) does not match the UID in record ({uid}). The object might have been deleted and then recreated"#
        )
    );
    assert_eq!(pods.get("x").await.unwrap(), before);
}

#[tokio::test]
async fn logs_are_cut_as_asked_and_followed_to_their_end() {
    let client = client().await;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    create(&pods, "x", &["a"]).await;
    bind(&pods, "x", "n1").await.unwrap();
    // Only a node says where its kubelet listens.
    let (code, message) = refusal(pods.logs("x", &LogParams::default()).await);
    assert_eq!((code, &*message), (404, r#"pods "n1" not found"#));
    let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
    let nodes: Api<Node> = Api::all(client);
    nodes.create(&PostParams::default(), &node).await.unwrap();
    report(
        &pods,
        "x",
        json!({"waiting": {"reason": "ContainerCreating"}}),
    )
    .await;
    let (code, message) = refusal(pods.logs("x", &LogParams::default()).await);
    assert_eq!(code, 400);
    assert_eq!(
        message,
        r#"container "a" in pod "x" is waiting to start: ContainerCreating"#
    );

    report(&pods, "x", running()).await;
    let all = pods.logs("x", &LogParams::default()).await.unwrap();
    assert_eq!(all, "a one\na two\na three\n");
    let previous = LogParams {
        previous: true,
        ..LogParams::default()
    };
    let (code, message) = refusal(pods.logs("x", &previous).await);
    assert_eq!(
        (code, &*message),
        (
            400,
            r#"previous terminated container "a" in pod "x" not found"#
        )
    );
    let tail = LogParams {
        tail_lines: Some(1),
        timestamps: true,
        ..LogParams::default()
    };
    let last = pods.logs("x", &tail).await.unwrap();
    assert!(
        last.starts_with("1970-01-01T00:00:03") && last.ends_with("Z a three\n"),
        "{last}"
    );

    let follow = LogParams {
        tail_lines: Some(1),
        follow: true,
        ..LogParams::default()
    };
    let mut text = String::new();
    let mut followed = std::pin::pin!(pods.log_stream("x", &follow).await.unwrap());
    followed.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "a three\na four\n");
}

#[tokio::test]
async fn the_log_of_one_of_several_containers_is_asked_for_by_name() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    create(&pods, "x", &["a", "b"]).await;
    let (code, message) = refusal(pods.logs("x", &LogParams::default()).await);
    assert_eq!(code, 400);
    assert_eq!(
        message,
        "a container name must be specified for pod x, choose one of: [a b]"
    );
    let params = LogParams {
        container: Some("c".into()),
        ..LogParams::default()
    };
    let (code, message) = refusal(pods.logs("x", &params).await);
    assert_eq!(
        (code, &*message),
        (400, "container c is not valid for pod x")
    );
}

#[tokio::test]
async fn an_ephemeral_container_is_added_and_never_taken_away() {
    let pods: Api<Pod> = Api::default_namespaced(client().await);
    create(&pods, "x", &["a"]).await;
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "debugger", "image": "busybox", "targetContainerName": "a"}]}});
    let patch = |change: Value| {
        let pods = pods.clone();
        async move {
            pods.patch_ephemeral_containers("x", &PatchParams::default(), &Patch::Strategic(change))
                .await
        }
    };
    let debugged = patch(debugger).await.unwrap();
    let containers = debugged.spec.unwrap().ephemeral_containers.unwrap();
    assert_eq!(containers[0].image_pull_policy.as_deref(), Some("Always"));
    let (code, message) = refusal(
        patch(json!({"spec": {"ephemeralContainers": [{"name": "debugger", "image": "other"}]}}))
            .await,
    );
    assert_eq!(code, 422);
    assert!(message.contains("spec.ephemeralContainers"), "{message}");
}
