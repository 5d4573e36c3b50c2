//! What a client cannot do to the server: ask for too much, make it panic, talk to it in another's name, or find secrets in its log.

use std::{
    io,
    sync::{Arc, Mutex},
};

use mullion_apiserver::{
    ApiServer, Config, Limits, StaticTokens,
    admission::{Action, Plugin},
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    api::Api,
    tls::{Client, OVER_1, OVER_2, Served, empty, get},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A request of the administrator's over a socket: the answer's status, its Retry-After and its text or message.
async fn send(
    served: &Served,
    protocol: &[u8],
    request: http::Request<Vec<u8>>,
) -> (u16, Option<String>, String) {
    let answer = served.send(Some(&served.admin), protocol, request).await;
    let retry = answer.headers.get("retry-after");
    let retry = retry.map(|value| value.to_str().unwrap().to_owned());
    let message = serde_json::from_str::<Value>(&answer.text)
        .ok()
        .and_then(|status| Some(status["message"].as_str()?.to_owned()));
    (answer.status, retry, message.unwrap_or(answer.text))
}

#[tokio::test]
async fn what_is_too_big_is_refused_in_both_protocols() {
    let server = ApiServer::new(Config::default());
    let served = Served::new(&server).await;
    for protocol in [OVER_1, OVER_2] {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": {"a": "x".repeat(3 << 20)}});
        let create = http::Request::post(format!("https://localhost{MAPS}"))
            .header("host", "localhost")
            .body(map.to_string().into_bytes())
            .unwrap();
        let (status, _, message) = send(&served, protocol, create).await;
        let limit = "Request entity too large: limit is 3145728";
        assert_eq!((status, &*message), (413, limit));
        // Go takes a mebibyte of headers; a long token or many groups to impersonate are no reason to refuse a request.
        let long = get(MAPS).header("x-long", "x".repeat(100_000));
        assert_eq!(send(&served, protocol, empty(long)).await.0, 200);
        let mut longer = get(MAPS);
        for index in 0..12 {
            longer = longer.header(format!("x-long-{index}"), "x".repeat(100_000));
        }
        assert_eq!(send(&served, protocol, empty(longer)).await.0, 431);
    }
    let mut stream = served.connect(Some(&served.admin), OVER_1).await;
    let long = format!(
        "GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "x".repeat(70_000)
    );
    stream.write_all(long.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 414");
}

#[tokio::test]
async fn more_requests_than_are_served_at_a_time_are_told_to_come_back() {
    let nothing = Config {
        limits: Limits {
            requests: 0,
            waiting: 0,
            streams_per_user: 1,
            ..Limits::default()
        },
        tokens: StaticTokens::from_csv("janes-token,jane,1\n").unwrap(),
        ..Config::default()
    };
    let server = ApiServer::new(nothing);
    let served = Served::new(&server).await;
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "jane"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    Api::of(&server).post(bindings, binding).await.ok();
    let as_jane = async |path: &str| {
        let request = get(path).header("authorization", "Bearer janes-token");
        let answer = served.send(None, OVER_2, empty(request)).await;
        let retry = answer.headers.get("retry-after").cloned();
        (answer.status, retry, answer.text)
    };
    let sentence = "Too many requests, please try again later.\n".to_owned();
    let refused = (429, Some(http::HeaderValue::from_static("1")), sentence);
    assert_eq!(as_jane(MAPS).await, refused);
    assert_eq!(as_jane("/api").await, refused);
    assert_eq!(as_jane("/readyz").await.0, 200);
    // Administrators get through.
    assert_eq!(send(&served, OVER_2, empty(get(MAPS))).await.0, 200);
    assert_eq!(send(&served, OVER_2, empty(get("/api"))).await.0, 200);
    // A watch does not wait for a turn, and each user has so many.
    let stream = served.connect(Some(&served.admin), OVER_2).await;
    let mut client = Client::new(stream, OVER_2).await;
    let watch = || empty(get(&format!("{MAPS}?watch=1")));
    let first = client.send(watch()).await;
    assert_eq!(first.status(), 200);
    assert_eq!(client.send(watch()).await.status(), 429);
    drop(first);
    let again = async { while client.send(watch()).await.status() != 200 {} };
    tokio::time::timeout(std::time::Duration::from_secs(30), again)
        .await
        .expect("the first no longer counts");
    // Clients in this process are not limited.
    Api::of(&server).get(MAPS).await.ok();
}

#[tokio::test]
async fn requests_are_counted_by_what_they_ask_for() {
    let server = ApiServer::new(Config::default());
    let served = Served::new(&server).await;
    for _ in 0..2 {
        send(&served, OVER_2, empty(get(MAPS))).await;
    }
    send(&served, OVER_1, empty(get(&format!("{MAPS}/none")))).await;
    // What nobody serves has no series of its own: clients cannot fill the memory with names.
    send(
        &served,
        OVER_1,
        empty(get(&format!("{MAPS}/none/nonsense"))),
    )
    .await;
    let (status, _, text) = send(&served, OVER_2, empty(get("/metrics"))).await;
    assert_eq!(status, 200);
    let of = |verb: &str, scope: &str| {
        format!(
            r#"component="apiserver",dry_run="",group="",resource="configmaps",scope="{scope}",subresource="",verb="{verb}",version="v1""#
        )
    };
    let (lists, gets) = (of("LIST", "namespace"), of("GET", "resource"));
    for line in [
        format!(r#"apiserver_request_total{{code="200",{lists}}} 2"#),
        format!(r#"apiserver_request_total{{code="404",{gets}}} 2"#),
        format!("apiserver_request_duration_seconds_count{{{lists}}} 2"),
        format!(r#"apiserver_request_duration_seconds_bucket{{{lists},le="+Inf"}} 2"#),
        r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#.to_owned(),
        r#"apiserver_storage_objects{resource="namespaces"} 4"#.to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    assert!(!text.contains("nonsense"));
}

/// Panics where it is asked about an object of some kind.
struct Panics;

impl Plugin for Panics {
    fn name(&self) -> &'static str {
        "Panics"
    }

    fn handles(&self, action: &Action<'_>) -> bool {
        assert!(!action.is("", "secrets"), "a bug");
        false
    }
}

#[tokio::test]
async fn a_panic_is_a_500_and_the_server_lives_on() {
    let directory = tempfile::tempdir().unwrap();
    let config = || Config {
        admission: vec![Arc::new(Panics)],
        ..Config::default()
    };
    let durable = ApiServer::open(config(), directory.path()).await.unwrap();
    for server in [ApiServer::new(config()), durable] {
        let api = Api::of(&server);
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}});
        let refusal = api
            .post("/api/v1/namespaces/default/secrets", secret)
            .await
            .refused(500);
        assert_eq!(
            refusal,
            "This request caused apiserver to panic. Look in the logs for details."
        );
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        api.post(MAPS, map).await.ok();
        server.close().await;
    }
}

#[tokio::test]
async fn an_object_that_etcd_would_not_take_is_refused_when_it_is_created_and_when_it_grows() {
    const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
    const TOO_LARGE: &str = "etcdserver: request is too large";
    let api = Api::new(Config::default());
    let revision = |name: &str, len: usize| json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name}, "revision": 1, "data": {"a": "x".repeat(len)}});
    let fits = 1_570_000;
    api.post(REVISIONS, revision("large", fits)).await.ok();
    let larger = revision("larger", 1_573_000);
    let answer = api.post(REVISIONS, larger).await;
    assert_eq!(answer.body["reason"], Value::Null);
    assert_eq!(answer.refused(500), TOO_LARGE);
    // What etcd's client does not even send.
    let refusal = api.post(REVISIONS, revision("larger", 2_200_000)).await;
    let refusal = refusal.refused(500);
    let start =
        "rpc error: code = ResourceExhausted desc = trying to send message larger than max (22";
    assert!(
        refusal.starts_with(start) && refusal.ends_with(" vs. 2097152)"),
        "{refusal}"
    );
    let grown = json!({"metadata": {"annotations": {"a": "x".repeat(10_000)}}});
    let answer = api.merge(&format!("{REVISIONS}/large"), grown).await;
    assert_eq!(answer.refused(500), TOO_LARGE);
    api.get(&format!("{REVISIONS}/larger")).await.refused(404);

    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "xs.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}]}});
    api.post(DEFINITIONS, definition).await.ok();
    let objects = "/apis/example.com/v1/namespaces/default/xs";
    let custom = |name: &str, text: String| json!({"apiVersion": "example.com/v1", "kind": "X", "metadata": {"name": name}, "spec": {"a": text}});
    api.until(objects, |list| list["kind"] == "XList").await;
    api.post(objects, custom("plain", "x".repeat(fits)))
        .await
        .ok();
    // Go writes six bytes of it.
    let answer = api
        .post(objects, custom("escaped", "<".repeat(fits / 5)))
        .await;
    assert_eq!(answer.refused(500), TOO_LARGE);
}

