//! Custom resource definitions and their instances, through the router.

use std::time::Duration;

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn crontabs() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {
            "type": "object",
            "required": ["cron"],
            "properties": {
                "cron": {"type": "string", "maxLength": 40},
                "replicas": {"type": "integer", "default": 1, "minimum": 0},
                "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
                    "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"x-kubernetes-int-or-string": true}},
                }},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
            "x-kubernetes-validations": [
                {"rule": "self.replicas <= 5 || self.cron.startsWith('big')", "message": "too many replicas", "fieldPath": ".replicas"},
                {"rule": "self.cron == oldSelf.cron", "message": "cron cannot change"},
            ],
        },
        "status": {"type": "object", "properties": {"ready": {"type": "integer"}}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com", "scope": "Namespaced",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.ready"}},
                "selectableFields": [{"jsonPath": ".spec.cron"}],
                "additionalPrinterColumns": [
                    {"name": "Cron", "type": "string", "jsonPath": ".spec.cron"},
                    {"name": "Ports", "type": "string", "jsonPath": ".spec.ports[*].name", "priority": 1},
                ],
            }],
        },
    })
}

fn crontab(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

const CRONTABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

async fn established(api: &Api, definition: Value) {
    let name = definition["metadata"]["name"]
        .as_str()
        .expect("definitions have names")
        .to_owned();
    api.post(DEFINITIONS, definition).await.ok();
    wait_for(api, &format!("{DEFINITIONS}/{name}"), |definition| {
        definition["status"]["conditions"]
            .as_array()
            .is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|c| c["type"] == "Established" && c["status"] == "True")
            })
    })
    .await;
}

/// Asks again, under paused time, until the answer is as wanted.
async fn wait_for(api: &Api, path: &str, wanted: impl Fn(&Value) -> bool) {
    for _ in 0..200 {
        if wanted(&api.get(path).await.body) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} never became what was waited for");
}

