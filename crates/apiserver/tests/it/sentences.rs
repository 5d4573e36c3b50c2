//! Objects that are wrong in a way of their own, and the causes that kube-apiserver 1.36 gives for them, word for word.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const APPS: &str = "/apis/apps/v1/namespaces/default";
const STORAGE: &str = "/apis/storage.k8s.io/v1";
const FLOWS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";
const RESOURCES: &str = "/apis/resource.k8s.io/v1";

/// Creates an object and returns the message of the refusal.
async fn refusal(api: &Api, path: &str, body: Value) -> String {
    api.post(path, body).await.refused(422)
}

fn named(fields: Value) -> Value {
    let mut object = json!({"metadata": {"name": "a"}});
    let fields = fields.as_object().cloned().unwrap_or_default();
    object.as_object_mut().unwrap().extend(fields);
    object
}

#[tokio::test]
async fn what_is_missing_is_not_malformed_too() {
    let api = Api::new(Config::default());
    for (path, object, cause) in [
        (
            format!("{STORAGE}/csinodes"),
            json!({"spec": {"drivers": [{"nodeID": "n"}]}}),
            "spec.drivers[0].name: Required value",
        ),
        (
            format!("{STORAGE}/volumeattachments"),
            json!({"spec": {"nodeName": "n", "source": {"persistentVolumeName": "v"}}}),
            "spec.attacher: Required value",
        ),
        (
            format!("{FLOWS}/prioritylevelconfigurations"),
            json!({"spec": {}}),
            "spec.type: Required value",
        ),
        (
            format!("{FLOWS}/prioritylevelconfigurations"),
            json!({"spec": {"type": "Limited", "limited": {}}}),
            "spec.limited.limitResponse.type: Required value",
        ),
        (
            "/apis/networking.k8s.io/v1/ingressclasses".to_owned(),
            json!({"spec": {"controller": "a/b", "parameters": {"kind": "K"}}}),
            "spec.parameters.name: Required value",
        ),
    ] {
        let why = refusal(&api, &path, named(object)).await;
        assert!(why.ends_with(&format!("is invalid: {cause}")), "{why}");
    }
}

#[tokio::test]
async fn kinds_refuse_values_in_kube_apiservers_words() {
    let api = Api::with_account().await;
    let webhook = |config: Value| {
        let hook = json!({"name": "w.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": config});
        json!({"webhooks": [hook]})
    };
    let webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let matching = json!({"resourceRules": [{"apiGroups": ["a"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["x"]}]});
    for (path, object, cause) in [
        (
            webhooks.to_owned(),
            webhook(json!({"url": "https://"})),
            r#"webhooks[0].clientConfig.url: Invalid value: "": host must be specified; desired format: https://host[/path]"#,
        ),
        (
            policies.to_owned(),
            json!({"spec": {"matchConstraints": matching, "validations": [{"expression": "true", "reason": "Unauthorized"}]}}),
            r#"spec.validations[0].reason: Unsupported value: "Unauthorized": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
        ),
        (
            policies.to_owned(),
            json!({"spec": {"matchConstraints": matching, "validations": [{"expression": "true"}], "variables": [{"name": "1", "expression": "true"}]}}),
            r#"spec.variables[0].name: Invalid value: "1": must be a valid CEL identifier"#,
        ),
        (
            "/api/v1/nodes".to_owned(),
            json!({"status": {"declaredFeatures": ["B", "A"]}}),
            r#"status.declaredFeatures[1]: Invalid value: "A": list must be sorted alphabetically"#,
        ),
        (
            "/api/v1/nodes".to_owned(),
            json!({"status": {"declaredFeatures": ["A", "A"]}}),
            r#"status.declaredFeatures[1]: Duplicate value: "A""#,
        ),
        (
            "/api/v1/nodes".to_owned(),
            json!({"status": {"declaredFeatures": ["A", "B", "A"]}}),
            r#"status.declaredFeatures[2]: Invalid value: "A": list must be sorted alphabetically"#,
        ),
        (
            format!("{STORAGE}/storageclasses"),
            json!({"provisioner": "A B"}),
            r#"provisioner: Invalid value: "a b": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"#,
        ),
        (
            "/apis/networking.k8s.io/v1/servicecidrs".to_owned(),
            json!({"spec": {"cidrs": ["10.97.0.0/16", "x"]}}),
            r#"spec.cidrs[1]: Invalid value: "x": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
        ),
        (
            "/api/v1/namespaces/default/pods".to_owned(),
            json!({"spec": {"containers": [{"name": "c", "image": "i"}], "securityContext": {"seLinuxChangePolicy": "MountOption"}}}),
            r#"spec.securityContext.seLinuxChangePolicy: Unsupported value: "MountOption": supported values: "Recursive""#,
        ),
        (
            format!("{RESOURCES}/namespaces/default/resourceclaimtemplates"),
            json!({"spec": {"metadata": {"uid": "u"}, "spec": {}}}),
            "spec.metadata.uID: Forbidden: cannot be set",
        ),
    ] {
        let why = refusal(&api, &path, named(object)).await;
        assert!(why.ends_with(&format!("is invalid: {cause}")), "{why}");
    }
}

#[tokio::test]
async fn labels_of_a_template_are_shown_as_they_were_sent() {
    let api = Api::new(Config::default());
    let set = |metadata: Value| {
        named(
            json!({"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}}}}),
        )
    };
    for (metadata, shown) in [(json!({"labels": {}}), "{}"), (json!({}), "null")] {
        let why = refusal(&api, &format!("{APPS}/replicasets"), set(metadata)).await;
        let cause = format!(
            "spec.template.metadata.labels: Invalid value: {shown}: `selector` does not match template `labels`"
        );
        assert!(why.contains(&cause), "{why}");
    }
}

#[tokio::test]
async fn a_changed_claim_for_devices_is_shown_with_the_fields_of_the_internal_type() {
    let api = Api::new(Config::default());
    let claims = format!("{RESOURCES}/namespaces/default/resourceclaims");
    api.post(&claims, named(json!({}))).await.ok();
    let spec = json!({"spec": {"devices": {"requests": [{"name": "r", "firstAvailable": []}], "config": []}}});
    let why = api.merge(&format!("{claims}/a"), spec).await.refused(422);
    let cause = r#"spec: Invalid value: {"Devices":{"Requests":[{"Name":"r","Exactly":null,"FirstAvailable":[]}],"Constraints":null,"Config":[]}}: field is immutable"#;
    assert!(why.contains(cause), "{why}");
}

#[tokio::test]
async fn a_taken_name_is_told_as_a_generated_one_where_a_prefix_is_given() {
    let api = Api::new(Config::default());
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    api.post(roles, named(json!({}))).await.ok();
    let again = json!({"metadata": {"name": "a", "generateName": "b"}});
    assert_eq!(
        api.post(roles, again).await.refused(409),
        r#"clusterroles.rbac.authorization.k8s.io "a" already exists, the server was not able to generate a unique name for the object"#
    );
}

#[tokio::test]
async fn a_flow_schema_may_be_replaced_without_its_revision() {
    let api = Api::new(Config::default());
    let flows = format!("{FLOWS}/flowschemas");
    let flow = named(json!({"spec": {"priorityLevelConfiguration": {"name": "catch-all"}}}));
    api.post(&flows, flow.clone()).await.ok();
    api.put(&format!("{flows}/a"), flow).await.ok();
}

#[tokio::test]
async fn a_new_object_that_is_applied_needs_no_keys_but_a_revision_that_is_a_number() {
    let api = Api::with_account().await;
    let apply = async |pod: Value| {
        let path = "/api/v1/namespaces/default/pods/a?fieldManager=m";
        let media = "application/apply-patch+yaml";
        api.send_text("PATCH", path, media, &pod.to_string()).await
    };
    let pod = |metadata: Value, containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}});
    let why = apply(pod(json!({"name": "a"}), json!([{"image": "i"}]))).await;
    assert_eq!(
        why.refused(422),
        r#"Pod "a" is invalid: spec.containers[0].name: Required value"#
    );
    let revision = json!({"name": "a", "resourceVersion": "x"});
    let why = apply(pod(revision, json!([{"name": "c", "image": "i"}]))).await;
    assert_eq!(
        why.refused(500),
        r#"strconv.ParseUint: parsing "x": invalid syntax"#
    );
}

