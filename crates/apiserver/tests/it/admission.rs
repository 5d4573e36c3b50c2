//! What the built-in admission plugins and the policies of a cluster let through, change and refuse.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::Api;

const NAMESPACE: &str = "/api/v1/namespaces/default";
const PODS: &str = "/api/v1/namespaces/default/pods";
const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";
const QUOTA: &str = "/api/v1/namespaces/default/resourcequotas";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn label(mode: &str) -> String {
    format!("pod-security.kubernetes.io/{mode}")
}

#[tokio::test]
async fn pods_need_an_account_unless_that_plugin_is_left_out() {
    let strict = Api::new(Config::default());
    let refused = strict.post(PODS, pod("p", json!({}))).await;
    assert_eq!(
        refused.refused(403),
        r#"pods "p" is forbidden: error looking up service account default/default: serviceaccount "default" not found"#
    );
    let lax = Api::new(Config {
        disabled_admission: "ServiceAccount".parse().unwrap(),
        ..Config::default()
    });
    let made = lax.post(PODS, pod("p", json!({}))).await.ok();
    assert_eq!(made["spec"].get("serviceAccountName"), None);
    assert_eq!(made["spec"].get("volumes"), None);
    assert_eq!(made["spec"]["priority"], 0);
}

#[tokio::test]
async fn a_namespace_says_what_its_pods_may_do_and_of_what_to_warn() {
    let api = Api::with_account().await;
    for name in ["b", "a"] {
        api.post(PODS, pod(name, json!({"hostPID": true})))
            .await
            .ok();
    }
    let labels = json!({"metadata": {"labels": {label("enforce"): "baseline", label("enforce-version"): "v1.30"}}});
    let stricter = api.merge(NAMESPACE, labels).await;
    assert_eq!(
        stricter.warnings,
        [
            r#"299 - "existing pods in namespace \"default\" violate the new PodSecurity enforce level \"baseline:v1.30\"""#,
            r#"299 - "a (and 1 other pod): host namespaces""#,
        ]
    );
    let refused = api.post(PODS, pod("c", json!({"hostIPC": true}))).await;
    assert_eq!(
        refused.refused(403),
        r#"pods "c" is forbidden: violates PodSecurity "baseline:v1.30": host namespaces (hostIPC=true)"#
    );
    // Who is in already may be changed, but not into another pod.
    let a = format!("{PODS}/a");
    let labelled = api
        .merge(&a, json!({"metadata": {"labels": {"x": "y"}}}))
        .await;
    labelled.ok();
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "j"}]);
    let media = "application/json-patch+json";
    let changed = api.send_text("PATCH", &a, media, &image.to_string()).await;
    assert_eq!(changed.status, 403);
    // Workloads are warned of what would be refused, unless the namespace says of what.
    let template = pod("x", json!({"hostPID": true}));
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": template["spec"]});
    let workload = |name: &str| json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let url = "/apis/apps/v1/namespaces/default/deployments";
    let warned = api.post(url, workload("d")).await;
    assert_eq!(
        warned.warnings,
        [r#"299 - "would violate PodSecurity \"baseline:v1.30\": host namespaces (hostPID=true)""#]
    );
    let silent = json!({"metadata": {"labels": {label("warn"): "privileged"}}});
    api.merge(NAMESPACE, silent).await.ok();
    assert_eq!(api.post(url, workload("e")).await.warnings, [""; 0]);
    // A label that is wrong may stay, but not become another wrong one.
    let wrong = |level: &str| json!({"metadata": {"labels": {label("audit"): level}}});
    assert_eq!(api.merge(NAMESPACE, wrong("most")).await.status, 422);
}

