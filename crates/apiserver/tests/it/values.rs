//! Values in refusals, printed as Go has them: what was sent empty is not what was not sent.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

fn job(more: Value) -> Value {
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let mut spec = json!({"template": template});
    let more = more.as_object().cloned().unwrap_or_default();
    spec.as_object_mut().unwrap().extend(more);
    json!({"metadata": {"name": "a"}, "spec": spec})
}

#[tokio::test]
async fn a_list_that_was_sent_empty_is_printed_empty() {
    let api = Api::new(Config::default());
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let ingress = |spec: Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let autoscalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"});
    let behavior = json!({"scaleUp": {"policies": []}});
    let autoscaler = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 2, "scaleTargetRef": target, "behavior": behavior}});
    let exit_codes =
        json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": []}}]});
    for (path, body, cause) in [
        (
            ingresses,
            ingress(json!({"rules": []})),
            "spec: Invalid value: []: either",
        ),
        (
            ingresses,
            ingress(json!({})),
            "spec: Invalid value: null: either",
        ),
        (
            JOBS,
            job(json!({"podFailurePolicy": exit_codes})),
            "spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: []: at least one value is required",
        ),
        (
            JOBS,
            job(json!({"successPolicy": {"rules": []}})),
            r#"spec.successPolicy: Invalid value: {"Rules":[]}: requires indexed completion mode"#,
        ),
        (
            autoscalers,
            autoscaler,
            "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
        ),
    ] {
        let message = api.post(path, body).await.refused(422);
        assert!(message.contains(cause), "{message}");
    }
}

#[tokio::test]
async fn a_selector_that_is_taken_away_is_null() {
    let api = Api::new(Config::default());
    let labels = json!({"a": "b"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels}, "template": template}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    api.post(deployments, deployment).await.ok();
    api.post(JOBS, job(json!({}))).await.ok();
    for path in [format!("{deployments}/a"), format!("{JOBS}/a")] {
        let message = api
            .merge(&path, json!({"spec": {"selector": null}}))
            .await
            .refused(422);
        let cause = "spec.selector: Invalid value: null: field is immutable";
        assert!(message.contains(cause), "{message}");
    }
}

#[tokio::test]
async fn a_range_of_service_addresses_may_be_joined_by_one_of_the_other_family() {
    let api = Api::new(Config::default());
    let range = json!({"metadata": {"name": "a"}, "spec": {"cidrs": ["10.77.0.0/24"]}});
    api.post(CIDRS, range).await.ok();
    let path = format!("{CIDRS}/a");
    let cidrs = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
    for (given, cause) in [
        (
            json!(["10.78.0.0/24"]),
            r#"spec.cidrs[0]: Invalid value: "10.78.0.0/24": field is immutable"#,
        ),
        (
            json!([]),
            "spec.cidrs: Invalid value: []: field is immutable",
        ),
        (
            json!(["fd00::/64", "10.77.0.0/24"]),
            r#"spec.cidrs[0]: Invalid value: "fd00::/64": field is immutable"#,
        ),
    ] {
        let message = api.merge(&path, cidrs(given)).await.refused(422);
        assert!(message.ends_with(cause), "{message}");
    }
    let both = json!(["10.77.0.0/24", "fd00::/64"]);
    let joined = api.merge(&path, cidrs(both.clone())).await.ok();
    assert_eq!(joined["spec"]["cidrs"], both);
}

#[tokio::test]
async fn classes_are_refused_in_upstreams_order_and_number() {
    let api = Api::new(Config::default());
    let classes = "/apis/networking.k8s.io/v1/ingressclasses";
    let class = json!({"metadata": {"name": "a"}, "spec": {"controller": "a.b/c"}});
    api.post(classes, class).await.ok();
    let refused = api
        .merge(
            &format!("{classes}/a"),
            json!({"spec": {"controller": null}}),
        )
        .await;
    assert_eq!(
        refused.refused(422),
        r#"IngressClass.networking.k8s.io "a" is invalid: [spec.controller: Invalid value: "": field is immutable, spec.controller: Required value]"#
    );
    let term = |values: Value| json!({"matchLabelExpressions": [{"key": "a", "values": values}]});
    let storage = "/apis/storage.k8s.io/v1/storageclasses";
    for (terms, causes) in [
        (json!([term(json!(["x", "y"])), term(json!(["y", "x"]))]), 1),
        (json!([{}]), 1),
        (json!([{}, {}]), 5),
        (json!([term(json!(["x"])), term(json!(["y"]))]), 0),
    ] {
        let class =
            json!({"metadata": {"name": "a"}, "provisioner": "p", "allowedTopologies": terms});
        let answer = api.post(&format!("{storage}?dryRun=All"), class).await;
        let told = answer.body["details"]["causes"]
            .as_array()
            .map_or(0, Vec::len);
        assert_eq!(told, causes, "{}", answer.body);
    }
}

