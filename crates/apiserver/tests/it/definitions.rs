//! What definitions, and the resources they define, are refused for and warned of: which causes, in which order, with which words.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::{
    api::{Answer, Api},
    custom_resources::{
        CRONTABS, DEFINITIONS, crontab, crontabs, definition_of, established, served,
    },
};

/// The causes of a refusal, `at` shortened to `*`.
fn causes(answer: &Answer, at: &str) -> Vec<String> {
    assert_eq!(answer.status, 422, "{}", answer.body);
    let causes = answer.body["details"]["causes"].as_array();
    let causes = causes.expect("a 422 has causes").iter();
    causes
        .map(|cause| {
            let text = |field: &str| cause[field].as_str().unwrap_or_default();
            format!("{}: {}", text("field"), text("message")).replace(at, "*")
        })
        .collect()
}

const SPEC: &str = "spec.validation.openAPIV3Schema.properties[spec]";

/// What is wrong with a definition whose instances have a spec with this schema.
async fn refused(spec: Value) -> Vec<String> {
    let api = Api::new(Config::default());
    causes(&api.post(DEFINITIONS, definition_of(spec)).await, SPEC)
}

async fn accepted(spec: Value) {
    let api = Api::new(Config::default());
    let path = format!("{DEFINITIONS}?dryRun=All");
    api.post(&path, definition_of(spec)).await.ok();
}

#[tokio::test(start_paused = true)]
async fn causes_come_in_the_order_in_which_upstream_looks() {
    let api = Api::new(Config::default());
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "a.b"},
        "spec": {
            "group": "example", "scope": "None", "preserveUnknownFields": true,
            "names": {"plural": "a", "singular": "B", "kind": "Kind", "listKind": "Kind", "shortNames": ["A"], "categories": ["_"]},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "deprecationWarning": "old", "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v1", "served": true, "storage": true},
            ],
            "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v2", "v2", "-"]}},
        },
    });
    let found = causes(&api.post(DEFINITIONS, definition).await, "*");
    let fields: Vec<&str> = found
        .iter()
        .map(|cause| cause.split(": ").next().unwrap_or_default())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.group",
            "spec.scope",
            "spec.versions[1].schema.openAPIV3Schema",
            "spec.versions[0].deprecationWarning",
            "spec.versions",
            "spec.versions",
            "spec.names.singular",
            "spec.names.shortNames[0]",
            "spec.names.listKind",
            "spec.names.categories[0]",
            "spec.conversion.strategy",
            "spec.conversion.webhookClientConfig",
            "spec.conversion.conversionReviewVersions[1]",
            "spec.conversion.conversionReviewVersions[2]",
            "spec.conversion.conversionReviewVersions",
            "spec.preserveUnknownFields",
        ],
        "{found:#?}"
    );
    assert_eq!(
        found[11..14],
        [
            r#"spec.conversion.strategy: Invalid value: "Webhook": must be None if spec.preserveUnknownFields is true"#,
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            r#"spec.conversion.conversionReviewVersions[1]: Invalid value: "v2": duplicate version"#,
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_conversion_is_checked_and_its_port_defaulted() {
    let api = Api::new(Config::default());
    let with = |config: Value| {
        let mut definition = crontabs();
        definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"clientConfig": config, "conversionReviewVersions": ["v1"]}});
        definition
    };
    let address = json!({"url": "http://convert.example.com"});
    let at = "spec.conversion.webhookClientConfig";
    assert_eq!(
        causes(&api.post(DEFINITIONS, with(address)).await, at),
        [
            r#"*.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#
        ]
    );
    let service = json!({"service": {"name": "s", "namespace": "n"}});
    let created = api.post(DEFINITIONS, with(service)).await.ok();
    let port = created.pointer("/spec/conversion/webhook/clientConfig/service/port");
    assert_eq!(port, Some(&json!(443)));
}

#[tokio::test(start_paused = true)]
async fn formats_that_nobody_checks_are_warned_of_once() {
    let api = Api::new(Config::default());
    let spec = |format: &str| {
        json!({"type": "object", "properties": {
            "a": {"type": "string", "format": format},
            "b": {"type": "array", "items": {"type": "string", "format": format}},
            "i": {"type": "integer", "format": "int128"},
        }})
    };
    let created = api.post(DEFINITIONS, definition_of(spec("colour"))).await;
    assert_eq!(
        created.warnings,
        ["colour", "int128"].map(|format| format!(r#"299 - "unrecognized format \"{format}\"""#))
    );
    let mut changed = created.ok();
    let schema = &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"]["c"] = json!({"type": "string", "format": "colour"});
    schema["properties"]["spec"]["properties"]["d"] =
        json!({"type": "string", "format": "k8s-short-name"});
    changed["metadata"]
        .as_object_mut()
        .map(|metadata| metadata.remove("resourceVersion"));
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let changed = api.merge(&path, changed).await;
    assert_eq!((changed.status, changed.warnings.len()), (200, 0));
}

#[tokio::test(start_paused = true)]
async fn a_default_is_held_against_its_schema_and_rules_as_a_value_that_stays() {
    let list = json!({"type": "array", "items": {"type": "integer"}, "default": [1, "2"]});
    assert_eq!(
        refused(json!({"type": "object", "properties": {"l": list}})).await,
        [
            r#"*.properties[l].default.[1]: Invalid value: "string": [1] in body must be of type integer: "string""#
        ]
    );
    let rules = json!([{"rule": "self > oldSelf", "message": "must grow"}, {"rule": "self > 0"}]);
    let number = json!({"type": "integer", "default": 3, "x-kubernetes-validations": rules});
    assert_eq!(
        refused(json!({"type": "object", "properties": {"n": number}})).await,
        ["*.properties[n].default: Invalid value: 3: must grow"]
    );
    // Items that are there twice, and the values of maps, are not looked at.
    let twice = json!({"type": "array", "items": {"type": "integer"}, "x-kubernetes-list-type": "set", "default": [1, 1]});
    let values = json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}});
    accepted(json!({"type": "object", "properties": {"s": twice, "m": values}})).await;
}

