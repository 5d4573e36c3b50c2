//! Tests that documents describe every kind in the way that clients need.

use mullion_kinds::ServiceRange;
use mullion_schema::{Node, Type, TypeId, descriptions};
use mullion_store::{Store, Window};

use super::*;
use crate::{crd::kind::CustomResourceDefinition, registry::Registry};

/// Returns a registry of the built-in kinds.
fn registry() -> Registry {
    let store = Arc::new(Store::new(Window::default()));
    let builtins = mullion_kinds::builtins(ServiceRange::default(), CustomResourceDefinition);
    Registry::new(store, builtins, Vec::new())
}

/// Returns the parsed v3 document of a group and version.
fn v3_tree(registry: &Registry, group: &str, version: &str) -> Value {
    let document = v3(&registry.table(), registry, group, version).unwrap();
    serde_json::from_str(&document).unwrap()
}

/// Returns the parsed v2 document.
fn v2_tree(registry: &Registry) -> Value {
    serde_json::from_slice(&v2(&registry.table(), registry, None).json).unwrap()
}

/// Checks that every reference in a document leads to a component.
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
    let registry = registry();
    let table = registry.table();
    for row in table.rows() {
        let document = v3_tree(&registry, &row.resource.group, &row.resource.version);
        let components = &document["components"]["schemas"];
        assert_eq!(
            dangling(&document, components),
            Vec::<String>::new(),
            "{}",
            row.resource.group
        );
    }
    let document = v2_tree(&registry);
    assert_eq!(
        dangling(&document, &document["definitions"]),
        Vec::<String>::new()
    );
}

#[test]
fn a_kind_is_tagged_and_its_patch_takes_field_validation() {
    let registry = registry();
    let document = v3_tree(&registry, "apps", "v1");
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

/// Returns the components, and their properties, that have no description.
fn undescribed(components: &Value) -> Vec<String> {
    let silent = |schema: &Value| schema["description"].as_str().is_none_or(str::is_empty);
    let mut found = Vec::new();
    for (name, component) in components.as_object().unwrap() {
        if silent(component) {
            found.push(name.clone());
        }
        let properties = component["properties"].as_object().into_iter().flatten();
        found.extend(
            properties
                .filter(|(_, property)| silent(property))
                .map(|(field, _)| format!("{name} {field}")),
        );
    }
    found
}

#[test]
fn every_type_and_field_of_every_document_is_described() {
    let registry = registry();
    let table = registry.table();
    for row in table.rows() {
        let document = v3_tree(&registry, &row.resource.group, &row.resource.version);
        let components = &document["components"]["schemas"];
        assert_eq!(undescribed(components), Vec::<String>::new());
    }
    let document = v2_tree(&registry);
    assert_eq!(undescribed(&document["definitions"]), Vec::<String>::new());
}

#[test]
fn every_type_and_field_that_only_subresources_take_is_described() {
    fn visit(kind: &Type, id: TypeId, seen: &mut Vec<TypeId>) {
        if seen.contains(&id) {
            return;
        }
        seen.push(id);
        match kind.arena().node(id) {
            Node::Struct(fields) => {
                let name = &fields.name;
                assert!(descriptions::of_type(name).is_some(), "{name}");
                for field in &fields.fields {
                    let text = descriptions::of_field(name, &field.name);
                    assert!(text.is_some(), "{name} {}", &*field.name);
                    visit(kind, field.id, seen);
                }
            }
            Node::List(list) => visit(kind, list.item, seen),
            Node::Map { value, .. } => visit(kind, *value, seen),
            Node::Scalar(_) => {}
        }
    }
    for name in [
        "api.policy.v1.Eviction",
        "api.autoscaling.v1.Scale",
        "apimachinery.pkg.apis.meta.v1.DeleteOptions",
    ] {
        let kind = Type::builtin(name).unwrap();
        visit(&kind, kind.id(), &mut Vec::new());
    }
}

#[test]
fn what_is_said_beside_a_reference_is_wrapped_in_version_3_and_stands_beside_it_in_version_2() {
    let registry = registry();
    let document = v3_tree(&registry, "", "v1");
    let pod = &document["components"]["schemas"]["io.k8s.api.core.v1.Pod"]["properties"];
    assert_eq!(
        pod["spec"]["allOf"],
        json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}])
    );
    assert_eq!(pod["spec"]["default"], json!({}));
    assert_eq!(
        pod["spec"]["description"],
        descriptions::of_field("api.core.v1.Pod", "spec").unwrap()
    );
    let document = v2_tree(&registry);
    let pod = &document["definitions"]["io.k8s.api.core.v1.Pod"]["properties"];
    assert_eq!(
        pod["spec"],
        json!({
            "$ref": "#/definitions/io.k8s.api.core.v1.PodSpec",
            "description": descriptions::of_field("api.core.v1.Pod", "spec"),
        })
    );
}

