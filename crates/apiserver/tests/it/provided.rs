//! What the embedding program answers for is served like what is stored, but cannot be written; and APIServices: who has one, and what they say.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mullion_apiserver::{
    ApiServer, Config,
    provided::{Column, ObjectQuery, ObjectSource, Provided, Wire},
};
use mullion_store::{Store, Window};
use serde_json::{Value, json};

use crate::api::Api;

const PODS: &str = "/apis/gauges.example.com/v1beta1/namespaces/default/pods";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Three objects in two namespaces.
struct Gauges;

impl ObjectSource for Gauges {
    fn list(&self, wanted: &ObjectQuery<'_>) -> Vec<Value> {
        let all = [
            ("default", "a", "web"),
            ("default", "b", "db"),
            ("other", "c", "web"),
        ];
        let object = |(namespace, name, app): (&str, &str, &str)| {
            let labels = BTreeMap::from([("app".to_owned(), app.to_owned())]);
            wanted.takes(namespace, name, Some(&labels)).then(|| {
                json!({"metadata": {"namespace": namespace, "name": name, "labels": labels}, "usage": {"cpu": "250m"}})
            })
        };
        all.into_iter().filter_map(object).collect()
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        vec![
            object["metadata"]["name"].clone(),
            object["usage"]["cpu"].clone(),
        ]
    }
}

fn api() -> Api {
    Api::new(config())
}

fn config() -> Config {
    const fn column(name: &'static str, format: &'static str) -> Column {
        Column {
            name,
            cell_type: "string",
            format,
            priority: 0,
        }
    }
    const COLUMNS: &[Column] = &[column("Name", "name"), column("cpu", "quantity")];
    let usage = json!({"type": "object", "additionalProperties": {"type": "string"}, "description": "What it uses."});
    Config {
        provided: vec![Provided {
            group: "gauges.example.com",
            version: "v1beta1",
            kind: "PodGauge",
            plural: "pods",
            namespaced: true,
            schema: json!({"type": "object", "properties": {"usage": usage}}),
            message: &[("usage", 2, Wire::Map(&Wire::Quantity))],
            columns: COLUMNS,
            source: Arc::new(Gauges),
        }],
        ..Config::default()
    }
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("a list").iter();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

#[tokio::test]
async fn it_is_listed_by_namespace_label_and_name() {
    let api = api();
    let list = api.get(PODS).await.ok();
    assert_eq!(list["kind"], "PodGaugeList");
    assert_eq!(list["apiVersion"], "gauges.example.com/v1beta1");
    assert_eq!(list["items"][0].get("kind"), None);
    for (query, expected) in [
        ("", vec!["a", "b"]),
        ("?labelSelector=app%3Dweb", vec!["a"]),
        ("?labelSelector=app%20notin%20(web)", vec!["b"]),
        ("?fieldSelector=metadata.name%3Db", vec!["b"]),
        ("?limit=1", vec!["a", "b"]),
    ] {
        let list = api.get(&format!("{PODS}{query}")).await.ok();
        assert_eq!(names(&list), expected, "{query}");
    }
    let everywhere = "/apis/gauges.example.com/v1beta1/pods";
    assert_eq!(names(&api.get(everywhere).await.ok()), ["a", "b", "c"]);
    let query = "?fieldSelector=metadata.namespace%3Dother";
    assert_eq!(
        names(&api.get(&format!("{everywhere}{query}")).await.ok()),
        ["c"]
    );
    assert_eq!(
        api.get(&format!("{PODS}?fieldSelector=spec.x%3D1"))
            .await
            .status,
        400
    );
    assert_eq!(
        api.get(&format!("{PODS}?labelSelector=(")).await.status,
        400
    );
}

#[tokio::test]
async fn who_asks_for_protobuf_gets_it() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    let api = api();
    let message = |name: &str| {
        let usage = [
            &[0x12, 13, 0x0a, 3][..],
            b"cpu",
            &[0x12, 6, 0x0a, 4],
            b"250m",
        ]
        .concat();
        (name.to_owned(), usage)
    };
    let (status, one) = api.bytes(&format!("{PODS}/a"), PROTOBUF).await;
    assert_eq!((status, &one[..4]), (200, &b"k8s\0"[..]));
    let has = |body: &[u8], part: &[u8]| body.windows(part.len()).any(|window| window == part);
    let (status, list) = api.bytes(PODS, PROTOBUF).await;
    assert_eq!(status, 200);
    assert!(has(&list, b"PodGaugeList") && has(&list, b"gauges.example.com/v1beta1"));
    for (name, usage) in [message("a"), message("b")] {
        assert!(has(&list, name.as_bytes()) && has(&list, &usage));
    }
    assert!(has(&one, &message("a").1) && !has(&one, b"List"));
    let both = format!("{PROTOBUF},application/json");
    let (_, json) = api.bytes(PODS, &both).await;
    assert_eq!(json[0], b'{');
    let (status, refused) = api.bytes(&format!("{PODS}/none"), PROTOBUF).await;
    assert_eq!((status, &refused[..4]), (404, &b"k8s\0"[..]));
}

