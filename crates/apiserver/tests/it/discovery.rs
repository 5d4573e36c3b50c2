//! The plain lists of discovery as they stand on the wire, and the order of groups.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

async fn text(config: Config, path: &str) -> String {
    let (status, body) = Api::new(config).bytes(path, "application/json").await;
    assert_eq!(status, 200, "{path}");
    String::from_utf8(body.to_vec()).expect("JSON is text")
}

#[tokio::test]
async fn fields_stand_in_the_order_of_go() {
    let list = text(Config::default(), "/apis/apps/v1").await;
    let verbs = r#"["create","delete","deletecollection","get","list","patch","update","watch"]"#;
    let deployments = format!(
        r#"{{"name":"deployments","singularName":"deployment","namespaced":true,"kind":"Deployment","verbs":{verbs},"shortNames":["deploy"],"categories":["all"],"storageVersionHash":"8aSe+NMegvE="}}"#
    );
    assert!(
        list.starts_with(r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"apps/v1","resources":[{"name":"#),
        "{list}"
    );
    assert!(list.contains(&deployments), "{list}");
    let scale = r#"{"name":"deployments/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get","patch","update"]}"#;
    assert!(list.contains(scale), "{list}");
    assert_eq!(
        text(Config::default(), "/apis/policy").await,
        r#"{"kind":"APIGroup","apiVersion":"v1","name":"policy","versions":[{"groupVersion":"policy/v1","version":"v1"}],"preferredVersion":{"groupVersion":"policy/v1","version":"v1"}}"#
    );
    let groups = text(Config::default(), "/apis").await;
    assert!(
        groups.starts_with(r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apiregistration.k8s.io","versions":"#),
        "{groups}"
    );
}

#[tokio::test]
async fn clients_are_told_the_advertised_address() {
    let advertised = Config {
        advertise: vec!["10.0.0.7".parse().expect("an address")],
        ..Config::default()
    };
    assert_eq!(
        text(advertised, "/api").await,
        r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{"clientCIDR":"0.0.0.0/0","serverAddress":"10.0.0.7:6443"}]}"#
    );
}

/// The hash that discovery tells of a resource; null where there is none.
async fn hash(api: &Api, list: &str, name: &str) -> Value {
    let list = api.get(list).await.ok();
    let mut resources = list["resources"].as_array().into_iter().flatten();
    let resource = resources.find(|resource| resource["name"] == name);
    resource.expect("it is served")["storageVersionHash"].clone()
}

#[tokio::test]
async fn what_is_stored_has_a_hash_of_its_stored_version() {
    let api = Api::new(Config::default());
    for (list, name, wanted) in [
        ("/api/v1", "pods", json!("xPOwRZ+Yhw8=")),
        ("/api/v1", "configmaps", json!("qFsyl6wFWjQ=")),
        ("/api/v1", "events", json!("r2yiGXH7wu8=")),
        ("/apis/events.k8s.io/v1", "events", json!("r2yiGXH7wu8=")),
        (
            "/apis/autoscaling/v1",
            "horizontalpodautoscalers",
            json!("qwQve8ut294="),
        ),
        ("/api/v1", "pods/status", Value::Null),
        ("/api/v1", "bindings", Value::Null),
        ("/api/v1", "componentstatuses", Value::Null),
    ] {
        assert_eq!(hash(&api, list, name).await, wanted, "{list} {name}");
    }
}

fn definition(group: &str, version: &str) -> Value {
    json!({"metadata": {"name": format!("things.{group}")}, "spec": {
        "group": group, "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
    }})
}

#[tokio::test(start_paused = true)]
async fn groups_of_definitions_follow_by_their_apiservices_in_the_plain_list() {
    let api = Api::new(Config::default());
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let all = [
        ("a.example.org", "v1beta1"),
        ("oa.example.com", "v1"),
        ("b.example.org", "v1"),
    ];
    for (group, version) in all {
        api.post(definitions, definition(group, version)).await.ok();
        api.until(&format!("/apis/{group}"), |found| found["name"] == group)
            .await;
    }
    let groups = api.get("/apis").await.ok();
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|group| group["name"].as_str())
        .filter(|name| name.contains("example"))
        .collect();
    assert_eq!(names, ["b.example.org", "oa.example.com", "a.example.org"]);
    let list = api.get("/apis/b.example.org/v1").await.ok();
    assert_eq!(
        list["resources"][0]["verbs"],
        json!([
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "create",
            "update",
            "watch"
        ])
    );
    // The first eight bytes of SHA-256 of b.example.org/v1/Thing.
    assert_eq!(list["resources"][0]["storageVersionHash"], "vMxuOaDTO50=");
}
