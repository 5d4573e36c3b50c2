//! Requests that are wrong in a way of their own, and what kube-apiserver's handlers say of them, word for word.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

fn definition(schema: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "xs.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "xs", "kind": "X"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

#[tokio::test]
async fn options_in_the_query_are_read_as_go_reads_them() {
    let api = Api::new(Config::default());
    api.post(MAPS, map("x")).await.ok();
    for (query, status, message) in [
        (
            "limit=",
            400,
            r#"strconv.ParseInt: parsing "": invalid syntax"#,
        ),
        (
            "limit=9223372036854775808",
            400,
            r#"strconv.ParseInt: parsing "9223372036854775808": value out of range"#,
        ),
        (
            "timeoutSeconds=1.5",
            400,
            r#"strconv.ParseInt: parsing "1.5": invalid syntax"#,
        ),
        (
            "timeout=abc",
            400,
            r#"invalid timeout specified in the request URL - time: invalid duration "abc""#,
        ),
        (
            "resourceVersion=%2B5",
            400,
            r#"invalid resource version: resourceVersion: Invalid value: "+5": strconv.ParseUint: parsing "+5": invalid syntax"#,
        ),
        (
            "continue=MQ",
            400,
            "invalid continue token: continue key is not valid: json: cannot unmarshal number into Go value of type storage.continueToken",
        ),
        (
            // {"v":"meta.k8s.io/v1","rv":0,"start":"a"}
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MCwic3RhcnQiOiJhIn0",
            400,
            "invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
        ),
        (
            // {"v":"meta.k8s.io/v1","rv":5,"start":"../a"}
            "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiIuLi9hIn0",
            400,
            "invalid continue token: continue key is not valid: ../a",
        ),
        (
            // {"v":"v9"}
            "continue=eyJ2IjoidjkifQ",
            400,
            "invalid continue token: continue key is not valid: server does not recognize this encoded version v9",
        ),
        (
            "resourceVersionMatch=Foo&sendInitialEvents=true",
            422,
            r#"ListOptions.meta.k8s.io "" is invalid: [resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", "", sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list]"#,
        ),
    ] {
        let answer = api.get(&format!("{MAPS}?{query}")).await;
        assert_eq!(answer.refused(status), message, "{query}");
    }
    api.get(&format!("{MAPS}?limit=-1&timeout=32s")).await.ok();
}

#[tokio::test]
async fn deletions_are_refused_for_everything_that_is_wrong_with_their_options() {
    let api = Api::new(Config::default());
    api.post(MAPS, map("x")).await.ok();
    let path = format!("{MAPS}/x");
    for (query, body, status, message) in [
        (
            "?propagationPolicy=Foo&orphanDependents=true&dryRun=Bar",
            "",
            422,
            r#"DeleteOptions.meta.k8s.io "" is invalid: [propagationPolicy: Invalid value: "Foo": orphanDependents and deletionPropagation cannot be both set, propagationPolicy: Unsupported value: "Foo": supported values: "Foreground", "Background", "Orphan", "nil", dryRun: Unsupported value: ["Bar"]: supported values: "All"]"#,
        ),
        (
            "",
            r#"{"gracePeriodSeconds": "x"}"#,
            400,
            "json: cannot unmarshal string into Go struct field DeleteOptions.gracePeriodSeconds of type int64",
        ),
        (
            "",
            r#"{"gracePeriodSeconds""#,
            400,
            "couldn't get version/kind; json parse error: unexpected end of JSON input",
        ),
        (
            "?gracePeriodSeconds=soon",
            "",
            400,
            r#"strconv.ParseInt: parsing "soon": invalid syntax"#,
        ),
    ] {
        let path = format!("{path}{query}");
        let answer = api.send_text("DELETE", &path, JSON, body).await;
        assert_eq!(answer.refused(status), message, "{query}{body}");
    }
}

#[tokio::test]
async fn a_pod_that_ends_already_is_given_no_more_time_and_no_less_by_a_longer_one() {
    let api = Api::new(Config::default());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "finalizers": ["a.b/c"]},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    api.post(
        "/api/v1/namespaces/default/serviceaccounts",
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}),
    )
    .await;
    api.post(PODS, pod).await.ok();
    let path = format!("{PODS}/p");
    let grace = |object: &Value| object["metadata"]["deletionGracePeriodSeconds"].clone();
    assert_eq!(grace(&api.delete(&path).await.ok()), 30);
    // It has finished meanwhile: a longer time changes nothing, whatever a first deletion would make of it.
    let finished = json!({"status": {"phase": "Succeeded"}});
    api.merge(&format!("{path}/status"), finished).await.ok();
    let longer = api.delete(&format!("{path}?gracePeriodSeconds=60")).await;
    assert_eq!(grace(&longer.ok()), 30);
    let now = api.delete(&format!("{path}?gracePeriodSeconds=0")).await;
    assert_eq!(grace(&now.ok()), 0);
    // Only its finalizer holds it now, and who deletes it again may say what becomes of its dependents.
    let again = api
        .delete(&format!("{path}?propagationPolicy=Foreground"))
        .await;
    assert_eq!(
        again.ok()["metadata"]["finalizers"],
        json!(["a.b/c", "foregroundDeletion"])
    );
}