#[test]
fn properties_have_the_defaults_closed_sets_and_list_types_that_upstream_gives_them() {
    let registry = registry();
    let document = v3_tree(&registry, "", "v1");
    let property = |kind: &str, field: &str| {
        let name = format!("io.k8s.api.core.v1.{kind}");
        let mut property = document["components"]["schemas"][name]["properties"][field].clone();
        property.as_object_mut().unwrap().remove("description");
        property
    };
    assert_eq!(
        property("ContainerPort", "protocol"),
        json!({"type": "string", "default": "TCP", "enum": ["SCTP", "TCP", "UDP"]})
    );
    assert_eq!(
        property("ContainerPort", "containerPort"),
        json!({"type": "integer", "format": "int32", "default": 0})
    );
    assert_eq!(
        property("Container", "command"),
        json!({
            "type": "array",
            "items": {"type": "string", "default": ""},
            "x-kubernetes-list-type": "atomic",
        })
    );
    assert_eq!(
        property("PersistentVolumeClaimStatus", "accessModes")["items"]["enum"][0],
        "ReadOnlyMany"
    );
    assert_eq!(
        property("PodSpec", "activeDeadlineSeconds"),
        json!({"type": "integer", "format": "int64"})
    );
    assert_eq!(
        property("ResourceRequirements", "limits")["additionalProperties"],
        json!({"$ref": "#/components/schemas/io.k8s.apimachinery.pkg.api.resource.Quantity"})
    );
}

#[test]
fn what_fields_say_of_their_owners_and_their_merging_is_told() {
    let registry = registry();
    let document = v2_tree(&registry);
    let said = |component: &str, field: &str| {
        let component = &document["definitions"][format!("io.k8s.{component}")];
        let mut property = component["properties"][field].clone();
        property.as_object_mut().unwrap().remove("description");
        property
    };
    let claim = said("api.core.v1.PersistentVolumeSpec", "claimRef");
    assert_eq!(claim["x-kubernetes-map-type"], "granular");
    let reference = &document["definitions"]["io.k8s.api.core.v1.ObjectReference"];
    assert_eq!(reference["x-kubernetes-map-type"], "atomic");
    assert_eq!(
        said(
            "api.core.v1.PersistentVolumeClaimStatus",
            "allocatedResourceStatuses"
        )["x-kubernetes-map-type"],
        "granular"
    );
    let selector = said("api.policy.v1.PodDisruptionBudgetSpec", "selector");
    assert_eq!(selector["x-kubernetes-patch-strategy"], "replace");
    assert_eq!(
        said(
            "kube-aggregator.pkg.apis.apiregistration.v1.APIServiceSpec",
            "caBundle"
        ),
        json!({"type": "string", "format": "byte", "x-kubernetes-list-type": "atomic"})
    );
    let items = said(
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "items",
    );
    let any = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray";
    assert_eq!(items, json!({"$ref": format!("#/definitions/{any}")}));
    let any = document["definitions"][any].as_object().unwrap();
    assert_eq!(any.keys().collect::<Vec<_>>(), ["description"]);
    let component = |name: &str| &document["definitions"][format!("io.k8s.api.{name}")];
    assert_eq!(
        component("flowcontrol.v1.PriorityLevelConfigurationSpec")["x-kubernetes-unions"],
        json!([{"discriminator": "type", "fields-to-discriminateBy": {"exempt": "Exempt", "limited": "Limited"}}])
    );
    assert_eq!(
        component("core.v1.ContainerStatus")["required"],
        json!(["name", "ready", "restartCount", "image", "imageID"])
    );
    assert!(component("core.v1.BindingList").is_null());
    assert_eq!(
        said("api.apps.v1.StatefulSetSpec", "podManagementPolicy")["enum"],
        json!(["OrderedReady", "Parallel"])
    );
    assert_eq!(
        said("api.core.v1.NodeStatus", "phase")["enum"],
        json!(["Pending", "Running", "Terminated"])
    );
}

mod messages;
mod operations;
