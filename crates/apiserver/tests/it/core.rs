//! Kinds of the core group through the whole server: what is answered to unusual creations and changes, cause by cause.

use serde_json::{Value, json};

use crate::api::{Answer, Api};

const NAMESPACE: &str = "/api/v1/namespaces/default";

/// `field: message` of every cause of a refusal.
fn causes(answer: &Answer) -> Vec<String> {
    let text = |cause: &Value| {
        let text = |field: &str| cause[field].as_str().unwrap_or("").to_owned();
        format!("{}: {}", text("field"), text("message"))
    };
    let causes = answer.body["details"]["causes"].as_array();
    causes.into_iter().flatten().map(text).collect()
}

fn fields(answer: &Answer) -> Vec<String> {
    let causes = causes(answer);
    let field = |cause: &String| cause.split(": ").next().unwrap_or("").to_owned();
    causes.iter().map(field).collect()
}

#[tokio::test]
async fn a_bad_change_is_named_as_often_as_upstream_looks_at_it() {
    let api = Api::with_account().await;
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let volume = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}});
    let bad_annotation = json!({"metadata": {"annotations": {"~": ""}}});
    for (path, object, times) in [
        ("/api/v1/namespaces/default/configmaps", json!({}), 4),
        ("/api/v1/namespaces/default/secrets", json!({}), 4),
        ("/api/v1/namespaces/default/serviceaccounts", json!({}), 4),
        (
            "/api/v1/namespaces/default/limitranges",
            json!({"spec": {"limits": []}}),
            3,
        ),
        ("/api/v1/namespaces/default/resourcequotas", json!({}), 3),
        ("/api/v1/namespaces/default/endpoints", json!({}), 4),
        (
            "/api/v1/namespaces/default/services",
            json!({"spec": {"ports": [{"port": 80}]}}),
            3,
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}),
            4,
        ),
        (
            "/api/v1/namespaces/default/persistentvolumeclaims",
            json!({"spec": claim}),
            4,
        ),
        ("/api/v1/persistentvolumes", json!({"spec": volume}), 4),
        ("/api/v1/nodes", json!({}), 4),
        ("/api/v1/namespaces", json!({}), 4),
    ] {
        let mut object = object;
        object["metadata"] = json!({"name": "x"});
        api.post(path, object).await.ok();
        let answer = api
            .merge(&format!("{path}/x"), bad_annotation.clone())
            .await;
        assert_eq!(answer.status, 422, "{}", answer.body);
        assert_eq!(
            fields(&answer),
            vec!["metadata.annotations"; times],
            "{path}"
        );
    }
}

#[tokio::test]
async fn services_are_judged_by_their_change_first() {
    let api = Api::with_account().await;
    let path = format!("{NAMESPACE}/services");
    let service = json!({"metadata": {"name": "x"}, "spec": {"type": "LoadBalancer", "loadBalancerClass": "a/b", "ports": [{"port": 10250}]}});
    api.post(&path, service).await.ok();
    let change = json!({"spec": {"loadBalancerClass": "c~", "ports": [{"port": 0}]}});
    let answer = api.merge(&format!("{path}/x"), change).await;
    assert_eq!(
        fields(&answer),
        [
            "spec.loadBalancerClass",
            "spec.loadBalancerClass",
            "spec.ports[0].port",
            "spec.ports[0].targetPort",
            "spec.loadBalancerClass",
        ],
        "{}",
        answer.body
    );
    let headless = json!({"metadata": {"name": "y"}, "spec": {"clusterIP": "None", "sessionAffinity": "ClientIP", "selector": {"a": "b"}}});
    let answer = api.post(&path, headless).await;
    let warning = r#"299 - "spec.SessionAffinity is ignored for headless services""#;
    assert_eq!(answer.warnings, [warning]);
    // Who writes the status is not warned of the spec.
    let status = json!({"status": {"conditions": []}});
    let answer = api.merge(&format!("{path}/y/status"), status).await;
    assert_eq!(answer.warnings, [""; 0]);
}

