//! exec, attach and port-forward over a socket, as clients of either protocol speak them.

use std::{sync::Arc, time::Duration};

use futures::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use mullion_apiserver::{ApiServer, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use crate::{
    api::Api,
    tls::{OVER_1, Served},
};

const PODS: &str = "/api/v1/namespaces/default/pods";
const EXEC: &str = "x/exec?command=ls&container=a&stdout=true&stderr=true";
const NO_COMMAND: &str = r#"container "a" of pod "x" is simulated: no command can run in it"#;
const NOT_FOUND: &str = r#"container not found ("b")"#;

/// A server with a pod `x`: its container `a` runs, `b` waits; and a pod `y` without a node.
async fn served() -> (Arc<ApiServer>, Served) {
    let server = ApiServer::new(Config::default());
    let api = Api::of(&server);
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    api.post("/api/v1/namespaces/default/serviceaccounts", account)
        .await
        .ok();
    let containers = json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
    for name in ["w", "x", "y"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers},
        });
        api.post(PODS, pod).await.ok();
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}});
    api.post("/api/v1/nodes", node).await.ok();
    for (pod, node) in [("w", "gone"), ("x", "n")] {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node},
        });
        let path = format!("{PODS}/{pod}/binding");
        api.post(&path, binding).await.ok();
    }
    let status = |name: &str, state: Value| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state});
    let status = json!({"status": {"phase": "Running", "containerStatuses": [
        status("a", json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})),
        status("b", json!({"waiting": {"reason": "ContainerCreating"}})),
    ]}});
    api.merge(&format!("{PODS}/x/status"), status).await.ok();
    let served = Served::new(&server).await;
    (server, served)
}

/// What came of a request to go on with another protocol.
enum Answer {
    Agreed(Option<String>, TokioIo<Upgraded>),
    Refused(u16, String),
}

impl Answer {
    #[track_caller]
    fn refused(self) -> (u16, String) {
        match self {
            Answer::Refused(code, why) => (code, why),
            Answer::Agreed(protocol, _) => panic!("agreed to {protocol:?}"),
        }
    }
}

async fn ask(
    served: &Served,
    client: &(String, String),
    method: &str,
    rest: &str,
    headers: &[(&str, &str)],
) -> Answer {
    let stream = served.connect(Some(client), OVER_1).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = http::Request::builder()
        .method(method)
        .uri(format!(
            "{PODS}{}{rest}",
            if rest.starts_with('?') { "" } else { "/" }
        ))
        .header("host", "localhost");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    if response.status() != 101 {
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let status: Option<Value> = serde_json::from_str(&text).ok();
        let message = status.and_then(|status| Some(status["message"].as_str()?.to_owned()));
        return Answer::Refused(code, message.unwrap_or(text));
    }
    let chosen = ["sec-websocket-protocol", "x-stream-protocol-version"]
        .iter()
        .find_map(|name| response.headers().get(*name));
    let chosen = chosen.map(|value| value.to_str().unwrap().to_owned());
    let upgraded = hyper::upgrade::on(response).await.unwrap();
    Answer::Agreed(chosen, TokioIo::new(upgraded))
}