#[tokio::test]
async fn fields_that_cannot_be_selected_are_refused_in_the_words_of_their_kind() {
    let api = Api::new(Config::default());
    let unknown = |field: &str| {
        format!(
            r#"{field:?} is not a known field selector: only "metadata.name", "metadata.namespace""#
        )
    };
    for (path, field, message) in [
        (
            "/apis/batch/v1/jobs",
            "foo",
            r#"field label "foo" not supported for Job"#.to_owned(),
        ),
        (
            "/apis/apps/v1/replicasets",
            "status.replicas",
            unknown("status.replicas"),
        ),
        (
            "/api/v1/replicationcontrollers",
            "foo",
            "field label not supported: foo".to_owned(),
        ),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            "foo",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: foo".to_owned(),
        ),
    ] {
        let answer = api.get(&format!("{path}?fieldSelector={field}=0")).await;
        assert_eq!(answer.refused(400), message);
    }
}

#[tokio::test]
async fn bodies_of_another_version_are_told_from_bodies_of_another_kind() {
    let api = Api::new(Config::default());
    let autoscalers = |version: &str| {
        format!("/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers")
    };
    let autoscaler = |version: &str| {
        let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "a"});
        json!({"apiVersion": format!("autoscaling/{version}"), "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
            "spec": {"maxReplicas": 2, "scaleTargetRef": target}})
    };
    let refused = api
        .post(&autoscalers("v2"), autoscaler("v1"))
        .await
        .refused(400);
    let message = "the API version in the data (autoscaling/v1) does not match the expected API version (autoscaling/v2)";
    assert_eq!(refused, message);
    api.post(&autoscalers("v2"), autoscaler("v2")).await.ok();
    let path = format!("{}/a", autoscalers("v2"));
    let percent = json!({"apiVersion": "autoscaling/v1", "spec": {"targetCPUUtilizationPercentage": 55, "metrics": null}});
    let patched = api.merge(&path, percent).await.ok();
    assert_eq!(patched["apiVersion"], "autoscaling/v2");
    assert_eq!(
        patched["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        55
    );
}

#[tokio::test]
async fn names_that_no_path_can_have_are_refused() {
    let api = Api::new(Config::default());
    let maps = "/api/v1/namespaces/default/configmaps";
    for (name, why) in [
        ("%2e%2e", r#"Name parameter invalid: "..": may not be '..'"#),
        ("%2e", r#"Name parameter invalid: ".": may not be '.'"#),
        (
            "a%25b",
            r#"Name parameter invalid: "a%b": may not contain '%'"#,
        ),
    ] {
        assert_eq!(api.get(&format!("{maps}/{name}")).await.refused(400), why);
        assert_eq!(
            api.delete(&format!("{maps}/{name}")).await.refused(400),
            why
        );
    }
}

#[tokio::test]
async fn a_uid_that_is_not_the_stored_one_is_told_with_the_key_in_etcd() {
    let api = Api::new(Config::default());
    let node = json!({"metadata": {"name": "n"}});
    api.post("/api/v1/nodes", node).await.ok();
    let other = json!({"metadata": {"name": "n", "uid": "x"}});
    let message = api.put("/api/v1/nodes/n", other).await.refused(409);
    assert!(message.contains("Key: /registry/minions/n,"), "{message}");
}

#[tokio::test]
async fn patches_that_nobody_validates_are_refused_by_the_library_that_applies_them() {
    let api = Api::new(Config::default());
    let maps = "/api/v1/namespaces/default/configmaps";
    api.post(maps, json!({"metadata": {"name": "a"}}))
        .await
        .ok();
    let path = format!("{maps}/a?fieldValidation=Ignore");
    for (media, patch, status, message) in [
        ("json-patch", "{", 400, "unexpected end of JSON input"),
        (
            "json-patch",
            "{}",
            400,
            "json: cannot unmarshal object into Go value of type jsonpatch.Patch",
        ),
        (
            "json-patch",
            "[1]",
            400,
            "json: cannot unmarshal number into Go value of type jsonpatch.Operation",
        ),
        (
            "json-patch",
            "[] x",
            400,
            "invalid character 'x' after top-level value",
        ),
        ("merge-patch", "{", 400, "Invalid JSON Patch"),
        ("merge-patch", "1", 400, "Invalid JSON Patch"),
        (
            "merge-patch",
            "[]",
            422,
            r#"patch: Invalid value: "[]": couldn't get version/kind;"#,
        ),
    ] {
        let media = format!("application/{media}+json");
        let answer = api
            .send_text("PATCH", &path, &media, patch)
            .await
            .refused(status);
        assert!(answer.contains(message), "{patch}: {answer}");
    }
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let labels = json!({"a": "b"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels}, "template": template}});
    api.post(deployments, deployment).await.ok();
    let media = "application/strategic-merge-patch+json";
    let path = format!("{deployments}/a");
    let patch = r#"{"spec":{"replicas":3.0}}"#;
    let patched = api.send_text("PATCH", &path, media, patch).await.ok();
    assert_eq!(patched["spec"]["replicas"], 3);
    let patch = r#"{"spec":{"strategy":{"rollingUpdate":{"maxSurge":5.5}}}}"#;
    let refused = api
        .send_text("PATCH", &path, media, patch)
        .await
        .refused(422);
    assert!(
        refused.ends_with("json: cannot unmarshal number 5.5 into Go value of type int32"),
        "{refused}"
    );
}