#[tokio::test]
async fn one_is_got_by_name_and_another_is_not_found() {
    let api = api();
    let one = api.get(&format!("{PODS}/a")).await.ok();
    assert_eq!(one["kind"], "PodGauge");
    assert_eq!(one["usage"]["cpu"], "250m");
    let missing = api.get(&format!("{PODS}/c")).await;
    assert_eq!(missing.status, 404);
    assert_eq!(
        missing.body["message"],
        "podgauge.gauges.example.com \"default/c\" not found"
    );
}

#[tokio::test]
async fn it_is_shown_as_a_table() {
    let table = api().table(PODS).await;
    assert_eq!(table["columnDefinitions"][1]["name"], "cpu");
    assert_eq!(table["rows"][1]["cells"], json!(["b", "250m"]));
    assert_eq!(table["rows"][1]["object"]["metadata"]["name"], "b");
}

#[tokio::test]
async fn it_can_be_neither_written_nor_watched() {
    let api = api();
    let object = json!({"metadata": {"name": "x"}});
    assert_eq!(api.post(PODS, object.clone()).await.status, 405);
    assert_eq!(api.put(&format!("{PODS}/a"), object).await.status, 405);
    assert_eq!(api.delete(&format!("{PODS}/a")).await.status, 405);
    let watch = api.get(&format!("{PODS}?watch=true")).await;
    assert_eq!(watch.status, 405);
    assert_eq!(
        watch.body["message"],
        "watch is not supported on resources of kind \"pods.gauges.example.com\""
    );
}

#[tokio::test]
async fn discovery_and_schemas_know_it() {
    let api = api();
    let list = api.get("/apis/gauges.example.com/v1beta1").await.ok();
    assert_eq!(
        list["resources"],
        json!([{"name": "pods", "singularName": "", "namespaced": true, "kind": "PodGauge", "verbs": ["get", "list"]}])
    );
    let groups = api.get("/apis").await.ok();
    let last = groups["groups"]
        .as_array()
        .and_then(|all| all.last())
        .expect("groups");
    assert_eq!(last["name"], "gauges.example.com");
    let document = api
        .get("/openapi/v3/apis/gauges.example.com/v1beta1")
        .await
        .ok();
    let schema = &document["components"]["schemas"]["com.example.gauges.v1beta1.PodGauge"];
    assert_eq!(
        schema["properties"]["usage"]["description"],
        "What it uses."
    );
    assert_eq!(
        schema["x-kubernetes-group-version-kind"][0]["kind"],
        "PodGauge"
    );
}

/// The APIServices once there is one of that name, or none any more.
async fn services(api: &Api, name: &str, there: bool) -> BTreeMap<String, Value> {
    let by_name = |list: &Value| -> BTreeMap<String, Value> {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let name = |item: &Value| item["metadata"]["name"].as_str().map(str::to_owned);
        let named = items
            .into_iter()
            .map(|item| (name(&item).expect("a name"), item));
        named.collect()
    };
    let is_settled = |item: &Value| item["status"]["conditions"][0]["type"] == "Available";
    let settled = |list: &Value| by_name(list).get(name).is_some_and(is_settled) == there;
    by_name(&api.until(SERVICES, settled).await)
}

#[tokio::test(start_paused = true)]
async fn every_built_in_group_and_version_has_an_api_service() {
    let api = api();
    let all = services(&api, "v1.apps", true).await;
    let core = &all["v1."];
    assert_eq!(
        core["spec"],
        json!({"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1})
    );
    assert_eq!(
        core["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"],
        "onstart"
    );
    assert_eq!(core["status"]["conditions"][0]["reason"], "Local");
    assert_eq!(all["v2.autoscaling"]["spec"]["versionPriority"], 30);
    assert!(!all.contains_key("v1.apiregistration.k8s.io"));
    let table = api.table(SERVICES).await;
    let rows = table["rows"].as_array().expect("rows").iter();
    let cells: Vec<&Value> = rows.map(|row| &row["cells"]).collect();
    let row = |name: &str| cells.iter().find(|cells| cells[0] == name).expect("a row");
    assert_eq!(row("v1.apps")[1], "Local");
    assert_eq!(row("v1.apps")[2], "True");
}

/// A manifest of the APIService of the provided group, as the add-on's chart brings it, or of another group.
fn registration(name: &str) -> Value {
    let (version, group) = name.split_once('.').expect("a version and a group");
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name},
        "spec": {
            "group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"namespace": "kube-system", "name": "gauges", "port": 443}, "insecureSkipTLSVerify": true,
        },
    })
}

