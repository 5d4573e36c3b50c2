//! Tests of the operations of built-in kinds, and of what readers of documents require of all operations.

use std::collections::BTreeSet;

use super::*;

const METHODS: [&str; 7] = ["delete", "get", "head", "options", "patch", "post", "put"];

/// Returns every operation with its path, its method and the path's own parameters.
fn operations(document: &Value) -> Vec<(&str, &str, &Value, &[Value])> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .flat_map(|(path, item)| {
            let common = item["parameters"].as_array().map_or(&[][..], Vec::as_slice);
            let methods = METHODS.into_iter();
            methods
                .filter_map(move |method| Some((path.as_str(), method, item.get(method)?, common)))
        })
        .collect()
}

/// Returns all v3 documents by name, and the v2 document.
fn documents(registry: &Registry) -> Vec<(String, Dialect, Value)> {
    let table = registry.table();
    let parsed = |text: &str| serde_json::from_str(text).unwrap();
    let mut documents = vec![(String::new(), Dialect::V2, v2_tree(registry))];
    for (name, text) in v3_non_resource(&table, registry) {
        documents.push((name, Dialect::V3, parsed(&text)));
    }
    for (name, resources) in subjects(&table) {
        let (group, version) = (&resources[0].group, &resources[0].version);
        let text = v3(&table, registry, group, version).unwrap();
        documents.push((name, Dialect::V3, parsed(&text)));
    }
    documents
}

#[test]
fn no_two_operations_of_a_document_have_one_name_and_all_parameters_of_paths_are_declared() {
    for (document, _, tree) in documents(&registry()) {
        let mut names = BTreeSet::new();
        for (path, method, operation, common) in operations(&tree) {
            let name = operation["operationId"].as_str().unwrap();
            assert!(names.insert(name), "{document}: {name}");
            let own = operation["parameters"].as_array().into_iter().flatten();
            let in_path = own.chain(common).filter(|one| one["in"] == "path");
            let declared: BTreeSet<&str> = in_path.filter_map(|one| one["name"].as_str()).collect();
            let needed = path
                .split('{')
                .skip(1)
                .filter_map(|rest| rest.split('}').next());
            let needed: BTreeSet<&str> = needed.collect();
            assert_eq!(declared, needed, "{document}: {method} {path}");
        }
        assert!(!names.is_empty(), "{document}");
    }
}

#[test]
fn every_reference_of_every_document_leads_to_a_component() {
    for (document, dialect, tree) in documents(&registry()) {
        let components = match dialect {
            Dialect::V2 => &tree["definitions"],
            Dialect::V3 => &tree["components"]["schemas"],
        };
        assert_eq!(
            dangling(&tree, components),
            Vec::<String>::new(),
            "{document}"
        );
        assert_eq!(undescribed(components), Vec::<String>::new(), "{document}");
    }
}

/// Collects the keywords beside references, except descriptions, which v2 has there.
fn beside_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if map.get("$ref").is_some_and(Value::is_string) {
                found.extend(map.keys().cloned());
            }
            map.values()
                .for_each(|value| beside_references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| beside_references(item, found)),
        _ => {}
    }
}

#[test]
fn version_2_has_no_defaults_and_nothing_but_texts_and_markers_beside_references() {
    let registry = registry();
    let tree = v2_tree(&registry);
    let mut found = BTreeSet::new();
    beside_references(&tree, &mut found);
    let strange = found.iter().filter(|name| {
        !matches!(name.as_str(), "$ref" | "description") && !name.starts_with("x-kubernetes-")
    });
    assert_eq!(strange.collect::<Vec<_>>(), Vec::<&String>::new());
    let defaults = tree["definitions"].as_object().unwrap().values();
    let defaults = defaults.filter(|schema| {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let mut properties = properties.map(|(_, property)| property);
        properties.any(|property| {
            property.get("default").is_some() || property["items"].get("default").is_some()
        })
    });
    assert_eq!(defaults.count(), 0);
}

/// Returns the method and the path of a verb in discovery.
fn place_of(verb: &str, one: &str, all: &str) -> (&'static str, String) {
    match verb {
        "create" => ("post", all.to_owned()),
        "list" => ("get", all.to_owned()),
        "deletecollection" => ("delete", all.to_owned()),
        "get" => ("get", one.to_owned()),
        "update" => ("put", one.to_owned()),
        "patch" => ("patch", one.to_owned()),
        "delete" => ("delete", one.to_owned()),
        verb => panic!("{verb} has no method"),
    }
}