fn websocket(protocol: &str) -> Vec<(&str, &str)> {
    let mut headers = vec![
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    if !protocol.is_empty() {
        headers.push(("sec-websocket-protocol", protocol));
    }
    headers
}

const SPDY: [(&str, &str); 3] = [
    ("connection", "Upgrade"),
    ("upgrade", "SPDY/3.1"),
    ("x-stream-protocol-version", "v4.channel.k8s.io"),
];

/// All messages until the server closes, after some input that nobody reads.
async fn messages(served: &Served, rest: &str, protocol: &str) -> Vec<Message> {
    let answer = ask(served, &served.admin, "GET", rest, &websocket(protocol)).await;
    let Answer::Agreed(chosen, connection) = answer else {
        panic!("{rest}, {protocol}: {:?}", answer.refused());
    };
    assert_eq!(chosen.as_deref().unwrap_or_default(), protocol);
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    socket.send(Message::binary(vec![0; 4096])).await.unwrap();
    let mut messages = Vec::new();
    while let Some(message) = socket.next().await {
        match message.expect("nothing is lost") {
            Message::Close(frame) => assert_eq!(u16::from(frame.unwrap().code), 1000),
            // The client's own answer to it goes out with the next read.
            Message::Ping(_) => {}
            message => messages.push(message),
        }
    }
    messages
}

#[tokio::test]
async fn a_command_over_websocket_ends_in_one_sentence() {
    let (_server, served) = served().await;
    for protocol in ["v5.channel.k8s.io", "v4.channel.k8s.io"] {
        let seen = messages(&served, EXEC, protocol).await;
        assert_eq!(seen[0], Message::binary(vec![1]), "stdout is there");
        let outcome = seen[1].clone().into_data();
        assert_eq!((seen.len(), outcome[0]), (2, 3));
        let outcome: Value = serde_json::from_slice(&outcome[1..]).unwrap();
        assert_eq!(
            outcome,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": NO_COMMAND, "details": {"causes": [{"reason": "ExitCode", "message": "126"}]},
            })
        );
    }
    // Before version 4 the outcome was text.
    for protocol in ["channel.k8s.io", ""] {
        let seen = messages(&served, EXEC, protocol).await;
        let outcome = [&[3], NO_COMMAND.as_bytes()].concat();
        assert_eq!(seen[1], Message::binary(outcome));
    }
    let attach = "x/attach?container=a&stdin=true&tty=true&stderr=true";
    let seen = messages(&served, attach, "v4.base64.channel.k8s.io").await;
    assert_eq!(seen[0], Message::text("3"), "a terminal has no stderr");
    assert!(seen[1].to_text().unwrap().starts_with("3eyJ"));
}

fn of_page(protocol: &str) -> Vec<(&str, &str)> {
    let mut headers = websocket(protocol);
    headers.push(("origin", "https://localhost:4466"));
    headers
}

#[tokio::test]
async fn a_watch_over_websocket_sends_a_message_for_each_event() {
    let (server, served) = served().await;
    let watch = "?watch=true&labelSelector=seen";
    let headers = of_page("base64.binary.k8s.io");
    let answer = ask(&served, &served.admin, "GET", watch, &headers).await;
    let Answer::Agreed(Some(protocol), connection) = answer else {
        panic!("{:?}", answer.refused());
    };
    assert_eq!(protocol, "base64.binary.k8s.io");
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    socket
        .send(Message::text("nobody reads this"))
        .await
        .unwrap();
    let api = Api::of(&server);
    let label = json!({"metadata": {"labels": {"seen": ""}}});
    for name in ["x", "y"] {
        api.merge(&format!("{PODS}/{name}"), label.clone())
            .await
            .ok();
    }
    for name in ["x", "y"] {
        let message = socket.next().await.expect("it is open").unwrap();
        assert!(message.is_text(), "{message:?}");
        let event: Value = serde_json::from_str(message.to_text().unwrap()).unwrap();
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&"ADDED".into(), &name.into())
        );
        assert!(message.to_text().unwrap().ends_with("}\n"));
    }
    socket.send(Message::Ping("p".into())).await.unwrap();
    let pong = socket.next().await.expect("it is open").unwrap();
    assert_eq!(pong, Message::Pong("p".into()));
}

#[tokio::test]
async fn a_watch_over_websocket_ends_with_its_time() {
    let (_server, served) = served().await;
    let watch = "?watch=true&timeoutSeconds=1&labelSelector=none";
    let answer = ask(&served, &served.admin, "GET", watch, &of_page("")).await;
    let Answer::Agreed(None, connection) = answer else {
        panic!("there is no protocol");
    };
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    let Some(Ok(Message::Close(Some(frame)))) = socket.next().await else {
        panic!("there is nothing to tell");
    };
    assert_eq!(u16::from(frame.code), 1000);
}