#[tokio::test]
async fn what_is_left_out_or_out_of_place_is_settled_before_it_is_stored() {
    let api = Api::with_account().await;
    let range = json!({"metadata": {}, "spec": {"limits": []}});
    let range = api
        .post(&format!("{NAMESPACE}/limitranges"), range)
        .await
        .ok();
    assert_eq!(range["metadata"]["name"].as_str().map(str::len), Some(36));
    let secrets = json!([{"name": "s", "namespace": "other"}]);
    let account = json!({"metadata": {"name": "x"}, "secrets": secrets});
    let account = api
        .post(&format!("{NAMESPACE}/serviceaccounts"), account)
        .await
        .ok();
    assert_eq!(account["secrets"], json!([{"name": "s"}]));
    let path = format!("{NAMESPACE}/persistentvolumeclaims");
    let claim = |field: &str, source: Value| {
        json!({"metadata": {"generateName": "x"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, field: source,
        }})
    };
    let other = json!({"apiGroup": "example.com", "kind": "Backup", "name": "b"});
    let kept = api
        .post(&path, claim("dataSourceRef", other.clone()))
        .await
        .ok();
    assert_eq!(
        (&kept["spec"]["dataSource"], &kept["spec"]["dataSourceRef"]),
        (&other, &other)
    );
    let dropped = api
        .post(&path, claim("dataSource", other.clone()))
        .await
        .ok();
    assert!(
        dropped["spec"].get("dataSource").is_none()
            && dropped["spec"].get("dataSourceRef").is_none()
    );
    let mut elsewhere = other.clone();
    elsewhere["namespace"] = "elsewhere".into();
    let dropped = api
        .post(&path, claim("dataSourceRef", elsewhere))
        .await
        .ok();
    assert!(dropped["spec"].get("dataSourceRef").is_none());
    let mut both = claim(
        "dataSource",
        json!({"kind": "PersistentVolumeClaim", "name": "a"}),
    );
    both["spec"]["dataSourceRef"] = other;
    assert_eq!(
        causes(&api.post(&path, both).await),
        ["spec: Invalid value: {}: must match dataSourceRef"]
    );
}