#[test]
fn the_operations_of_every_kind_are_those_of_the_verbs_it_is_served_with() {
    let registry = registry();
    let tree = v2_tree(&registry);
    let told: BTreeSet<(String, String)> = operations(&tree)
        .into_iter()
        .filter(|(path, ..)| !path.contains("/watch/"))
        .filter(|(_, _, operation, _)| {
            operation
                .get("x-kubernetes-action")
                .is_some_and(|action| action != "connect")
        })
        .map(|(path, method, ..)| (path.to_owned(), method.to_owned()))
        .collect();
    let mut served = BTreeSet::new();
    for row in registry.table().rows() {
        let resource = &row.resource;
        let base = match &*resource.group {
            "" => format!("/api/{}", resource.version),
            group => format!("/apis/{group}/{}", resource.version),
        };
        let scope = if resource.namespaced {
            "/namespaces/{namespace}"
        } else {
            ""
        };
        let all = format!("{base}{scope}/{}", resource.plural);
        let one = format!("{all}/{{name}}");
        let verbs = resource.rules.verbs();
        for verb in verbs.iter().filter(|verb| **verb != "watch") {
            let (method, path) = place_of(verb, &one, &all);
            served.insert((path, method.to_owned()));
            if *verb == "list" && resource.namespaced {
                served.insert((format!("{base}/{}", resource.plural), method.to_owned()));
            }
        }
        for part in &resource.subresources {
            if matches!(part.name, "attach" | "exec" | "portforward" | "proxy") {
                continue;
            }
            let path = format!("{one}/{}", part.name);
            for verb in part.verbs {
                let method = place_of(verb, "", "").0;
                served.insert((path.clone(), method.to_owned()));
            }
        }
    }
    assert_eq!(told, served);
}

#[test]
fn patches_of_built_in_kinds_may_be_strategic_and_their_answers_are_three() {
    for (document, dialect, tree) in documents(&registry()) {
        let patches = operations(&tree).into_iter();
        let patches =
            patches.filter(|(_, _, operation, _)| operation["x-kubernetes-action"] == "patch");
        for (path, _, operation, _) in patches {
            let known = [
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
                "application/apply-patch+yaml",
            ];
            let medias: BTreeSet<&str> = match dialect {
                Dialect::V2 => {
                    assert_eq!(operation["consumes"], json!(known));
                    known.into()
                }
                Dialect::V3 => {
                    let content = operation["requestBody"]["content"].as_object().unwrap();
                    content.keys().map(String::as_str).collect()
                }
            };
            assert_eq!(medias, known.into(), "{document}: {path}");
            let codes: Vec<&String> = operation["responses"].as_object().unwrap().keys().collect();
            assert_eq!(codes, ["200", "201", "401"], "{path}");
        }
    }
}

