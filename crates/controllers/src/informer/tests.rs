use std::sync::{Arc, Mutex};

use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::Client;

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
