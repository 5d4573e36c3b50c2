//! Host ports of DaemonSets whose pods are not on a node yet are taken for plans.

use serde_json::{Value, json};

use crate::{pools, whole::Whole};

fn containers(host_port: Option<u16>) -> Value {
    let ports: Vec<Value> = host_port
        .into_iter()
        .map(|port| json!({ "containerPort": port, "hostPort": port }))
        .collect();
    json!([{ "name": "a", "image": "nginx", "ports": ports, "resources": { "requests": { "cpu": "100m" } } }])
}

/// Deploys a pod and returns the message of the first event about it that contains `text`.
async fn told_to(whole: &Whole, app: &str, host_port: Option<u16>, text: &str) -> String {
    let spec = json!({ "nodeSelector": { "team": "web" }, "containers": containers(host_port) });
    whole.deployment(app, 1, spec).await;
    for _ in 0..60 {
        whole.pass(1).await;
        for pod in whole.pods(app) {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let events = whole.events(&name).await;
            let found = events.into_iter().find(|(_, said)| said.contains(text));
            if let Some((_, said)) = found {
                return said;
            }
        }
    }
    panic!("no event about {app} says {text:?}");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_holds_its_port_on_a_registered_node_on_which_it_does_not_run_yet() {
    let whole = Whole::start().await;
    whole
        .create(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "exporter" },
            "spec": {
                "selector": { "matchLabels": { "app": "exporter" } },
                "template": {
                    "metadata": { "labels": { "app": "exporter" } },
                    "spec": { "nodeSelector": { "team": "web" }, "containers": containers(Some(9100)) }
                }
            }
        }))
        .await;
    // Nothing takes this taint away, so the node stays without pods.
    let starting =
        json!({ "startupTaints": [{ "key": "example.com/starting", "effect": "NoSchedule" }] });
    pools::linux(&whole, &["m5.large"], &["on-demand"], starting).await;
    let planned = "Pod should schedule on: nodeclaim/";
    let first = told_to(&whole, "first", None, planned).await;
    whole
        .until("the node is registered", || whole.bought().pop())
        .await;
    let other = told_to(&whole, "other", Some(9200), planned).await;
    assert!(other.starts_with(&first), "{other} is not on {first}");
    let refused = told_to(&whole, "same", Some(9100), "Failed to schedule pod").await;
    assert!(refused.contains("host port 9100 is taken"), "{refused}");
    assert_eq!(whole.claims().len(), 1);
}