#[tokio::test]
async fn what_a_strict_reader_says_of_a_patch_or_a_yaml_body_is_warned_of_or_refused() {
    let api = Api::new(Config::default());
    api.post(MAPS, map("x")).await.ok();
    let path = format!("{MAPS}/x");
    let twice = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\ndata:\n  a: b\n  a: c\n";
    for (method, query, media, body, warning) in [
        (
            "PATCH",
            "",
            JSON_PATCH,
            r#"[{"op":"add","path":"/data/a","value":"b","note":"x"}]"#,
            r#"299 - "json patch unknown field \"[0].note\"""#,
        ),
        (
            "PATCH",
            "",
            JSON_PATCH,
            r#"[{"op":"add","path":"/data/a","value":"b","value":"c"}]"#,
            r#"299 - "json patch duplicate field \"[0].value\"""#,
        ),
        (
            "PATCH",
            "",
            MERGE,
            r#"{"data":{"a":"b","a":"c"}}"#,
            r#"299 - "duplicate field \"data.a\"""#,
        ),
        (
            "PUT",
            "",
            YAML,
            twice,
            r#"299 - "line 7: key \"a\" already set in map""#,
        ),
        (
            "PATCH",
            "&fieldManager=m&force=true",
            APPLY,
            twice,
            r#"299 - "line 7: key \"a\" already set in map""#,
        ),
    ] {
        let warned = format!("{path}?fieldValidation=Warn{query}");
        let answer = api.send_text(method, &warned, media, body).await;
        assert_eq!(answer.warnings, [warning], "{body}");
        answer.ok();
        let strict = format!("{path}?fieldValidation=Strict{query}");
        let answer = api.send_text(method, &strict, media, body).await;
        assert!(
            matches!(answer.status, 400 | 422),
            "{body}: {}",
            answer.body
        );
        let ignored = format!("{path}?fieldValidation=Ignore{query}");
        let answer = api.send_text(method, &ignored, media, body).await;
        assert!(answer.warnings.is_empty(), "{body}");
        answer.ok();
    }
    let strict = format!("{path}?fieldValidation=Strict&fieldManager=m&force=true");
    let answer = api.send_text("PATCH", &strict, APPLY, twice).await;
    assert_eq!(
        answer.refused(400),
        "error strict decoding YAML: error converting YAML to JSON: yaml: unmarshal errors:\n  line 7: key \"a\" already set in map"
    );
}

