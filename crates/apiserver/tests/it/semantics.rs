//! Lists, watches and writes as requests and answers, under paused time.

use std::sync::Arc;

use axum::body::Body;
use futures::{StreamExt, future::join_all};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use mullion_apiserver::{ApiServer, Config, admission::User};
use mullion_store::Window;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) struct Cluster(axum::Router);

impl Cluster {
    pub(crate) fn new(config: Config) -> Self {
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        let user = User {
            name: "admin".into(),
            groups,
            ..User::default()
        };
        Cluster(ApiServer::new(config).router_as(user))
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Response<Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.0
            .clone()
            .oneshot(request.body(body.into()).unwrap())
            .await
            .unwrap()
    }

    pub(crate) async fn json(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> (u16, Value) {
        let response = self.send(method, path, headers, body).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.json(Method::GET, path, &[], Body::empty()).await
    }

    pub(crate) async fn create(&self, name: &str, labels: Value) -> Value {
        let body = json!({"metadata": {"name": name, "labels": labels}}).to_string();
        let (code, object) = self.json(Method::POST, MAPS, &[], body).await;
        assert_eq!(code, 201, "{object}");
        object
    }

    async fn merge(&self, name: &str, patch: Value) -> (u16, Value) {
        let headers = [("content-type", "application/merge-patch+json")];
        self.json(
            Method::PATCH,
            &format!("{MAPS}/{name}"),
            &headers,
            patch.to_string(),
        )
        .await
    }

    /// The events of a watch that ends by itself.
    async fn watch(&self, query: &str) -> Vec<Value> {
        let response = self
            .send(
                Method::GET,
                &format!("{MAPS}?watch=1&{query}"),
                &[],
                Body::empty(),
            )
            .await;
        assert_eq!(response.status(), 200);
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        bytes
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }
}

pub(crate) fn cluster() -> Cluster {
    Cluster::new(Config::default())
}

fn small_window() -> Cluster {
    Cluster::new(Config {
        window: Window {
            events: 3,
            seconds: i64::MAX,
            ..Window::default()
        },
        ..Config::default()
    })
}

fn revision(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap()
}

fn seen(events: &[Value]) -> Vec<(&str, &str)> {
    events
        .iter()
        .map(|event| {
            (
                event["type"].as_str().unwrap(),
                event["object"]["metadata"]["name"].as_str().unwrap_or(""),
            )
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_moment_although_the_collection_changes() {
    let cluster = cluster();
    for name in ["a", "b", "c", "d"] {
        cluster.create(name, json!({})).await;
    }
    let (_, first) = cluster.get(&format!("{MAPS}?limit=2")).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    cluster
        .json(Method::DELETE, &format!("{MAPS}/c"), &[], Body::empty())
        .await;
    cluster.create("bb", json!({})).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = cluster
        .get(&format!("{MAPS}?limit=2&continue={token}"))
        .await;
    let names: Vec<&Value> = second["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["metadata"]["name"])
        .collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(
        second["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    assert_eq!(second["metadata"].get("continue"), None);
}

#[tokio::test(start_paused = true)]
async fn the_list_of_one_name_has_no_pages() {
    let cluster = cluster();
    for name in ["a", "b"] {
        cluster.create(name, json!({})).await;
    }
    let (_, list) = cluster
        .get(&format!("{MAPS}?limit=1&fieldSelector=metadata.name%3Da"))
        .await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    assert_eq!(list["metadata"].get("continue"), None);
    let everywhere = "/api/v1/configmaps?limit=1&fieldSelector=metadata.name%3Da";
    let (_, list) = cluster.get(everywhere).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn initial_events_are_no_older_than_asked_for() {
    let cluster = cluster();
    let map = cluster.create("a", json!({})).await;
    let revision = map["metadata"]["resourceVersion"].as_str().unwrap();
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=9&resourceVersion=";
    let next = revision.parse::<u64>().unwrap() + 1;
    let late = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        cluster.create("b", json!({})).await
    };
    let watch = format!("{query}{next}");
    let (events, _) = tokio::join!(cluster.watch(&watch), late);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[..3], ["ADDED", "ADDED", "BOOKMARK"]);
    let events = cluster.watch(&format!("{query}{}", next + 100)).await;
    assert_eq!(events.len(), 1);
    let refusal = &events[0]["object"];
    assert_eq!(refusal["code"], 504);
    let why = format!(
        "Timeout: Too large resource version: {}, current: {next}",
        next + 100
    );
    assert_eq!(refusal["message"], why);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_one_name_takes_no_selector_of_another() {
    let cluster = cluster();
    let path = MAPS.replace("/v1/", "/v1/watch/");
    for (selector, code) in [
        ("", 200),
        ("metadata.name%3Da", 200),
        ("metadata.name%3Db", 400),
        ("metadata.namespace%3Ddefault", 400),
    ] {
        let path = format!("{path}/a?timeoutSeconds=1&fieldSelector={selector}");
        let answer = cluster.get(&path).await;
        assert_eq!(answer.0, code, "{selector}");
        if code == 400 {
            let why = "fieldSelector metadata.name doesn't match requested name";
            assert_eq!(answer.1["message"], why);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_page_comes_with_a_token_to_go_on_with() {
    let cluster = small_window();
    for name in ["a", "b", "c"] {
        cluster.create(name, json!({})).await;
    }
    let (_, first) = cluster.get(&format!("{MAPS}?limit=1")).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    for data in 0..5 {
        cluster
            .merge("c", json!({"data": {"n": data.to_string()}}))
            .await;
    }
    let (code, expired) = cluster
        .get(&format!("{MAPS}?limit=1&continue={token}"))
        .await;
    assert_eq!((code, &expired["reason"]), (410, &json!("Expired")));
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = cluster.get(&format!("{MAPS}?continue={token}")).await;
    assert_eq!((code, rest["items"].as_array().unwrap().len()), (200, 2));
    let (code, too_old) = cluster
        .get(&format!(
            "{MAPS}?resourceVersion=1&resourceVersionMatch=Exact"
        ))
        .await;
    assert_eq!(
        (code, &too_old["message"]),
        (
            410,
            &json!("The resourceVersion for the provided list is too old.")
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_before_the_window_ends_with_an_error_event() {
    let cluster = small_window();
    for name in ["a", "b", "c", "d", "e"] {
        cluster.create(name, json!({})).await;
    }
    let events = cluster.watch("resourceVersion=1").await;
    assert_eq!(seen(&events), [("ERROR", "")]);
    assert_eq!(
        (&events[0]["object"]["code"], &events[0]["object"]["reason"]),
        (&json!(410), &json!("Expired"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_does_not_read_is_closed_and_delays_nobody() {
    let cluster = small_window();
    let first = cluster.create("a", json!({})).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={}", revision(&first));
    let mut lines = cluster
        .send(Method::GET, &path, &[], Body::empty())
        .await
        .into_body()
        .into_data_stream();
    for data in 0..10 {
        cluster
            .merge("a", json!({"data": {"n": data.to_string()}}))
            .await;
    }
    let line = lines.next().await.unwrap().unwrap();
    assert!(
        line.starts_with(b"{\"type\":\"ERROR\",\"object\":{\"apiVersion\":\"v1\",\"code\":410,"),
        "{line:?}"
    );
    assert!(lines.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn leaving_a_selector_is_a_deletion_and_entering_it_an_addition() {
    let cluster = cluster();
    let start = cluster.create("x", json!({"g": "1"})).await;
    cluster
        .merge("x", json!({"metadata": {"labels": {"g": "2"}}}))
        .await;
    cluster.merge("x", json!({"data": {"a": "b"}})).await;
    cluster
        .merge("x", json!({"metadata": {"labels": {"g": "1"}}}))
        .await;
    let events = cluster
        .watch(&format!(
            "labelSelector=g=1&timeoutSeconds=1&resourceVersion={}",
            revision(&start)
        ))
        .await;
    assert_eq!(seen(&events), [("DELETED", "x"), ("ADDED", "x")]);
    assert_eq!(events[0]["object"]["metadata"]["labels"]["g"], "1");
    assert_ne!(revision(&events[0]["object"]), revision(&start));
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end() {
    let cluster = cluster();
    let object = cluster.create("x", json!({})).await;
    let events = cluster
        .watch("allowWatchBookmarks=true&timeoutSeconds=130")
        .await;
    assert_eq!(
        seen(&events),
        [
            ("ADDED", "x"),
            ("BOOKMARK", ""),
            ("BOOKMARK", ""),
            ("BOOKMARK", ""),
            ("BOOKMARK", "")
        ]
    );
    let ends = &events[1]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"];
    assert_eq!(ends, "true");
    assert_eq!(revision(&events[4]["object"]), revision(&object));
    let silent = cluster
        .watch(&format!(
            "timeoutSeconds=130&resourceVersion={}",
            revision(&object)
        ))
        .await;
    assert!(silent.is_empty());
}

#[tokio::test(start_paused = true)]
async fn concurrent_patches_all_arrive() {
    let cluster = Arc::new(cluster());
    cluster.create("x", json!({})).await;
    let patches = (0..50).map(|n| {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let mut data = serde_json::Map::new();
            data.insert(format!("k{n}"), "v".into());
            cluster.merge("x", json!({"data": data})).await.0
        })
    });
    assert!(
        join_all(patches)
            .await
            .into_iter()
            .all(|code| matches!(code, Ok(200)))
    );
    let (_, object) = cluster.get(&format!("{MAPS}/x")).await;
    assert_eq!(object["data"].as_object().unwrap().len(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_makes_no_revision() {
    let cluster = cluster();
    cluster.create("x", json!({"a": "b"})).await;
    let (_, first) = cluster.merge("x", json!({"data": {"k": "v"}})).await;
    let (code, again) = cluster.merge("x", json!({"data": {"k": "v"}})).await;
    assert_eq!((code, revision(&again)), (200, revision(&first)));
    let (_, dry) = cluster
        .json(
            Method::DELETE,
            &format!("{MAPS}/x?dryRun=All"),
            &[],
            Body::empty(),
        )
        .await;
    assert_eq!(dry["status"], "Success");
    assert_eq!(cluster.get(&format!("{MAPS}/x")).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_deleted_an_hour_after_its_last_write_and_watchers_see_it_go() {
    const EVENTS: &str = "/api/v1/namespaces/default/events";
    let start = tokio::time::Instant::now();
    let cluster = Cluster::new(Config {
        clock: Arc::new(move || {
            jiff::Timestamp::UNIX_EPOCH
                + jiff::SignedDuration::try_from(start.elapsed()).unwrap_or_default()
        }),
        ..Config::default()
    });
    for name in ["once", "twice"] {
        let body = json!({"metadata": {"name": name}, "involvedObject": {"namespace": "default"}, "type": "Normal"});
        let (code, event) = cluster
            .json(Method::POST, EVENTS, &[], body.to_string())
            .await;
        assert_eq!(code, 201, "{event}");
    }
    let minutes = |minutes: u64| tokio::time::sleep(std::time::Duration::from_secs(60 * minutes));
    minutes(30).await;
    let merge = [("content-type", "application/merge-patch+json")];
    let (code, event) = cluster
        .json(
            Method::PATCH,
            &format!("{EVENTS}/twice"),
            &merge,
            r#"{"count": 2}"#,
        )
        .await;
    assert_eq!(code, 200, "{event}");
    let revision = event["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = format!("{EVENTS}?watch=1&resourceVersion={revision}&timeoutSeconds=5400");
    let watch = cluster.send(Method::GET, &watch, &[], Body::empty()).await;
    let mut frames = watch.into_body().into_data_stream();
    for (name, at_minute) in [("once", 60), ("twice", 90)] {
        let line = frames.next().await.unwrap().unwrap();
        let event: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("DELETED"), &json!(name))
        );
        assert_eq!(start.elapsed().as_secs() / 60, at_minute);
        let (code, _) = cluster.get(&format!("{EVENTS}/{name}")).await;
        assert_eq!(code, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_may_ask_for_as_long_as_numbers_go() {
    let cluster = Cluster::new(Config::default());
    let watch = format!("/api/v1/nodes?watch=1&timeoutSeconds={}", i64::MAX);
    let watch = cluster.send(Method::GET, &watch, &[], Body::empty()).await;
    assert_eq!(watch.status(), 200);
}

#[tokio::test(start_paused = true)]
async fn the_server_publishes_where_it_is_told_to_be() {
    let cluster = Cluster::new(Config {
        advertise: vec!["10.0.0.9".parse().unwrap(), "10.0.64.9".parse().unwrap()],
        port: 7443,
        ..Config::default()
    });
    let (code, endpoints) = cluster
        .get("/api/v1/namespaces/default/endpoints/kubernetes")
        .await;
    assert_eq!(code, 200, "{endpoints}");
    assert_eq!(
        endpoints["subsets"],
        json!([{"addresses": [{"ip": "10.0.0.9"}, {"ip": "10.0.64.9"}], "ports": [{"name": "https", "port": 7443, "protocol": "TCP"}]}])
    );
    let (_, service) = cluster
        .get("/api/v1/namespaces/default/services/kubernetes")
        .await;
    assert_eq!(service["spec"]["ports"][0]["targetPort"], 7443);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let (code, slice) = cluster.get(slices).await;
    assert_eq!(code, 200, "{slice}");
    assert_eq!(slice["endpoints"][1]["addresses"], json!(["10.0.64.9"]));
    let quiet = Cluster::new(Config::default());
    assert_eq!(quiet.get(slices).await.0, 404);
}