#[tokio::test(start_paused = true)]
async fn a_default_in_the_metadata_of_a_resource_makes_valid_metadata() {
    let with = |name: &str| {
        let metadata =
            json!({"type": "object", "properties": {"name": {"type": "string", "default": name}}});
        let pod = json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": metadata}});
        json!({"type": "object", "properties": {"pod": pod}})
    };
    assert_eq!(
        refused(with("..")).await,
        [
            "*.properties[pod].properties[metadata].properties[name].default: Invalid value: \"..\": must result in valid metadata: metadata.name: Invalid value: \"..\": may not be '..'"
        ]
    );
    accepted(with("web")).await;
}

#[tokio::test(start_paused = true)]
async fn what_no_structural_schema_has_is_told_alone() {
    let reference = json!({"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}});
    assert_eq!(
        refused(reference).await,
        ["*.properties[a].$ref: Forbidden: $ref is not supported"]
    );
    let list = json!({"type": "array", "items": [{"type": "null"}, {"type": "string"}]});
    assert_eq!(
        refused(json!({"type": "object", "properties": {"a": list}})).await,
        [
            "*.properties[a].items: Forbidden: items must be a schema object and not an array",
            r#"*.properties[a].items[0].type: Unsupported value: "null": supported values: "array", "boolean", "integer", "number", "object", "string""#,
            "*.properties[a].items[0].type: Forbidden: type cannot be set to null, use nullable as an alternative",
        ]
    );
    assert_eq!(
        refused(json!({"type": "object", "$schema": "x"})).await,
        [
            r#"spec.validation.openAPIV3Schema: Invalid value: "": OpenAPIV3Schema 'schema' is not supported"#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn junctions_speak_of_anything_below_the_root_and_atomic_maps_have_old_values() {
    let map = json!({"type": "object", "x-kubernetes-map-type": "atomic", "properties": {
        "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf"}]}}});
    accepted(json!({"type": "object", "properties": {"m": map}, "anyOf": [{"properties": {"elsewhere": {"minLength": 1}}}, {"required": ["m"]}]})).await;
}

#[tokio::test(start_paused = true)]
async fn every_short_name_that_is_taken_is_told_also_if_it_is_ones_own_plural() {
    let api = served().await;
    let mut other = crontabs();
    other["metadata"]["name"] = "tabs.stable.example.com".into();
    other["spec"]["names"] = json!({"plural": "tabs", "kind": "Tab"});
    established(&api, other).await;
    let path = format!("{DEFINITIONS}/tabs.stable.example.com");
    let names = json!({"spec": {"names": {"shortNames": ["ct", "t", "tabs"]}}});
    api.merge(&path, names).await.ok();
    let refused = |definition: &Value| definition["status"]["conditions"][0]["status"] == "False";
    let definition = api.until(&path, refused).await;
    let conditions = &definition["status"]["conditions"];
    assert_eq!(conditions[0]["reason"], "ShortNamesConflict");
    assert_eq!(
        conditions[0]["message"],
        r#"["ct" is already in use, "tabs" is already in use]"#
    );
    assert_eq!(conditions[1]["status"], "True");
    assert_eq!(
        definition["status"]["acceptedNames"]["shortNames"],
        Value::Null
    );
}

#[tokio::test(start_paused = true)]
async fn a_status_is_held_against_its_own_schema_and_scale() {
    let api = served().await;
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    let status = format!("{CRONTABS}/a/status");
    let refused = api
        .merge(&status, json!({"status": {"ready": "many"}}))
        .await;
    assert_eq!(
        causes(&refused, "*"),
        [
            r#"status.ready: Invalid value: "string": ready in body must be of type integer: "string""#,
            ".status.ready: Invalid value: 0: .status.ready accessor error: many is of the type string, expected int64",
            "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ]
    );
    let refused = api.merge(&status, json!({"status": {"ready": -1}})).await;
    assert_eq!(
        causes(&refused, "*"),
        [".status.ready: Invalid value: -1: should be a non-negative integer"]
    );
}

#[tokio::test(start_paused = true)]
async fn rules_run_beside_items_that_are_there_twice_and_errors_in_them_are_not_forgiven() {
    let api = Api::new(Config::default());
    let set = json!({"type": "array", "maxItems": 5, "items": {"type": "integer"}, "x-kubernetes-list-type": "set"});
    let rule = json!([{"rule": "self.s[0] > 1", "message": "must begin high"}]);
    let spec =
        json!({"type": "object", "properties": {"s": set}, "x-kubernetes-validations": rule});
    established(&api, definition_of(spec)).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    let refused = api
        .post(CRONTABS, crontab("a", json!({"s": [1, 1, 1]})))
        .await;
    assert_eq!(
        causes(&refused, "*"),
        [
            "spec.s[1]: Duplicate value: 1",
            "spec: Invalid value: must begin high",
        ]
    );
    api.post(CRONTABS, crontab("a", json!({"s": [2]})))
        .await
        .ok();
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let mut definition = api.get(&path).await.ok();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["x-kubernetes-validations"][0]["rule"] = "self.s[1] > 1".into();
    api.put(&path, definition).await.ok();
    let one = format!("{CRONTABS}/a");
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let refused = crate::api::until("the new rule runs", async || {
        let answer = api
            .merge(&format!("{one}?dryRun=All"), labels.clone())
            .await;
        (answer.status == 422).then_some(answer)
    })
    .await;
    assert_eq!(
        causes(&refused, "*"),
        [
            r#"spec: Invalid value: "object": index out of bounds: 1 evaluating rule: must begin high"#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn finalizers_without_a_domain_are_warned_of() {
    let api = served().await;
    let mut object = crontab("a", json!({"cron": "x"}));
    object["metadata"]["finalizers"] = json!(["mine"]);
    let created = api.post(CRONTABS, object).await;
    assert_eq!(created.status, 201, "{}", created.body);
    assert_eq!(
        created.warnings,
        [
            r#"299 - "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers""#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_definition_takes_the_name_that_another_one_leaves() {
    let api = served().await;
    let mut other = crontabs();
    other["metadata"]["name"] = "ct.stable.example.com".into();
    other["spec"]["names"] = json!({"plural": "ct", "kind": "Ct"});
    api.post(DEFINITIONS, other).await.ok();
    let path = format!("{DEFINITIONS}/ct.stable.example.com");
    let condition = |definition: &Value| definition["status"]["conditions"][0]["status"].clone();
    api.until(&path, |definition| condition(definition) == "False")
        .await;
    let crontabs = format!("{DEFINITIONS}/crontabs.stable.example.com");
    api.delete(&crontabs).await.ok();
    let definition = api
        .until(&path, |definition| condition(definition) == "True")
        .await;
    assert_eq!(definition["status"]["acceptedNames"]["plural"], "ct");
}

#[tokio::test(start_paused = true)]
async fn metadata_of_a_resource_inside_is_read_with_the_request() {
    let api = Api::new(Config::default());
    let inside = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    let maps =
        json!({"type": "object", "additionalProperties": {"type": "array", "items": inside}});
    let open = json!({"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "object"}});
    let mut definition = crontabs();
    definition["spec"]["versions"][0] = json!({"name": "v1", "served": true, "storage": true, "schema": {
        "openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"m": maps, "open": open, "yes": {"type": "object", "additionalProperties": true}}}}}}});
    established(&api, definition).await;
    let pod = |fields: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod"});
        pod.as_object_mut()
            .expect("it is an object")
            .extend(fields.as_object().cloned().unwrap_or_default());
        crontab("a", json!({"m": {"k": [pod]}}))
    };
    for (fields, why) in [
        (
            json!({"metadata": {"name": 1}}),
            r#"spec.m[k][0].metadata: Invalid value: {"name":1}: json: cannot unmarshal number into Go struct field ObjectMeta.name of type string"#,
        ),
        (
            json!({"kind": 1}),
            "spec.m[k][0].kind: Invalid value: 1: must be a string",
        ),
    ] {
        let refused = api.post(CRONTABS, pod(fields)).await.refused(400);
        let told = format!(r#"CronTab in version "v1" cannot be handled as a CronTab: {why}"#);
        assert_eq!(refused, told);
    }
    let mut object = pod(json!({"metadata": {"name": "x", "labels": {}, "odd": 1}}));
    object["spec"]["yes"] = json!({"a": 1, "b": {"c": 1}});
    object["spec"]["open"] = json!([{"a": {}}]);
    let kept = api.post(CRONTABS, object).await.ok();
    assert_eq!(kept["spec"]["m"]["k"][0]["metadata"], json!({"name": "x"}));
    assert_eq!(kept["spec"]["yes"], json!({"a": 1, "b": {}}));
    assert_eq!(kept["spec"]["open"], json!([{"a": {}}]));
}