#[tokio::test]
async fn a_patch_is_read_once_there_is_something_to_patch() {
    let api = Api::new(Config::default());
    api.post(MAPS, map("x")).await.ok();
    const STRATEGIC: &str = "application/strategic-merge-patch+json";
    for (media, patch, status, message) in [
        (
            JSON_PATCH,
            r#"[{"op":"add","path":7}]"#,
            400,
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.path of type string",
        ),
        (
            JSON_PATCH,
            r#"[{"op":"replace","path":"","value":[]}]"#,
            422,
            r#" "" is invalid: patch: Invalid value: "[]": couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#,
        ),
        (MERGE, "null", 400, "Invalid JSON Patch"),
        (
            MERGE,
            "{",
            400,
            "error decoding patch: unexpected end of JSON input",
        ),
        (
            STRATEGIC,
            "[]",
            400,
            "json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
        (
            STRATEGIC,
            r#"{"data":{"a":5},"immutable":"x"}"#,
            422,
            r#" "" is invalid: patch: Invalid value: "map[data:map[a:5] immutable:x]": unrecognized type: bool"#,
        ),
    ] {
        let path = format!("{MAPS}/x");
        let answer = api.send_text("PATCH", &path, media, patch).await;
        assert_eq!(answer.refused(status), message, "{patch}");
        let nowhere = format!("{MAPS}/y");
        let answer = api.send_text("PATCH", &nowhere, media, patch).await;
        assert_eq!(answer.refused(404), "configmaps \"y\" not found");
    }
    for media in [JSON_PATCH, STRATEGIC] {
        let path = format!("{MAPS}/x");
        let same = api.send_text("PATCH", &path, media, "null").await.ok();
        assert_eq!(same["data"], json!({"a": "b"}));
    }
}

#[tokio::test]
async fn a_write_that_names_a_uid_means_an_object_that_is_there() {
    let api = Api::new(Config::default());
    let mut named = map("x");
    named["metadata"]["uid"] = "u".into();
    let path = format!("{MAPS}/x");
    assert_eq!(
        api.put(&path, named.clone()).await.refused(404),
        "configmaps \"x\" not found"
    );
    // Of a kind that an update creates, the uid is compared with that of no object.
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/x";
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "x", "uid": "u"}});
    assert_eq!(
        api.put(roles, role).await.refused(409),
        "Operation cannot be fulfilled on clusterroles.rbac.authorization.k8s.io \"x\": StorageError: invalid object, Code: 4, Key: \
         /registry/clusterroles/x, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: "
    );
    let applied = format!("{path}?fieldManager=m");
    let answer = api
        .send_text("PATCH", &applied, APPLY, &named.to_string())
        .await;
    assert_eq!(
        answer.refused(409),
        "Operation cannot be fulfilled on configmaps \"x\": uid mismatch: the provided object specified uid u, and no existing object was found"
    );
}

#[tokio::test]
async fn a_scale_is_of_the_object_that_it_names() {
    let api = Api::new(Config::default());
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"a": "b"});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let made = api.post(deployments, deployment).await.ok();
    let uid = made["metadata"]["uid"].as_str().unwrap_or_default();
    let path = format!("{deployments}/x/scale");
    for (patch, status, message) in [
        (
            json!({"metadata": {"name": "y"}}),
            400,
            "the name of the object (y) does not match the name on the URL (x)".to_owned(),
        ),
        (
            json!({"metadata": {"namespace": "other"}}),
            400,
            "the namespace of the provided object does not match the namespace sent on the request".to_owned(),
        ),
        (
            json!({"metadata": {"uid": "u"}}),
            409,
            format!(
                "Operation cannot be fulfilled on deployments/scale.apps \"x\": Precondition failed: UID in precondition: u, UID in object meta: {uid}"
            ),
        ),
        (
            json!({"metadata": {"resourceVersion": "1"}}),
            409,
            "Operation cannot be fulfilled on deployments.apps \"x\": the object has been modified; please apply your changes to the latest version and try again".to_owned(),
        ),
    ] {
        let answer = api.merge(&path, patch.clone()).await;
        assert_eq!(answer.refused(status), message, "{patch}");
    }
    let mut scale = api.get(&path).await.ok();
    scale["metadata"]["uid"] = "u".into();
    assert_eq!(
        api.put(&path, scale).await.refused(409),
        format!(
            "Operation cannot be fulfilled on deployments.apps \"x\": StorageError: invalid object, Code: 4, Key: /registry/deployments/default/x, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: {uid}"
        )
    );
}

