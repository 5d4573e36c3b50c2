//! `cargo bench -p mullion-apiserver`: what one request costs the server, on one core, without a network.
//!
//! Requests go through the router as the controllers' do. Before each measurement the allocations of one request are counted and printed
//! beside the time: they are the same on every machine. Requests that change a cluster run on fresh ones, so that no run is on a fuller
//! cluster than another.

#![expect(
    clippy::print_stdout,
    reason = "allocations are counted beside criterion, which has no column for them"
)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::body::Body;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{Method, Request};
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use mullion_apiserver::{ApiServer, Config, admission::User};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// How many pods a cluster holds when it is listed, and how many requests change one cluster.
const PODS: usize = 1000;
const PODS_PATH: &str = "/api/v1/namespaces/default/pods";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// One request.
struct Ask {
    method: Method,
    path: String,
    media: &'static str,
    body: Vec<u8>,
}

impl Ask {
    fn get(path: impl Into<String>) -> Self {
        Ask {
            method: Method::GET,
            path: path.into(),
            media: "application/json",
            body: Vec::new(),
        }
    }

    fn post(path: impl Into<String>, body: &Value) -> Self {
        Ask {
            method: Method::POST,
            body: body.to_string().into_bytes(),
            ..Ask::get(path)
        }
    }

    fn patch_status(pod: usize, body: &Value) -> Self {
        Ask {
            method: Method::PATCH,
            path: format!("{PODS_PATH}/p{pod}/status"),
            media: STRATEGIC,
            body: body.to_string().into_bytes(),
        }
    }

    fn request(&self) -> Request<Body> {
        Request::builder()
            .method(self.method.clone())
            .uri(&self.path)
            .header("content-type", self.media)
            .header("user-agent", "bench/1")
            .body(Body::from(self.body.clone()))
            .expect("the request is well formed")
    }
}

/// A cluster of its own.
struct Cluster {
    runtime: Runtime,
    router: axum::Router,
}

impl Cluster {
    /// With so many pods, bound if asked for.
    fn with_pods(pods: usize, bound: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime needs nothing but memory");
        // A clock that goes on by itself, so that times differ as they do in life.
        let began = Instant::now();
        let start = Timestamp::from_second(1_790_000_000).expect("it is in range");
        let config = Config {
            clock: Arc::new(move || {
                start + SignedDuration::try_from(began.elapsed()).unwrap_or_default()
            }),
            ..Config::default()
        };
        let user = User {
            name: "admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..User::default()
        };
        let router = runtime.block_on(async { ApiServer::new(config).router_as(user) });
        let cluster = Cluster { runtime, router };
        let account = json!({"metadata": {"name": "default"}});
        cluster.answer(&Ask::post(
            "/api/v1/namespaces/default/serviceaccounts",
            &account,
        ));
        for index in 0..pods {
            cluster.answer(&Ask::post(PODS_PATH, &pod(index)));
            if bound {
                cluster.answer(&bind(index));
            }
        }
        cluster
    }

    /// Sends a request and reads the whole answer.
    fn answer(&self, ask: &Ask) -> usize {
        self.runtime.block_on(async {
            let response = self
                .router
                .clone()
                .oneshot(ask.request())
                .await
                .expect("the router answers every request");
            let code = response.status();
            let body = response
                .into_body()
                .collect()
                .await
                .expect("bodies in memory are whole")
                .to_bytes();
            assert!(
                code.is_success(),
                "{code}: {}",
                String::from_utf8_lossy(&body)
            );
            body.len()
        })
    }
}

/// A pod as a Deployment of a web server makes it.
fn pod(index: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("p{index}"), "labels": {"app": "web", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c6f5", "uid": "4f5f4f0e-7c1d-4d0a-9a52-3a1c7a1f8a11",
                                 "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {
            "containers": [{
                "name": "web", "image": "nginx:1.25", "ports": [{"containerPort": 80}],
                "env": [{"name": "MODE", "value": "fast"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 80}},
            }],
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        },
    })
}

/// A service that gets an address, and the address its object.
fn service(index: usize) -> Ask {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{index}")},
                         "spec": {"selector": {"app": "web"}, "ports": [{"name": "web", "port": 80, "targetPort": 8080}]}});
    Ask::post("/api/v1/namespaces/default/services", &service)
}

fn bind(index: usize) -> Ask {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("p{index}")},
                         "target": {"kind": "Node", "name": "n1"}});
    Ask::post(format!("{PODS_PATH}/p{index}/binding"), &binding)
}

/// What a kubelet says of a running pod.
fn running(index: usize) -> Ask {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-09-21T14:13:20Z"});
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"].map(condition);
    let status = json!({"status": {
        "phase": "Running", "hostIP": "10.0.0.4", "podIP": "10.0.1.7", "podIPs": [{"ip": "10.0.1.7"}], "startTime": "2026-09-21T14:13:20Z",
        "conditions": conditions,
        "containerStatuses": [{"name": "web", "image": "nginx:1.25", "imageID": "docker.io/library/nginx@sha256:0", "containerID": "containerd://1",
                               "ready": true, "started": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-09-21T14:13:20Z"}}}],
    }});
    Ask::patch_status(index, &status)
}

/// Measures requests that leave the cluster as it is.
fn reading(criterion: &mut Criterion, name: &str, ask: &Ask) {
    let cluster = Cluster::with_pods(PODS, true);
    cluster.answer(ask);
    let counted = allocation_counter::measure(|| {
        cluster.answer(ask);
    });
    println!(
        "{name}: {} allocations, {} kB",
        counted.count_total,
        counted.bytes_total / 1024
    );
    criterion.bench_function(name, |bencher| bencher.iter(|| cluster.answer(ask)));
}

/// Measures requests of which each pod gets one.
fn writing(
    criterion: &mut Criterion,
    name: &str,
    prepared: impl Fn() -> Cluster,
    ask: impl Fn(usize) -> Ask,
) {
    let asks: Vec<Ask> = (0..PODS).map(ask).collect();
    let cluster = prepared();
    for ask in &asks[..PODS / 2] {
        cluster.answer(ask);
    }
    let counted = allocation_counter::measure(|| {
        cluster.answer(&asks[PODS / 2]);
    });
    println!(
        "{name}: {} allocations, {} kB",
        counted.count_total,
        counted.bytes_total / 1024
    );
    criterion.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut took = Duration::ZERO;
            let mut left = usize::try_from(iterations).unwrap_or(usize::MAX);
            while left > 0 {
                let cluster = prepared();
                let now = left.min(PODS);
                let began = Instant::now();
                for ask in &asks[..now] {
                    cluster.answer(ask);
                }
                took += began.elapsed();
                left -= now;
            }
            took
        });
    });
}

fn requests(criterion: &mut Criterion) {
    writing(
        criterion,
        "POST pod",
        || Cluster::with_pods(0, false),
        |index| Ask::post(PODS_PATH, &pod(index)),
    );
    writing(
        criterion,
        "POST service",
        || Cluster::with_pods(0, false),
        service,
    );
    writing(
        criterion,
        "POST binding",
        || Cluster::with_pods(PODS, false),
        bind,
    );
    writing(
        criterion,
        "PATCH status",
        || Cluster::with_pods(PODS, true),
        running,
    );
    reading(criterion, "GET pod", &Ask::get(format!("{PODS_PATH}/p500")));
    reading(criterion, "LIST 1000 pods", &Ask::get(PODS_PATH));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(4));
    targets = requests
}
criterion_main!(benches);