/// Returns an operation without its descriptions, whose texts differ from kube-apiserver's.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(name, value)| {
                *name != "description"
                    || matches!(
                        value.as_str(),
                        Some("OK" | "Created" | "Accepted" | "Unauthorized")
                    )
            });
            kept.map(|(name, value)| (name.clone(), bare(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        value => value.clone(),
    }
}

/// The expected values are those in `api/openapi-spec/swagger.json` of 1.36.
#[test]
fn whole_operations_are_as_recorded() {
    let registry = registry();
    let tree = v2_tree(&registry);
    let at = |path: &str| bare(&tree["paths"][path]);
    let query = |name: &str, kind: &str| json!({"name": name, "in": "query", "type": kind, "uniqueItems": true});
    let in_path = |name: &str| json!({"name": name, "in": "path", "type": "string", "uniqueItems": true, "required": true});
    let definition = |name: &str| json!({"$ref": format!("#/definitions/io.k8s.{name}")});
    let objects = json!([
        "application/json",
        "application/yaml",
        "application/vnd.kubernetes.protobuf"
    ]);
    let scale = definition("api.autoscaling.v1.Scale");
    assert_eq!(
        at("/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale")["put"],
        json!({
            "consumes": ["*/*"], "produces": objects, "schemes": ["https"], "tags": ["apps_v1"],
            "operationId": "replaceAppsV1NamespacedDeploymentScale",
            "parameters": [
                {"name": "body", "in": "body", "required": true, "schema": scale},
                query("dryRun", "string"), query("fieldManager", "string"), query("fieldValidation", "string"),
            ],
            "responses": {
                "200": {"description": "OK", "schema": scale}, "201": {"description": "Created", "schema": scale},
                "401": {"description": "Unauthorized"},
            },
            "x-kubernetes-action": "put",
            "x-kubernetes-group-version-kind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
        })
    );
    let exec = at("/api/v1/namespaces/{namespace}/pods/{name}/exec");
    assert_eq!(
        exec["post"],
        json!({
            "consumes": ["*/*"], "produces": ["*/*"], "schemes": ["https"], "tags": ["core_v1"],
            "operationId": "connectCoreV1PostNamespacedPodExec",
            "responses": {"200": {"description": "OK", "schema": {"type": "string"}}, "401": {"description": "Unauthorized"}},
            "x-kubernetes-action": "connect",
            "x-kubernetes-group-version-kind": {"group": "", "version": "v1", "kind": "PodExecOptions"},
        })
    );
    assert_eq!(
        exec["parameters"],
        json!([
            query("command", "string"),
            query("container", "string"),
            in_path("name"),
            in_path("namespace"),
            query("stderr", "boolean"),
            query("stdin", "boolean"),
            query("stdout", "boolean"),
            query("tty", "boolean"),
        ])
    );
    let delete = |path: &str| at(path)["delete"]["responses"]["200"]["schema"].clone();
    let status = definition("apimachinery.pkg.apis.meta.v1.Status");
    assert_eq!(delete("/api/v1/namespaces/{name}"), status);
    assert_eq!(
        delete("/api/v1/namespaces/{namespace}/configmaps/{name}"),
        status
    );
    let pod = definition("api.core.v1.Pod");
    assert_eq!(delete("/api/v1/namespaces/{namespace}/pods/{name}"), pod);
    let all = &at("/apis/node.k8s.io/v1/runtimeclasses")["delete"];
    assert_eq!(all["operationId"], "deleteNodeV1CollectionRuntimeClass");
    assert_eq!(
        all["parameters"][0],
        json!({
            "name": "body", "in": "body", "schema": definition("apimachinery.pkg.apis.meta.v1.DeleteOptions"),
        })
    );
    assert_eq!(all["parameters"].as_array().unwrap().len(), 15);
    for (path, name) in [
        ("/", "getNodeV1APIResources"),
        ("/watch/runtimeclasses", "watchNodeV1RuntimeClassList"),
        ("/watch/runtimeclasses/{name}", "watchNodeV1RuntimeClass"),
    ] {
        let path = format!("/apis/node.k8s.io/v1{path}");
        assert_eq!(tree["paths"][path]["get"]["operationId"], name);
    }
    let proxied = at("/api/v1/nodes/{name}/proxy/{path}");
    assert_eq!(
        proxied["head"]["operationId"],
        "connectCoreV1HeadNodeProxyWithPath"
    );
    assert_eq!(
        proxied["parameters"],
        json!([in_path("name"), in_path("path"), query("path", "string")])
    );
    assert_eq!(
        tree["paths"]["/apis/rbac.authorization.k8s.io/v1/watch/roles"]["get"]["operationId"],
        "watchRbacAuthorizationV1RoleListForAllNamespaces"
    );
    assert_eq!(tree["security"], json!([{"BearerToken": []}]));
}

#[test]
fn what_no_resource_serves_has_documents_of_its_own() {
    let documents = documents(&registry());
    let operation = |name: &str, path: &str| {
        let (_, _, tree) = documents.iter().find(|(known, ..)| known == name).unwrap();
        assert_eq!(
            tree["components"]["securitySchemes"]["BearerToken"]["in"],
            "header"
        );
        let paths = tree["paths"].as_object().unwrap();
        assert_eq!(paths.keys().collect::<Vec<_>>(), [path]);
        bare(&paths[path]["get"])
    };
    for (name, path, id, tag) in [
        ("api", "/api/", "getCoreAPIVersions", "core"),
        ("apis", "/apis/", "getAPIVersions", "apis"),
        (
            "apis/node.k8s.io",
            "/apis/node.k8s.io/",
            "getNodeAPIGroup",
            "node",
        ),
        ("version", "/version/", "getCodeVersion", "version"),
        (
            ".well-known/openid-configuration",
            "/.well-known/openid-configuration",
            "getServiceAccountIssuerOpenIDConfiguration",
            "WellKnown",
        ),
    ] {
        let operation = operation(name, path);
        assert_eq!(operation["operationId"], id);
        assert_eq!(operation["tags"], json!([tag]));
    }
    let keys = operation("openid/v1/jwks", "/openid/v1/jwks");
    assert_eq!(
        keys["responses"]["200"],
        json!({"description": "OK", "content": {"application/jwk-set+json": {"schema": {"type": "string"}}}})
    );
}

#[test]
fn types_of_requests_and_answers_have_their_kinds() {
    let tree = v2_tree(&registry());
    let kinds = |name: &str| {
        tree["definitions"][format!("io.k8s.{name}")]["x-kubernetes-group-version-kind"].clone()
    };
    assert_eq!(
        kinds("apimachinery.pkg.apis.meta.v1.Status"),
        json!([{"group": "", "version": "v1", "kind": "Status"}])
    );
    assert_eq!(
        kinds("api.policy.v1.Eviction"),
        json!([{"group": "policy", "version": "v1", "kind": "Eviction"}])
    );
    for name in ["DeleteOptions", "WatchEvent"] {
        let kinds = kinds(&format!("apimachinery.pkg.apis.meta.v1.{name}"));
        assert_eq!(kinds.as_array().unwrap().len(), 60);
        assert_eq!(
            kinds[59],
            json!({"group": "storagemigration.k8s.io", "version": "v1beta1", "kind": name})
        );
    }
    // Reviews are not stored, so they have no lists; two versions of RuntimeClass share one schema.
    assert!(
        tree["definitions"]
            .get("io.k8s.api.authentication.v1.TokenReviewList")
            .is_none()
    );
    assert_eq!(kinds("api.node.v1.RuntimeClassList")[0]["version"], "v1");
}