#[tokio::test]
async fn a_watch_over_websocket_in_protobuf_is_binary_and_ends_when_the_client_goes() {
    let (_server, served) = served().await;
    let mut headers = of_page("");
    headers.push(("accept", "application/vnd.kubernetes.protobuf;stream=watch"));
    let answer = ask(&served, &served.admin, "GET", "?watch=1", &headers).await;
    let Answer::Agreed(None, connection) = answer else {
        panic!("there is no protocol");
    };
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    let message = socket.next().await.expect("it is open").unwrap();
    assert!(message.is_binary(), "{message:?}");
    assert!(message.into_data().starts_with(b"\x0a\x05ADDED"));
    socket.close(None).await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
}

#[tokio::test]
async fn a_handshake_that_is_none_gets_no_watch() {
    let (_server, served) = served().await;
    let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let (with_origin, two) = (of_page(""), of_page("a, b"));
    let without = |name: &str| {
        with_origin
            .iter()
            .filter(|(given, _)| *given != name)
            .copied()
            .collect::<Vec<_>>()
    };
    assert!(with_origin.contains(&key));
    let cases = [
        (without("origin"), 403, ""),
        (
            without("sec-websocket-key"),
            400,
            "mismatch challenge/response",
        ),
        (
            without("sec-websocket-version"),
            400,
            "missing or bad WebSocket Version",
        ),
        (two, 400, ""),
    ];
    for (headers, code, why) in cases {
        let answer = ask(&served, &served.admin, "GET", "?watch=1", &headers).await;
        assert_eq!(answer.refused(), (code, why.to_owned()), "{headers:?}");
    }
}

/// Clients that still open their streams when they are agreed with would lose what comes at once.
#[tokio::test]
async fn a_client_is_asked_whether_it_reads_before_it_is_told_anything() {
    let (_server, served) = served().await;
    let headers = websocket("v5.channel.k8s.io");
    let answer = ask(&served, &served.admin, "GET", EXEC, &headers).await;
    let Answer::Agreed(_, connection) = answer else {
        panic!("{:?}", answer.refused());
    };
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
    let first = socket.next().await.expect("it is open").unwrap();
    assert!(first.is_ping(), "{first:?}");
    let second = socket.next().await.expect("it is open").unwrap();
    assert_eq!(second, Message::binary(vec![1]));
}

#[tokio::test]
async fn forwarded_ports_over_websocket_are_refused_one_by_one() {
    let (_server, served) = served().await;
    let seen = messages(
        &served,
        "x/portforward?ports=80&ports=8443",
        "v4.channel.k8s.io",
    )
    .await;
    let sentence =
        |port: u16| format!("pod \"x\" is simulated: nothing listens on its port {port}");
    let expected = [
        vec![0, 80, 0],
        vec![1, 80, 0],
        [&[1], sentence(80).as_bytes()].concat(),
        vec![2, 0xfb, 0x20],
        vec![3, 0xfb, 0x20],
        [&[3], sentence(8443).as_bytes()].concat(),
    ];
    assert_eq!(seen, expected.map(Message::binary));
    let headers = websocket("v4.channel.k8s.io");
    let answer = ask(&served, &served.admin, "GET", "x/portforward", &headers).await;
    let why = r#"query parameter "port" is required"#.to_owned();
    assert_eq!(answer.refused(), (400, why));
}

/// A connection of SPDY's; kubectl's own flows are tried with the whole program.
#[tokio::test]
async fn a_client_of_spdy_gets_its_pings_back_and_a_broken_one_is_let_go() {
    let (_server, served) = served().await;
    let answer = ask(&served, &served.admin, "POST", EXEC, &SPDY).await;
    let Answer::Agreed(Some(protocol), mut connection) = answer else {
        panic!("{:?}", answer.refused());
    };
    assert_eq!(protocol, "v4.channel.k8s.io");
    let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    connection.write_all(&ping).await.unwrap();
    let mut pong = [0; 12];
    connection.read_exact(&mut pong).await.unwrap();
    assert_eq!(pong, ping);
    connection.write_all(&[0xff; 8]).await.unwrap();
    let end = connection.read(&mut pong);
    let end = tokio::time::timeout(Duration::from_secs(20), end).await;
    assert_eq!(end.expect("it does not wait").unwrap_or(0), 0);
}

/// Method, path, headers; status and sentence of the refusal.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16, &'a str);

