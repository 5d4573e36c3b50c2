//! Tests that the custom resource manifests are structural, complete, and consistent with the Rust types.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Resource, core::crd::CustomResourceExt};
use mullion_api::{
    account::SimulatedAccount,
    capacity_buffer::CapacityBuffer,
    crds::{MANIFESTS, crds},
    fault::SimulatedFault,
    karpenter::{
        EC2NodeClass, NodeClaim, NodeOverlay, NodePool,
        legacy::{AWSNodeTemplate, Provisioner},
    },
    vpc_resources::CNINode,
};
use serde_json::Value;

fn manifests() -> Vec<(&'static str, Value)> {
    let parse = |text| serde_saphyr::from_str::<Value>(text).unwrap();
    MANIFESTS
        .iter()
        .map(|(file, text)| (*file, parse(text)))
        .collect()
}

fn schema(manifest: &Value) -> &Value {
    &manifest["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// Calls `visit` for every schema node with its path.
fn walk(schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
    visit(path, schema);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        walk(child, &format!("{path}.{name}"), visit);
    }
    if let Some(items) = schema.get("items") {
        walk(items, &format!("{path}[]"), visit);
    }
    if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
        walk(values, &format!("{path}{{}}"), visit);
    }
}

#[test]
fn every_schema_is_structural() {
    for (file, manifest) in manifests() {
        walk(schema(&manifest), "", &mut |path, node| {
            let at = format!("{file}{path}");
            let int_or_string = node["x-kubernetes-int-or-string"] == true;
            match node.get("type").and_then(Value::as_str) {
                Some("object") => assert!(
                    !(node.get("properties").is_some()
                        && node.get("additionalProperties").is_some()),
                    "{at}: properties and additionalProperties exclude each other"
                ),
                Some("array") => assert!(node["items"].is_object(), "{at}: no items"),
                Some("string" | "integer" | "boolean" | "number") => {}
                None if int_or_string => {}
                other => panic!("{at}: type {other:?}"),
            }
            assert!(node.get("$ref").is_none(), "{at}: $ref");
            for branch in ["allOf", "anyOf", "oneOf", "not"] {
                assert!(
                    node.get(branch).is_none() || (branch == "anyOf" && int_or_string),
                    "{at}: {branch}"
                );
            }
        });
    }
}

#[test]
fn required_fields_and_defaults_exist_in_their_schema() {
    for (file, manifest) in manifests() {
        walk(schema(&manifest), "", &mut |path, node| {
            let known: BTreeSet<_> = node["properties"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, _)| k.as_str())
                .collect();
            for name in node["required"].as_array().into_iter().flatten() {
                assert!(
                    known.contains(name.as_str().unwrap()),
                    "{file}{path}: {name}"
                );
            }
            for name in node["default"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, _)| k)
            {
                assert!(
                    known.contains(name.as_str()),
                    "{file}{path}: default {name}"
                );
            }
            if let (Some(values), Some(default)) = (node["enum"].as_array(), node.get("default")) {
                assert!(values.contains(default), "{file}{path}: default {default}");
            }
        });
    }
}

#[test]
fn every_pattern_is_a_regular_expression() {
    let mut patterns = 0;
    for (file, manifest) in manifests() {
        walk(schema(&manifest), "", &mut |path, node| {
            if let Some(pattern) = node.get("pattern").and_then(Value::as_str) {
                patterns += 1;
                regex::Regex::new(pattern).unwrap_or_else(|e| panic!("{file}{path}: {e}"));
            }
        });
    }
    assert!(patterns > 50, "{patterns}");
}

#[test]
fn every_field_is_described_in_a_short_sentence() {
    for (file, manifest) in manifests() {
        let fields = &schema(&manifest)["properties"];
        for part in ["spec", "status"] {
            if fields[part].is_null() {
                continue;
            }
            walk(&fields[part], part, &mut |path, node| {
                if path.ends_with("{}") {
                    return;
                }
                let text = node["description"].as_str().unwrap_or_default();
                let at = format!("{file} {path}: {text:?}");
                assert!(text.ends_with('.') && text.len() <= 300, "{at}");
                let first = text.split_whitespace().next().unwrap_or_default();
                let is_a_field = first.contains('.');
                assert!(is_a_field || text.starts_with(char::is_uppercase), "{at}");
            });
        }
    }
}

/// Returns the definitions that have a Rust type; GMSACredentialSpecs are windows-gmsa's and have neither spec nor status.
fn with_types() -> impl Iterator<Item = CustomResourceDefinition> {
    let all = crds().into_iter();
    all.filter(|crd| crd.spec.group != "windows.k8s.io")
}

#[test]
fn credential_specs_have_two_versions_of_one_schema_and_the_older_one_is_deprecated() {
    let all = crds();
    let spec = all.iter().find(|crd| crd.spec.group == "windows.k8s.io");
    let spec = &spec.expect("it is there").spec;
    assert_eq!(
        (&*spec.scope, &*spec.names.kind),
        ("Cluster", "GMSACredentialSpec")
    );
    let [new, old] = &spec.versions[..] else {
        panic!("{:?}", spec.versions);
    };
    assert_eq!(
        (&*new.name, new.storage, new.deprecated),
        ("v1", true, None)
    );
    assert_eq!(
        (&*old.name, old.storage, old.deprecated),
        ("v1alpha1", false, Some(true))
    );
    assert!(new.served && old.served && new.schema == old.schema);
}

#[test]
fn names_agree_with_the_rust_types() {
    fn names<K: Resource<DynamicType = ()> + CustomResourceExt>() -> [String; 5] {
        let short: BTreeSet<_> = K::shortnames().iter().copied().collect();
        [
            K::group(&()).into_owned(),
            K::version(&()).into_owned(),
            K::kind(&()).into_owned(),
            K::plural(&()).into_owned(),
            short.into_iter().collect::<Vec<_>>().join(","),
        ]
    }
    let typed = [
        names::<NodePool>(),
        names::<NodeClaim>(),
        names::<NodeOverlay>(),
        names::<CapacityBuffer>(),
        names::<EC2NodeClass>(),
        names::<Provisioner>(),
        names::<AWSNodeTemplate>(),
        names::<CNINode>(),
        names::<SimulatedAccount>(),
        names::<SimulatedFault>(),
    ];
    let installed: Vec<_> = with_types()
        .map(|crd| {
            let (scope, category) = match crd.spec.group.as_str() {
                "autoscaling.x-k8s.io" => ("Namespaced", Some("autoscaling")),
                group if group.starts_with("karpenter.") => ("Cluster", Some("karpenter")),
                _ => ("Cluster", None),
            };
            assert_eq!(crd.spec.scope, scope);
            let categories = category.map(|own| vec![own.to_owned()]);
            assert_eq!(crd.spec.names.categories, categories);
            [
                crd.spec.group,
                crd.spec.versions[0].name.clone(),
                crd.spec.names.kind,
                crd.spec.names.plural,
                crd.spec.names.short_names.unwrap_or_default().join(","),
            ]
        })
        .collect();
    assert_eq!(installed, typed);
}

#[test]
fn every_resource_with_a_type_has_a_status_subresource() {
    for crd in with_types() {
        let version = &crd.spec.versions[0];
        let subresources = version.subresources.as_ref().unwrap();
        assert!(subresources.status.is_some(), "{:?}", crd.metadata.name);
        assert!(version.served && version.storage);
    }
}
