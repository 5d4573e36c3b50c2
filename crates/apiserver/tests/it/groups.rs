//! Groups that a control plane brings along: what they keep, drop and refuse, through the API.

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::{Api, until};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

fn cluster() -> Api {
    Api::new(Config::default())
}

fn causes(body: &Value) -> Vec<String> {
    let causes = body["details"]["causes"].as_array().into_iter().flatten();
    causes
        .map(|cause| {
            format!(
                "{}: {}",
                cause["field"].as_str().unwrap_or_default(),
                cause["message"].as_str().unwrap_or_default()
            )
        })
        .collect()
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_cluster_has_its_flow_schemas_levels_and_range_from_the_start() {
    let api = cluster();
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let schemas = api.get(&format!("{group}/flowschemas")).await.ok();
    assert_eq!(names(&schemas).len(), 11);
    let levels = api
        .get(&format!("{group}/prioritylevelconfigurations"))
        .await;
    let levels = levels.ok();
    assert_eq!(
        names(&levels),
        [
            "catch-all",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low"
        ]
    );
    let range = api
        .get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        .await;
    assert_eq!(range.ok()["spec"], json!({"cidrs": ["10.96.0.0/16"]}));
    let probes = format!("{group}/flowschemas/probes");
    assert_eq!(
        api.table(&probes).await["rows"][0]["cells"]
            .as_array()
            .map(|cells| &cells[1..4]),
        Some(&[json!("exempt"), json!(2), json!("<none>")][..])
    );
    let told = api.get(&probes).await.ok();
    assert_eq!(told["status"]["conditions"][0]["status"], "False");
    let managers = told["metadata"]["managedFields"].as_array();
    let managers = managers.into_iter().flatten();
    let managers: Vec<&Value> = managers.map(|entry| &entry["manager"]).collect();
    assert_eq!(
        managers,
        [
            "api-priority-and-fairness-config-consumer-v1",
            "api-priority-and-fairness-config-producer-v1"
        ]
    );
}

/// Waits until the table of a FlowSchema shows whether it lacks a priority level.
async fn shows(api: &Api, schema: &str, missing: &str) {
    until(&format!("{schema} shows {missing}"), async || {
        (api.table(schema).await["rows"][0]["cells"][5] == missing).then_some(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_schema_says_whether_its_priority_level_exists() {
    let api = cluster();
    let group = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": "u"}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let schema = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "mine"},
        "spec": {"priorityLevelConfiguration": {"name": "mine"}, "rules": [rule]},
    });
    api.post(&format!("{group}/flowschemas"), schema).await.ok();
    let mine = format!("{group}/flowschemas/mine");
    shows(&api, &mine, "True").await;
    let told = api.get(&mine).await.ok();
    let condition = &told["status"]["conditions"][0];
    assert_eq!(condition["reason"], "NotFound");
    assert!(condition["lastTransitionTime"].is_string(), "{condition}");
    let levels = format!("{group}/prioritylevelconfigurations");
    let level = json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "mine"},
        "spec": {"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}},
    });
    api.post(&levels, level).await.ok();
    shows(&api, &mine, "False").await;
    api.delete(&format!("{levels}/mine")).await.ok();
    shows(&api, &mine, "True").await;
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_certificate_is_approved_and_then_signed() {
    let api = cluster();
    let key = rcgen::KeyPair::generate().expect("a key can be made");
    let asked = rcgen::CertificateParams::new(vec!["a.example.com".to_owned()]).expect("a name");
    let pem = asked
        .serialize_request(&key)
        .and_then(|request| request.pem())
        .expect("a request can be written");
    let body = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "any name:1"},
        "spec": {"request": STANDARD.encode(&pem), "signerName": "example.com/s", "usages": ["client auth"], "username": "somebody"},
        "status": {"conditions": [{"type": "Approved", "status": "True"}]},
    });
    let created = api.post(REQUESTS, body).await.ok();
    assert_eq!(created["spec"]["username"], "admin");
    assert_eq!(created["status"], json!({}));
    let url = format!("{REQUESTS}/any%20name:1");
    let approved = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Yes"}]}});
    let refused = api.merge(&format!("{url}/status"), approved.clone()).await;
    assert_eq!(
        causes(&refused.body),
        [r#"status.conditions: Forbidden: updates may not add a condition of type "Approved""#]
    );
    let done = api.merge(&format!("{url}/approval"), approved).await.ok();
    let condition = &done["status"]["conditions"][0];
    assert!(condition["lastUpdateTime"].is_string(), "{condition}");
    assert_eq!(condition["lastUpdateTime"], condition["lastTransitionTime"]);
    let signed = asked
        .self_signed(&key)
        .expect("a certificate can be made")
        .pem();
    let issued = json!({"status": {"certificate": STANDARD.encode(signed)}});
    api.merge(&format!("{url}/status"), issued).await.ok();
    let again = json!({"status": {"certificate": STANDARD.encode("x")}});
    let refused = api.merge(&format!("{url}/status"), again).await;
    assert_eq!(
        causes(&refused.body),
        [
            r#"status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block"#,
            "status.certificate: Forbidden: updates may not modify existing certificate content",
        ]
    );
    let table = api.table(&url).await;
    assert_eq!(
        table["rows"][0]["cells"]
            .as_array()
            .and_then(|cells| cells.last()),
        Some(&json!("Approved,Issued"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_checked_when_it_is_written() {
    let api = cluster();
    let policy = |spec: Value| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": "p.example.com"}, "spec": spec,
        })
    };
    let refused = api.post(POLICIES, policy(json!({}))).await;
    assert_eq!(
        causes(&refused.body),
        [
            "spec.matchConstraints: Required value",
            "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
            "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
        ]
    );
    let rules = json!([{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}]);
    let given = json!({
        "matchConstraints": {"resourceRules": rules},
        "variables": [{"name": "count", "expression": "object.spec.replicas"}, {"name": "a-b", "expression": "1"}],
        "validations": [
            {"expression": "variables.count <= 5", "messageExpression": "'at most ' + string(5)", "reason": "Invalid"},
            {"expression": "'text'", "message": " ", "reason": "Odd"},
            {"expression": "params.x == 1"},
            {"expression": "object.spec.paused"},
            {"expression": "namespaceObject.metadata.name == 'a' && namespaceObject.metadata.uid != ''"},
        ],
    });
    let refused = api.post(POLICIES, policy(given)).await;
    assert_eq!(
        causes(&refused.body),
        [
            r#"spec.variables[1].name: Invalid value: "a-b": must be a valid CEL identifier"#,
            r#"spec.validations[1].expression: Invalid value: "'text'": must evaluate to bool but got string"#,
            r#"spec.validations[1].message: Invalid value: " ": must be non-empty if specified"#,
            r#"spec.validations[1].reason: Unsupported value: "Odd": supported values: "Forbidden", "Invalid", "RequestEntityTooLarge""#,
            "spec.validations[2].expression: Invalid value: \"params.x == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.x == 1\n | ^",
            r#"spec.validations[3].expression: Invalid value: "object.spec.paused": must evaluate to bool but got dyn"#,
            "spec.validations[4].expression: Invalid value: \"namespaceObject.metadata.name == 'a' && namespaceObject.metadata.uid != ''\": compilation failed: \
             ERROR: <input>:1:65: undefined field 'uid'\n | namespaceObject.metadata.name == 'a' && namespaceObject.metadata.uid != ''\n \
             | ................................................................^",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_switched_off_by_default_is_dropped() {
    let api = cluster();
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "h", "strategy": "Odd", "preferredHolder": "p"},
    });
    let created = api.post(LEASES, lease).await.ok();
    assert_eq!(created["spec"], json!({"holderIdentity": "h"}));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_slice_loses_its_old_topology_and_warns_of_odd_addresses() {
    let api = cluster();
    let slice = |name: &str, kind: &str, address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": name}, "addressType": kind,
            "endpoints": [{"addresses": [address], "deprecatedTopology": {"a": "b"}}], "ports": [{"name": ""}],
        })
    };
    let created = api.post(SLICES, slice("a", "IPv6", "2001:DB8::1")).await;
    assert_eq!(
        created.warnings,
        [
            r#"299 - "endpoints[0].addresses[0]: IPv6 address \"2001:DB8::1\" should be in RFC 5952 canonical format (\"2001:db8::1\")""#
        ]
    );
    let refused = api.post(SLICES, slice("z", "IPv4", "010.0.0.1")).await;
    assert_eq!(
        causes(&refused.body),
        [r#"endpoints[0].addresses[0]: Invalid value: "010.0.0.1": must not have leading 0s"#]
    );
    let created = created.ok();
    assert!(created["endpoints"][0].get("deprecatedTopology").is_none());
    let named = api.post(SLICES, slice("b", "FQDN", "a.example.com")).await;
    assert_eq!(
        named.warnings,
        [r#"299 - "spec.addressType: FQDN endpoints are deprecated""#]
    );
    let table = api.table(&format!("{SLICES}/a")).await;
    assert_eq!(table["rows"][0]["cells"][2], "<unset>");
}

#[tokio::test(start_paused = true)]
async fn selectors_in_access_reviews_say_something() {
    let api = cluster();
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {
            "verb": "list", "resource": "pods", "fieldSelector": {},
            "labelSelector": {"rawSelector": "a", "requirements": [{"key": "", "operator": "In"}, {"key": "a", "operator": "Exists", "values": ["b"]}]},
        }},
    });
    let refused = api
        .post(
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            review,
        )
        .await;
    let found = causes(&refused.body);
    assert_eq!(
        found[..3],
        [
            "spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified, requirements or rawSelector is required",
            r#"spec.resourceAttributes.labelSelector.rawSelector: Invalid value: "a": may not specified at the same time as requirements"#,
            "spec.resourceAttributes.labelSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ]
    );
    let last = "spec.resourceAttributes.labelSelector.requirements[1].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
    assert_eq!(found.last().map(String::as_str), Some(last));
}

