//! What kube-apiserver 1.36 looks at first: of several things that are wrong with a request, the one that is refused.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::{
    api::Api,
    custom_resources::{CRONTABS, served},
};

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

#[tokio::test]
async fn a_selector_that_cannot_be_read_is_refused_before_options_that_do_not_fit() {
    let api = Api::new(Config::default());
    let query = "resourceVersionMatch=Exact&labelSelector";
    let answer = api.get(&format!("{MAPS}?{query}=a%20in")).await;
    let why = answer.refused(400);
    assert!(why.starts_with("unable to parse requirement"), "{why}");
    let answer = api
        .get(&format!("{MAPS}?watch=1&{query}=a&fieldSelector=a"))
        .await;
    let why = answer.refused(400);
    assert!(why.starts_with("invalid selector"), "{why}");
    let answer = api
        .get(&format!("{MAPS}?{query}=a&fieldSelector=a=b"))
        .await;
    let why = answer.refused(422);
    assert!(why.contains("resourceVersionMatch is forbidden"), "{why}");
}

#[tokio::test]
async fn a_path_or_a_method_that_does_not_exist_is_refused_before_the_form_of_the_answer() {
    let api = Api::new(Config::default());
    for (method, path, status) in [
        ("GET", format!("{MAPS}/x/log"), 404),
        ("HEAD", format!("{MAPS}/x/scale"), 404),
        ("GET", "/api/v1/configmaps/x".to_owned(), 404),
        ("TRACE", format!("{MAPS}/x"), 405),
        ("OPTIONS", "/api/v1/namespaces/x/status".to_owned(), 405),
        ("POST", format!("{PODS}/scale"), 405),
        ("DELETE", "/api/v1/configmaps".to_owned(), 405),
        ("POST", format!("{PODS}/x/status"), 405),
        ("GET", MAPS.to_owned(), 406),
        ("GET", format!("{PODS}/x/status"), 406),
        ("POST", MAPS.to_owned(), 406),
    ] {
        assert_eq!(
            api.status_of(method, &path, "text/html").await,
            status,
            "{method} {path}"
        );
    }
    assert_eq!(
        api.status_of("HEAD", &format!("{SETS}/x/token"), JSON)
            .await,
        404
    );
    assert_eq!(api.status_of("HEAD", &format!("{SETS}/x"), JSON).await, 405);
}

#[tokio::test]
async fn methods_of_the_old_watch_paths_of_custom_resources_are_refused_after_the_form_of_the_answer()
 {
    let api = served().await;
    let group = "/apis/stable.example.com/v1";
    for (method, path, status) in [
        ("GET", format!("{CRONTABS}/x/log"), 404),
        ("TRACE", format!("{CRONTABS}/x"), 405),
        ("POST", format!("{CRONTABS}/x/status"), 405),
        // Objects with a namespace exist at no path without one.
        ("GET", format!("{group}/crontabs/x"), 404),
        ("DELETE", format!("{group}/crontabs"), 404),
        ("PUT", format!("{group}/watch/crontabs"), 406),
        ("GET", format!("{group}/watch/crontabs/x"), 406),
        ("GET", CRONTABS.to_owned(), 406),
    ] {
        let answered = api.status_of(method, &path, "text/html").await;
        assert_eq!(answered, status, "{method} {path}");
    }
}

