//! Makes the objects of the load: a small ConfigMap, and a pod as created by the Deployment of a web server (2.1 kB when stored).

use serde_json::{Value, json};

use super::client::Request;

pub(super) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

pub(super) fn config_map(index: usize) -> Request {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": format!("c{index}"), "labels": {"app": "bench"}},
        "data": {"key": "value", "index": index.to_string()},
    });
    post(CONFIG_MAPS, &object)
}

pub(super) fn pod(index: usize) -> Request {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("p{index}"), "labels": {"app": "web", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c6f5",
                                 "uid": "4f5f4f0e-7c1d-4d0a-9a52-3a1c7a1f8a11", "controller": true, "blockOwnerDeletion": true}],
        },
        "spec": {"containers": [{
            "name": "web", "image": "nginx:1.27",
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        }]},
    });
    post(PODS, &object)
}

/// Returns the binding that a scheduler posts after it has chosen a node.
pub(super) fn binding(index: usize) -> Request {
    let object = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("p{index}")},
        "target": {"kind": "Node", "name": "n1"},
    });
    post(&format!("{PODS}/p{index}/binding"), &object)
}

/// Returns the Event that a scheduler posts about a binding.
pub(super) fn event(index: usize) -> Request {
    let object = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": format!("p{index}.1"), "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "default-scheduler", "reportingInstance": "default-scheduler-0",
        "action": "Binding", "reason": "Scheduled", "type": "Normal",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": format!("p{index}")},
        "note": format!("Successfully assigned default/p{index} to n1"),
    });
    post(EVENTS, &object)
}

fn post(path: &str, object: &Value) -> Request {
    Request::post(path, object.to_string().as_bytes())
}
