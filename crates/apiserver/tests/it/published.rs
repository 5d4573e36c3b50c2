//! What OpenAPI documents tell of the paths of custom resources.

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use bytes::Bytes;
use jiff::Timestamp;
use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

fn definition(scope: &str) -> Value {
    let scale =
        json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    json!({"metadata": {"name": "apps.stable.example.com"}, "spec": {
        "group": "stable.example.com", "scope": scope,
        "names": {"plural": "apps", "kind": "App", "listKind": "AppCollection"},
        "versions": [{"name": "v1beta1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}},
            "subresources": {"status": {}, "scale": scale}}],
    }})
}

async fn documents(scope: &str) -> (Api, Value, Value) {
    let api = Api::new(Config::default());
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition(scope)).await.ok();
    let v3 = "/openapi/v3/apis/stable.example.com/v1beta1";
    let v3 = api
        .until(v3, |document| document["paths"].is_object())
        .await;
    let v2 = api.get("/openapi/v2").await.ok();
    (api, v3, v2)
}

/// The operations of a path and what they are called.
fn operations(path: &Value) -> Vec<(&str, &str)> {
    let verbs = path.as_object().expect("a path").iter();
    verbs
        .filter_map(|(verb, operation)| Some((verb.as_str(), operation["operationId"].as_str()?)))
        .collect()
}