#[tokio::test]
async fn an_account_may_ask_that_its_pods_use_no_secrets_but_those_it_names() {
    let api = Api::new(Config::default());
    let account = json!({
        "metadata": {"name": "default", "annotations": {"kubernetes.io/enforce-mountable-secrets": "T"}},
        "secrets": [{"name": "mine"}], "imagePullSecrets": [{"name": "pull"}],
    });
    api.post(&format!("{NAMESPACE}/serviceaccounts"), account)
        .await
        .ok();
    let env = |secret: &str| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret, "key": "k"}}}]);
    let volume =
        |secret: &str| json!({"volumes": [{"name": "v", "secret": {"secretName": secret}}]});
    let containers = |list: &str, secret: &str| json!({list: [{"name": "c2", "image": "i", "env": env(secret)}]});
    for (spec, why) in [
        (
            volume("other"),
            r#"volume with secret.secretName="other" is not allowed because service account default does not reference that secret"#,
        ),
        (
            containers("containers", "other"),
            r#"container c2 with envVar V referencing secret.secretName="other" is not allowed because service account default does not reference that secret"#,
        ),
        (
            containers("initContainers", "other"),
            r#"init container c2 with envVar V referencing secret.secretName="other" is not allowed because service account default does not reference that secret"#,
        ),
        (
            json!({"containers": [{"name": "c2", "image": "i", "envFrom": [{"secretRef": {"name": "mine"}}, {"secretRef": {"name": "other"}}]}]}),
            r#"container c2 with envFrom referencing secret.secretName="other" is not allowed because service account default does not reference that secret"#,
        ),
        (
            json!({"imagePullSecrets": [{"name": "pull"}, {"name": "other"}]}),
            r#"imagePullSecrets[1].name="other" is not allowed because service account default does not reference that imagePullSecret"#,
        ),
    ] {
        let refused = api.post(PODS, pod("p", spec)).await.refused(403);
        assert_eq!(refused, format!(r#"pods "p" is forbidden: {why}"#));
    }
    api.post(PODS, pod("a", volume("mine"))).await.ok();
    api.post(PODS, pod("b", containers("containers", "mine")))
        .await
        .ok();
    let debugger = |secret: &str| json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i", "env": env(secret)}]}});
    let url = format!("{PODS}/a/ephemeralcontainers");
    let refused = api.merge(&url, debugger("other")).await.refused(403);
    assert!(
        refused.contains("forbidden: ephemeral container d with envVar V referencing secret"),
        "{refused}"
    );
    api.merge(&url, debugger("mine")).await.ok();
}

/// A quota that has been counted.
async fn quota(api: &Api, name: &str, spec: Value, used: Value) {
    let hard = spec["hard"].clone();
    api.post(QUOTA, json!({"metadata": {"name": name}, "spec": spec}))
        .await
        .ok();
    let status = json!({"status": {"hard": hard, "used": used}});
    api.merge(&format!("{QUOTA}/{name}/status"), status)
        .await
        .ok();
}

async fn used(api: &Api, name: &str) -> Value {
    api.get(&format!("{QUOTA}/{name}")).await.ok()["status"]["used"].clone()
}

#[tokio::test]
async fn a_pod_that_comes_into_the_scope_of_a_quota_is_new_to_it() {
    let api = Api::with_account().await;
    for (name, scope) in [("ending", "Terminating"), ("lasting", "NotTerminating")] {
        let spec = json!({"hard": {"pods": "1"}, "scopes": [scope]});
        quota(&api, name, spec, json!({"pods": "0"})).await;
    }
    for name in ["a", "b"] {
        api.post(PODS, pod(name, json!({}))).await.ok();
        let ends = json!({"spec": {"activeDeadlineSeconds": 60}});
        let changed = api.merge(&format!("{PODS}/{name}"), ends).await;
        if name == "a" {
            changed.ok();
            assert_eq!(used(&api, "ending").await, json!({"pods": "1"}));
            // The quota controller gives the first place back.
            let free = json!({"status": {"used": {"pods": "0"}}});
            api.merge(&format!("{QUOTA}/lasting/status"), free)
                .await
                .ok();
        } else {
            assert_eq!(
                changed.refused(403),
                r#"pods "b" is forbidden: exceeded quota: ending, requested: pods=1, used: pods=1, limited: pods=1"#
            );
        }
    }
}

#[tokio::test]
async fn claims_of_devices_use_up_their_classes() {
    let api = Api::with_account().await;
    let gpus = "gpu.deviceclass.resource.k8s.io/devices";
    let spec = json!({"hard": {gpus: "4"}});
    quota(&api, "devices", spec, json!({gpus: "0"})).await;
    let url = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = |name: &str, request: Value| json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
    let wanted =
        |name: &str, count: u32| json!({"name": name, "deviceClassName": "gpu", "count": count});
    let either = json!({"name": "r", "firstAvailable": [wanted("x", 3), wanted("y", 1)]});
    api.post(url, claim("a", either)).await.ok();
    assert_eq!(used(&api, "devices").await, json!({gpus: "3"}));
    let exactly = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}});
    assert_eq!(
        api.post(url, claim("b", exactly)).await.refused(403),
        format!(
            r#"resourceclaims.resource.k8s.io "b" is forbidden: exceeded quota: devices, requested: {gpus}=2, used: {gpus}=3, limited: {gpus}=4"#
        )
    );
}