#[tokio::test]
async fn an_object_that_would_be_large_once_it_is_read_is_refused_before_it_is() {
    const TOO_LARGE: &str = "etcdserver: request is too large";
    const PODS: &str = "/api/v1/namespaces/default/pods?dryRun=All";
    let api = Api::new(Config::default());
    let containers = vec!["{}"; 700_000].join(",");
    let pod = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#
    );
    let answer = api.send_text("POST", PODS, "application/json", &pod).await;
    assert_eq!(answer.refused(500), TOO_LARGE);
    // Field 2 of a pod's message is its spec, field 2 of that its containers.
    let containers = [0x12, 0].repeat(700_000);
    let kind = mullion_schema::Type::builtin("api.core.v1.PodSpec").expect("built in");
    let counted = allocation_counter::measure(|| {
        let read = mullion_schema::proto::decode_message(&kind, &containers);
        assert!(
            read.expect_err("there are too many")
                .to_string()
                .contains(TOO_LARGE)
        );
    });
    assert!(counted.bytes_max < 400 << 20, "{}", counted.bytes_max);

    const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let item = json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(100_000)}}});
    let list = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"items": {"type": "array", "items": item}}}}});
    let definition = json!({"metadata": {"name": "xs.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": list}}]}});
    api.post(DEFINITIONS, definition).await.ok();
    let objects = "/apis/example.com/v1/namespaces/default/xs";
    api.until(objects, |list| list["kind"] == "XList").await;
    let custom = |name: &str, count: usize| json!({"apiVersion": "example.com/v1", "kind": "X", "metadata": {"name": name}, "spec": {"items": vec![json!({}); count]}});
    api.post(objects, custom("few", 3)).await.ok();
    let answer = api.post(objects, custom("many", 27_000)).await;
    assert_eq!(answer.refused(500), TOO_LARGE);
}