#[tokio::test]
async fn a_scale_is_looked_for_before_its_configuration_is_read() {
    let api = Api::new(Config::default());
    let config = r#"{"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}}"#;
    let path = format!("{SETS}/x/scale?fieldManager=m");
    let answer = api.send_text("PATCH", &path, APPLY, config).await;
    assert_eq!(answer.refused(404), r#"statefulsets.apps "x" not found"#);
}

#[tokio::test]
async fn a_put_to_the_status_of_a_service_creates_it() {
    let api = Api::new(Config::default());
    let path = "/api/v1/namespaces/default/services/x";
    let service = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
    let answer = api.put(&format!("{path}/status"), service(json!({}))).await;
    assert_eq!(
        answer.refused(422),
        r#"Service "x" is invalid: spec.ports: Required value"#
    );
    let good = service(json!({"ports": [{"port": 80}]}));
    api.put(&format!("{path}/status"), good).await.ok();
    api.get(path).await.ok();
    let map = json!({"metadata": {"name": "x"}});
    let node = api.put("/api/v1/nodes/x/status", map).await;
    assert_eq!(node.refused(404), r#"nodes "x" not found"#);
}

#[tokio::test]
async fn an_apply_to_the_status_of_nothing_is_not_read() {
    let api = Api::new(Config::default());
    for body in ["{", "[]", "a: 1", r#"{"apiVersion": "v1", "kind": "Pod"}"#] {
        let node = api.send_text(
            "PATCH",
            "/api/v1/nodes/x/status?fieldManager=m",
            APPLY,
            body,
        );
        assert_eq!(node.await.refused(404), r#"nodes "x" not found"#);
        let node = api.send_text("PATCH", "/api/v1/nodes/x?fieldManager=m", APPLY, body);
        node.await.refused(400);
    }
}

#[tokio::test]
async fn a_put_that_creates_needs_no_revision_but_one_that_is_a_number() {
    let api = Api::new(Config::default());
    let lease = |revision: &str| json!({"metadata": {"name": "x", "resourceVersion": revision}});
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/x";
    assert_eq!(
        api.put(path, lease("c")).await.refused(500),
        r#"strconv.ParseUint: parsing "c": invalid syntax"#
    );
    api.put(path, lease("7")).await.ok();
}

#[tokio::test]
async fn events_have_no_dependents_that_a_deletion_could_wait_for() {
    let api = Api::new(Config::default());
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "x"}, "involvedObject": {"namespace": "default"}});
    api.post(events, event).await.ok();
    let deleted = api
        .delete(&format!("{events}/x?propagationPolicy=Foreground"))
        .await
        .ok();
    assert_eq!(deleted["kind"], "Status");
}

#[tokio::test]
async fn an_object_that_is_removed_is_answered_as_it_was_stored() {
    let api = Api::new(Config::default());
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = json!({"metadata": {"name": "x", "finalizers": ["orphan"]}, "spec": {}});
    api.post(claims, claim).await.ok();
    let deleted = api
        .delete(&format!("{claims}/x?propagationPolicy=Background"))
        .await
        .ok();
    assert_eq!(deleted["metadata"]["finalizers"], json!(["orphan"]));
    assert_eq!(
        deleted["metadata"].get("deletionTimestamp"),
        None,
        "{deleted}"
    );
    api.get(&format!("{claims}/x")).await.refused(404);
}

#[tokio::test]
async fn kinds_without_rules_for_metadata_have_it_checked_last() {
    let api = Api::new(Config::default());
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = |name: &str, least: i64| json!({"metadata": {"name": name, "labels": {"a": "b c"}}, "spec": {"minAvailable": least}});
    let why = api.post(budgets, budget("x", -1)).await.refused(422);
    assert!(!why.contains("metadata.labels"), "{why}");
    let why = api.post(budgets, budget("x", 1)).await.refused(422);
    assert!(why.contains("metadata.labels"), "{why}");
    let odd = json!({"metadata": {"name": "A_B"}, "spec": {}});
    api.post(budgets, odd).await.ok();
}

