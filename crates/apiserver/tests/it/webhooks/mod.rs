//! Admission webhooks, asked over TLS on loopback.

mod changes;
mod conditions;
mod failures;
mod places;
mod program;
mod reviews;

use serde_json::{Value, json};

use super::api::Api;
use mullion_apiserver::Config;

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn api() -> Api {
    Api::new(Config::default())
}

/// A webhook for writes of some resources of the core group.
fn hook(name: &str, client: Value, resources: &[&str]) -> Value {
    json!({
        "name": format!("{name}.example.com"), "clientConfig": client, "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "rules": [{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"], "resources": resources}],
    })
}

/// That webhook with other fields.
fn with(mut hook: Value, fields: Value) -> Value {
    for (field, value) in fields.as_object().unwrap() {
        hook[field] = value.clone();
    }
    hook
}

async fn configure(api: &Api, path: &str, name: &str, hooks: &[Value]) {
    let kind = if path == MUTATING {
        "MutatingWebhookConfiguration"
    } else {
        "ValidatingWebhookConfiguration"
    };
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": hooks});
    let answer = api.post(path, configuration).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}