#[tokio::test]
async fn foreign_names_and_pages_are_refused() {
    let server = ApiServer::new(Config::default());
    let served = Served::new(&server).await;
    for protocol in [OVER_1, OVER_2] {
        let rebound = http::Request::get(format!("https://evil.test{MAPS}"));
        let rebound = if protocol == OVER_1 {
            http::Request::get(MAPS).header("host", "evil.test")
        } else {
            rebound
        };
        let (status, _, message) = send(&served, protocol, empty(rebound)).await;
        assert_eq!(status, 403);
        assert!(message.starts_with("forbidden: \"evil.test\" is not a name of this server"));
        let page = get(MAPS).header("origin", "https://evil.test");
        let (status, _, message) = send(&served, protocol, empty(page)).await;
        assert_eq!(status, 403);
        assert_eq!(
            message,
            "forbidden: pages of \"https://evil.test\" may not send requests to this server"
        );
        // One reader takes these for localhost, another for evil.test.
        for origin in [
            "http://localhost:x.evil.test",
            "http://localhost:80@evil.test",
        ] {
            let page = get(MAPS).header("origin", origin);
            let (status, _, message) = send(&served, protocol, empty(page)).await;
            assert_eq!(status, 403, "{message}");
        }
        let pages = get(MAPS).header("origin", "http://localhost");
        let pages = pages.header("origin", "https://evil.test");
        let (status, _, message) = send(&served, protocol, empty(pages)).await;
        let one = "forbidden: a request has one Origin header at most";
        assert_eq!((status, &*message), (403, one));
        let hosts = get(MAPS).header("host", "localhost");
        let (status, _, message) = send(&served, protocol, empty(hosts)).await;
        assert_eq!((status, &*message), (400, "too many Host headers"));
        let mut hidden = empty(get(MAPS));
        let host = http::HeaderValue::from_static("localhost:80@evil.test");
        hidden.headers_mut().insert("host", host);
        let (status, _, message) = send(&served, protocol, hidden).await;
        assert_eq!((status, &*message), (400, "malformed Host header"));
        // What a browser sends to `kubectl proxy`.
        let proxied = get(MAPS).header("origin", "http://localhost:8001");
        assert_eq!(send(&served, protocol, empty(proxied)).await.0, 200);
    }
}

