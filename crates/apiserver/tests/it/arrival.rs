//! Requests whose bodies do not come, and requests that take too long.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::channel::mpsc;
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::Frame,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use mullion_apiserver::{ApiServer, Config, Limits, StaticTokens};
use serde_json::{Value, json};

use crate::{
    api::Api,
    tls::{Client, OVER_1, OVER_2, Served, empty, get},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// A limit that a test waits for.
const SHORT: Duration = Duration::from_millis(20);
/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server with Jane, who may do everything and is no administrator.
async fn served(limits: Limits) -> (Arc<ApiServer>, Served) {
    let server = ApiServer::new(Config {
        limits,
        tokens: StaticTokens::from_csv("janes-token,jane,1\n").unwrap(),
        ..Config::default()
    });
    let binding = json!({"metadata": {"name": "jane"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    Api::of(&server).post(bindings, binding).await.ok();
    let served = Served::new(&server).await;
    (server, served)
}

type Pieces = StreamBody<mpsc::Receiver<Result<Frame<Bytes>, Infallible>>>;
/// Ends the body when it is dropped.
type Sender = mpsc::Sender<Result<Frame<Bytes>, Infallible>>;

/// A creation by Jane whose body is announced and does not come.
fn without_its_body(query: &str) -> (Sender, http::Request<Pieces>) {
    let (sender, pieces) = mpsc::channel(0);
    let request = http::Request::post(format!("https://localhost{MAPS}{query}"))
        .header("host", "localhost")
        .header("authorization", "Bearer janes-token");
    (sender, request.body(StreamBody::new(pieces)).unwrap())
}

/// The status and the message of the answer to such a creation.
async fn answer(served: &Served, protocol: &[u8], query: &str) -> (u16, String) {
    let io = TokioIo::new(served.connect(None, protocol).await);
    let (_sender, request) = without_its_body(query);
    let answer = async {
        if protocol == OVER_2 {
            let (mut client, connection) =
                http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            client.send_request(request).await.unwrap()
        } else {
            let (mut client, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            client.send_request(request).await.unwrap()
        }
    };
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("an answer");
    let status = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["reason"], "Timeout");
    (status, body["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn bodies_that_never_come_hold_no_turns() {
    let (_server, served) = served(Limits {
        requests: 1,
        waiting: 700,
        ..Limits::default()
    })
    .await;
    let io = TokioIo::new(served.connect(None, OVER_2).await);
    let (client, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let mut senders = Vec::new();
    for _ in 0..700 {
        let (sender, request) = without_its_body("");
        let mut client = client.clone();
        tokio::spawn(async move { client.send_request(request).await });
        senders.push(sender);
    }
    let mut admin = Client::new(served.connect(Some(&served.admin), OVER_2).await, OVER_2).await;
    let all_there = async {
        loop {
            let answer = admin.send(empty(get("/metrics"))).await;
            let text = answer.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8_lossy(&text);
            if text.contains("{request_kind=\"mutating\"} 700\n") {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, all_there)
        .await
        .expect("all are there");
    let others = get(MAPS).header("authorization", "Bearer janes-token");
    let others = served.send(None, OVER_2, empty(others));
    let others = tokio::time::timeout(PATIENCE / 6, others).await;
    assert_eq!(others.expect("a turn is free").status, 200);
    // One more would wait for its body than may wait.
    let (_sender, request) = without_its_body("");
    let answer = client.clone().send_request(request).await.unwrap();
    assert_eq!(answer.status(), 429);
    drop(senders);
}

#[tokio::test]
async fn a_body_that_stops_ends_its_request() {
    let (_server, served) = served(Limits {
        body_idle: SHORT,
        ..Limits::default()
    })
    .await;
    for protocol in [OVER_1, OVER_2] {
        let why = "the request's body stopped: nothing of it came for 0.02 s";
        let refusal = answer(&served, protocol, "").await;
        assert_eq!(refusal, (408, why.to_owned()));
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_refused_and_a_watch_goes_on() {
    const TOO_LONG: &str = "Timeout: request did not complete within the allotted timeout";
    let (server, served) = served(Limits {
        request: SHORT,
        ..Limits::default()
    })
    .await;
    let stream = served.connect(Some(&served.admin), OVER_2).await;
    let mut watcher = Client::new(stream, OVER_2).await;
    let watch = empty(get(&format!("{MAPS}?watch=1")));
    let mut events = watcher.send(watch).await.into_body();
    for protocol in [OVER_1, OVER_2] {
        let refusal = answer(&served, protocol, "").await;
        assert_eq!(refusal, (504, TOO_LONG.to_owned()));
    }
    let map = json!({"metadata": {"generateName": "m"}});
    Api::of(&server).post(MAPS, map).await.ok();
    assert!(events.frame().await.is_some_and(|event| event.is_ok()));
}

#[tokio::test]
async fn a_client_may_say_that_it_waits_less() {
    let (_server, served) = served(Limits::default()).await;
    let (status, _) = answer(&served, OVER_2, "?timeout=20ms").await;
    assert_eq!(status, 504);
}