#[tokio::test]
async fn a_stateful_set_names_its_pods_and_checks_the_labels_of_its_template_twice() {
    let api = Api::new(Config::default());
    let template = json!({"metadata": {"labels": {"app": "x", "b": "c d"}},
        "spec": {"hostname": "A_B", "subdomain": "C_D", "containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template}});
    let answer = api.post(SETS, set).await;
    // The message says once what is wrong twice; the causes say it twice.
    let causes = answer.body["details"]["causes"].as_array().expect("causes");
    let of_labels = |cause: &&serde_json::Value| cause["field"] == "spec.template.labels";
    assert_eq!(causes.iter().filter(of_labels).count(), 2, "{causes:?}");
    let why = answer.refused(422);
    assert!(
        !why.contains("hostname") && !why.contains("subdomain"),
        "{why}"
    );
}

#[tokio::test]
async fn a_version_that_cannot_be_parsed_is_refused_before_its_kind_is_looked_up() {
    let api = Api::new(Config::default());
    let set = |version: &str| json!({"apiVersion": version, "kind": "ConfigMap", "metadata": {"name": "x"}});
    let why = api.post(MAPS, set("a/b/c")).await.refused(400);
    let summary = r#"({"apiVersion":"a/b/c","kind":" ...)"#;
    assert_eq!(
        why,
        format!(
            "the object provided is unrecognized (must be of type ConfigMap): unexpected GroupVersion string: a/b/c {summary}"
        )
    );
    let why = api.post(MAPS, set("\u{0}v1")).await.refused(400);
    assert!(
        why.starts_with(r#"ConfigMap in version "\x00v1" cannot be handled"#),
        "{why}"
    );
    let path = format!("{MAPS}/x?fieldManager=m");
    let config = set("a/b/c").to_string();
    let answer = api.send_text("PATCH", &path, APPLY, &config).await;
    assert_eq!(answer.refused(400), "invalid object type: /, Kind=");
}

#[tokio::test]
async fn kinds_print_the_columns_of_kube_apiserver() {
    let api = Api::new(Config::default());
    let capacities = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
    let names = |table: &Value| -> Vec<String> {
        let columns = table["columnDefinitions"].as_array().unwrap();
        columns
            .iter()
            .map(|column| column["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let table = api.table(capacities).await;
    assert_eq!(names(&table), ["Name", "Created At"]);
    assert_eq!(table["rows"], Value::Null);
    let addresses = api.table("/apis/networking.k8s.io/v1/ipaddresses").await;
    assert_eq!(names(&addresses), ["Name", "ParentRef"]);
}

#[tokio::test]
async fn kinds_refuse_and_warn_of_what_kube_apiserver_does() {
    let api = Api::new(Config::default());
    let revision = json!({"metadata": {"name": "x"}, "revision": 1, "data": [1]});
    let path = "/apis/apps/v1/namespaces/default/controllerrevisions";
    assert_eq!(
        api.post(path, revision).await.refused(422),
        r#"ControllerRevision.apps "x" is invalid: data: Required value: data must be a valid JSON object"#
    );
    let slice = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let pool = json!({"name": "p", "resourceSliceCount": 1});
    let good = slice(json!({"driver": "UP", "nodeName": "n", "pool": pool.clone()}));
    let answer = api.post(slices, good).await;
    assert_eq!(
        answer.warnings,
        [
            r#"299 - "spec.driver: driver names should be lowercase; \"UP\" contains uppercase characters""#
        ]
    );
    answer.ok();
    let empty = slice(json!({"driver": "d", "nodeSelector": {}, "pool": pool}));
    let why = api.post(slices, empty).await.refused(422);
    assert!(
        why.contains("nodeSelectorTerms: Invalid value: null: must have exactly one"),
        "{why}"
    );
}

#[tokio::test]
async fn an_update_strategy_that_does_not_roll_has_both_numbers_of_one_that_does() {
    let api = Api::new(Config::default());
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "x"}, "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template,
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": {}}}});
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = api.post(sets, set).await.ok();
    assert_eq!(
        set["spec"]["updateStrategy"]["rollingUpdate"],
        json!({"maxSurge": 0, "maxUnavailable": 0})
    );
}

#[tokio::test]
async fn what_defaults_fill_again_does_not_raise_the_generation() {
    let api = Api::new(Config::default());
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = |spec: Value| json!({"metadata": {"name": "x"}, "spec": spec});
    let created = policy(json!({"egress": [{}]}));
    api.post(policies, created).await.ok();
    let path = format!("{policies}/x");
    let filled = policy(json!({"egress": [{}], "policyTypes": []}));
    let filled = api.put(&path, filled).await.ok();
    assert_eq!(filled["metadata"]["generation"], 1);
    let emptied = policy(json!({"egress": [{}], "ingress": []}));
    let emptied = api.put(&path, emptied).await.ok();
    assert_eq!(emptied["metadata"]["generation"], 2);
}

#[tokio::test]
async fn the_service_of_a_webhook_that_lacks_one_field_is_told_to_lack_the_other() {
    let api = Api::new(Config::default());
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    for given in ["name", "namespace"] {
        let hook = json!({"name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {given: "a"}}});
        let hooks = json!({"metadata": {"name": "x"}, "webhooks": [hook]});
        let why = api.post(path, hooks).await.refused(422);
        let end = format!("webhooks[0].clientConfig.service.{given}: Required value");
        assert!(why.ends_with(&end), "{why}");
    }
}
