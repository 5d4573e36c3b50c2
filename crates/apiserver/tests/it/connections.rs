//! Connections that do nothing: they end, and they keep nobody out.

use std::time::Duration;

use mullion_apiserver::{ApiServer, Config, ConnectionLimits, Limits, StaticTokens};
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    api::Api,
    tls::{Client, OVER_1, OVER_2, Served, empty, get},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a test waits for what has to happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// A limit that a test waits for.
const SHORT: Duration = Duration::from_millis(20);

fn config(connections: ConnectionLimits) -> Config {
    Config {
        limits: Limits {
            connections,
            ..Limits::default()
        },
        tokens: StaticTokens::from_csv("janes-token,jane,1\n").unwrap(),
        ..Config::default()
    }
}

/// Reads until the server has closed the connection.
async fn closed(mut stream: impl AsyncRead + Unpin) {
    let mut rest = Vec::new();
    // A reset is an end too.
    let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
    assert!(end.is_ok(), "still open after {rest:?}");
}

#[tokio::test]
async fn a_connection_that_sends_nothing_ends() {
    let limits = ConnectionLimits {
        handshake: SHORT,
        ..ConnectionLimits::default()
    };
    let served = Served::new(&ApiServer::new(config(limits))).await;
    closed(TcpStream::connect(served.address).await.unwrap()).await;
}

#[tokio::test]
async fn a_connection_without_a_request_ends_whatever_it_has_begun() {
    let limits = ConnectionLimits {
        first_request: SHORT,
        ..ConnectionLimits::default()
    };
    let served = Served::new(&ApiServer::new(config(limits))).await;
    let settings = [PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    let head = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nx-more: ";
    for (protocol, sent) in [
        (OVER_2, &b""[..]),
        (OVER_2, PREFACE),
        (OVER_2, &settings),
        (OVER_1, b""),
        (OVER_1, head),
    ] {
        let mut stream = served.connect(None, protocol).await;
        // It may have ended already.
        let _ = stream.write_all(sent).await;
        let _ = stream.flush().await;
        closed(stream).await;
    }
}

#[tokio::test]
async fn a_connection_ends_after_its_last_request_and_not_while_a_watch_goes_on() {
    let limits = ConnectionLimits {
        idle: SHORT,
        ..ConnectionLimits::default()
    };
    let server = ApiServer::new(config(limits));
    let served = Served::new(&server).await;
    for protocol in [OVER_1, OVER_2] {
        let stream = served.connect(Some(&served.admin), protocol).await;
        let mut watcher = Client::new(stream, protocol).await;
        let watch = empty(get(&format!("{MAPS}?watch=1")));
        let mut events = watcher.send(watch).await.into_body();
        let mut idle = served.connect(Some(&served.admin), OVER_1).await;
        let request = b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        idle.write_all(request).await.unwrap();
        closed(idle).await;
        let map = json!({"metadata": {"generateName": "m"}});
        Api::of(&server).post(MAPS, map).await.ok();
        let event = http_body_util::BodyExt::frame(&mut events).await;
        assert!(event.is_some_and(|event| event.is_ok()));
    }
}

/// Before, a thousand connections that did nothing shut everybody out.
#[tokio::test]
async fn whatever_others_hold_open_an_administrator_gets_in() {
    let limits = ConnectionLimits {
        handshakes: 3,
        users: 3,
        administrators: 2,
        ..ConnectionLimits::default()
    };
    let server = ApiServer::new(config(limits));
    let served = Served::new(&server).await;
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    // The oldest make room for the newest.
    for oldest in silent.drain(..17) {
        closed(oldest).await;
    }
    let mut strangers = Vec::new();
    for _ in 0..10 {
        let mut stranger = served.connect(None, OVER_2).await;
        stranger.write_all(PREFACE).await.unwrap();
        strangers.push(stranger);
    }
    for oldest in strangers.drain(..7) {
        closed(oldest).await;
    }
    let rights = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let binding = json!({"metadata": {"name": "jane"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    Api::of(&server).post(rights, binding).await.ok();
    let watch =
        || empty(get(&format!("{MAPS}?watch=1")).header("authorization", "Bearer janes-token"));
    let mut watches = Vec::new();
    for _ in 0..3 {
        let stream = served.connect(None, OVER_2).await;
        let mut client = Client::new(stream, OVER_2).await;
        let answer = client.send(watch()).await;
        assert_eq!(answer.status(), 200);
        watches.push((client, answer));
    }
    for stranger in strangers {
        closed(stranger).await;
    }
    // All places of users are in use now.
    closed(served.connect(None, OVER_2).await).await;
    let mut administrators = Vec::new();
    for _ in 0..5 {
        let stream = served.connect(Some(&served.admin), OVER_1).await;
        let mut client = Client::new(stream, OVER_1).await;
        assert_eq!(client.send(empty(get(MAPS))).await.status(), 200);
        administrators.push(client);
    }
    drop((watches, administrators, silent));
}
