//! Answers of kube-apiserver 1.36 to requests that a random comparison with it found: which fields an answer has, and which check
//! answers first.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::{Answer, Api};

const BATCH: &str = "/apis/batch/v1/namespaces/default/jobs";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn apply(api: &Api, path: &str, object: Value) -> Answer {
    let path = format!("{path}?fieldManager=m");
    let body = object.to_string();
    api.send_text("PATCH", &path, "application/apply-patch+yaml", &body)
        .await
}

fn job(name: &str, labels: Value, template_labels: Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": {"template": {
        "metadata": {"labels": template_labels},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    }}})
}

#[tokio::test]
async fn a_job_without_labels_shares_those_of_its_template() {
    let api = Api::with_account().await;
    let labels = |job: &Value| job["metadata"]["labels"].clone();
    let shared = api.post(BATCH, job("a", json!({}), json!({"x": "y"})));
    let shared = shared.await.ok();
    assert_eq!(
        labels(&shared),
        shared["spec"]["template"]["metadata"]["labels"]
    );
    assert_eq!(labels(&shared)["batch.kubernetes.io/job-name"], "a");
    // Labels of the client's own stay as they are, even if they equal the template's.
    let own = api.post(BATCH, job("b", json!({"x": "y"}), json!({"x": "y"})));
    assert_eq!(labels(&own.await.ok()), json!({"x": "y"}));
    let long = "x".repeat(64);
    let why = api.post(BATCH, job(&long, json!({}), json!({"x": "y"})));
    let why = why.await.refused(422);
    assert!(
        why.contains(&format!("metadata.labels: Invalid value: \"{long}\"")),
        "{why}"
    );
}

#[tokio::test]
async fn nobody_owns_the_spec_of_a_certificate_signing_request() {
    let api = Api::new(Config::default());
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let key = rcgen::KeyPair::generate().unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key);
    let pem = request.unwrap().pem().unwrap();
    let request = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let spec =
        json!({"request": request, "signerName": "example.com/s", "usages": ["client auth"]});
    let plain = json!({"metadata": {"name": "a"}, "spec": spec});
    let made = api.post(path, plain).await.ok();
    assert_eq!(made["metadata"]["managedFields"], Value::Null);
    let labelled = json!({"metadata": {"name": "b", "labels": {"l": "v"}}, "spec": spec});
    let made = api.post(path, labelled).await.ok();
    assert_eq!(
        made["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:metadata": {"f:labels": {".": {}, "f:l": {}}}})
    );
    let empty = json!({"metadata": {"name": "c"}, "spec": {"signerName": "example.com/s", "usages": ["client auth"]}});
    let why = api.post(path, empty).await.refused(422);
    assert!(
        why.ends_with(
            r#"spec.request: Invalid value: "": PEM block type must be CERTIFICATE REQUEST"#
        ),
        "{why}"
    );
}

#[tokio::test]
async fn only_an_update_that_creates_keeps_the_time_of_a_deletion() {
    let api = Api::new(Config::default());
    let time = "2020-01-01T00:00:00Z";
    let object = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "deletionTimestamp": time, "selfLink": "/x"}});
    let posted = api.post(CONFIG_MAPS, object("a")).await.ok();
    assert_eq!(posted["metadata"]["deletionTimestamp"], Value::Null);
    let path = format!("{CONFIG_MAPS}/b");
    let applied = apply(&api, &path, object("b")).await.ok();
    assert_eq!(applied["metadata"]["deletionTimestamp"], time);
    assert_eq!(applied["metadata"]["selfLink"], Value::Null);
    let lease = json!({"metadata": {"name": "l", "deletionTimestamp": time}, "spec": {}});
    let put = api.put(&format!("{LEASES}/l"), lease).await.ok();
    assert_eq!(put["metadata"]["deletionTimestamp"], time);
    api.delete(&format!("{LEASES}/l")).await.ok();
    api.get(&format!("{LEASES}/l")).await.refused(404);
}

#[tokio::test]
async fn a_uid_is_compared_where_an_update_could_create() {
    let api = Api::new(Config::default());
    let object = |name: &str| json!({"metadata": {"name": name, "uid": "u"}});
    let why = api.put(&format!("{CONFIG_MAPS}/a"), object("a")).await;
    assert_eq!(why.refused(404), r#"configmaps "a" not found"#);
    let key = |why: &str| why.split("Key: ").nth(1).map(str::to_owned);
    let lease = format!("{LEASES}/a");
    let stored = api.put(&lease, object("a")).await.refused(409);
    assert!(
        key(&stored).is_some_and(|key| key.starts_with("/registry/leases/default/a,")),
        "{stored}"
    );
    let dry_path = format!("{lease}?dryRun=All");
    let dry = api.put(&dry_path, object("a")).await.refused(409);
    assert!(
        key(&dry).is_some_and(|key| key.starts_with("/leases/default/a,")),
        "{dry}"
    );
    // An apply compares it before it looks at the name.
    let nameless = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "u"}});
    let path = format!("{CONFIG_MAPS}/a");
    let why = apply(&api, &path, nameless).await.refused(409);
    assert!(why.contains("uid mismatch"), "{why}");
}

