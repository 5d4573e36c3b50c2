//! Traces as a collector receives them from the program, and what happens without the collector.

use std::{
    net::SocketAddr,
    sync::mpsc::{self, Receiver},
    time::Instant,
};

use axum::{Json, Router, routing::post};
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Runtime};

use crate::cluster::{Cluster, PATIENCE};

/// Applied as `kubectl run --overrides`: the cluster's first nodes have no such label.
const BOUGHT: &str =
    r#"--overrides={"spec": {"nodeSelector": {"karpenter.sh/nodepool": "linux"}}}"#;

/// A collector on loopback that speaks OTLP over HTTP.
struct Collector {
    _runtime: Runtime,
    address: SocketAddr,
    requests: Receiver<Value>,
}

impl Collector {
    fn start() -> Collector {
        let runtime = Runtime::new().expect("a runtime");
        let (sender, requests) = mpsc::channel();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("there is a free port");
        let address = listener.local_addr().expect("it listens");
        let answer = move |Json(body): Json<Value>| {
            // The test may have seen enough.
            let _ = sender.send(body);
            async { Json(serde_json::json!({})) }
        };
        let routes = Router::new().route("/v1/traces", post(answer));
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Collector {
            _runtime: runtime,
            address,
            requests,
        }
    }

    /// Returns the spans of a trace once all these names are among them.
    fn until(&self, trace: &str, names: &[&str]) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        let mut spans: Vec<Value> = Vec::new();
        while !names
            .iter()
            .all(|name| spans.iter().any(|span| span["name"] == *name))
        {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = self.requests.recv_timeout(left);
            let request = request.unwrap_or_else(|_| panic!("there are only {spans:#?}"));
            let resource = &request["resourceSpans"][0];
            assert_eq!(
                text(&resource["resource"]["attributes"], "service.name"),
                "demo"
            );
            let all = resource["scopeSpans"][0]["spans"].as_array();
            let all = all.expect("a list").iter();
            spans.extend(all.filter(|span| span["traceId"] == trace).cloned());
        }
        spans
    }
}

/// The value of an attribute that is a text.
fn text<'a>(attributes: &'a Value, key: &str) -> &'a str {
    let mut all = attributes.as_array().expect("a list").iter();
    let found = all.find(|attribute| attribute["key"] == key);
    let text = found.and_then(|found| found["value"]["stringValue"].as_str());
    text.unwrap_or_else(|| panic!("there is no {key} in {attributes:#}"))
}

#[test]
fn a_collector_receives_the_way_of_a_pod_to_its_node() {
    let collector = Collector::start();
    let endpoint = format!("--otlp-endpoint=http://{}", collector.address);
    let cluster = Cluster::start(&["--speed", "max", &endpoint, "--otel-service-name=demo"]);
    cluster.kubectl(&["run", "web", "--image=nginx:1.26", BOUGHT]);
    cluster.kubectl(&["wait", "pod/web", "--for=condition=Ready", "--timeout=110s"]);
    let pod = cluster.get(&["pod", "web"]);
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let steps = [
        "pending",
        "schedule",
        "plan",
        "create nodeclaim",
        "nodeclaim",
        "launch",
        "register",
        "initialize",
        "bind",
        "pod",
    ];
    let spans = collector.until(&uid.replace('-', ""), &steps);
    let named = |name: &str| {
        let mut named = spans.iter().filter(|span| span["name"] == name);
        named.next().unwrap_or_else(|| panic!("there is no {name}"))
    };
    let root = named("pod");
    assert_eq!(root.get("parentSpanId"), None);
    let node = pod["spec"]["nodeName"].as_str().expect("it has a node");
    assert_eq!(text(&root["attributes"], "k8s.node.name"), node);
    for name in ["pending", "schedule", "plan", "nodeclaim", "bind"] {
        assert_eq!(named(name)["parentSpanId"], root["spanId"], "{name}");
    }
    for name in ["launch", "register", "initialize"] {
        assert_eq!(named(name)["parentSpanId"], named("nodeclaim")["spanId"]);
    }
    let plan = named("plan");
    assert_eq!(named("create nodeclaim")["parentSpanId"], plan["spanId"]);
    assert_eq!(text(&plan["attributes"], "mullion.nodepool"), "linux");
    let labels = cluster.get(&["node", node]);
    let labels = &labels["metadata"]["labels"];
    let launch = &named("launch")["attributes"];
    for (key, label) in [
        ("host.type", "node.kubernetes.io/instance-type"),
        ("cloud.availability_zone", "topology.kubernetes.io/zone"),
    ] {
        assert_eq!(text(launch, key), labels[label]);
    }
}

#[test]
fn without_the_collector_everything_goes_on_and_the_log_says_so_once() {
    // A port on which nobody listens any more.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = free.local_addr().expect("it listens");
    drop(free);
    let endpoint = format!("--otlp-endpoint=http://{address}");
    let cluster = Cluster::start(&["--speed", "max", &endpoint]);
    for pod in ["one", "two"] {
        cluster.kubectl(&["run", pod, "--image=nginx:1.26", BOUGHT]);
        let ready = ["wait", &format!("pod/{pod}"), "--for=condition=Ready"];
        cluster.kubectl(&[&ready[..], &["--timeout=110s"]].concat());
    }
    let log = cluster.stderr();
    let said = format!("http://{address}/v1/traces does not take spans of traces");
    assert_eq!(log.matches(&said).count(), 1, "{log}");
}