#[tokio::test]
async fn claims_of_devices_use_up_the_resources_that_their_classes_stand_for_unless_their_pod_does()
{
    let api = Api::with_account().await;
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "d.com/gpu"}});
    let classes = "/apis/resource.k8s.io/v1/deviceclasses";
    api.post(classes, class).await.ok();
    let (gpus, own) = (
        "requests.d.com/gpu",
        "requests.deviceclass.resource.kubernetes.io/gpu",
    );
    let none = json!({gpus: "0", own: "0"});
    quota(
        &api,
        "devices",
        json!({"hard": {gpus: "4", own: "5"}}),
        none,
    )
    .await;
    let amounts = json!({"d.com/gpu": "2"});
    let container =
        json!({"name": "c", "image": "i", "resources": {"requests": amounts, "limits": amounts}});
    let made = api.post(PODS, pod("p", json!({"containers": [container]})));
    let made = made.await.ok();
    assert_eq!(used(&api, "devices").await, json!({gpus: "2", own: "0"}));
    let url = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let claim = |name: &str, count: u32, metadata: Value| {
        let exactly = json!({"deviceClassName": "gpu", "count": count});
        let mut claim = json!({"metadata": metadata, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}});
        claim["metadata"]["name"] = json!(name);
        claim
    };
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"], "controller": true});
    let annotations = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let of_pod = json!({"annotations": annotations, "ownerReferences": [owner]});
    api.post(url, claim("for-p", 2, of_pod)).await.ok();
    assert_eq!(used(&api, "devices").await, json!({gpus: "2", own: "2"}));
    api.post(url, claim("one", 1, json!({}))).await.ok();
    assert_eq!(used(&api, "devices").await, json!({gpus: "3", own: "3"}));
    assert_eq!(
        api.post(url, claim("two", 2, json!({}))).await.refused(403),
        format!(
            r#"resourceclaims.resource.k8s.io "two" is forbidden: exceeded quota: devices, requested: {gpus}=2, used: {gpus}=3, limited: {gpus}=4"#
        )
    );
}

#[tokio::test]
async fn classes_of_volume_attributes_are_protected() {
    let api = Api::with_account().await;
    let class = json!({"metadata": {"name": "fast"}, "driverName": "d.example.com", "parameters": {"iops": "1"}});
    let url = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    let created = api.post(url, class).await.ok();
    assert_eq!(
        created["metadata"]["finalizers"],
        json!(["kubernetes.io/vac-protection"])
    );
}

