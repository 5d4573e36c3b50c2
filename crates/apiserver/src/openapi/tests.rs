//! The documents say of every kind what clients look for.

use super::*;
use crate::{ApiServer, Config};

fn server() -> std::sync::Arc<ApiServer> {
    ApiServer::new(Config::default())
}

/// Every reference in a document leads to a component.
fn dangling(document: &Value, components: &Value) -> Vec<String> {
    match document {
        Value::Object(map) => {
            let own = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|reference| {
                    let name = reference.rsplit('/').next()?;
                    (!components[name].is_object()).then(|| reference.to_owned())
                });
            own.into_iter()
                .chain(map.values().flat_map(|value| dangling(value, components)))
                .collect()
        }
        Value::Array(items) => items
            .iter()
            .flat_map(|item| dangling(item, components))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn every_group_has_a_document_without_dangling_references() {
    let server = server();
    let table = server.registry().table();
    for row in table.rows() {
        let document = v3(&table, &*server, &row.resource.group, &row.resource.version).unwrap();
        let components = &document["components"]["schemas"];
        assert_eq!(
            dangling(&document, components),
            Vec::<String>::new(),
            "{}",
            row.resource.group
        );
    }
    let document = v2(&table, &*server);
    assert_eq!(
        dangling(&document, &document["definitions"]),
        Vec::<String>::new()
    );
}

#[test]
fn a_kind_is_tagged_and_its_patch_takes_field_validation() {
    let server = server();
    let document = v3(&server.registry().table(), &*server, "apps", "v1").unwrap();
    let kind = json!({"group": "apps", "version": "v1", "kind": "Deployment"});
    let schema = &document["components"]["schemas"]["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(schema["x-kubernetes-group-version-kind"], json!([kind]));
    let patch =
        &document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"], kind);
    let parameters: Vec<&str> = patch["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|parameter| parameter["name"].as_str())
        .collect();
    assert!(parameters.contains(&"fieldValidation") && parameters.contains(&"dryRun"));
    let containers = &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]
        ["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
}

#[test]
fn the_protobuf_document_holds_every_definition_by_name() {
    let server = server();
    let document = v2(&server.registry().table(), &*server);
    let bytes = v2_protobuf(&document);
    for name in document["definitions"].as_object().unwrap().keys() {
        assert!(
            bytes
                .windows(name.len())
                .any(|window| window == name.as_bytes()),
            "{name}"
        );
    }
}