/// The condition of an APIService once it has this status.
async fn availability(api: &Api, name: &str, status: &str) -> Value {
    let path = format!("{SERVICES}/{name}");
    let is_told = |object: &Value| object["status"]["conditions"][0]["status"] == status;
    api.until(&path, is_told).await["status"]["conditions"][0].clone()
}

#[tokio::test(start_paused = true)]
async fn the_api_service_of_a_provided_group_is_the_users_to_create_and_to_delete() {
    let api = api();
    let name = "v1beta1.gauges.example.com";
    let path = format!("{SERVICES}/{name}");
    assert_eq!(api.get(&path).await.status, 404);
    let wanted = registration(name);
    api.post(SERVICES, wanted.clone()).await.ok();
    let told = availability(&api, name, "True").await;
    assert_eq!(
        [&told["reason"], &told["message"]],
        ["Passed", "all checks passed"]
    );
    assert_eq!(api.get(&path).await.ok()["spec"], wanted["spec"]);
    assert_eq!(names(&api.get(PODS).await.ok()), ["a", "b"]);
    api.delete(&path).await.ok();
    assert_eq!(names(&api.get(PODS).await.ok()), ["a", "b"]);
    // Longer than what every cluster has takes to come back.
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(api.get(&path).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn an_api_service_says_whether_its_group_is_served() {
    let api = api();
    let name = "v1.foos.example.com";
    api.post(SERVICES, registration(name)).await.ok();
    let told = availability(&api, name, "False").await;
    assert_eq!(told["reason"], "FailedDiscoveryCheck");
    assert_eq!(
        told["message"],
        "this API server forwards no requests, so service/gauges in \"kube-system\" is not asked and nothing is served under /apis/foos.example.com/v1"
    );
    // What somebody else says of it is put right.
    let lie = json!({"status": {"conditions": [{"type": "Available", "status": "True"}]}});
    let status = format!("{SERVICES}/{name}/status");
    api.merge(&status, lie).await.ok();
    availability(&api, name, "False").await;
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.foos.example.com"},
        "spec": {"group": "foos.example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": [version]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition).await.ok();
    assert_eq!(availability(&api, name, "True").await["reason"], "Passed");
}

#[tokio::test(start_paused = true)]
async fn the_api_service_that_an_earlier_version_made_for_a_provided_group_goes() {
    let store = Arc::new(Store::new(Window::default()));
    let before = ApiServer::with_store(Config::default(), store.clone()).await;
    let name = "v1beta1.gauges.example.com";
    let mut made = registration(name);
    made["metadata"]["labels"] = json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"});
    Api::of(&before).post(SERVICES, made).await.ok();
    drop(before);
    let after = ApiServer::with_store(config(), store).await;
    let path = format!("{SERVICES}/{name}");
    Api::of(&after)
        .until(&path, |answer| answer["code"] == 404)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_brings_and_takes_its_api_service() {
    let api = api();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"}, "versions": [version]},
    });
    assert_eq!(api.post(definitions, definition).await.status, 201);
    let all = services(&api, "v1alpha1.example.com", true).await;
    let foos = &all["v1alpha1.example.com"];
    assert_eq!(
        foos["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"],
        "true"
    );
    assert_eq!(foos["spec"]["groupPriorityMinimum"], 1000);
    assert_eq!(
        api.delete(&format!("{definitions}/foos.example.com"))
            .await
            .status,
        200
    );
    services(&api, "v1alpha1.example.com", false).await;
}

#[tokio::test]
async fn an_api_service_is_checked() {
    let api = api();
    let service = |name: &str, spec: Value| json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec});
    let refused = api
        .post(SERVICES, service("x", json!({"group": "a.b", "version": "V", "groupPriorityMinimum": 0, "versionPriority": 1001})))
        .await;
    assert_eq!(refused.status, 422);
    let causes = refused.body["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter();
    let fields: Vec<&str> = causes.filter_map(|cause| cause["field"].as_str()).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.version",
            "spec.groupPriorityMinimum",
            "spec.versionPriority"
        ]
    );
    let spec = json!({"group": "a.b", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 15, "service": {"namespace": "n", "name": "s"}});
    let created = api.post(SERVICES, service("v1.a.b", spec)).await;
    assert_eq!(created.status, 201);
    assert_eq!(created.body["spec"]["service"]["port"], 443);
}