#[tokio::test]
async fn a_driver_counts_the_changes_of_some_of_its_fields() {
    let api = Api::new(Config::default());
    let drivers = format!("{STORAGE}/csidrivers");
    let created = api
        .post(
            &drivers,
            named(json!({"spec": {"preventPodSchedulingIfMissing": true}})),
        )
        .await
        .ok();
    assert_eq!(created["metadata"]["generation"], Value::Null);
    assert_eq!(
        created["spec"]["preventPodSchedulingIfMissing"],
        Value::Null
    );
    let driver = format!("{drivers}/a");
    let labelled = api
        .merge(&driver, json!({"metadata": {"labels": {"a": "b"}}}))
        .await
        .ok();
    assert_eq!(labelled["metadata"]["generation"], Value::Null);
    let changed = api
        .merge(&driver, json!({"spec": {"storageCapacity": true}}))
        .await
        .ok();
    assert_eq!(changed["metadata"]["generation"], 1);
}

#[tokio::test]
async fn a_value_of_a_wrong_type_is_placed_in_the_structs_that_go_embeds() {
    let api = Api::new(Config::default());
    let volume = named(json!({"spec": {"nfs": {"path": {}}}}));
    assert_eq!(
        api.post("/api/v1/persistentvolumes", volume)
            .await
            .refused(400),
        r#"PersistentVolume in version "v1" cannot be handled as a PersistentVolume: json: cannot unmarshal object into Go struct field NFSVolumeSource.spec.PersistentVolumeSource.nfs.path of type string"#
    );
    let hooks = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";
    let binding =
        named(json!({"spec": {"matchResources": {"resourceRules": [{"apiVersions": [1]}]}}}));
    assert_eq!(
        api.post(hooks, binding).await.refused(400),
        r#"MutatingAdmissionPolicyBinding in version "v1" cannot be handled as a MutatingAdmissionPolicyBinding: json: cannot unmarshal number into Go struct field NamedRuleWithOperations.spec.matchResources.resourceRules.RuleWithOperations.Rule.apiVersions of type string"#
    );
}

#[tokio::test]
async fn a_taint_of_a_device_gets_the_time_of_the_write() {
    let api = Api::new(Config::default());
    let slice = named(
        json!({"spec": {"driver": "d.example.com", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1},
        "devices": [{"name": "d", "taints": [{"key": "k", "effect": "NoSchedule"}]}]}}),
    );
    let slice = api
        .post(&format!("{RESOURCES}/resourceslices"), slice)
        .await
        .ok();
    assert!(slice["spec"]["devices"][0]["taints"][0]["timeAdded"].is_string());
}
