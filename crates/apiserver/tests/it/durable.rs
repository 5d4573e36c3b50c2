//! A server whose directory outlives it: what a client finds after the next start.

use std::{path::Path, sync::Arc};

use mullion_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

use crate::api::Api;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start(directory: &Path) -> (Arc<ApiServer>, Api) {
    let config = Config {
        advertise: vec!["10.0.0.9".parse().expect("an address")],
        ..Config::default()
    };
    let server = ApiServer::open(config, directory).await;
    let server = server.expect("the directory can be used");
    let api = Api::of(&server);
    (server, api)
}

fn service(name: &str, ip: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
           "spec": {"clusterIP": ip, "type": "NodePort", "ports": [{"port": 80, "nodePort": 31234}]}})
}

fn widgets() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.example.com"},
           "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
                    "versions": [{"name": "v1", "served": true, "storage": true,
                                  "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

async fn revision(api: &Api, path: &str) -> u64 {
    let list = api.get(path).await.ok();
    let revision = list["metadata"]["resourceVersion"].as_str();
    revision.expect("lists have one").parse().expect("a number")
}

#[tokio::test]
async fn everything_is_there_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let (server, api) = start(directory.path()).await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let before = api.post(MAPS, map).await.ok();
    api.post(SERVICES, service("web", "10.96.7.7")).await.ok();
    let namespaces = api.get("/api/v1/namespaces").await.ok();
    let last = revision(&api, MAPS).await;
    server.close().await;
    let late = api.delete(&format!("{MAPS}/a")).await.refused(500);
    assert_eq!(
        late,
        "Internal error occurred: the write cannot be made permanent: the store is closed"
    );
    drop((server, api));

    let (_server, api) = start(directory.path()).await;
    assert_eq!(api.get(&format!("{MAPS}/a")).await.ok(), before);
    let same = api.get("/api/v1/namespaces").await.ok();
    assert_eq!(
        same["items"], namespaces["items"],
        "with their uids and times"
    );
    assert_eq!(revision(&api, MAPS).await, last, "a start changes nothing");
    let address = api.post(SERVICES, service("b", "10.96.7.7")).await;
    assert!(
        address
            .refused(422)
            .contains("provided IP is already allocated")
    );
    let port = service("b", "10.96.7.8");
    let port = api.post(SERVICES, port).await.refused(422);
    assert!(
        port.contains("provided port is already allocated"),
        "{port}"
    );
    api.delete(&format!("{SERVICES}/web")).await.ok();
    api.post(SERVICES, service("b", "10.96.7.7")).await.ok();
    assert!(revision(&api, MAPS).await > last);
}

#[tokio::test]
async fn custom_resources_are_served_from_the_first_request_on() {
    let directory = tempfile::tempdir().unwrap();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let path = "/apis/example.com/v1/namespaces/default/widgets";
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "size": 3});
    let (server, api) = start(directory.path()).await;
    api.post(definitions, widgets()).await.ok();
    let made = loop {
        let answer = api.post(path, widget.clone()).await;
        match answer.status {
            404 => tokio::task::yield_now().await,
            _ => break answer.ok(),
        }
    };
    server.close().await;
    drop((server, api));
    let (_server, api) = start(directory.path()).await;
    assert_eq!(api.get(&format!("{path}/w")).await.ok(), made);
}

#[tokio::test]
async fn a_server_that_moved_says_where_it_is_now() {
    let directory = tempfile::tempdir().unwrap();
    let (server, _) = start(directory.path()).await;
    server.close().await;
    let config = Config {
        advertise: vec!["10.0.0.10".parse().expect("an address")],
        ..Config::default()
    };
    let server = ApiServer::open(config, directory.path()).await.unwrap();
    let api = Api::of(&server);
    let endpoints = api
        .get("/api/v1/namespaces/default/endpoints/kubernetes")
        .await
        .ok();
    assert_eq!(endpoints["subsets"][0]["addresses"][0]["ip"], "10.0.0.10");
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = api.get(slices).await.ok();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["10.0.0.10"]));
}
