//! What simulated kubelets say of the usage of their pods and nodes.

use k8s_openapi::api::core::v1::Pod;
use mullion_controllers::{
    kubelet::{pace::Pace, usage::Meter},
    metrics::PodMetrics,
    node_lifecycle, scheduler, workloads,
};
use serde_json::{Value, json};

use crate::world::World;

fn pod(name: &str, annotations: Value, resources: Value) -> Value {
    json!({
        "metadata": { "name": name, "annotations": annotations, "labels": { "app": name } },
        "spec": { "containers": [{ "name": "main", "image": "web:1", "resources": resources }] },
    })
}

/// Container, cores and memory, one after the other.
fn used(metrics: &PodMetrics) -> Vec<String> {
    let containers = metrics.containers.iter();
    containers
        .map(|one| {
            format!(
                "{} {} {}",
                one.name, one.usage["cpu"].0, one.usage["memory"].0
            )
        })
        .collect()
}

fn of(meter: &Meter, name: &str) -> Vec<String> {
    let found = meter.pods(Some("default"), |pod| {
        pod.metadata.name.as_deref() == Some(name)
    });
    found.first().map(used).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn containers_use_what_is_said_or_half_of_their_requests_and_never_more_than_their_limits() {
    let world = World::new(Pace::REAL).await;
    let node = world.linux_node().await;
    node_lifecycle::start(&world.context, None);
    scheduler::start(&world.context, true);
    let meter = Meter::new(&world.context, Pace::REAL);
    let requests = json!({ "requests": { "cpu": "300m", "memory": "100Mi" } });
    let limits = json!({ "limits": { "cpu": "500m", "memory": "1Gi" } });
    let pods = [
        pod("plain", json!({}), json!({})),
        pod("half", json!({}), requests),
        pod(
            "said",
            json!({ "mullion.dev/simulate-usage": "cpu=250m, memory=300Mi" }),
            json!({}),
        ),
        pod(
            "capped",
            json!({ "mullion.dev/simulate-usage.main": "cpu=2" }),
            limits,
        ),
        pod(
            "over",
            json!({ "mullion.dev/simulate-exit": "0" }),
            json!({}),
        ),
    ];
    for pod in pods {
        world.create::<Pod>(pod).await;
    }
    for name in ["plain", "half", "said", "capped"] {
        world.until_running(name).await;
    }
    // A rate takes two looks.
    assert_eq!(of(&meter, "said"), Vec::<String>::new());
    world.pass(60).await;
    assert_eq!(of(&meter, "plain"), ["main 5m 32768Ki"]);
    assert_eq!(of(&meter, "half"), ["main 150m 51200Ki"]);
    assert_eq!(of(&meter, "said"), ["main 250m 307200Ki"]);
    // A limit is a request where none is given.
    assert_eq!(of(&meter, "capped"), ["main 500m 524288Ki"]);
    assert_eq!(of(&meter, "over"), Vec::<String>::new());
    let all = meter.pods(None, |_| true);
    let names: Vec<_> = all
        .iter()
        .filter_map(|one| one.metadata.name.clone())
        .collect();
    assert_eq!(names, ["capped", "half", "plain", "said"]);
    assert_eq!(all[0].window.to_string(), "15s");
    let labels = all[0].metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.get("app").map(String::as_str), Some("capped"));
    let nodes = meter.nodes(|_| true);
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].metadata.name.as_deref(), Some(node.as_str()));
    // The machines of this world keep nothing for themselves.
    assert_eq!(nodes[0].usage["cpu"].0, "905m");
    assert_eq!(
        nodes[0].usage["memory"].0,
        format!("{}Ki", 32_768 + 51_200 + 307_200 + 524_288)
    );
}

#[tokio::test(start_paused = true)]
async fn a_workload_says_what_its_pods_use_together() {
    let world = World::new(Pace::REAL).await;
    world.linux_node().await;
    node_lifecycle::start(&world.context, None);
    scheduler::start(&world.context, true);
    workloads::start(&world.context);
    let meter = Meter::new(&world.context, Pace::REAL);
    let template = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
    });
    let web: k8s_openapi::api::apps::v1::Deployment = world
        .create(json!({
            "metadata": { "name": "web", "annotations": { "mullion.dev/simulate-usage": "cpu=900m shared, memory=64Mi" } },
            "spec": { "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": template },
        }))
        .await;
    assert!(web.metadata.uid.is_some());
    let shares = || -> Vec<Vec<String>> {
        meter
            .pods(Some("default"), |_| true)
            .iter()
            .map(used)
            .collect()
    };
    world
        .until("three pods are measured", || {
            (shares().len() == 3).then_some(())
        })
        .await;
    assert!(
        shares().iter().all(|one| one == &["main 300m 65536Ki"]),
        "{:?}",
        shares()
    );
}