#[tokio::test]
async fn who_asks_by_head_asks_by_a_method_that_is_not_there() {
    let api = Api::new(Config::default());
    for path in ["/api/v1", "/apis/apps", "/api/v1/namespaces"] {
        assert_eq!(
            api.send_text("HEAD", path, "application/json", "")
                .await
                .status,
            405
        );
    }
}

#[tokio::test]
async fn discovery_is_had_in_yaml() {
    let api = Api::new(Config::default());
    for path in ["/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1"] {
        let (status, body) = api.bytes(path, "application/yaml").await;
        let text = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(status, 200);
        assert!(text.contains("kind: API"), "{text}");
    }
}

#[tokio::test]
async fn a_deleted_collection_is_shown_in_the_form_that_was_asked_for() {
    let api = Api::new(Config::default());
    let maps = "/api/v1/namespaces/default/configmaps";
    api.post(maps, json!({"metadata": {"name": "a"}}))
        .await
        .ok();
    let shown = api.table_of("DELETE", maps).await;
    assert_eq!(shown["kind"], "Table");
    assert_eq!(shown["rows"][0]["cells"][0], "a");
}

#[tokio::test]
async fn texts_that_are_no_unicode_are_stored_all_the_same() {
    let api = Api::new(Config::default());
    let maps = "/api/v1/namespaces/default/configmaps";
    let body = r#"{"metadata": {"name": "a"}, "data": {"a": "\ud800x"}}"#;
    let stored = api
        .send_text("POST", maps, "application/json", body)
        .await
        .ok();
    assert_eq!(stored["data"]["a"], "\u{fffd}x");
}

#[tokio::test]
async fn options_of_connections_are_read_before_the_pod_is_looked_for() {
    let api = Api::new(Config::default());
    let pod = "/api/v1/namespaces/default/pods/p";
    for (path, message) in [
        (
            "portforward?ports=x",
            r#"cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax"#,
        ),
        (
            "portforward?ports=1,70000",
            r#"cannot convert to []int32: strconv.ParseUint: parsing "70000": value out of range"#,
        ),
        (
            "log?sinceTime=x",
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
        ),
        (
            "log?sinceTime=2020-13-01T00:00:00Z",
            r#"parsing time "2020-13-01T00:00:00Z": month out of range"#,
        ),
    ] {
        assert_eq!(
            api.get(&format!("{pod}/{path}")).await.refused(400),
            message
        );
    }
    assert_eq!(
        api.get(&format!("{pod}/log?sinceTime=null")).await.status,
        404
    );
}

#[tokio::test]
async fn a_dry_run_takes_no_addresses_and_no_ports() {
    let api = Api::new(Config::default());
    let services = "/api/v1/namespaces/default/services";
    let dry = format!("{services}?dryRun=All");
    let service = |spec: Value| {
        let mut all = json!({"ports": [{"port": 80}]});
        let more = spec.as_object().cloned().unwrap_or_default();
        all.as_object_mut().unwrap().extend(more);
        json!({"metadata": {"name": "a"}, "spec": all})
    };
    let free = api
        .post(&dry, service(json!({"type": "NodePort"})))
        .await
        .ok();
    assert_eq!(free["spec"]["clusterIP"], "10.96.0.0");
    assert_eq!(free["spec"]["ports"][0]["nodePort"], 32_769);
    let low = service(json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 1000}]}));
    api.post(&dry, low).await.ok();
    let taken = api
        .post(services, service(json!({"clusterIP": "10.96.0.7"})))
        .await
        .ok();
    assert_eq!(taken["spec"]["clusterIP"], "10.96.0.7");
    let mut same = service(json!({"clusterIP": "10.96.0.7"}));
    same["metadata"]["name"] = "b".into();
    api.post(&dry, same).await.ok();
    let elsewhere = service(json!({"clusterIP": "10.97.0.1"}));
    assert_eq!(
        api.post(&dry, elsewhere).await.refused(422),
        r#"Service "a" is invalid: spec.clusterIPs: Invalid value: ["10.97.0.1"]: failed to allocate IP 10.97.0.1: the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16"#
    );
}