fn names(parameters: &Value) -> Vec<&str> {
    let parameters = parameters.as_array().into_iter().flatten();
    parameters
        .filter_map(|parameter| parameter["name"].as_str())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_has_all_its_paths_with_names_of_their_own() {
    let (_api, v3, v2) = documents("Namespaced").await;
    let base = "/apis/stable.example.com/v1beta1";
    let place = format!("{base}/namespaces/{{namespace}}/apps");
    for document in [&v3, &v2] {
        let paths = &document["paths"];
        assert_eq!(
            operations(&paths[format!("{base}/apps")]),
            [("get", "listStableExampleComV1beta1AppForAllNamespaces")]
        );
        assert_eq!(
            operations(&paths[&place]),
            [
                (
                    "delete",
                    "deleteStableExampleComV1beta1CollectionNamespacedApp"
                ),
                ("get", "listStableExampleComV1beta1NamespacedApp"),
                ("post", "createStableExampleComV1beta1NamespacedApp"),
            ]
        );
        assert_eq!(
            operations(&paths[format!("{place}/{{name}}")]),
            [
                ("delete", "deleteStableExampleComV1beta1NamespacedApp"),
                ("get", "readStableExampleComV1beta1NamespacedApp"),
                ("patch", "patchStableExampleComV1beta1NamespacedApp"),
                ("put", "replaceStableExampleComV1beta1NamespacedApp"),
            ]
        );
        let scale = &paths[format!("{place}/{{name}}/scale")];
        assert_eq!(
            operations(scale),
            [
                ("get", "readStableExampleComV1beta1NamespacedAppScale"),
                ("patch", "patchStableExampleComV1beta1NamespacedAppScale"),
                ("put", "replaceStableExampleComV1beta1NamespacedAppScale"),
            ]
        );
        assert_eq!(names(&scale["parameters"]), ["name", "namespace", "pretty"]);
        assert_eq!(
            names(&scale["patch"]["parameters"])
                .into_iter()
                .filter(|name| *name != "body")
                .collect::<Vec<_>>(),
            ["dryRun", "fieldManager", "fieldValidation", "force"]
        );
        for item in [&paths[&place], scale] {
            let operations = item
                .as_object()
                .into_iter()
                .flatten()
                .map(|(_, operation)| operation);
            let own = operations.flat_map(|operation| operation["parameters"].as_array());
            let common = item["parameters"].as_array();
            for parameter in own
                .chain(common)
                .flatten()
                .filter(|parameter| parameter["in"] != "body")
            {
                let text = parameter["description"].as_str().unwrap_or_default();
                assert!(text.ends_with('.'), "{parameter}");
            }
        }
        let kind = json!({"group": "stable.example.com", "version": "v1beta1", "kind": "App"});
        assert_eq!(scale["get"]["x-kubernetes-group-version-kind"], kind);
        assert_eq!(scale["get"]["x-kubernetes-action"], "get");
        assert_eq!(
            scale["get"]["description"],
            "read scale of the specified App"
        );
        assert_eq!(scale["get"]["tags"], json!(["stableExampleCom_v1beta1"]));
        let all = &paths[&place]["delete"];
        assert_eq!(all["x-kubernetes-action"], "deletecollection");
        assert_eq!(all["description"], "delete collection of App");
        assert!(names(&all["parameters"]).contains(&"labelSelector"));
        assert_eq!(paths[&place]["post"]["description"], "create an App");
    }
    let components = &v3["components"]["schemas"];
    for name in [
        "io.k8s.api.autoscaling.v1.Scale",
        "io.k8s.apimachinery.pkg.apis.meta.v1.Patch",
        "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    ] {
        assert!(
            components[name].is_object() && v2["definitions"][name].is_object(),
            "{name}"
        );
    }
    assert_eq!(v3["info"]["title"], "Kubernetes CRD Swagger");
    let path = &v3["paths"][format!("{place}/{{name}}")];
    assert_eq!(
        path["delete"]["responses"]["202"]["content"]["application/yaml"]["schema"]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.Status"
    );
    let patches = path["patch"]["requestBody"]["content"]
        .as_object()
        .expect("bodies");
    assert!(patches.contains_key("application/apply-patch+yaml"));
    assert_eq!(path["delete"]["requestBody"].get("required"), None);
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_without_namespaces_is_listed_and_deleted_in_one_place() {
    let (_api, v3, _) = documents("Cluster").await;
    let paths = v3["paths"].as_object().expect("paths");
    assert_eq!(paths.len(), 4);
    assert_eq!(
        operations(&paths["/apis/stable.example.com/v1beta1/apps"]),
        [
            ("delete", "deleteStableExampleComV1beta1CollectionApp"),
            ("get", "listStableExampleComV1beta1App"),
            ("post", "createStableExampleComV1beta1App"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_has_the_kind_that_its_definition_names() {
    let (api, v3, _) = documents("Cluster").await;
    let list = api.get("/apis/stable.example.com/v1beta1/apps").await.ok();
    assert_eq!(list["kind"], "AppCollection");
    let component = &v3["components"]["schemas"]["com.example.stable.v1beta1.AppCollection"];
    assert_eq!(
        component["x-kubernetes-group-version-kind"][0]["kind"],
        "AppCollection"
    );
}

/// The document of everything and the message that says the same.
async fn everything(api: &Api) -> (Value, Bytes) {
    let protobuf = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    let (status, message) = api.bytes("/openapi/v2", protobuf).await;
    assert_eq!(status, 200);
    (api.get("/openapi/v2").await.ok(), message)
}

#[tokio::test(start_paused = true)]
async fn version_2_of_a_definition_has_no_defaults_and_tells_of_selectable_fields() {
    let api = Api::new(Config::default());
    let mut wanted = definition("Namespaced");
    let version = &mut wanted["spec"]["versions"][0];
    version["selectableFields"] = json!([{"jsonPath": ".spec.color"}]);
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["color"] =
        json!({"type": "string", "default": "red", "maxLength": 5, "pattern": "^[a-z]*$"});
    let before = api.get("/openapi/v2").await.ok();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, wanted).await.ok();
    let v3 = "/openapi/v3/apis/stable.example.com/v1beta1";
    let v3 = api
        .until(v3, |document| document["paths"].is_object())
        .await;
    let (v2, message) = everything(&api).await;
    let name = "com.example.stable.v1beta1.App";
    let color = "/properties/spec/properties/color/default";
    let fields = json!([{"fieldPath": "spec.color"}]);
    for (component, default) in [
        (&v2["definitions"][name], None),
        (&v3["components"]["schemas"][name], Some(&json!("red"))),
    ] {
        assert_eq!(component.pointer(color), default);
        assert_eq!(component["x-kubernetes-selectable-fields"], fields);
    }
    let list = &v3["components"]["schemas"]["com.example.stable.v1beta1.AppCollection"];
    let items = &list["properties"]["items"]["items"];
    assert_eq!(
        *items,
        json!({"$ref": format!("#/components/schemas/{name}")})
    );
    let listed = &v3["paths"]["/apis/stable.example.com/v1beta1/apps"];
    assert!(names(&listed["parameters"]).contains(&"shardSelector"));
    let bound = b"^[a-z]*$";
    assert!(message.windows(bound.len()).any(|part| part == bound));
    // What was told before is told as before, once.
    for part in ["paths", "definitions"] {
        let before = before[part].as_object().expect("entries");
        let after = v2[part].as_object().expect("entries");
        assert!(
            before
                .iter()
                .all(|(name, entry)| after.get(name) == Some(entry))
        );
    }
    let text = v2.to_string();
    assert_eq!(text.matches("\"listCoreV1Node\"").count(), 1);
    api.delete(&format!("{definitions}/apps.stable.example.com"))
        .await
        .ok();
    api.until("/openapi/v2", |document| *document == before)
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_change_is_not_made_again() {
    let seconds = Arc::new(AtomicI64::new(1_800_000_000));
    let clock = seconds.clone();
    let api = Api::new(Config {
        clock: Arc::new(move || {
            Timestamp::from_second(clock.load(Ordering::Relaxed)).expect("a time of this century")
        }),
        ..Config::default()
    });
    let made = async |document: &str| {
        let modified = api.header(document, "last-modified").await;
        modified.expect("a document says when it was made")
    };
    let built_in = ["/openapi/v3/api/v1", "/openapi/v3/version"];
    let [core, version] = [made(built_in[0]).await, made(built_in[1]).await];
    seconds.fetch_add(90, Ordering::Relaxed);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition("Cluster")).await.ok();
    let custom = "/openapi/v3/apis/stable.example.com/v1beta1";
    api.until(custom, |document| document["paths"].is_object())
        .await;
    assert_eq!(
        [made(built_in[0]).await, made(built_in[1]).await],
        [core.clone(), version]
    );
    assert_ne!(made(custom).await, core);
}