fn bound(action: &str, extra: Value) -> Value {
    let mut spec = json!({"policyName": "p.example.com", "validationActions": [action]});
    for (field, value) in extra.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "b.example.com"}, "spec": spec,
    })
}

fn config(name: &str, replicas: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"replicas": replicas}})
}

fn limiting(validation: Value) -> Value {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]);
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p.example.com"},
        "spec": {
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConstraints": {"resourceRules": rules},
            "matchConditions": [{"name": "not-limits", "expression": "object.metadata.name != 'limits'"}],
            "variables": [
                {"name": "wanted", "expression": "int(object.data.replicas)"},
                {"name": "most", "expression": "int(params.data.most)"},
            ],
            "validations": [validation],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn a_bound_policy_refuses_what_it_finds_wrong() {
    let api = cluster();
    let maps = "/api/v1/namespaces/default/configmaps";
    let limits = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "limits"}, "data": {"most": "3"}});
    api.post(maps, limits).await.ok();
    let validation = json!({
        "expression": "variables.wanted <= variables.most", "reason": "Forbidden",
        "messageExpression": "'at most ' + string(variables.most)",
    });
    api.post(POLICIES, limiting(validation)).await.ok();
    api.post(maps, config("unbound", "9")).await.ok();
    let reference = json!({"paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}});
    api.post(BINDINGS, bound("Deny", reference)).await.ok();
    api.post(maps, config("good", "3")).await.ok();
    let refused = api.post(maps, config("bad", "4")).await;
    let why = "ValidatingAdmissionPolicy 'p.example.com' with binding 'b.example.com' denied request: at most 3";
    assert_eq!(
        (refused.status, &refused.body["reason"]),
        (403, &json!("Forbidden"))
    );
    assert_eq!(refused.body["details"]["causes"], json!([{"message": why}]));
    assert_eq!(
        refused.refused(403),
        format!("configmaps \"bad\" is forbidden: {why}")
    );
    let broken = api.post(maps, config("odd", "many")).await.refused(422);
    assert!(
        broken.contains(
            "denied request: expression 'variables.wanted <= variables.most' resulted in error"
        ),
        "{broken}"
    );
    let url = format!("{BINDINGS}/b.example.com");
    let gone = json!({"spec": {"paramRef": {"name": "gone"}}});
    api.merge(&url, gone).await.ok();
    let refused = api.post(maps, config("good2", "3")).await.refused(422);
    assert!(
        refused.ends_with("failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"),
        "{refused}"
    );
    api.delete(&url).await.ok();
    api.post(maps, config("free", "9")).await.ok();
}

#[tokio::test(start_paused = true)]
async fn a_bound_policy_may_only_warn_and_leave_out_what_its_binding_does() {
    let api = cluster();
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut policy = limiting(json!({"expression": "int(object.data.replicas) <= 3"}));
    let spec = policy["spec"].as_object_mut().expect("a policy has a spec");
    spec.remove("paramKind");
    spec.remove("variables");
    api.post(POLICIES, policy).await.ok();
    let narrowed = json!({"matchResources": {"objectSelector": {"matchExpressions": [{"key": "free", "operator": "DoesNotExist"}]}}});
    api.post(BINDINGS, bound("Warn", narrowed)).await.ok();
    let created = api.post(maps, config("a", "4")).await;
    assert_eq!(
        created.warnings,
        [
            r#"299 - "Validation failed for ValidatingAdmissionPolicy 'p.example.com' with binding 'b.example.com': failed expression: int(object.data.replicas) <= 3""#
        ]
    );
    let mut free = config("b", "4");
    free["metadata"]["labels"] = json!({"free": "yes"});
    assert_eq!(api.post(maps, free).await.warnings, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_none_does_not_keep_an_object_from_being_made() {
    let api = cluster();
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str, revision: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "resourceVersion": revision}});
    for (name, revision) in [("a", "0"), ("b", "x")] {
        let made = api.post(maps, map(name, revision)).await.ok();
        assert_ne!(made["metadata"]["resourceVersion"], revision);
    }
    let dry = api.post(&format!("{maps}?dryRun=All"), map("c", "5")).await;
    assert_eq!(dry.ok()["metadata"]["resourceVersion"], "5");
    let refused = api.post(maps, map("c", "5")).await;
    assert_eq!(refused.status, 500);
}

