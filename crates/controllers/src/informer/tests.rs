use std::sync::{Arc, Mutex};

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::informers::BY_NODE;

fn pod(name: &str, uid: &str, version: &str, node: &str) -> Arc<Pod> {
    Arc::new(Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(node.to_owned()),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// Returns an informer whose watch is never polled; tests feed it directly.
fn informer() -> (Informer<Pod>, Arc<Mutex<Vec<String>>>) {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>(
        )
    });
    let api = Api::all(Client::new(service, "default"));
    let by_node: IndexFn<Pod> = |pod, file_under| {
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            file_under(node);
        }
    };
    let informer = Informer::new(
        api,
        &[(BY_NODE, by_node)],
        TaskTracker::new(),
        CancellationToken::new(),
    );
    *lock(&informer.inner.started) = true;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    informer.on_change(move |change| {
        let version = |pod: &Pod| pod.metadata.resource_version.clone().unwrap_or_default();
        let name = change.object().metadata.name.clone().unwrap_or_default();
        let line = match change {
            Change::Added(new) => format!("added {name}@{}", version(new)),
            Change::Updated { old, new } => {
                format!("updated {name}@{}->{}", version(old), version(new))
            }
            Change::Deleted(last) => format!("deleted {name}@{}", version(last)),
        };
        lock(&log).push(line);
    });
    (informer, seen)
}

fn drain(seen: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut lock(seen))
}

#[tokio::test]
async fn changes_reach_handlers_with_the_version_before_and_after() {
    let (informer, seen) = informer();
    informer.inner.apply(pod("a", "1", "10", "n1"));
    informer.inner.apply(pod("a", "1", "11", "n2"));
    informer.inner.delete(pod("a", "1", "12", "n2"));
    informer.inner.delete(pod("a", "1", "12", "n2"));
    assert_eq!(
        drain(&seen),
        ["added a@10", "updated a@10->11", "deleted a@12"]
    );
}

#[tokio::test]
async fn a_relist_reports_only_what_differs() {
    let (informer, seen) = informer();
    informer.inner.replace(vec![
        pod("same", "1", "1", "n"),
        pod("gone", "2", "2", "n"),
        pod("new", "3", "3", "n"),
    ]);
    drain(&seen);
    informer.inner.replace(vec![
        pod("same", "1", "1", "n"),
        pod("new", "3", "9", "n"),
        pod("fresh", "4", "8", "n"),
    ]);
    assert_eq!(
        drain(&seen),
        ["deleted gone@2", "updated new@3->9", "added fresh@8"]
    );
    assert_eq!(informer.len(), 3);
}

#[tokio::test]
async fn an_object_recreated_unseen_is_a_deletion_and_an_addition() {
    let (informer, seen) = informer();
    informer.inner.apply(pod("a", "first", "1", "n"));
    informer.inner.replace(vec![pod("a", "second", "7", "n")]);
    informer.inner.apply(pod("a", "third", "9", "n"));
    assert_eq!(
        drain(&seen),
        [
            "added a@1",
            "deleted a@1",
            "added a@7",
            "deleted a@7",
            "added a@9"
        ]
    );
}

#[tokio::test]
async fn indexes_follow_every_change() {
    let (informer, _) = informer();
    let on = |node: &str| {
        let mut names: Vec<_> = informer
            .by_index(BY_NODE, node)
            .iter()
            .map(|pod| pod.metadata.name.clone().unwrap_or_default())
            .collect();
        names.sort_unstable();
        names
    };
    informer.inner.apply(pod("a", "1", "1", "n1"));
    informer.inner.apply(pod("b", "2", "2", "n1"));
    assert_eq!(on("n1"), ["a", "b"]);
    informer.inner.apply(pod("a", "1", "3", "n2"));
    assert_eq!(
        (on("n1"), on("n2")),
        (vec!["b".to_owned()], vec!["a".to_owned()])
    );
    informer.inner.replace(vec![pod("b", "2", "4", "n2")]);
    assert_eq!((on("n1"), on("n2")), (vec![], vec!["b".to_owned()]));
    informer.inner.delete(pod("b", "2", "5", "n2"));
    assert_eq!(informer.count_by_index(BY_NODE, "n2"), 0);
    assert_eq!(informer.in_namespace("ns").len(), 0);
}

#[tokio::test]
async fn a_late_handler_is_told_about_what_is_there() {
    let (informer, _) = informer();
    informer.inner.apply(pod("a", "1", "1", "n1"));
    let count = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&count);
    informer.on_change(move |change| {
        assert!(matches!(change, Change::Added(_)));
        *lock(&counter) += 1;
    });
    informer.inner.apply(pod("b", "2", "2", "n1"));
    assert_eq!(*lock(&count), 2);
}

#[test]
fn keys_split_into_namespace_and_name() {
    let key = Key::new("ns", "name");
    assert_eq!(
        (key.namespace(), key.name(), key.as_str()),
        ("ns", "name", "ns/name")
    );
    let key = Key::new("", "node");
    assert_eq!(
        (key.namespace(), key.name(), key.as_str()),
        ("", "node", "node")
    );
}

/// Returns an informer of pods whose requests get these answers, in turn, and none after them.
fn informer_of(answers: Vec<String>) -> Informer<Pod> {
    let answers = Arc::new(Mutex::new(answers.into_iter()));
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let next = lock(&answers).next();
        async move {
            let Some(answer) = next else {
                return std::future::pending().await;
            };
            let body = kube::client::Body::from(answer.into_bytes());
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }
    });
    let api = Api::all(Client::new(service, "default"));
    Informer::new(api, &[], TaskTracker::new(), CancellationToken::new())
}

fn list(items: &[Value]) -> String {
    let list = json!({
        "apiVersion": "v1", "kind": "PodList",
        "metadata": { "resourceVersion": "10" }, "items": items,
    });
    list.to_string()
}

/// A pod whose containers are a number, unless it is readable.
fn pod_on_the_wire(name: &str, readable: bool) -> Value {
    let containers = if readable { json!([]) } else { json!(1) };
    json!({
        "metadata": { "namespace": "ns", "name": name, "uid": name, "resourceVersion": "9" },
        "spec": { "containers": containers },
    })
}

#[tokio::test(start_paused = true)]
async fn a_list_with_an_unreadable_object_does_not_count_and_is_asked_for_again() {
    let informer = informer_of(vec![
        list(&[pod_on_the_wire("a", true), pod_on_the_wire("b", false)]),
        list(&[pod_on_the_wire("a", true), pod_on_the_wire("b", true)]),
    ]);
    let began = tokio::time::Instant::now();
    assert!(informer.synced().await);
    assert_eq!(informer.len(), 2);
    assert_eq!(began.elapsed().as_secs(), LIST_AGAIN.as_secs());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_change_leaves_what_was_known_and_those_after_it_count() {
    let event =
        |kind: &str, object: Value| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
    let events = [
        event("MODIFIED", pod_on_the_wire("a", false)),
        event("DELETED", pod_on_the_wire("a", false)),
        event("ADDED", pod_on_the_wire("b", true)),
    ];
    let informer = informer_of(vec![list(&[pod_on_the_wire("a", true)]), events.concat()]);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    informer.on_change(move |change| {
        let name = change.object().metadata.name.clone();
        // Nobody listens after the test.
        drop(tell.send((name, change.is_deleted())));
    });
    for name in ["a", "b"] {
        assert_eq!(told.recv().await, Some((Some(name.to_owned()), false)));
    }
    assert_eq!(informer.len(), 2);
}
