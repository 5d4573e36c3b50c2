//! What types say against the expressions of ValidatingAdmissionPolicies, in their status.

use mullion_apiserver::{ApiServer, Config};
use serde_json::{Value, json};

use crate::api::Api;

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";

fn rule(group: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": resources})
}

fn policy(rules: Value, validations: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": rules}, "validations": validations}})
}

/// A server whose policies are looked at.
fn checked() -> Api {
    let server = ApiServer::new(Config::default());
    tokio::spawn(server.check_policies());
    Api::of(&server)
}

async fn said(api: &Api, generation: u64) -> Value {
    let path = format!("{POLICIES}/p");
    let told = |policy: &Value| policy["status"]["observedGeneration"] == generation;
    let mut policy = api.until(&path, told).await;
    policy["status"]["typeChecking"].take()
}

#[tokio::test(start_paused = true)]
async fn a_field_that_no_type_has_is_named_for_every_kind() {
    let api = checked();
    let validations = json!([
        {"expression": "object.spec.replicas > 1", "messageExpression": "string(object.replicas)"},
        {"expression": "object.replicas > 1"},
        {"expression": "object.metadata.labels['a'] == object.spec.replicas"},
    ]);
    let rules = json!([rule(
        "apps",
        &["replicasets", "deployments", "deployments/scale"]
    )]);
    api.post(POLICIES, policy(rules.clone(), validations))
        .await
        .ok();
    let told = said(&api, 1).await;
    let warnings = told["expressionWarnings"].as_array().expect("warnings");
    let places: Vec<&str> = warnings
        .iter()
        .filter_map(|told| told["fieldRef"].as_str())
        .collect();
    assert_eq!(
        places,
        [
            "spec.validations[0].messageExpression",
            "spec.validations[1].expression",
            "spec.validations[2].expression"
        ]
    );
    assert_eq!(
        warnings[1]["warning"],
        "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n\n\
         apps/v1, Kind=ReplicaSet: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n"
    );
    let text = warnings[2]["warning"].as_str().expect("a text");
    assert!(
        text.contains("found no matching overload for '_==_' applied to '(string, int)'"),
        "{text}"
    );
    let owners = api.get(&format!("{POLICIES}/p")).await.ok();
    let owners = owners["metadata"]["managedFields"]
        .as_array()
        .expect("owners")
        .clone();
    let status = owners
        .iter()
        .find(|owner| owner["subresource"] == "status")
        .expect("somebody owns it");
    assert_eq!(status["manager"], "validatingadmissionpolicy-status");
    let good = json!([{"expression": "object.spec.replicas > 1"}]);
    api.merge(
        &format!("{POLICIES}/p"),
        json!({"spec": {"validations": good}}),
    )
    .await
    .ok();
    assert_eq!(said(&api, 2).await.get("expressionWarnings"), None);
}

#[tokio::test(start_paused = true)]
async fn variables_parameters_and_custom_resources_have_types_too() {
    let api = checked();
    let schema = json!({"type": "object", "properties": {"limit": {"type": "integer"}, "size": {"x-kubernetes-int-or-string": true}}});
    let definition = json!({"metadata": {"name": "limits.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "limits", "kind": "Limit"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition).await.ok();
    api.until("/apis/example.com/v1/limits", |list| {
        list["items"].is_array()
    })
    .await;
    let mut wanted = policy(
        json!([rule("example.com", &["limits"])]),
        json!([
            {"expression": "object.limit < params.limit && object.size == 3 && object.metadata.generation > 0"},
            {"expression": "variables.name == 3"},
            {"expression": "params.most > 3"},
        ]),
    );
    wanted["spec"]["paramKind"] = json!({"apiVersion": "example.com/v1", "kind": "Limit"});
    wanted["spec"]["variables"] = json!([{"name": "name", "expression": "object.metadata.name"}]);
    api.post(POLICIES, wanted).await.ok();
    let told = said(&api, 1).await;
    let warnings = told["expressionWarnings"].as_array().expect("warnings");
    let texts: Vec<&str> = warnings
        .iter()
        .filter_map(|told| told["warning"].as_str())
        .collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(texts[0].contains("found no matching overload for '_==_' applied to '(string, int)'"));
    assert!(
        texts[1]
            .starts_with("example.com/v1, Kind=Limit: ERROR: <input>:1:7: undefined field 'most'")
    );
}

#[tokio::test(start_paused = true)]
async fn kinds_behind_a_star_are_not_looked_at() {
    let api = checked();
    let validations = json!([{"expression": "object.nothing == 1"}]);
    let rules = json!([rule("*", &["pods"]), rule("apps", &["*"])]);
    api.post(POLICIES, policy(rules, validations)).await.ok();
    assert_eq!(said(&api, 1).await, json!({}));
}
