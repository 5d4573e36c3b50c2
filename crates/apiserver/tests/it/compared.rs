//! Answers in which a comparison of random requests with kube-apiserver 1.36.3 found differences, word for word.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::{
    api::Api,
    custom_resources::{CRONTABS, DEFINITIONS, crontab, crontabs, established, served},
};

const CORE: &str = "/api/v1/namespaces/default";

#[tokio::test]
async fn plain_discovery_lists_have_the_media_types_of_objects() {
    let api = Api::new(Config::default());
    let list = api.get("/api/v1").await.ok();
    assert_eq!(list.get("apiVersion"), None);
    assert_eq!(list["groupVersion"], "v1");
    for path in ["/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1"] {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(api.status_of("GET", path, table).await, 406, "{path}");
        assert_eq!(api.status_of("GET", path, "text/html").await, 406, "{path}");
        let either = "text/html,application/yaml";
        assert_eq!(api.status_of("GET", path, either).await, 200, "{path}");
    }
    // kube-aggregator, which serves these two, looks at the header without the router.
    for (path, status) in [("/apis", 200), ("/apis/apps", 200), ("/apis/apps/v1", 406)] {
        let any = "application/*";
        assert_eq!(api.status_of("GET", path, any).await, status, "{path}");
    }
}

#[tokio::test]
async fn a_dry_run_labels_a_job_like_its_pods() {
    let api = Api::new(Config::default());
    let job = json!({"metadata": {"name": "x"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let path = "/apis/batch/v1/namespaces/default/jobs?dryRun=All";
    let made = api.post(path, job).await.ok();
    assert_eq!(made["metadata"]["labels"]["job-name"], "x");
    assert_eq!(
        made["metadata"]["labels"],
        made["spec"]["template"]["metadata"]["labels"]
    );
}

#[tokio::test]
async fn a_patched_object_without_a_version_is_read_as_the_internal_type() {
    let api = Api::new(Config::default());
    let map = json!({"metadata": {"name": "x"}, "data": {"a": "b"}});
    api.post(&format!("{CORE}/configmaps"), map).await.ok();
    let path = format!("{CORE}/configmaps/x");
    let nameless = api.merge(&path, json!({"apiVersion": null})).await;
    assert_eq!(
        nameless.warnings,
        [
            r#"299 - "unknown field \"data\"""#,
            r#"299 - "unknown field \"metadata\"""#
        ]
    );
    assert_eq!(
        nameless.refused(400),
        "the name of the object (x based on URL) was undeterminable: name must be provided"
    );
    let strict = format!("{path}?fieldValidation=Strict");
    let why = api.merge(&strict, json!({"apiVersion": null})).await;
    let why = why.refused(422);
    let end = r#"strict decoding error: unknown field "data", unknown field "metadata""#;
    assert!(why.ends_with(end), "{why}");
    for (patch, end) in [
        (
            json!({"kind": 5}),
            "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string",
        ),
        (
            json!({"apiVersion": "a/b/c"}),
            "unexpected GroupVersion string: a/b/c",
        ),
    ] {
        let why = api.merge(&path, patch).await.refused(422);
        assert!(why.ends_with(end), "{why}");
    }
}

#[tokio::test]
async fn the_metadata_of_a_scale_is_validated() {
    let api = Api::new(Config::default());
    let labels = json!({"a": "b"});
    let deployment = json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    api.post(deployments, deployment).await.ok();
    let scale =
        json!({"metadata": {"finalizers": ["ab"], "generation": -1}, "spec": {"replicas": -1}});
    let answer = api.merge(&format!("{deployments}/x/scale"), scale).await;
    assert_eq!(
        answer.refused(422),
        "Scale.autoscaling \"x\" is invalid: [metadata.generation: Invalid value: -1: must be greater than or equal to 0, \
         metadata.finalizers[0]: Invalid value: \"ab\": name is neither a standard finalizer name nor is it fully qualified, \
         spec.replicas: Invalid value: -1: must be greater than or equal to 0]"
    );
}

#[tokio::test]
async fn a_quota_of_more_requests_than_limits_is_warned_of() {
    let api = Api::new(Config::default());
    let quotas = format!("{CORE}/resourcequotas");
    let hard = json!({"cpu": "3", "requests.cpu": "1.5", "limits.cpu": "1", "memory": "1Gi", "limits.memory": "1Gi"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    assert_eq!(
        api.post(&quotas, quota.clone()).await.warnings,
        [r#"299 - "ResourceQuota requests.cpu (1500m) should be less than limits.cpu (1)""#]
    );
    let none: [&str; 0] = [];
    let again = api.put(&format!("{quotas}/q"), quota).await;
    assert_eq!(again.warnings, none);
}

#[tokio::test]
async fn an_external_name_has_no_policy_for_traffic_within_the_cluster() {
    let api = Api::new(Config::default());
    let service = |policy: &str| json!({"metadata": {"name": "s"}, "spec": {"type": "ExternalName", "externalName": "x.y", "internalTrafficPolicy": policy}});
    let services = format!("{CORE}/services");
    let made = api.post(&services, service("Local")).await.ok();
    assert_eq!(made["spec"].get("internalTrafficPolicy"), None);
    let unknown = api.put(&format!("{services}/s"), service("<Foo>")).await;
    assert_eq!(
        unknown.refused(422),
        r#"Service "s" is invalid: spec.internalTrafficPolicy: Unsupported value: "\u003cFoo\u003e": supported values: "Cluster", "Local""#
    );
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_written_by_their_versions_and_listed_without_an_empty_token() {
    let api = served().await;
    api.post(CRONTABS, crontab("a", json!({"cron": "x"})))
        .await
        .ok();
    let status = json!({"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "a"}, "status": {"ready": 1}});
    assert_eq!(
        api.put(&format!("{CRONTABS}/a/status"), status)
            .await
            .refused(422),
        "crontabs.stable.example.com \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    );
    assert_eq!(api.get(CRONTABS).await.ok()["metadata"]["continue"], "");
    let table = api.table(CRONTABS).await;
    assert_eq!(table["metadata"].get("continue"), None);
    for (metadata, why) in [
        (
            json!({"labels": 5}),
            "struct field ObjectMeta.labels of type map[string]string",
        ),
        (
            json!({"name": "b", "ownerReferences": [{"uid": 5}]}),
            "struct field OwnerReference.ownerReferences.uid of type types.UID",
        ),
        (json!(5), "value of type v1.ObjectMeta"),
    ] {
        let mut wrong = crontab("b", json!({"cron": "x"}));
        wrong["metadata"] = metadata;
        let why = format!(
            "CronTab in version \"v1\" cannot be handled as a CronTab: json: cannot unmarshal number into Go {why}"
        );
        assert_eq!(api.post(CRONTABS, wrong).await.refused(400), why);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_fit_its_type_has_no_owners() {
    let api = served().await;
    let mut odd = crontab("a", json!({"cron": "x"}));
    // The status is dropped, but only after the owners of the fields are found.
    odd["status"] = json!({"ready": "x"});
    let made = api.post(CRONTABS, odd).await.ok();
    assert_eq!(made["metadata"].get("managedFields"), None);
    assert_eq!(made.get("status"), None);
}

fn with_properties(properties: Value) -> Value {
    let mut definition = crontabs();
    let version = &mut definition["spec"]["versions"][0];
    version["subresources"] = json!({});
    version["selectableFields"] = Value::Null;
    version["schema"] = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": properties}}}});
    definition
}

#[tokio::test(start_paused = true)]
async fn numbers_and_formats_of_a_schema_are_read_as_go_reads_them() {
    let api = Api::new(Config::default());
    let formats = json!({
        "a": {"type": "integer", "format": "float"}, "b": {"type": "number", "format": "int32"}, "c": {"type": "boolean", "format": "x"},
        "d": {"type": "integer", "format": "int64"}, "e": {"type": "number", "format": "double"}, "f": {"type": "string", "format": "date"},
    });
    let dry = format!("{DEFINITIONS}?dryRun=All");
    assert_eq!(
        api.post(&dry, with_properties(formats)).await.warnings,
        ["float", "int32", "x"]
            .map(|format| format!(r#"299 - "unrecognized format \"{format}\"""#))
    );
    let properties = json!({
        "enum": {"type": "number", "enum": [1.0, 2.5], "default": 1.0},
        "min": {"type": "integer", "minimum": 1.5},
        "factor": {"type": "integer", "multipleOf": 1.5},
        "number": {"type": "number", "minimum": 1.5},
        "text": {"type": "string", "format": "int32", "maxLength": 1},
    });
    established(&api, with_properties(properties)).await;
    api.until(CRONTABS, |list| list["kind"] == "CronTabList")
        .await;
    let shown = api
        .get(&format!("{DEFINITIONS}/crontabs.stable.example.com"))
        .await
        .ok();
    let schema = &shown["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let listed = &schema["properties"]["spec"]["properties"]["enum"];
    assert_eq!(listed["enum"], json!([1, 2.5]));
    assert_eq!(listed["default"], json!(1));
    let prefix = "CronTab.stable.example.com \"a\" is invalid: ";
    for (spec, why) in [
        (
            json!({"enum": 3}),
            r#"spec.enum: Unsupported value: 3: supported values: "1", "2.5""#,
        ),
        (
            json!({"min": 2}),
            r#"<nil>: Invalid value: "": Minimum boundary value must be of type integer (default format) in spec.min"#,
        ),
        (
            json!({"factor": 2}),
            "[<nil>: Invalid value: \"\": MultipleOf value must be of type integer (default format) in spec.factor, \
             spec.factor: Invalid value: 2: spec.factor in body should be a multiple of 1.5]",
        ),
        (
            json!({"number": 0}),
            "spec.number: Invalid value: 0: spec.number in body should be greater than or equal to 1",
        ),
        (
            json!({"text": 1}),
            r#"spec.text: Invalid value: "integer": spec.text in body must be of type string: "integer""#,
        ),
        (
            json!({"text": "aa"}),
            "spec.text: Too long: may not be more than 1 byte",
        ),
    ] {
        let refused = api.post(CRONTABS, crontab("a", spec)).await.refused(422);
        assert_eq!(refused, format!("{prefix}{why}"));
    }
    let fits = json!({"number": 1});
    api.post(CRONTABS, crontab("a", fits)).await.ok();
}

#[tokio::test(start_paused = true)]
async fn an_applied_null_stays_and_is_refused() {
    let api = served().await;
    let config = crontab("a", json!({"cron": null}));
    let path = format!("{CRONTABS}/a?fieldManager=m");
    let media = "application/apply-patch+yaml";
    let answer = api
        .send_text("PATCH", &path, media, &config.to_string())
        .await;
    let refused = answer.refused(422);
    let why =
        r#"spec.cron: Invalid value: "null": spec.cron in body must be of type string: "null""#;
    assert!(refused.contains(why), "{refused}");
}

#[tokio::test]
async fn a_job_that_a_status_write_leaves_without_labels_has_those_of_its_template() {
    let api = Api::new(Config::default());
    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let job = json!({"metadata": {"name": "x", "labels": {"a": "b"}}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let made = api.post(jobs, job).await.ok();
    assert_eq!(made["metadata"]["labels"], json!({"a": "b"}));
    let path = format!("{jobs}/x/status");
    let status = json!({"metadata": {"name": "x"}, "status": {"active": 1}});
    let written = api.put(&path, status).await.ok();
    assert_eq!(
        written["metadata"]["labels"],
        made["spec"]["template"]["metadata"]["labels"]
    );
    let status = json!({"metadata": {"name": "x", "labels": {"c": "d"}}, "status": {"active": 2}});
    let written = api.put(&path, status).await.ok();
    assert_eq!(written["metadata"]["labels"], json!({"c": "d"}));
}

#[tokio::test]
async fn a_dry_run_shows_the_version_that_was_sent_for_an_object_that_does_not_exist() {
    let api = Api::new(Config::default());
    let sent = |version: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "resourceVersion": version}});
    let path = format!("{CORE}/configmaps/x?fieldManager=m&dryRun=All");
    let apply = async |path: &str, version: &str| {
        let media = "application/apply-patch+yaml";
        let body = sent(version).to_string();
        api.send_text("PATCH", path, media, &body).await
    };
    for version in ["0", "5"] {
        let shown = apply(&path, version).await.ok();
        assert_eq!(shown["metadata"]["resourceVersion"], version);
    }
    let shown = apply(&path, "").await.ok();
    assert_eq!(shown["metadata"].get("resourceVersion"), None);
    assert_eq!(
        apply(&path, "x").await.refused(500),
        r#"strconv.ParseUint: parsing "x": invalid syntax"#
    );
    let stored = apply(&path.replace("&dryRun=All", ""), "5").await.ok();
    let version = &stored["metadata"]["resourceVersion"];
    let dry = apply(&path, "").await.ok();
    assert_eq!(dry["metadata"]["resourceVersion"], *version);
}

#[tokio::test(start_paused = true)]
async fn a_bound_of_a_schema_is_shown_with_the_digits_that_a_double_has() {
    let api = Api::new(Config::default());
    let properties = json!({"number": {"type": "integer", "maximum": i64::MAX}});
    established(&api, with_properties(properties)).await;
    let shown = api
        .get(&format!("{DEFINITIONS}/crontabs.stable.example.com"))
        .await
        .ok();
    let schema = &shown["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let bound = &schema["properties"]["spec"]["properties"]["number"]["maximum"];
    assert_eq!(*bound, 9_223_372_036_854_776_000_u64);
    let refused = api.post(CRONTABS, crontab("a", json!({"number": 1}))).await;
    assert_eq!(
        refused.refused(422),
        r#"CronTab.stable.example.com "a" is invalid: <nil>: Invalid value: "": Maximum boundary value must be of type integer (default format) in spec.number"#
    );
}

#[tokio::test]
async fn a_generation_beyond_the_largest_number_begins_at_the_smallest() {
    let api = Api::new(Config::default());
    let service = json!({"metadata": {"name": "x", "generation": i64::MAX}, "spec": {"ports": [{"port": 80}]}});
    api.post(&format!("{CORE}/services"), service).await.ok();
    let options = json!({"propagationPolicy": "Orphan"}).to_string();
    let path = format!("{CORE}/services/x?dryRun=All");
    let deleted = api
        .send_text("DELETE", &path, "application/json", &options)
        .await
        .ok();
    assert_eq!(deleted["metadata"]["generation"], i64::MIN);
}

#[tokio::test]
async fn the_labels_that_a_job_gets_from_its_name_are_validated_once() {
    let api = Api::new(Config::default());
    let job = json!({"metadata": {"name": "A_"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}});
    let refused = api
        .post("/apis/batch/v1/namespaces/default/jobs", job)
        .await;
    let causes = &refused.body["details"]["causes"];
    let fields: Vec<_> = causes
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| &cause["field"])
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "spec.template.labels",
            "spec.template.labels"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_kind_of_a_custom_resource_is_read_before_its_fields() {
    let api = served().await;
    let mut object = crontab("a", json!({"cron": "x"}));
    object["metadata"]["unknown"] = 1.into();
    object["kind"] = "Foo".into();
    let refused = api.post(CRONTABS, object.clone()).await;
    assert_eq!(
        refused.warnings,
        [r#"299 - "unknown field \"metadata.unknown\"""#]
    );
    assert!(
        refused
            .refused(422)
            .ends_with(r#"kind: Invalid value: "Foo": must be CronTab"#)
    );
    object["kind"] = 5.into();
    let refused = api.post(CRONTABS, object).await.refused(400);
    let why = "the object provided is unrecognized (must be of type CronTab): couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string (";
    assert!(refused.starts_with(why), "{refused}");
}

#[tokio::test]
async fn a_version_that_go_cannot_parse_is_told_before_other_errors() {
    let api = Api::new(Config::default());
    let map = json!({"apiVersion": "a/b/c", "kind": "ConfigMap", "data": 5});
    let refused = api.post(&format!("{CORE}/configmaps"), map).await;
    assert_eq!(
        refused.refused(400),
        r#"the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a/b/c ({"apiVersion":"a/b/c","data":5 ...)"#
    );
}

#[tokio::test(start_paused = true)]
async fn the_first_deletion_of_a_definition_reads_no_policy() {
    let api = Api::new(Config::default());
    established(&api, crontabs()).await;
    let path = format!("{DEFINITIONS}/crontabs.stable.example.com?propagationPolicy=Foreground");
    let marked = api.delete(&path).await.ok();
    assert_eq!(
        marked["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
}

#[tokio::test]
async fn partial_metadata_has_no_annotation_that_is_a_field_of_the_internal_type() {
    let api = Api::new(Config::default());
    let labels = json!({"a": "b"});
    let set = json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let made = api.post(sets, set).await.ok();
    assert_ne!(made["metadata"].get("annotations"), None);
    let table = api.table(sets).await;
    let shown = &table["rows"][0]["object"]["metadata"];
    assert_eq!(shown["name"], "x");
    assert_eq!(shown.get("annotations"), None);
    let accept = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let (_, bytes) = api.bytes(&format!("{sets}/x"), accept).await;
    let shown: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(shown["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn a_strategic_merge_patch_may_name_any_type() {
    let api = Api::new(Config::default());
    let map = json!({"metadata": {"name": "x"}, "data": {"a": "b"}});
    api.post(&format!("{CORE}/configmaps"), map).await.ok();
    for (patch, label) in [
        (json!({"apiVersion": "apps/v7"}), "1"),
        (json!({"kind": "Secret"}), "2"),
        (json!({"apiVersion": "a/b/c", "kind": "Foo"}), "3"),
    ] {
        let mut patch = patch;
        patch["metadata"] = json!({"labels": {"l": label}});
        let media = "application/strategic-merge-patch+json";
        let path = format!("{CORE}/configmaps/x");
        let answer = api
            .send_text("PATCH", &path, media, &patch.to_string())
            .await;
        let patched = answer.ok();
        assert_eq!(patched["kind"], "ConfigMap");
        assert_eq!(patched["apiVersion"], "v1");
        assert_eq!(patched["metadata"]["labels"]["l"], label);
    }
}