async fn served() -> Api {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    wait_for(&api, CRONTABS, |list| list["kind"] == "CronTabList").await;
    api
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_defaulted_pruned_and_validated_by_its_schema_and_rules() {
    let api = served().await;
    let sent = json!({"cron": "* * * * *", "unknown": 1, "free": {"any": [1]}, "ports": [{"name": "a", "port": "http"}]});
    let created = api.post(CRONTABS, crontab("a", sent)).await;
    assert_eq!(
        created.warnings,
        [r#"299 - "unknown field \"spec.unknown\"""#]
    );
    let object = created.ok();
    assert_eq!(
        object["spec"],
        json!({"cron": "* * * * *", "replicas": 1, "free": {"any": [1]}, "ports": [{"name": "a", "port": "http"}]})
    );
    assert_eq!(object["metadata"]["generation"], 1);

    let refused = api
        .post(CRONTABS, crontab("b", json!({"cron": "x", "replicas": 6})))
        .await;
    assert_eq!(
        refused.body["message"],
        r#"CronTab.stable.example.com "b" is invalid: spec.replicas: Invalid value: 6: too many replicas"#
    );
    let twice = json!([{"name": "a"}, {"name": "a"}]);
    let refused = api
        .post(CRONTABS, crontab("b", json!({"cron": "x", "ports": twice})))
        .await;
    assert_eq!(
        refused.body["details"]["causes"][0]["field"],
        "spec.ports[1]"
    );
    let changed = api
        .merge(&format!("{CRONTABS}/a"), json!({"spec": {"cron": "new"}}))
        .await;
    assert_eq!(
        changed.body["message"],
        r#"CronTab.stable.example.com "a" is invalid: spec: Invalid value: cron cannot change"#
    );
}

#[tokio::test(start_paused = true)]
async fn list_items_are_owned_by_their_keys() {
    let api = served().await;
    let object = api
        .post(
            CRONTABS,
            crontab("a", json!({"cron": "x", "ports": [{"name": "p"}]})),
        )
        .await
        .ok();
    let fields = &object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(
        fields["f:ports"],
        json!({".": {}, "k:{\"name\":\"p\"}": {".": {}, "f:name": {}}})
    );
}

#[tokio::test(start_paused = true)]
async fn tables_selectors_and_subresources_come_from_the_definition() {
    let api = served().await;
    api.post(
        CRONTABS,
        crontab(
            "a",
            json!({"cron": "x", "ports": [{"name": "p"}, {"name": "q"}]}),
        ),
    )
    .await
    .ok();
    api.post(CRONTABS, crontab("b", json!({"cron": "y"})))
        .await
        .ok();
    let selected = api
        .get(&format!("{CRONTABS}?fieldSelector=spec.cron%3Dy"))
        .await
        .ok();
    assert_eq!(selected["items"].as_array().map(Vec::len), Some(1));

    let table = api.table(CRONTABS).await;
    let headers: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(headers, ["Name", "Cron", "Ports"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "x", "p q"]));
    assert_eq!(table["rows"][1]["cells"], json!(["b", "y", null]));

    let scaled = api
        .merge(
            &format!("{CRONTABS}/a/scale"),
            json!({"spec": {"replicas": 3}}),
        )
        .await
        .ok();
    assert_eq!(scaled["spec"]["replicas"], 3);
    let object = api
        .merge(
            &format!("{CRONTABS}/a/status"),
            json!({"status": {"ready": 2}, "spec": {"cron": "z"}}),
        )
        .await
        .ok();
    assert_eq!(
        (
            &object["spec"]["cron"],
            &object["spec"]["replicas"],
            &object["status"]["ready"]
        ),
        (&json!("x"), &json!(3), &json!(2))
    );
}

#[tokio::test(start_paused = true)]
async fn a_deleted_definition_takes_its_instances_with_it_and_waits_for_their_finalizers() {
    let api = served().await;
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    let mut held = crontab("b", json!({"cron": "x"}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    api.post(CRONTABS, held).await.ok();
    let definition = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let deleted = api.delete(&definition).await.ok();
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    wait_for(&api, &format!("{CRONTABS}/a"), |answer| {
        answer["code"] == 404
    })
    .await;
    wait_for(&api, &format!("{CRONTABS}/b"), |object| {
        object["metadata"].get("deletionTimestamp").is_some()
    })
    .await;
    assert_eq!(api.get(&definition).await.status, 200);
    api.merge(
        &format!("{CRONTABS}/b"),
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    wait_for(&api, &definition, |answer| answer["code"] == 404).await;
    wait_for(&api, CRONTABS, |answer| answer["kind"] != "CronTabList").await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_whose_names_are_taken_is_not_established() {
    let api = served().await;
    let mut other = crontabs();
    other["metadata"]["name"] = "tabs.stable.example.com".into();
    other["spec"]["names"] = json!({"plural": "tabs", "kind": "CronTab"});
    api.post(DEFINITIONS, other).await.ok();
    let path = format!("{DEFINITIONS}/tabs.stable.example.com");
    wait_for(&api, &path, |definition| {
        definition["status"]["conditions"].is_array()
    })
    .await;
    let conditions = api.get(&path).await.ok()["status"]["conditions"].clone();
    assert_eq!(
        (
            &conditions[0]["type"],
            &conditions[0]["status"],
            &conditions[0]["reason"]
        ),
        (
            &json!("NamesAccepted"),
            &json!("False"),
            &json!("ListKindConflict")
        )
    );
    assert_eq!(
        api.get("/apis/stable.example.com/v1/tabs").await.status,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn several_versions_show_the_same_objects() {
    let api = Api::new(Config::default());
    let mut definition = crontabs();
    let mut beta = definition["spec"]["versions"][0].clone();
    beta["name"] = "v1beta1".into();
    beta["storage"] = false.into();
    beta["deprecated"] = true.into();
    definition["spec"]["versions"]
        .as_array_mut()
        .expect("versions is a list")
        .push(beta);
    established(&api, definition).await;
    wait_for(&api, CRONTABS, |list| list["kind"] == "CronTabList").await;
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    let seen = api
        .get(&format!("{}/a", CRONTABS.replace("v1/", "v1beta1/")))
        .await;
    assert_eq!(
        seen.warnings,
        [r#"299 - "stable.example.com/v1beta1 CronTab is deprecated""#]
    );
    assert_eq!(seen.ok()["apiVersion"], "stable.example.com/v1beta1");
}