#[tokio::test(start_paused = true)]
async fn an_ingress_warns_of_a_class_that_only_its_annotation_names() {
    let api = cluster();
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses?dryRun=All";
    let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
    let mut ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": {"defaultBackend": backend},
        "metadata": {"name": "x", "annotations": {"kubernetes.io/ingress.class": "c"}},
    });
    assert_eq!(api.post(ingresses, ingress.clone()).await.warnings.len(), 1);
    ingress["spec"]["ingressClassName"] = "c".into();
    assert!(api.post(ingresses, ingress).await.warnings.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_whose_template_generation_is_no_number_cannot_be_read() {
    let api = cluster();
    let sets = "/apis/apps/v1/namespaces/default/daemonsets";
    let mut set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "x", "annotations": {"deprecated.daemonset.template.generation": "x"}},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
        },
    });
    let refused = api.post(sets, set.clone()).await;
    assert_eq!(
        (refused.status, &refused.body["message"]),
        (
            400,
            &json!(
                r#"DaemonSet in version "v1" cannot be handled as a DaemonSet: strconv.ParseInt: parsing "x": invalid syntax"#
            )
        )
    );
    set["metadata"]["annotations"]["deprecated.daemonset.template.generation"] = "7".into();
    let made = api.post(sets, set).await.ok();
    let kept = &made["metadata"]["annotations"]["deprecated.daemonset.template.generation"];
    assert_eq!(kept, "7");
}

#[tokio::test(start_paused = true)]
async fn a_driver_takes_tokens_as_secrets_only_if_it_asks_for_tokens() {
    let api = cluster();
    let drivers = "/apis/storage.k8s.io/v1/csidrivers";
    let mut driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "x"}, "spec": {"serviceAccountTokenInSecrets": false},
    });
    let refused = api.post(drivers, driver.clone()).await;
    assert_eq!(
        causes(&refused.body),
        [
            "spec.serviceAccountTokenInSecrets: Invalid value: false: serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        ]
    );
    driver["spec"]["tokenRequests"] = json!([{"audience": ""}]);
    api.post(drivers, driver).await.ok();
}

#[tokio::test]
async fn a_variable_of_a_policy_is_owned_as_one_value() {
    let api = Api::new(Config::default());
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "variables": [{"name": "v", "expression": "1"}],
            "validations": [{"expression": "variables.v > 0"}],
        },
    });
    let path = format!("{POLICIES}/p?fieldManager=m");
    let media = "application/apply-patch+yaml";
    let policy = policy.to_string();
    let applied = api.send_text("PATCH", &path, media, &policy).await.ok();
    let spec = &applied["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(spec["f:variables"], json!({"k:{\"name\":\"v\"}": {}}));
}