#[tokio::test]
async fn what_is_nested_too_deep_is_refused() {
    let api = Api::new(Config::default());
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    // As text: building such a value would be deep already.
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    for (levels, why) in [
        (99, "deep"),
        (200, "exceeded max depth"),
        (100_000, "exceeded max depth"),
    ] {
        let body = format!(
            r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"r"}},"revision":1,"data":{{"a":{}}}}}"#,
            nested(levels)
        );
        let answer = api
            .send_text("POST", revisions, "application/json", &body)
            .await;
        let message = answer.refused(400);
        assert!(message.contains(why), "{message}");
        let answer = api
            .send_text("POST", revisions, "application/yaml", &body)
            .await;
        answer.refused(400);
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
    api.post(MAPS, map).await.ok();
    let place = format!("{MAPS}/m");
    let json_patch = "application/json-patch+json";
    // Things are moved into each other.
    let mut moves = vec![json!({"op": "add", "path": "/a", "value": {}})];
    for index in 0..4000 {
        let (from, to) = match index % 2 {
            0 => ("/a", "/b"),
            _ => ("/b", "/a"),
        };
        moves.push(json!({"op": "add", "path": to, "value": {}}));
        moves.push(json!({"op": "move", "from": from, "path": format!("{to}/x")}));
    }
    let moves = Value::Array(moves).to_string();
    api.send_text("PATCH", &place, json_patch, &moves)
        .await
        .refused(422);
    let path = "/a".repeat(100_000);
    let test = json!([{"op": "test", "path": path, "value": null}, {"op": "add", "path": "/data", "value": 1}]);
    api.send_text("PATCH", &place, json_patch, &test.to_string())
        .await
        .refused(422);
    // A schema in protobuf, in a schema, in a schema ...: the field "not" of JSONSchemaProps, 40_000 times.
    let mut message = Vec::new();
    for _ in 0..40_000 {
        let mut outer = vec![0xe2, 0x01];
        let mut length = message.len();
        loop {
            let low = (length & 0x7f) as u8;
            length >>= 7;
            if length == 0 {
                outer.push(low);
                break;
            }
            outer.push(low | 0x80);
        }
        if message.len() > 100_000 {
            break;
        }
        outer.extend(&message);
        message = outer;
    }
    let kind = mullion_schema::Type::builtin(
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
    );
    let read = mullion_schema::proto::decode_message(&kind.unwrap(), &message);
    assert!(read.unwrap_err().to_string().contains("deep"));
}

/// Everything that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_gets_into_the_log() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // This test's tasks all run on this thread.
    let _logging = tracing::subscriber::set_default(subscriber);
    let tokens = "s3cret-token,jane,1,\"system:masters\"\n";
    let config = Config {
        tokens: StaticTokens::from_csv(tokens).unwrap(),
        ..Config::default()
    };
    let server = ApiServer::new(config);
    let served = Served::new(&server).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"password": "s3cret-data"}});
    for (token, status) in [("s3cret-token", 201), ("s3cret-wrong", 401)] {
        for protocol in [OVER_1, OVER_2] {
            let name = format!("s{}", protocol.len());
            let mut secret = secret.clone();
            secret["metadata"]["name"] = name.into();
            let request =
                http::Request::post("https://localhost/api/v1/namespaces/default/secrets")
                    .header("host", "localhost")
                    .header("authorization", format!("Bearer {token}"))
                    .body(secret.to_string().into_bytes())
                    .unwrap();
            let answer = served.send(None, protocol, request).await;
            assert_eq!(answer.status, status);
        }
    }
    let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(!logged.is_empty(), "something is logged at that level");
    let leaks: Vec<&str> = logged
        .lines()
        .filter(|line| line.contains("s3cret"))
        .collect();
    assert_eq!(leaks, Vec::<&str>::new());
}