/// A policy about config maps.
fn policy(name: &str, more: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let mut policy = json!({
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false", "message": "no"}]},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        policy["spec"][field] = value.clone();
    }
    policy
}

async fn bind(api: &Api, name: &str, policy: &str, spec: Value) {
    let mut binding = json!({"metadata": {"name": name}, "spec": {"policyName": policy}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        binding["spec"][field] = value.clone();
    }
    let url = format!("{REGISTRATION}/validatingadmissionpolicybindings");
    api.post(&url, binding).await.ok();
}

#[tokio::test(start_paused = true)]
async fn all_policies_are_asked_and_one_that_is_set_up_wrongly_refuses_by_itself() {
    let api = Api::with_account().await;
    let policies = format!("{REGISTRATION}/validatingadmissionpolicies");
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["denying", "warning"] {
        api.post(&policies, policy(name, json!({}))).await.ok();
    }
    bind(&api, "d", "denying", json!({"validationActions": ["Deny"]})).await;
    bind(&api, "w", "warning", json!({"validationActions": ["Warn"]})).await;
    let refused = api.post(maps, json!({"metadata": {"name": "m"}})).await;
    assert_eq!(
        refused.warnings,
        [
            r#"299 - "Validation failed for ValidatingAdmissionPolicy 'warning' with binding 'w': no""#
        ]
    );
    assert_eq!(
        refused.refused(422),
        r#"configmaps "m" is forbidden: ValidatingAdmissionPolicy 'denying' with binding 'd' denied request: no"#
    );
    api.delete(&format!("{policies}/denying")).await.ok();
    // A note for the audit log that cannot be made refuses as well.
    let note = json!({"auditAnnotations": [{"key": "k", "valueExpression": "string(object.data.none)"}], "validations": []});
    api.post(&policies, policy("noting", note)).await.ok();
    bind(&api, "n", "noting", json!({"validationActions": ["Audit"]})).await;
    let refused = api.post(maps, json!({"metadata": {"name": "m"}})).await;
    assert_eq!(
        refused.refused(422),
        r#"configmaps "m" is forbidden: ValidatingAdmissionPolicy 'noting' with binding 'n' denied request: expression 'string(object.data.none)' resulted in error: no such key: data"#
    );
    api.delete(&format!("{policies}/noting")).await.ok();
    // What its binding would do is not asked.
    let nothing = json!({"paramKind": {"apiVersion": "v1", "kind": "Nothing"}});
    api.post(&policies, policy("lost", nothing)).await.ok();
    let reference = json!({"validationActions": ["Warn"], "paramRef": {"name": "x", "parameterNotFoundAction": "Deny"}});
    for name in ["l1", "l2"] {
        bind(&api, name, "lost", reference.clone()).await;
    }
    let refused = api.post(maps, json!({"metadata": {"name": "m"}})).await;
    assert_eq!(refused.warnings.len(), 1);
    assert_eq!(
        refused.refused(422),
        r#"configmaps "m" is forbidden: ValidatingAdmissionPolicy 'lost' denied request: failed to configure policy: failed to find resource referenced by paramKind: '/v1, Kind=Nothing'"#
    );
    let ignored = json!({"spec": {"failurePolicy": "Ignore"}});
    api.merge(&format!("{policies}/lost"), ignored).await.ok();
    api.post(maps, json!({"metadata": {"name": "m"}}))
        .await
        .ok();
}

#[tokio::test]
async fn a_running_pod_is_resized_within_what_its_node_has_and_can() {
    let api = Api::with_account().await;
    let node = |name: &str, os: &str, features: Value| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/os": os}},
               "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}, "declaredFeatures": features}})
    };
    let nodes = [
        node(
            "new",
            "linux",
            json!(["InPlacePodLevelResourcesVerticalScaling"]),
        ),
        node("old", "linux", json!([])),
        node("win", "windows", json!([])),
    ];
    for node in nodes {
        api.post("/api/v1/nodes", node).await.ok();
    }
    let cpu = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "1Gi"}});
    let main = |amount: &str| json!([{"name": "c", "image": "i", "resources": cpu(amount)}]);
    let of_container = |amount: &str| json!({"spec": {"containers": main(amount)}});
    let of_pod = |amount: &str| json!({"spec": {"resources": cpu(amount)}});
    let cases = [
        ("new", of_container("2"), ""),
        ("", of_container("9"), ""),
        (
            "new",
            json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "9", "memory": "9Gi"}}}]}}),
            "Node didn't have enough allocatable resources: cpu, requested: 9000, allocatable: 4000; memory, requested: 9663676416, allocatable: 8589934592",
        ),
        (
            "win",
            of_container("2"),
            r#"pod resize is only supported on linux nodes, node "win" is "windows""#,
        ),
        ("gone", of_container("2"), r#"node "gone" not found"#),
        ("new", of_pod("3"), ""),
        (
            "old",
            of_pod("3"),
            r#"pod update requires features InPlacePodLevelResourcesVerticalScaling which are not available on node "old""#,
        ),
    ];
    for (index, (node, change, why)) in cases.into_iter().enumerate() {
        let name = format!("p{index}");
        let mut spec = json!({"containers": [{"name": "c", "image": "i", "resources": cpu("1")}]});
        if !node.is_empty() {
            spec["nodeName"] = node.into();
        }
        if change["spec"].get("resources").is_some() {
            spec["resources"] = cpu("2");
        }
        api.post(PODS, pod(&name, spec)).await.ok();
        let status = json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                                                              "resources": cpu("1")}]}});
        let path = format!("{PODS}/{name}");
        api.merge(&format!("{path}/status"), status).await.ok();
        let resized = api.merge(&format!("{path}/resize"), change).await;
        match why {
            "" => drop(resized.ok()),
            why => assert_eq!(
                resized.body,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Forbidden", "code": 403,
                    "message": format!("pods {name:?} is forbidden: {why}"), "details": {"name": name, "kind": "pods"}})
            ),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_sees_the_version_that_its_rule_names() {
    let api = Api::with_account().await;
    let policies = format!("{REGISTRATION}/validatingadmissionpolicies");
    let rule = json!({"apiGroups": ["autoscaling"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["horizontalpodautoscalers"]});
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "c", "expression": "request.kind.version == 'v1' && request.resource.version == 'v2'"}],
        "variables": [{"name": "cpu", "expression": "object.spec.none"}, {"name": "kind", "expression": "request.kind"}],
        "validations": [
            {"expression": "variables.kind.version == 'v1' && request.resource.version == 'v1' && has(object.spec.targetCPUUtilizationPercentage)"},
            {"expression": "request.requestKind.version == 'v2' && request.requestResource.version == 'v2'"},
            {"expression": "!has(variables.cpu) || variables.cpu > 1"},
        ],
    });
    api.post(&policies, policy("seeing", spec)).await.ok();
    bind(&api, "s", "seeing", json!({"validationActions": ["Deny"]})).await;
    let scaler = json!({
        "metadata": {"name": "h"},
        "spec": {"maxReplicas": 2, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}},
    });
    let refused = api
        .post(
            "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
            scaler,
        )
        .await;
    assert_eq!(
        refused.refused(422),
        "horizontalpodautoscalers.autoscaling \"h\" is forbidden: ValidatingAdmissionPolicy 'seeing' with binding 's' denied request: \
         expression '!has(variables.cpu) || variables.cpu > 1' resulted in error: \
         composited variable \"cpu\" fails to evaluate: no such key: none"
    );
}
