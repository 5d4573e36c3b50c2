//! Lists and maps that are sent with nothing in them: most rules take them for absent, and nothing shows them, but a few rules of kube-apiserver
//! find them there.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(spec: Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let spec = spec.as_object().cloned().unwrap_or_default();
    pod["spec"].as_object_mut().unwrap().extend(spec);
    pod
}

#[tokio::test]
async fn an_ephemeral_container_may_not_have_even_an_empty_list_of_ports() {
    let api = Api::with_account().await;
    api.post(PODS, pod(json!({}))).await.ok();
    let debug = |more: Value| {
        let mut container = json!({"name": "d", "image": "i"});
        let more = more.as_object().cloned().unwrap_or_default();
        container.as_object_mut().unwrap().extend(more);
        json!({"spec": {"ephemeralContainers": [container]}})
    };
    let url = format!("{PODS}/a/ephemeralcontainers");
    for (more, field) in [
        (json!({"ports": []}), "ports"),
        (json!({"resizePolicy": []}), "resizePolicy"),
        (json!({"restartPolicyRules": []}), "restartPolicyRules"),
        (json!({"resources": {"limits": {}}}), "resources"),
        (json!({"resources": {"claims": []}}), "resources"),
    ] {
        let refused = api.merge(&url, debug(more.clone())).await.refused(422);
        let why = format!(
            "spec.ephemeralContainers[0].{field}: Forbidden: cannot be set for an Ephemeral Container"
        );
        assert_eq!(refused, format!(r#"Pod "a" is invalid: {why}"#), "{more}");
    }
    for more in [json!({"resources": {}}), json!({"args": [], "env": []})] {
        let shown = api
            .merge(&format!("{url}?dryRun=All"), debug(more))
            .await
            .ok();
        let container = &shown["spec"]["ephemeralContainers"][0];
        assert_eq!(container.get("args"), None);
    }
}

#[tokio::test]
async fn the_claim_of_a_volume_has_no_owners_not_even_none() {
    let api = Api::with_account().await;
    let spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"ownerReferences": []}, "spec": spec});
    let volume = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": claim}});
    let refused = api
        .post(PODS, pod(json!({"volumes": [volume]})))
        .await
        .refused(422);
    assert_eq!(
        refused,
        r#"Pod "a" is invalid: spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.ownerReferences: Forbidden: cannot be set"#
    );
}

#[tokio::test]
async fn a_pod_for_windows_has_no_sysctls_and_no_groups_not_even_none() {
    let api = Api::with_account().await;
    let context = json!({"sysctls": [], "supplementalGroups": []});
    let windows = pod(json!({"os": {"name": "windows"}, "securityContext": context}));
    let refused = api.post(PODS, windows.clone()).await.refused(422);
    assert_eq!(
        refused,
        r#"Pod "a" is invalid: [spec.securityContext.sysctls: Forbidden: cannot be set for a windows pod, spec.securityContext.supplementalGroups: Forbidden: cannot be set for a windows pod]"#
    );
    let labels = json!({"app": "a"});
    let template = json!({"metadata": {"labels": labels}, "spec": windows["spec"]});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": labels}, "template": template}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let refused = api.post(deployments, deployment).await.refused(422);
    assert!(refused.contains("spec.template.spec.securityContext.sysctls: Forbidden"));
    let linux = pod(json!({"securityContext": context}));
    let stored = api.post(PODS, linux.clone()).await.ok();
    assert_eq!(stored["spec"]["securityContext"], json!({}));
    api.put(&format!("{PODS}/a"), {
        let mut same = stored;
        same["spec"]["securityContext"] = linux["spec"]["securityContext"].clone();
        same
    })
    .await
    .ok();
}

#[tokio::test]
async fn an_overhead_of_nothing_is_not_what_a_class_says() {
    let api = Api::with_account().await;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = json!({"metadata": {"name": "sandboxed"}, "handler": "h", "overhead": {"podFixed": {"cpu": "1"}}});
    api.post(classes, class).await.ok();
    let refused = api.post(PODS, pod(json!({"overhead": {}}))).await;
    assert_eq!(
        refused.refused(403),
        r#"pods "a" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"#
    );
    let sandboxed = pod(json!({"overhead": {}, "runtimeClassName": "sandboxed"}));
    assert_eq!(
        api.post(PODS, sandboxed).await.refused(403),
        r#"pods "a" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"#
    );
}

#[tokio::test]
async fn what_is_fixed_may_not_become_an_empty_map() {
    let api = Api::new(Config::default());
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}, "immutable": true});
    api.post(maps, map.clone()).await.ok();
    let url = format!("{maps}/a");
    let mut with_nothing = map.clone();
    with_nothing["binaryData"] = json!({});
    for refused in [
        api.put(&url, with_nothing).await,
        api.merge(&url, json!({"binaryData": {}})).await,
    ] {
        assert_eq!(
            refused.refused(422),
            r#"ConfigMap "a" is invalid: binaryData: Forbidden: field is immutable when `immutable` is set"#
        );
    }
    api.put(&url, map).await.ok();
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "a"}, "immutable": true});
    api.post(secrets, secret).await.ok();
    let refused = api
        .merge(&format!("{secrets}/a"), json!({"data": {}}))
        .await;
    assert!(
        refused
            .refused(422)
            .contains("data: Forbidden: field is immutable")
    );
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    let class = json!({"metadata": {"name": "a"}, "provisioner": "p", "parameters": {}});
    api.post(classes, class).await.ok();
    let class = format!("{classes}/a");
    api.merge(&class, json!({"parameters": {}})).await.ok();
    let refused = api.merge(&class, json!({"parameters": {"k": "v"}})).await;
    assert_eq!(
        refused.refused(422),
        r#"StorageClass.storage.k8s.io "a" is invalid: parameters: Invalid value: {"k":"v"}: field is immutable"#
    );
}

#[tokio::test]
async fn a_network_policy_counts_a_list_of_no_rules_as_a_change() {
    let api = Api::new(Config::default());
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let policy = json!({"metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [], "policyTypes": ["Ingress"]}});
    let made = api.post(policies, policy.clone()).await.ok();
    assert_eq!(made["spec"].get("ingress"), None);
    let url = format!("{policies}/a");
    let again = api.put(&url, policy.clone()).await.ok();
    assert_eq!(again["metadata"]["generation"], 2);
    let mut without = policy;
    without["spec"].as_object_mut().unwrap().remove("ingress");
    let same = api.put(&url, without).await.ok();
    assert_eq!(
        same["metadata"]["resourceVersion"],
        again["metadata"]["resourceVersion"]
    );
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i", "args": []}]}});
    let deployment = json!({"metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    api.post(deployments, deployment.clone()).await.ok();
    let again = api.put(&format!("{deployments}/a"), deployment).await.ok();
    assert_eq!(again["metadata"]["generation"], 1);
}

#[tokio::test]
async fn a_definition_may_not_say_that_nothing_depends_on_anything() {
    let api = Api::new(Config::default());
    let nothing =
        json!({"type": "string", "dependencies": {}, "definitions": {}, "patternProperties": {}});
    let schema = json!({"type": "object", "properties": {"a": nothing}});
    let definition = json!({"metadata": {"name": "xs.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "xs", "kind": "X"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let refused = api.post(definitions, definition).await.refused(422);
    assert_eq!(
        refused,
        r#"CustomResourceDefinition.apiextensions.k8s.io "xs.example.com" is invalid: spec.validation.openAPIV3Schema.properties[a].dependencies: Forbidden: dependencies is not supported"#
    );
}
