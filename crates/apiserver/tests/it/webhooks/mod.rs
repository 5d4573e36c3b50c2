//! Admission webhooks, asked over TLS on loopback.

mod changes;
mod conditions;
mod failures;
mod places;
mod program;
mod returns;
mod reviews;

use serde_json::{Value, json};

use super::api::Api;
use mullion_apiserver::Config;

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SERVICES: &str = "/api/v1/namespaces/default/services";
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

/// What a webhook looks at: a kind, or a part of one, of an API group.
fn rules(operation: &str, group: &str, version: &str, resource: &str) -> Value {
    json!({"rules": [{"operations": [operation], "apiGroups": [group], "apiVersions": [version], "resources": [resource]}]})
}

/// Configures webhooks under the name of the first.
async fn configure(api: &Api, path: &str, hooks: &[Value]) {
    let kind = if path == MUTATING {
        "MutatingWebhookConfiguration"
    } else {
        "ValidatingWebhookConfiguration"
    };
    let metadata = json!({"name": hooks[0]["name"]});
    let configuration = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "webhooks": hooks});
    api.post(path, configuration).await.ok();
}

/// A webhook behind a port of the service `hook`.
fn by_service(program: &program::Program, port: u16) -> Value {
    json!({"service": {"name": "hook", "namespace": "default", "path": "/review", "port": port}, "caBundle": program.bundle()})
}

/// The account that pods run under unless they name one.
async fn account(api: &Api) {
    let account = json!({"metadata": {"name": "default"}});
    let path = "/api/v1/namespaces/default/serviceaccounts";
    api.post(path, account).await.ok();
}

/// A deployment `d`, where it is.
async fn deployment(api: &Api) -> String {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"a": "b"}},
                 "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    let path = "/apis/apps/v1/namespaces/default/deployments";
    api.post(path, deployment).await.ok();
    format!("{path}/d")
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}})
}