#[tokio::test]
async fn an_apply_to_the_status_of_a_validating_policy_creates_it() {
    let api = Api::new(Config::default());
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let status = format!("{policies}/p/status");
    let policy = |spec: Value| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": spec,
            "status": {"observedGeneration": 3}})
    };
    let why = apply(&api, &status, policy(json!({}))).await.refused(422);
    assert!(
        why.contains("spec.matchConstraints: Required value"),
        "{why}"
    );
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let whole = policy(json!({
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}],
    }));
    let sent = whole.to_string();
    for (method, media) in [
        ("PUT", "application/json"),
        ("PATCH", "application/merge-patch+json"),
    ] {
        let answer = api.send_text(method, &status, media, &sent).await;
        answer.refused(404);
    }
    let made = apply(&api, &status, whole).await;
    assert_eq!(made.status, 201);
    // A new policy has no status yet, though its manager owns the one that was sent.
    assert_eq!(made.body["status"], json!({}));
    let owned = &made.body["metadata"]["managedFields"][0];
    assert_eq!(owned["subresource"], "status");
    assert_eq!(
        owned["fieldsV1"],
        json!({"f:status": {"f:observedGeneration": {}}})
    );
}

#[tokio::test]
async fn an_eviction_may_not_ask_to_delete_what_cannot_be_read() {
    let api = Api::new(Config::default());
    let path = "/api/v1/namespaces/default/pods/absent/eviction";
    let options = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "absent"}, "deleteOptions": options});
    assert_eq!(
        api.post(path, eviction).await.refused(422),
        r#"Eviction.policy "absent" is invalid: deleteOptions.ignoreStoreReadErrorWithClusterBreakingPotential: Invalid value: true: can not be set for pod eviction, try after removing the option"#
    );
}

#[tokio::test]
async fn statuses_are_completed_from_the_stored_object() {
    let api = Api::with_account().await;
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let labels = json!({"app": "a"});
    let spec = json!({"selector": {"matchLabels": labels}, "template": {
        "metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]},
    }});
    let set = json!({"metadata": {"name": "a"}, "spec": spec});
    api.post(sets, set).await.ok();
    let bare = json!({"metadata": {"name": "a"}});
    let set = api.put(&format!("{sets}/a/status"), bare.clone()).await;
    let annotations = &set.ok()["metadata"]["annotations"];
    assert_eq!(annotations["deprecated.daemonset.template.generation"], "1");
    let volumes = "/api/v1/persistentvolumes";
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/a"}});
    let volume = json!({"metadata": {"name": "a"}, "spec": spec});
    let made = api.post(volumes, volume).await.ok();
    let status = api.put(&format!("{volumes}/a/status"), bare).await.ok();
    assert_eq!(status["status"], made["status"]);
    let scalers = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let scaler = json!({"metadata": {"name": "a"}, "status": {"currentCPUUtilizationPercentage": 5}, "spec": {
        "maxReplicas": 2, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
    }});
    let made = api.post(scalers, scaler).await.ok();
    assert_eq!(made["metadata"]["annotations"], Value::Null);
    assert_eq!(
        made["status"]["currentCPUUtilizationPercentage"],
        Value::Null
    );
}