#[tokio::test]
async fn an_apparmor_profile_in_an_annotation_is_warned_of() {
    let api = Api::with_account().await;
    let key = "container.apparmor.security.beta.kubernetes.io/a";
    let pod = json!({"metadata": {"name": "x", "annotations": {key: "unconfined"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    let answer = api.post(&format!("{NAMESPACE}/pods"), pod).await;
    let warning = format!(
        r#"299 - "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead""#
    );
    assert_eq!(answer.warnings, [warning]);
    let context = &answer.ok()["spec"]["containers"][0]["securityContext"];
    assert_eq!(context["appArmorProfile"], json!({"type": "Unconfined"}));
}

#[tokio::test]
async fn volumes_are_fixed_once_they_exist() {
    let api = Api::with_account().await;
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/a"}}});
    api.post("/api/v1/persistentvolumes", volume).await.ok();
    let change = json!({"spec": {"hostPath": {"path": "/b"}, "volumeMode": "Block"}});
    let answer = api.merge("/api/v1/persistentvolumes/v", change).await;
    assert_eq!(
        fields(&answer),
        ["spec.persistentvolumesource", "volumeMode"]
    );
}

#[tokio::test]
async fn what_cannot_be_is_named_and_not_made_up() {
    let api = Api::with_account().await;
    let tolerations = |text: &str| {
        json!({
            "metadata": {"name": "x", "annotations": {"scheduler.alpha.kubernetes.io/tolerations": text}},
            "spec": {"containers": [{"name": "a", "image": "i"}]},
        })
    };
    let node_port = json!({"metadata": {"name": "x"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": -1}]}});
    for (resource, object, expected) in [
        (
            "replicationcontrollers",
            json!({"metadata": {"name": "x"}, "spec": {}}),
            &[
                "spec.selector: Required value",
                "spec.template: Required value",
            ][..],
        ),
        (
            "services",
            node_port,
            &[
                "spec.ports[0].nodePort: Invalid value: -1: provided port is not in the valid range. The range of valid ports is 30000-32767",
            ],
        ),
        (
            "pods",
            tolerations("x"),
            &[
                r#"metadata.annotations: Invalid value: "scheduler.alpha.kubernetes.io/tolerations": invalid character 'x' looking for beginning of value"#,
            ],
        ),
        (
            "pods",
            tolerations("{}"),
            &[
                r#"metadata.annotations: Invalid value: "scheduler.alpha.kubernetes.io/tolerations": json: cannot unmarshal object into Go value of type []core.Toleration"#,
            ],
        ),
    ] {
        let answer = api.post(&format!("{NAMESPACE}/{resource}"), object).await;
        assert_eq!(causes(&answer), expected, "{}", answer.body);
    }
}

#[tokio::test]
async fn an_event_of_the_core_api_answers_for_itself_before_its_metadata() {
    let api = Api::with_account().await;
    let (core, new) = (
        format!("{NAMESPACE}/events"),
        "/apis/events.k8s.io/v1/namespaces/default/events",
    );
    let event = |name: &str, namespace: &str| json!({"metadata": {"name": name, "labels": {"~": ""}}, "involvedObject": {"namespace": namespace}});
    let mut named = event("Any_Name", "default");
    named["metadata"]["labels"] = json!({});
    api.post(&core, named).await.ok();
    let label = "metadata.labels";
    for (name, namespace, expected) in [
        ("x", "other", vec!["involvedObject.namespace"]),
        ("x", "default", vec![label]),
        ("a%b", "default", vec!["metadata.name", label]),
    ] {
        let answer = api.post(&core, event(name, namespace)).await;
        assert_eq!(fields(&answer), expected, "{}", answer.body);
    }
    let bad = json!({"metadata": {"labels": {"~": ""}}});
    let answer = api.merge(&format!("{core}/Any_Name"), bad).await;
    assert_eq!(fields(&answer), [label; 2], "{}", answer.body);
    let event = json!({"metadata": {"name": "Any_Name", "finalizers": ["x"]}, "regarding": {"namespace": "other"}});
    let answer = api.post(new, event).await;
    let expected = [
        "involvedObject.namespace",
        "metadata.name",
        "metadata.finalizers[0]",
        "eventTime",
        "type",
    ];
    assert_eq!(fields(&answer), expected, "{}", answer.body);
}

#[tokio::test]
async fn the_end_of_a_namespace_may_be_written_with_its_metadata() {
    let api = Api::with_account().await;
    let namespace = api
        .post("/api/v1/namespaces", json!({"metadata": {"name": "x"}}))
        .await
        .ok();
    let mut sent = namespace;
    sent["metadata"]["annotations"] = json!({"a": "b"});
    sent["spec"]["finalizers"] = json!([]);
    sent["status"]["phase"] = "Terminating".into();
    let kept = api.put("/api/v1/namespaces/x/finalize", sent).await.ok();
    assert_eq!(kept["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(kept["spec"], json!({}));
    assert_eq!(kept["status"], json!({"phase": "Active"}));
}

#[tokio::test]
async fn the_first_deletion_of_a_namespace_only_marks_it() {
    let api = Api::with_account().await;
    let namespace = api
        .post("/api/v1/namespaces", json!({"metadata": {"name": "x"}}))
        .await
        .ok();
    let uid = namespace["metadata"]["uid"].as_str().expect("a uid");
    let delete = async |body: Value| {
        let (path, media) = ("/api/v1/namespaces/x", "application/json");
        api.send_text("DELETE", path, media, &body.to_string())
            .await
    };
    let refusal = delete(json!({"preconditions": {"uid": "y"}})).await;
    assert_eq!(
        refusal.refused(409),
        format!(
            r#"Operation cannot be fulfilled on namespaces "x": Precondition failed: UID in precondition: y, UID in object meta: {uid}"#
        )
    );
    let mut ended = namespace.clone();
    ended["spec"]["finalizers"] = json!([]);
    api.put("/api/v1/namespaces/x/finalize", ended).await.ok();
    let marked = delete(json!({})).await.ok();
    assert_eq!(marked["status"], json!({"phase": "Terminating"}));
    api.get("/api/v1/namespaces/x").await.ok();
    delete(json!({})).await.ok();
    assert_eq!(api.get("/api/v1/namespaces/x").await.status, 404);
}

#[tokio::test]
async fn what_a_body_names_must_be_a_name() {
    let api = Api::with_account().await;
    let token = |name: &str| json!({"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": name}}});
    let bind = |name: &str| json!({"metadata": {"name": name}, "target": {"name": "n"}});
    let tokens = format!("{NAMESPACE}/serviceaccounts/default/token");
    let bindings = format!("{NAMESPACE}/bindings");
    for (name, status, message) in [
        ("", 400, "Name parameter required."),
        (
            "a/b",
            400,
            r#"Name parameter invalid: "a/b": may not contain '/'"#,
        ),
        ("x", 404, "not found"),
    ] {
        for answer in [
            api.post(&tokens, token(name)).await,
            api.post(&bindings, bind(name)).await,
        ] {
            let refusal = answer.refused(status);
            assert!(refusal.ends_with(message), "{refusal}");
        }
    }
    let map = json!({"metadata": {"name": "x"}, "data": {"a": "x".repeat((1 << 20) + 1)}});
    let answer = api.post(&format!("{NAMESPACE}/configmaps"), map).await;
    assert_eq!(
        answer.refused(422),
        r#"ConfigMap "x" is invalid: []: Too long: may not be more than 1048576 bytes"#
    );
}

#[tokio::test]
async fn a_deletion_that_brings_another_object_deletes_nothing() {
    let api = Api::with_account().await;
    let maps = format!("{NAMESPACE}/configmaps");
    let path = format!("{maps}/x");
    api.post(&maps, json!({"metadata": {"name": "x"}}))
        .await
        .ok();
    let body = r#"{"kind": "ConfigMap", "apiVersion": "v1"}"#;
    for path in [&path, &maps] {
        let answer = api
            .send_text("DELETE", path, "application/json", body)
            .await;
        let refusal = answer.refused(400);
        assert!(
            refusal.starts_with(r#"no kind "ConfigMap" is registered for version "v1" in"#),
            "{refusal}"
        );
    }
    api.get(&path).await.ok();
}

#[tokio::test]
async fn a_grace_that_no_clock_can_measure_is_cut() {
    let api = Api::with_account().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n", "terminationGracePeriodSeconds": i64::MAX, "containers": [{"name": "c", "image": "i"}],
    }});
    api.post(&format!("{NAMESPACE}/pods"), pod).await.ok();
    let path = format!("{NAMESPACE}/pods/p");
    let leaving = api.delete(&path).await.ok();
    let longest = i64::MAX / 1_000_000_000;
    assert_eq!(leaving["metadata"]["deletionGracePeriodSeconds"], longest);
    api.delete(&format!("{path}?gracePeriodSeconds=0"))
        .await
        .ok();
}
