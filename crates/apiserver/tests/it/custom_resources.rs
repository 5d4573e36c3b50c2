//! Custom resource definitions and their instances, through the router.

use mullion_apiserver::{ApiServer, Config};
use mullion_store::{Change, Draft, EventType};
use serde_json::{Value, json};

use crate::api::{Api, until};

pub(crate) const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

pub(crate) fn crontabs() -> Value {
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

pub(crate) fn crontab(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": name}, "spec": spec})
}

pub(crate) const CRONTABS: &str = "/apis/stable.example.com/v1/namespaces/default/crontabs";

pub(crate) async fn established(api: &Api, definition: Value) {
    let name = definition["metadata"]["name"]
        .as_str()
        .expect("definitions have names")
        .to_owned();
    api.post(DEFINITIONS, definition).await.ok();
    api.until(&format!("{DEFINITIONS}/{name}"), |definition| {
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

pub(crate) async fn served() -> Api {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
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
        r#"CronTab.stable.example.com "b" is invalid: spec.replicas: Invalid value: too many replicas"#
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
    assert_eq!(table["rows"][0]["cells"], json!(["a", "x", "p"]));
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
    api.until(&format!("{CRONTABS}/a"), |answer| answer["code"] == 404)
        .await;
    api.until(&format!("{CRONTABS}/b"), |object| {
        object["metadata"].get("deletionTimestamp").is_some()
    })
    .await;
    assert_eq!(api.get(&definition).await.status, 200);
    api.merge(
        &format!("{CRONTABS}/b"),
        json!({"metadata": {"finalizers": null}}),
    )
    .await;
    api.until(&definition, |answer| answer["code"] == 404).await;
    api.until(CRONTABS, |answer| answer["kind"] != "CronTabList")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_whose_names_are_taken_is_not_established() {
    let api = served().await;
    let mut other = crontabs();
    other["metadata"]["name"] = "tabs.stable.example.com".into();
    other["spec"]["names"] = json!({"plural": "tabs", "kind": "CronTab"});
    api.post(DEFINITIONS, other).await.ok();
    let path = format!("{DEFINITIONS}/tabs.stable.example.com");
    api.until(&path, |definition| {
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
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    let seen = api
        .get(&format!("{}/a", CRONTABS.replace("v1/", "v1beta1/")))
        .await;
    assert_eq!(
        seen.warnings,
        [
            r#"299 - "stable.example.com/v1beta1 CronTab is deprecated; use stable.example.com/v1 CronTab""#
        ]
    );
    assert_eq!(seen.ok()["apiVersion"], "stable.example.com/v1beta1");
}

#[tokio::test(start_paused = true)]
async fn each_version_shows_and_keeps_what_it_knows() {
    let api = Api::new(Config::default());
    let text = || json!({"type": "string"});
    let known = json!({"both": text(), "old": {"type": "string", "default": "o"}});
    let mut definition = definition_of(json!({"type": "object", "properties": known}));
    let mut other = definition["spec"]["versions"][0].clone();
    other["name"] = "v2".into();
    other["storage"] = false.into();
    other["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"] =
        json!({"both": text(), "new": text(), "given": {"type": "string", "default": "d"}});
    let versions = definition["spec"]["versions"].as_array_mut();
    versions.expect("it has versions").push(other);
    established(&api, definition.clone()).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    let (one, in_v2) = (
        format!("{CRONTABS}/a"),
        format!("{}/a", CRONTABS.replace("v1/", "v2/")),
    );
    api.post(CRONTABS, crontab("a", json!({"both": "x", "old": "y"})))
        .await
        .ok();
    let seen = api.get(&in_v2).await.ok();
    assert_eq!(seen["spec"], json!({"both": "x", "given": "d"}));
    // What the stored version does not know is not kept, and what the written one does not know has its default again.
    api.merge(&in_v2, json!({"spec": {"new": "z"}})).await.ok();
    let seen = api.get(&one).await.ok();
    assert_eq!(seen["spec"], json!({"both": "x", "old": "o"}));

    // What a later schema leaves out is not shown any more.
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["spec"]["properties"] = json!({"old": text()});
    let versions = definition["spec"]["versions"].clone();
    let name = format!("{DEFINITIONS}/crontabs.stable.example.com");
    api.merge(&name, json!({"spec": {"versions": versions}}))
        .await
        .ok();
    api.until(&one, |object| object["spec"] == json!({"old": "o"}))
        .await;
}

/// A definition whose instances have a spec with this schema.
pub(crate) fn definition_of(spec: Value) -> Value {
    let mut definition = crontabs();
    let version = &mut definition["spec"]["versions"][0];
    version["schema"]["openAPIV3Schema"]["properties"]["spec"] = spec;
    for field in [
        "selectableFields",
        "additionalPrinterColumns",
        "subresources",
    ] {
        version.as_object_mut().map(|version| version.remove(field));
    }
    definition
}

#[tokio::test(start_paused = true)]
async fn a_definition_whose_rules_cannot_be_meant_is_refused() {
    let api = Api::new(Config::default());
    let rules = json!([
        {"rule": "self.b > 1"},
        {"rule": "self.a"},
        {"rule": "self.a > 'x'", "messageExpression": "self.unseen"},
        {"rule": "self.a > 1", "messageExpression": "self.a", "optionalOldSelf": true},
    ]);
    let item = json!({"type": "string", "maxLength": 5, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
    let spec = json!({"type": "object", "properties": {"a": {"type": "integer"}, "l": {"type": "array", "items": item}}, "x-kubernetes-validations": rules});
    let refused = api.post(DEFINITIONS, definition_of(spec)).await;
    assert_eq!(refused.status, 422);
    let at = "spec.validation.openAPIV3Schema.properties[spec]";
    let causes: Vec<String> = refused.body["details"]["causes"]
        .as_array()
        .expect("a 422 has causes")
        .iter()
        .map(|cause| {
            let text = |field: &str| cause[field].as_str().unwrap_or_default().replace(at, "*");
            format!("{}: {}", text("field"), text("message"))
        })
        .collect();
    let shown = |rule: &str, message: &str, optional: &str| {
        format!(
            r#"Invalid value: {{"Rule":"{rule}","Message":"","MessageExpression":"{message}","Reason":null,"FieldPath":"","OptionalOldSelf":{optional}}}"#
        )
    };
    let mut expected = vec![
        format!(
            "*.x-kubernetes-validations[0].rule: {}: compilation failed: ERROR: <input>:1:5: undefined field 'b'\n | self.b > 1\n | ....^",
            shown("self.b \\u003e 1", "", "null"),
        ),
        format!(
            "*.x-kubernetes-validations[1].rule: {}: cel expression must evaluate to a bool",
            shown("self.a", "", "null"),
        ),
        format!(
            "*.x-kubernetes-validations[2].rule: {}: compilation failed: ERROR: <input>:1:8: found no matching overload for '_>_' applied to '(int, string)'\n | self.a > 'x'\n | .......^",
            shown("self.a \\u003e 'x'", "self.unseen", "null"),
        ),
        format!(
            "*.x-kubernetes-validations[3].messageExpression: {}: messageExpression must evaluate to a string",
            shown("self.a \\u003e 1", "self.a", "true"),
        ),
        "*.x-kubernetes-validations[3].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule".to_owned(),
        "*.properties[l].items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within *.properties[l]".to_owned(),
    ];
    let mut causes = causes;
    causes.sort();
    expected.sort();
    assert_eq!(causes, expected);
}

#[tokio::test(start_paused = true)]
async fn what_a_single_rule_may_cost_is_asked_of_schemas_that_change() {
    let dear = |limit: u64| {
        json!({"type": "object", "properties": {"l": {
            "type": "array", "maxItems": limit, "items": {"type": "string", "maxLength": 9},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.exists(y, x == y))"}],
        }}})
    };
    let server = ApiServer::new(Config::default());
    let api = Api::of(&server);
    let refused = api.post(DEFINITIONS, definition_of(dear(20_000))).await;
    let of_one = "spec.validation.openAPIV3Schema.properties[spec].properties[l].x-kubernetes-validations[0].rule";
    let fields = |body: &Value| -> Vec<String> {
        let causes = body["details"]["causes"].as_array().into_iter().flatten();
        causes
            .map(|cause| cause["field"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    assert!(
        fields(&refused.body).contains(&of_one.to_owned()),
        "{}",
        refused.body
    );
    // As an earlier server would have kept it.
    let cheap = api.post(DEFINITIONS, definition_of(dear(10))).await.ok();
    let name = cheap["metadata"]["name"].as_str().expect("it has a name");
    let collection = server
        .store()
        .collection("customresourcedefinitions.apiextensions.k8s.io");
    let stored = collection.get(name).expect("it is stored");
    let mut kept = stored.parse();
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    *kept.pointer_mut(at).expect("it has a spec") = dear(3_000);
    let draft = Draft::new(
        EventType::Modified,
        &kept,
        Box::default(),
        stored.revision(),
    );
    let changed = collection
        .commit(Change::Update(stored, draft), server.now())
        .await;
    assert!(changed.is_ok());
    let url = format!("{DEFINITIONS}/{name}");
    let unchanged = json!({"spec": {"names": {"shortNames": ["ct"]}}});
    assert_eq!(
        api.merge(&url, unchanged).await.ok()["spec"]["names"]["shortNames"],
        json!(["ct"])
    );
    let mut version = kept["spec"]["versions"][0].clone();
    version["schema"]["openAPIV3Schema"]["description"] = "now it is another one".into();
    let refused = api
        .merge(&url, json!({"spec": {"versions": [version]}}))
        .await;
    assert_eq!(refused.status, 422);
    assert_eq!(fields(&refused.body), [of_one]);
}

#[tokio::test(start_paused = true)]
async fn rules_compare_items_by_their_keys_and_forgive_what_is_left_alone() {
    let api = Api::new(Config::default());
    let item = json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.v >= oldSelf.v", "messageExpression": "self.k + ' must not shrink'", "fieldPath": ".v"}]});
    let once = json!({"type": "string", "x-kubernetes-validations": [{"rule": "!oldSelf.hasValue() || oldSelf.value() == self", "optionalOldSelf": true, "reason": "FieldValueForbidden", "message": "set once"}]});
    let spec = json!({"type": "object", "properties": {
        "l": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item},
        "once": once, "size": {"type": "number"}, "mode": {"x-kubernetes-int-or-string": true},
    }});
    established(&api, definition_of(spec.clone())).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    let first = json!({"l": [{"k": "a", "v": 1}, {"k": "b", "v": 5}], "once": "x", "size": 1, "mode": "50%"});
    api.post(CRONTABS, crontab("a", first)).await.ok();
    let path = format!("{CRONTABS}/a");
    let turned =
        json!({"spec": {"l": [{"k": "b", "v": 6}, {"k": "c", "v": 0}, {"k": "a", "v": 1}]}});
    api.merge(&path, turned).await.ok();
    let shrunk = json!({"spec": {"l": [{"k": "b", "v": 6}, {"k": "a", "v": 0}], "once": "y"}});
    let refused = api.merge(&path, shrunk).await;
    assert_eq!(
        refused.body["message"],
        r#"CronTab.stable.example.com "a" is invalid: [spec.l[1].v: Invalid value: a must not shrink, spec.once: Forbidden: set once]"#
    );

    // The definition becomes stricter than what is stored.
    let mut strict = spec;
    strict["x-kubernetes-validations"] =
        json!([{"rule": "type(self.mode) == int && self.size < 1.0", "message": "too big"}]);
    strict["properties"]["once"]["maxLength"] = json!(0);
    let name = format!("{DEFINITIONS}/crontabs.stable.example.com");
    let versions = definition_of(strict)["spec"]["versions"].clone();
    api.merge(&name, json!({"spec": {"versions": versions}}))
        .await
        .ok();
    // The stricter version is served once it refuses something.
    let too_big = crontab("b", json!({"size": 2, "mode": 1}));
    let tried = format!("{CRONTABS}?dryRun=All");
    until("the stricter version is served", async || {
        let answer = api.post(&tried, too_big.clone()).await;
        (answer.status == 422).then_some(())
    })
    .await;
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = api.merge(&path, labelled).await;
    assert_eq!(kept.warnings, [r#"299 - "spec: Invalid value: too big""#]);
    kept.ok();
    let changed = api.merge(&path, json!({"spec": {"size": 2}})).await;
    assert_eq!(
        changed.body["message"],
        r#"CronTab.stable.example.com "a" is invalid: spec: Invalid value: too big"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_schema_that_is_not_structural_is_refused_in_upstreams_words() {
    let api = Api::new(Config::default());
    let spec = json!({
        "type": "object",
        "properties": {
            "o": {"type": "object", "x-kubernetes-embedded-resource": true},
            "p": {"type": "string", "pattern": "["},
            "d": {"type": "object", "properties": {"x": {"type": "integer"}}, "default": {"x": 1, "y": 2}},
            "n": {"type": "array", "items": {"type": "string", "nullable": true}, "x-kubernetes-list-type": "set"},
        },
        "allOf": [{"properties": {"missing": {"type": "string", "default": "x"}}}],
    });
    let mut definition = definition_of(spec);
    // What is missing is only told of junctions at the root.
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["not"] =
        json!({"properties": {"spec": {"properties": {"missing": {"minLength": 1}}}}});
    definition["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.o"}, {"jsonPath": ".spec.p[0]"}, {"jsonPath": ".metadata.name"}]);
    let refused = api.post(DEFINITIONS, definition).await;
    assert_eq!(refused.status, 422);
    let message = refused.body["message"]
        .as_str()
        .expect("a 422 has a message");
    for part in [
        "properties[spec].allOf[0].properties[missing].default: Forbidden: must be undefined to be structural",
        "properties[spec].allOf[0].properties[missing].type: Forbidden: must be empty to be structural",
        "properties[spec].properties[missing]: Required value: because it is defined in spec.validation.openAPIV3Schema.not.properties[spec].properties[missing]",
        "properties[o].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        "properties[p].pattern: Invalid value: \"[\": must be a valid regular expression, but isn't: ",
        "properties[n].items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        "selectableFields[0].jsonPath: Invalid value: \".spec.o\": must point to a field of type string, boolean or integer.",
        "selectableFields[1].jsonPath: Invalid value: \".spec.p[0]\": is an invalid path: array notation is not allowed",
        "selectableFields[2].jsonPath: Invalid value: \".metadata.name\": is an invalid path: does not refer to a valid field",
    ] {
        assert!(message.contains(part), "{part}\nis not in\n{message}");
    }
    let spec = json!({"type": "object", "properties": {"d": {"type": "object", "properties": {"x": {"type": "integer"}}, "default": {"x": "1", "y": 2}}}});
    let refused = api.post(DEFINITIONS, definition_of(spec)).await;
    let message = refused.body["message"]
        .as_str()
        .expect("a 422 has a message");
    for part in [
        r#"properties[d].default: Invalid value: {"x":"1","y":2}: must not have unknown fields"#,
        r#"properties[d].default.x: Invalid value: "string": x in body must be of type integer: "string""#,
    ] {
        assert!(message.contains(part), "{part}\nis not in\n{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_definition_with_a_conversion_webhook_the_stored_version_is_served_and_of_others_what_needs_no_conversion()
 {
    const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let api = Api::new(Config::default());
    let mut definition = crontabs();
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
        "clientConfig": {"service": {"name": "converter", "namespace": "default"}}, "conversionReviewVersions": ["v1"],
    }});
    let mut other = definition["spec"]["versions"][0].clone();
    other["name"] = "v2".into();
    other["storage"] = false.into();
    let versions = definition["spec"]["versions"]
        .as_array_mut()
        .expect("it has versions");
    versions.push(other);
    api.post(DEFINITIONS, definition).await.ok();
    let in_v2 = CRONTABS.replace("/v1/", "/v2/");
    api.until(&in_v2, |list| list["kind"] == "CronTabList")
        .await;
    assert_eq!(api.get(&format!("{in_v2}/a")).await.status, 404);
    let mut unread = crontab("a", json!({"cron": "x"}));
    unread["apiVersion"] = "stable.example.com/v2".into();
    let refused = api.post(&in_v2, unread).await.refused(500);
    assert_eq!(
        refused,
        "Internal error occurred: conversion webhook for stable.example.com/v2, Kind=CronTab failed: this API server calls no conversion webhooks: use the stored version, stable.example.com/v1"
    );
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    for path in [
        in_v2.clone(),
        format!("{in_v2}/a"),
        format!("{in_v2}/a/status"),
    ] {
        let refused = api.get(&path).await.refused(500);
        let from = "conversion webhook for stable.example.com/v1, Kind=CronTab failed";
        assert!(refused.contains(from), "{path}: {refused}");
    }
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    let merged = api.merge(&format!("{in_v2}/a"), labels).await;
    merged.refused(500);
    assert_eq!(api.bytes(&in_v2, METADATA).await.0, 200);
    assert_eq!(
        api.get(&format!("{CRONTABS}/a")).await.ok()["spec"]["cron"],
        "x"
    );
    api.delete(&format!("{in_v2}/a")).await.ok();
    assert_eq!(api.get(&format!("{CRONTABS}/a")).await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_of_a_definition_that_goes() {
    let api = served().await;
    let mut kept = crontab("kept", json!({"cron": "x"}));
    kept["metadata"]["finalizers"] = json!(["e.x/hold"]);
    api.post(CRONTABS, kept).await.ok();
    api.delete(&format!("{DEFINITIONS}/crontabs.stable.example.com"))
        .await
        .ok();
    let path = format!("{CRONTABS}?dryRun=All");
    let refused = until("creations are refused", async || {
        let answer = api.post(&path, crontab("new", json!({"cron": "x"}))).await;
        (answer.status == 403).then_some(answer)
    })
    .await;
    assert_eq!(
        refused.body["message"],
        r#"crontabs.stable.example.com "new" is forbidden: create not allowed while custom resource definition is terminating"#
    );
    let applied = json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "new"}});
    let refused = api
        .send_text(
            "PATCH",
            &format!("{CRONTABS}/new?fieldManager=m"),
            "application/apply-patch+yaml",
            &applied.to_string(),
        )
        .await;
    assert_eq!(
        refused.refused(403),
        r#"crontabs.stable.example.com "new" is forbidden: create not allowed while custom resource definition is terminating"#
    );
    let served = api.get("/apis/stable.example.com/v1").await.ok();
    assert_eq!(
        served["resources"][0]["verbs"],
        json!(["delete", "deletecollection", "get", "list", "watch"])
    );
    let labelled = json!({"metadata": {"labels": {"a": "b"}}});
    api.merge(&format!("{CRONTABS}/kept"), labelled).await.ok();
}

#[tokio::test(start_paused = true)]
async fn definitions_in_groups_of_kubernetes_say_whether_they_are_approved() {
    let api = Api::new(Config::default());
    let mut definition = crontabs();
    definition["metadata"]["name"] = "crontabs.gateway.k8s.io".into();
    definition["spec"]["group"] = "gateway.k8s.io".into();
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "yes"});
    let refused = api.post(DEFINITIONS, definition.clone()).await;
    assert_eq!(
        refused.body["details"]["causes"][0]["message"],
        r#"Invalid value: "yes": protected groups must have approval annotation "api-approved.kubernetes.io" with either a URL or a reason starting with "unapproved", see https://github.com/kubernetes/enhancements/pull/1111"#
    );
    definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api/pull/1"});
    established(&api, definition).await;
    let stored = api
        .get(&format!("{DEFINITIONS}/crontabs.gateway.k8s.io"))
        .await
        .ok();
    let condition = &stored["status"]["conditions"][2];
    assert_eq!(condition["type"], "KubernetesAPIApprovalPolicyConformant");
    assert_eq!(
        condition["message"],
        "approved in https://github.com/kubernetes-sigs/gateway-api/pull/1"
    );
}

#[tokio::test(start_paused = true)]
async fn an_applied_resource_fits_its_schema_before_it_is_merged() {
    let api = Api::new(Config::default());
    let mut definition = crontabs();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    schema["properties"]["any"] = json!({"x-kubernetes-preserve-unknown-fields": true});
    established(&api, definition).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    let path = format!("{CRONTABS}/x?fieldManager=m");
    let apply = async |body: Value| {
        let media = "application/apply-patch+yaml";
        api.send_text("PATCH", &path, media, &body.to_string())
            .await
    };
    for (spec, why) in [
        (
            json!({"cron": 5}),
            ".spec.cron: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            json!({"cron": "*", "replicas": "two"}),
            ".spec.replicas: expected numeric (int or float), got string",
        ),
        (
            json!({"cron": "*", "ports": [{"port": 1}]}),
            ".spec.ports: element 0: associative list with keys has an element that omits all key fields [\"name\"] \
             (and doesn't have default values for any key fields)",
        ),
    ] {
        assert_eq!(
            apply(crontab("x", spec)).await.refused(500),
            format!(
                "failed to create typed patch object (/x; stable.example.com/v1, Kind=CronTab): {why}"
            )
        );
    }
    // What may be anything may be a list or text, too.
    for any in [json!([1, "a"]), json!("text"), json!({"a": {"b": 1}})] {
        let mut new = crontab("x", json!({"cron": "*", "replicas": 1.0}));
        new["any"] = any.clone();
        assert_eq!(apply(new).await.ok()["any"], any);
    }
    // Without owners it is owned by nobody until somebody applies it again.
    let mut object = api.get(&format!("{CRONTABS}/x")).await.ok();
    assert_ne!(object["metadata"]["managedFields"], json!(null));
    object["metadata"]["managedFields"] = json!([]);
    let stored = api.put(&format!("{CRONTABS}/x"), object).await.ok();
    assert_eq!(stored["metadata"].get("managedFields"), None);
}