#[tokio::test]
async fn updates_validate_what_kube_apiserver_validates() {
    let api = Api::new(Config::default());
    let classes = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let class =
        |policy: &str| json!({"metadata": {"name": "a"}, "value": 1, "preemptionPolicy": policy});
    api.post(classes, class("Never")).await.ok();
    assert_eq!(
        api.put(&format!("{classes}/a"), class("x"))
            .await
            .refused(422),
        r#"PriorityClass.scheduling.k8s.io "a" is invalid: preemptionPolicy: Invalid value: "x": field is immutable"#
    );
    let levels = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
    let status =
        json!({"metadata": {"name": "exempt"}, "status": {"conditions": [{"status": "True"}]}});
    let why = api.put(&format!("{levels}/exempt/status"), status).await;
    let why = why.refused(422);
    assert!(
        why.ends_with("status.conditions[0].type: Required value"),
        "{why}"
    );
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    api.post(claims, json!({"metadata": {"name": "a"}, "spec": spec}))
        .await
        .ok();
    let status = json!({"metadata": {"name": "a"}, "status": {"allocatedResourceStatuses": {"storage": "x"}}});
    let why = api.put(&format!("{claims}/a/status"), status).await;
    let why = why.refused(422);
    assert!(
        why.contains(r#"status.allocatedResourceStatuses: Unsupported value: "storage""#),
        "{why}"
    );
    let both = json!({"inlineVolumeSpec": {}, "persistentVolumeName": "a=b"});
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n", "source": both}});
    let why = api.post("/apis/storage.k8s.io/v1/volumeattachments", attachment);
    let why = why.await.refused(422);
    assert!(
        why.contains(r#"spec.source.persistentVolumeName: Invalid value: "a=b""#),
        "{why}"
    );
}

#[tokio::test]
async fn generated_names_are_checked_by_the_rules_of_their_kinds() {
    let api = Api::new(Config::default());
    let generated = json!({"metadata": {"generateName": "A."}});
    let why = api.post("/apis/resource.k8s.io/v1/deviceclasses", generated.clone());
    let why = why.await.refused(422);
    assert!(why.contains("metadata.name: Invalid value"), "{why}");
    assert!(!why.contains("metadata.generateName"), "{why}");
    // The label with the name is set after validation.
    let why = api.post("/api/v1/namespaces", generated).await.refused(422);
    assert!(
        why.contains("metadata.generateName: Invalid value"),
        "{why}"
    );
    assert!(!why.contains("metadata.labels"), "{why}");
}

#[tokio::test]
async fn fields_of_features_that_are_off_are_dropped_from_devices() {
    let api = Api::new(Config::default());
    let path = "/apis/resource.k8s.io/v1/resourceslices";
    let slice = |name: &str, attributes: Value| {
        json!({"metadata": {"name": name}, "spec": {
            "driver": "d.example.com", "allNodes": true, "pool": {"name": "p", "resourceSliceCount": 1},
            "devices": [{"name": "d", "attributes": attributes}],
        }})
    };
    let lists = json!({"a": {"int": 1, "ints": [2], "strings": ["s"], "bools": [true], "versions": ["1.0.0"]}});
    let made = api.post(path, slice("a", lists)).await.ok();
    let attributes = &made["spec"]["devices"][0]["attributes"];
    assert_eq!(attributes, &json!({"a": {"int": 1}}));
    let why = api
        .post(path, slice("b", json!({"a": {"ints": [2]}})))
        .await;
    let why = why.refused(422);
    assert!(
        why.ends_with("exactly one value must be specified"),
        "{why}"
    );
    let empty = json!({"metadata": {"name": "c"}, "spec": {
        "driver": "d.example.com", "allNodes": true, "pool": {"name": "p", "resourceSliceCount": 1}, "devices": [], "sharedCounters": [],
    }});
    let why = api.post(path, empty).await.refused(422);
    assert!(
        why.contains("only one of `sharedCounters` or `devices` is allowed"),
        "{why}"
    );
}

#[tokio::test]
async fn variables_are_declared_where_a_policy_has_some() {
    let api = Api::new(Config::default());
    let matching = json!({"resourceRules": [{"apiGroups": ["a"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]});
    let policy = |variables: Value| {
        json!({"metadata": {"name": "a"}, "spec": {
            "matchConstraints": matching, "validations": [{"expression": "variables.v == 1"}], "variables": variables,
        }})
    };
    let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let why = api.post(path, policy(json!([]))).await.refused(422);
    assert!(why.contains("undeclared reference to 'variables'"), "{why}");
    let other = json!([{"name": "w", "expression": "1"}]);
    let why = api.post(path, policy(other)).await.refused(422);
    assert!(why.contains("undefined field 'v'"), "{why}");
}

#[tokio::test]
async fn an_init_container_without_a_policy_has_no_restart_rules() {
    let api = Api::with_account().await;
    let rules = json!([{"action": "Nope"}]);
    let init = json!([{"name": "i", "image": "i", "restartPolicyRules": rules}]);
    let pod = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}], "initContainers": init}});
    let why = api.post("/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(
        why.refused(422),
        r#"Pod "a" is invalid: spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"#
    );
}

#[tokio::test]
async fn the_time_of_an_event_is_null_where_it_was_removed() {
    let api = Api::new(Config::default());
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut event = json!({"metadata": {"name": "a"}, "eventTime": "2020-01-01T00:00:00.000000Z", "reportingController": "example.com/c",
        "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal", "regarding": {"namespace": "default"}});
    api.post(path, event.clone()).await.ok();
    event.as_object_mut().unwrap().remove("eventTime");
    let why = api.put(&format!("{path}/a"), event).await.refused(422);
    assert!(
        why.contains("eventTime: Invalid value: null: field is immutable"),
        "{why}"
    );
}