#[tokio::test]
async fn a_configuration_that_does_not_fit_its_type_is_not_merged() {
    let api = Api::new(Config::default());
    for (path, body, status, message) in [
        (
            MAPS,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":5}}"#,
            500,
            "failed to create typed patch object (/x; /v1, Kind=ConfigMap): .data.a: expected string, got &value.valueUnstructured{Value:5}",
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"},"spec":{"replicas":"two"}}"#,
            500,
            "failed to create typed patch object (/x; apps/v1, Kind=Deployment): .spec.replicas: expected numeric (int or float), got string",
        ),
        (
            PODS,
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"much"}}}]}}"#,
            500,
            "failed to convert new object (/x; /v1, Kind=Pod) to proper version: unable to convert unstructured object to /v1, Kind=Pod: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            MAPS,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"data":{"a":"\ud83d\ude00"}}"#,
            400,
            "error decoding YAML: error converting YAML to JSON: yaml: found invalid Unicode character escape code",
        ),
        (
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            r#"{"apiVersion":"autoscaling/v2","kind":"HorizontalPodAutoscaler","metadata":{"name":"x"},"spec":{"maxReplicas":18446744073709551616,"scaleTargetRef":{"kind":"a","name":"b","apiVersion":"c/v1"}}}"#,
            422,
            "HorizontalPodAutoscaler.autoscaling \"x\" is invalid: [spec.maxReplicas: Required value: must be set and greater than 0, spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`]",
        ),
        (
            MAPS,
            "[]",
            400,
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}",
        ),
    ] {
        let path = format!("{path}/x?fieldManager=m");
        let answer = api.send_text("PATCH", &path, APPLY, body).await;
        assert_eq!(answer.refused(status), message, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_read_and_refused_in_words_of_their_own() {
    let api = Api::new(Config::default());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    api.post(DEFINITIONS, definition(open)).await.ok();
    let xs = "/apis/example.com/v1/namespaces/default/xs";
    api.until(xs, |list| list["kind"] == "XList").await;
    let x = json!({"apiVersion": "example.com/v1", "kind": "X", "metadata": {"name": "x"}});
    let mut made = api.post(xs, x).await.ok();
    let uid = made["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    made["metadata"]["uid"] = "u".into();
    assert_eq!(
        api.put(&format!("{xs}/x"), made).await.refused(409),
        format!(
            "Operation cannot be fulfilled on xs.example.com \"x\": StorageError: invalid object, Code: 4, Key: /registry/example.com/xs/default/x, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: u, UID in object meta: {uid}"
        )
    );
    for (method, media, body, status, message) in [
        (
            "POST",
            JSON,
            r#"{"apiVersion":"example.com/v1","metadata":{"name":"a"}}"#,
            400,
            r#"the object provided is unrecognized (must be of type X): Object 'Kind' is missing in '{"apiVersion":"example.com/v1","metadata":{"name":"a"}}' ({"apiVersion":"example.com/v1" ...)"#,
        ),
        (
            "POST",
            JSON,
            r#"{"kind":"X","metadata":{"name":"a"}}"#,
            400,
            "the API version in the data () does not match the expected API version (example.com/v1)",
        ),
        (
            "POST",
            JSON,
            r#"{"apiVersion":"example.com/v2","kind":"X","metadata":{"name":"a"}}"#,
            400,
            "the API version in the data (example.com/v2) does not match the expected API version (example.com/v1)",
        ),
        (
            "POST",
            JSON,
            r#"{"apiVersion":"example.com/v1","kind":"Y","metadata":{"name":"a"}}"#,
            422,
            r#"Y.example.com "a" is invalid: kind: Invalid value: "Y": must be X"#,
        ),
        (
            "POST",
            "text/plain",
            "{}",
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        ),
        (
            "PATCH",
            "application/strategic-merge-patch+json",
            "{}",
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        ),
    ] {
        let path = match method {
            "PATCH" => format!("{xs}/x"),
            _ => xs.to_owned(),
        };
        let answer = api.send_text(method, &path, media, body).await;
        assert_eq!(answer.refused(status), message, "{body}");
    }
}

#[tokio::test]
async fn a_definition_is_refused_for_what_upstream_refuses_it_for() {
    let api = Api::new(Config::default());
    let object = json!({"type": "object"});
    let mut column = definition(object.clone());
    column["spec"]["versions"][0]["additionalPrinterColumns"] =
        json!([{"name": "a", "type": "string", "format": "foo", "jsonPath": ".a"}]);
    let mut group = definition(object);
    group["spec"]["group"] = "Example".into();
    let rules = |schema: Value, rules: Value| {
        let mut schema = schema;
        schema["x-kubernetes-validations"] = rules;
        definition(json!({"type": "object", "properties": {"spec": schema}}))
    };
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations";
    let texts = json!({"type": "array", "items": {"type": "string"}});
    let hint = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)";
    for (definition, messages) in [
        (
            column,
            vec![r#"spec.additionalPrinterColumns[0].format: Invalid value: "foo": must be one of byte,date,date-time,double,float,int32,int64,password"#.to_owned()],
        ),
        (group, vec![]),
        (
            rules(texts.clone(), json!([{"rule": "self.all(x, self.exists_one(y, x == y))"}])),
            vec![
                format!("{at}[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {hint}"),
                format!("{at}[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"),
                format!("spec.validation.openAPIV3Schema: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x {hint}"),
            ],
        ),
        (
            // 3 MiB hold 1,048,575 texts: 2 + n * (2 + 1 + 1 + 1 + ceil(0.1 * 4 * 20)).
            rules(
                json!({"type": "array", "items": {"type": "string", "maxLength": 20}}),
                json!([{"rule": "self.all(x, x.contains('abcdefghij'))"}]),
            ),
            vec![format!("{at}[0].rule: Forbidden: estimated rule cost exceeds budget by factor of 1.258290x {hint}")],
        ),
        (
            rules(json!({"type": "string"}), json!([{"rule": "self.matches('[')"}, {"rule": "duration('x') > duration('1s')"}])),
            vec![
                format!("{at}[0].rule: Invalid value: {{\"Rule\":\"self.matches('[')\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: compilation failed: ERROR: <input>:1:14: invalid matches argument\n | self.matches('[')\n | .............^"),
                format!("{at}[1].rule: Invalid value: {{\"Rule\":\"duration('x') \\u003e duration('1s')\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}: compilation failed: ERROR: <input>:1:10: invalid duration argument\n | duration('x') > duration('1s')\n | .........^"),
            ],
        ),
    ] {
        let answer = api.post(DEFINITIONS, definition).await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        let causes = answer.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let told: Vec<String> = causes
            .iter()
            .map(|cause| {
                let text = |field: &str| cause[field].as_str().unwrap_or_default();
                format!("{}: {}", text("field"), text("message"))
            })
            .collect();
        if messages.is_empty() {
assert!(!told.iter().any(|text| text.contains("at least one dot")), "{told:?}")
} else {
assert_eq!(told, messages)
}
    }
    // Bounded, it is cheap enough.
    let bounded =
        json!({"type": "array", "maxItems": 10, "items": {"type": "string", "maxLength": 20}});
    let rule = json!([{"rule": "self.all(x, self.exists_one(y, x == y))"}]);
    api.post(DEFINITIONS, rules(bounded, rule)).await.ok();
}

#[tokio::test]
async fn a_body_that_is_no_yaml_is_not_recognized() {
    let api = Api::new(Config::default());
    for (body, why) in [
        (
            "a: b: c",
            "mapping values are not allowed in this context (613a20623a2063)",
        ),
        (
            "x: y\na: b: c",
            "line 2: mapping values are not allowed in this context (783a20790a613a20623a2063)",
        ),
        (
            "data:\n\ta: b",
            "line 2: found character that cannot start any token (646174613a0a09613a2062)",
        ),
        (
            "a: @x",
            "found character that cannot start any token (613a204078)",
        ),
        (
            "- a\nb: c",
            "line 1: did not find expected '-' indicator (2d20610a623a2063)",
        ),
        ("{a: b", "line 1: did not find expected ',' or '}' ({a: b)"),
    ] {
        let answer = api.send_text("POST", MAPS, YAML, body).await;
        let start = "the object provided is unrecognized (must be of type ConfigMap): yaml:";
        assert_eq!(answer.refused(400), format!("{start} {why}"), "{body}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_tell_its_type_is_not_recognized() {
    let api = Api::new(Config::default());
    let of_type = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let array = format!("cannot unmarshal array into Go value of type {of_type} (5b5d)");
    for (media, body, why) in [
        (JSON, "", "unexpected end of JSON input (<empty>)".to_owned()),
        (JSON, "[]", format!("json: {array}")),
        (YAML, "[]", format!("json: {array}")),
        (
            JSON,
            r#"{"kind":1}"#,
            r#"json: cannot unmarshal number into Go struct field .kind of type string ({"kind":1})"#.to_owned(),
        ),
    ] {
        let answer = api.send_text("POST", MAPS, media, body).await;
        let start = "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error:";
        assert_eq!(answer.refused(400), format!("{start} {why}"), "{body}");
    }
}

#[tokio::test]
async fn every_key_that_is_twice_in_a_yaml_body_is_named() {
    let api = Api::new(Config::default());
    let body = "metadata:\n  name: w\n  name: x\ndata:\n  a: b\ndata:\n  a: b\n  a: c\n";
    let (inner, outer) = ([(3, "name"), (8, "a")], (7, "data"));
    let said: Vec<String> = inner
        .into_iter()
        .chain([outer])
        .map(|(line, key)| format!("line {line}: key {key:?} already set in map"))
        .collect();
    let strict = format!("{MAPS}?fieldValidation=Strict");
    let answer = api.send_text("POST", &strict, YAML, body).await;
    let wanted = format!(
        "strict decoding error: yaml: unmarshal errors:\n  {}",
        said.join("\n  ")
    );
    let message = answer.refused(400);
    assert!(message.ends_with(&wanted), "{message}");
    let answer = api.send_text("POST", MAPS, YAML, body).await;
    let warnings: Vec<String> = said.iter().map(|text| format!("299 - {text:?}")).collect();
    assert_eq!(answer.warnings, warnings);
    assert_eq!(answer.ok()["data"], json!({"a": "c"}));
}

#[tokio::test]
async fn what_no_server_gives_any_more_is_refused() {
    let api = Api::new(Config::default());
    api.post(MAPS, map("x")).await.ok();
    let answer = api.get(&format!("{MAPS}/x?export=true")).await;
    assert_eq!(
        answer.refused(400),
        "the export parameter, deprecated since v1.14, is no longer supported"
    );
    api.get(&format!("{MAPS}/x?export=false")).await.ok();
    for connection in ["exec", "attach", "portforward"] {
        let path = format!("{PODS}/x/{connection}?dryRun=All");
        let answer = api.send_text("POST", &path, JSON, "").await;
        assert_eq!(
            answer.refused(400),
            "dryRun is not supported",
            "{connection}"
        );
    }
}

#[tokio::test]
async fn an_apply_without_a_manager_is_refused_with_what_else_is_wrong() {
    let api = Api::new(Config::default());
    let path = format!("{MAPS}/x?dryRun=some");
    let answer = api.send_text("PATCH", &path, APPLY, "{}").await;
    assert_eq!(
        answer.refused(422),
        "PatchOptions.meta.k8s.io \"\" is invalid: [fieldManager: Required value: is required for apply patch, dryRun: Unsupported value: [\"some\"]: supported values: \"All\"]"
    );
}

#[tokio::test]
async fn only_kinds_of_core_s_rules_ask_for_qualified_finalizers() {
    let api = Api::new(Config::default());
    let mut lease = json!({"metadata": {"name": "x", "finalizers": ["mine"]}, "spec": {}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    api.post(leases, lease.clone()).await.ok();
    lease["data"] = json!({});
    let message = api.post(MAPS, lease).await.refused(422);
    assert!(
        message.ends_with("neither a standard finalizer name nor is it fully qualified"),
        "{message}"
    );
    api.post(DEFINITIONS, definition(json!({"type": "object"})))
        .await
        .ok();
    let path = format!("{DEFINITIONS}/xs.example.com");
    let keep = json!({"metadata": {"finalizers": ["customresourcecleanup.apiextensions.k8s.io", "a.b/c"]}});
    api.send_text("PATCH", &path, MERGE, &keep.to_string())
        .await
        .ok();
}

#[tokio::test]
async fn the_conditions_of_an_api_service_only_need_a_status() {
    let api = Api::new(Config::default());
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps/status";
    for (status, refusal) in [
        ("False", None),
        (
            "Maybe",
            Some(
                r#"status.conditions[0].status: Unsupported value: "Maybe": supported values: "True", "False", "Unknown""#,
            ),
        ),
    ] {
        let patch = json!({"status": {"conditions": [{"type": "a b", "status": status}]}});
        let answer = api
            .send_text("PATCH", path, MERGE, &patch.to_string())
            .await;
        match refusal {
            None => {
                answer.ok();
            }
            Some(why) => {
                let message = answer.refused(422);
                assert!(message.ends_with(why), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn under_a_group_that_nobody_serves_there_is_no_page_for_any_method() {
    let api = Api::new(Config::default());
    for path in ["/apis/foo", "/apis/foo/bar", "/apis/foo/v1/things"] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let answer = api.send_text(method, path, "application/json", "{}").await;
            // No status: a line of text.
            assert_eq!(
                (answer.status, answer.body),
                (404, Value::Null),
                "{method} {path}"
            );
        }
        let (_, page) = api.bytes(path, "application/json").await;
        assert_eq!(page, "404 page not found\n");
    }
    let answer = api
        .send_text("POST", "/apis/apps/v1", "application/json", "{}")
        .await;
    answer.refused(405);
}