#[tokio::test]
async fn what_cannot_be_reached_is_refused_as_kube_apiserver_and_kubelet_do() {
    let (_server, served) = served().await;
    let v5 = websocket("v5.channel.k8s.io");
    let v4 = websocket("v4.channel.k8s.io");
    let odd = websocket("v9.channel.k8s.io");
    let not_running = "x/exec?command=ls&container=b&stdout=true";
    let cases: &[Case<'_>] = &[
        ("POST", "z/exec", &SPDY, 404, r#"pods "z" not found"#),
        (
            "POST",
            "x/exec?container=c",
            &SPDY,
            400,
            "container c is not valid for pod x",
        ),
        (
            "GET",
            "x/attach",
            &v5,
            400,
            "a container name must be specified for pod x, choose one of: [a b]",
        ),
        (
            "GET",
            "y/exec?container=a",
            &v5,
            400,
            "pod y does not have a host assigned",
        ),
        (
            "POST",
            "w/exec?container=a",
            &[],
            404,
            r#"pods "gone" not found"#,
        ),
        ("GET", "w/portforward", &v5, 404, r#"pods "gone" not found"#),
        ("POST", EXEC, &[], 400, "Upgrade request required"),
        ("POST", not_running, &SPDY, 500, NOT_FOUND),
        ("GET", not_running, &v4, 500, NOT_FOUND),
        (
            "POST",
            "x/exec?container=a",
            &SPDY,
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            "GET",
            EXEC,
            &v4[..2],
            400,
            "missing or bad WebSocket Version\n",
        ),
        (
            "GET",
            EXEC,
            &odd,
            403,
            "unable to upgrade: unable to negotiate protocol: client supports [v9.channel.k8s.io], server accepts \
             [channel.k8s.io base64.channel.k8s.io v4.channel.k8s.io v4.base64.channel.k8s.io]\n",
        ),
        (
            "DELETE",
            EXEC,
            &SPDY,
            405,
            "the server does not allow this method on the requested resource",
        ),
    ];
    for (method, rest, headers, code, why) in cases {
        let answer = ask(&served, &served.admin, method, rest, headers).await;
        assert_eq!(
            answer.refused(),
            (*code, (*why).to_owned()),
            "{method} {rest}"
        );
    }
    // Version 5 ends at the API server, which agrees before it asks the kubelet.
    let seen = messages(&served, not_running, "v5.channel.k8s.io").await;
    let outcome: Value = serde_json::from_slice(&seen[1].clone().into_data()[1..]).unwrap();
    let why = format!("Internal error occurred: unable to upgrade connection: {NOT_FOUND}");
    assert_eq!(outcome["message"], Value::from(why));
}

#[tokio::test]
async fn whoever_may_only_get_may_not_start_a_command() {
    let (server, served) = served().await;
    let api = Api::of(&server);
    let jane = served.user("jane", "users");
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = |verbs: Value| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"},
            "rules": [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}],
        })
    };
    api.post(&format!("{rbac}/roles"), role(json!(["get"])))
        .await
        .ok();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "b"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    api.post(&format!("{rbac}/rolebindings"), binding)
        .await
        .ok();
    let headers = websocket("v5.channel.k8s.io");
    let answer = ask(&served, &jane, "GET", EXEC, &headers).await;
    let why = "pods \"x\" is forbidden: ".to_owned();
    assert_eq!(answer.refused(), (403, why));
    api.put(&format!("{rbac}/roles/r"), role(json!(["get", "create"])))
        .await
        .ok();
    let answer = ask(&served, &jane, "GET", EXEC, &headers).await;
    assert!(matches!(answer, Answer::Agreed(..)));
}

#[tokio::test]
async fn without_a_connection_there_is_only_the_sentence() {
    let (server, _served) = served().await;
    let request = http::Request::post(format!("{PODS}/{EXEC}"))
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .extension(mullion_apiserver::admission::User::administrator())
        .body(axum::body::Body::empty())
        .unwrap();
    let answer = tower::ServiceExt::oneshot(server.router(), request).await;
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 501);
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status["message"], NO_COMMAND);
}
