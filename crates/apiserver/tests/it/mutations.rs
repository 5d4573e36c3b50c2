//! MutatingAdmissionPolicies: what they change, when, and what happens when they cannot.

use mullion_apiserver::Config;
use serde_json::{Value, json};

use crate::api::{Answer, Api};

const GROUP: &str = "/apis/admissionregistration.k8s.io/v1";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

fn patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn applied(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

/// A policy about writes of one resource, with more fields of its spec.
fn policy(name: &str, (group, resource): (&str, &str), mutations: Value, more: Value) -> Value {
    let rule = json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]});
    let mut policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never", "mutations": mutations},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        policy["spec"][field] = value.clone();
    }
    policy
}

/// Puts a policy in force with a binding of the same name.
async fn bind(api: &Api, policy: Value, more: Value) {
    let name = policy["metadata"]["name"].clone();
    let mut binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        binding["spec"][field] = value.clone();
    }
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    api.post(&policies, policy).await.ok();
    let bindings = format!("{GROUP}/mutatingadmissionpolicybindings");
    api.post(&bindings, binding).await.ok();
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// Rules that mean every operation on a resource.
fn all_of((group, resource): (&str, &str)) -> Value {
    let rule = json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource]});
    json!({"resourceRules": [rule]})
}

async fn create(api: &Api, name: &str, data: Value) -> Answer {
    api.post(MAPS, map(name, data)).await
}

const CONFIG_MAPS: (&str, &str) = ("", "configmaps");

#[tokio::test(start_paused = true)]
async fn a_patch_sees_parameters_and_variables_and_what_was_patched_before() {
    let api = Api::new(Config::default());
    create(&api, "team", json!({"name": "blue/green"}))
        .await
        .ok();
    let mutations = json!([
        patch(
            "has(object.metadata.labels) ? [] : [JSONPatch{op: 'add', path: '/metadata/labels', value: {'of': 'map'}}]"
        ),
        patch(
            "[JSONPatch{op: 'add', path: '/metadata/labels/team', value: variables.team.split('/')[0]}, \
               JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('example.com/n'), value: string(size(object.metadata.labels))}]"
        ),
        patch(
            "[JSONPatch{op: 'test', path: '/data/own', value: 'no'}, JSONPatch{op: 'remove', path: '/data'}]"
        ),
    ]);
    let more = json!({
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
        "matchConditions": [{"name": "own", "expression": "has(object.data.own)"}],
        "variables": [{"name": "team", "expression": "params.data.name"}],
    });
    let reference = json!({"paramRef": {"name": "team", "namespace": "default", "parameterNotFoundAction": "Deny"}});
    bind(&api, policy("p", CONFIG_MAPS, mutations, more), reference).await;
    let made = create(&api, "m", json!({"own": "yes"})).await.ok();
    assert_eq!(
        made["metadata"]["labels"],
        json!({"of": "map", "team": "blue", "example.com/n": "1"})
    );
    assert_eq!(made["data"], json!({"own": "yes"}));
    let stored = api.get(&format!("{MAPS}/m")).await.ok();
    assert_eq!(stored["data"], made["data"]);
    let other = create(&api, "other", json!({"else": "yes"})).await.ok();
    assert_eq!(other["metadata"].get("labels"), None);
    api.delete(&format!("{MAPS}/team")).await.ok();
    let refused = create(&api, "n", json!({"own": "yes"})).await;
    assert_eq!(
        (refused.status, &refused.body["reason"]),
        (403, &json!("Forbidden"))
    );
    assert_eq!(
        refused.body["message"],
        "policy 'p' with binding 'p' denied request: failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
    );
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_merged_by_the_keys_of_lists() {
    let api = Api::new(Config::default());
    let sidecar = "Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [\
        Object.spec.template.spec.containers{name: 'sidecar', image: 'proxy:' + namespaceObject.metadata.name}]}}, \
        ?replicas: has(object.spec.replicas) && object.spec.replicas > 2 ? optional.of(2) : optional.none()}}";
    let deployments = ("apps", "deployments");
    let given = policy("p", deployments, json!([applied(sidecar)]), json!({}));
    bind(&api, given, json!({})).await;
    let labels = json!({"app": "web"});
    let container = json!({"name": "web", "image": "web:1", "args": ["a"]});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}},
    });
    let made = api.post(DEPLOYMENTS, deployment).await.ok();
    assert_eq!(made["spec"]["replicas"], 2);
    let containers = made["spec"]["template"]["spec"]["containers"].as_array();
    let containers: Vec<[&Value; 3]> = containers
        .into_iter()
        .flatten()
        .map(|container| ["name", "image", "terminationMessagePath"].map(|field| &container[field]))
        .collect();
    let path = &json!("/dev/termination-log");
    assert_eq!(
        containers,
        [
            [&json!("web"), &json!("web:1"), path],
            [&json!("sidecar"), &json!("proxy:default"), path]
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_made_refuses_the_write_unless_it_is_to_be_ignored() {
    let api = Api::new(Config::default());
    let mutations = json!([
        applied("Object{data: Object.dat{a: 'b'}}"),
        applied("Object{what: 1}"),
        applied(
            "Object{metadata: Object.metadata{ownerReferences: [Object.metadata.ownerReferences{uid: object.data.none}]}}"
        ),
        patch("[JSONPatch{op: 'remove', path: '/data/none'}]"),
        applied("Object{data: Object.data{set: 'yes'}}"),
    ]);
    let strict = policy("strict", CONFIG_MAPS, mutations.clone(), json!({}));
    bind(&api, strict, json!({})).await;
    let refused = create(&api, "m", json!({"own": "yes"})).await;
    assert_eq!(
        (refused.status, &refused.body["reason"]),
        (403, &json!("Invalid"))
    );
    let causes = refused.body["details"]["causes"].as_array();
    let causes: Vec<&str> = causes
        .into_iter()
        .flatten()
        .filter_map(|cause| cause["message"].as_str())
        .collect();
    let denied = "policy 'strict' with binding 'strict' denied request:";
    assert_eq!(
        causes,
        [
            format!(
                "{denied} type mismatch: unexpected type name \"Object.dat\", expected \"Object.data\", which matches field name path from root Object type"
            ),
            format!(
                "{denied} error applying patch: failed to convert patch object to typed object: .what: field not declared in schema"
            ),
            format!(
                "{denied} expression 'Object{{metadata: Object.metadata{{ownerReferences: [Object.metadata.ownerReferences{{uid: object.data.none}}]}}}}' resulted in error: no such key: none"
            ),
            format!(
                "{denied} JSON Patch: error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value"
            ),
        ]
    );
    assert_eq!(refused.body["message"], causes[0]);
    let url = format!("{GROUP}/mutatingadmissionpolicies/strict");
    let lax = json!({"spec": {"failurePolicy": "Ignore"}});
    api.merge(&url, lax).await.ok();
    let made = create(&api, "m", json!({"own": "yes"})).await.ok();
    assert_eq!(made["data"], json!({"own": "yes", "set": "yes"}));
    let unknown =
        json!({"spec": {"mutations": [patch("[JSONPatch{op: 'add', path: '/what', value: 1}]")]}});
    api.merge(&url, unknown).await.ok();
    let refused = create(&api, "n", json!({})).await;
    assert_eq!(refused.status, 500);
    assert_eq!(
        refused.body["message"],
        "Internal error occurred: strict decoding error: unknown field \"what\""
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_asked_again_if_it_wants_and_something_changed() {
    let api = Api::new(Config::default());
    let longer = |field: &str| {
        patch(&format!(
            "[JSONPatch{{op: 'add', path: '/data/{field}', value: (has(object.data.{field}) ? object.data.{field} : '') + 'x'}}]"
        ))
    };
    let again = json!({"reinvocationPolicy": "IfNeeded"});
    let once = policy("once", CONFIG_MAPS, json!([longer("once")]), json!({}));
    let again = policy("again", CONFIG_MAPS, json!([longer("again")]), again);
    bind(&api, once, json!({})).await;
    bind(&api, again, json!({})).await;
    let made = create(&api, "m", json!({"own": "yes"})).await.ok();
    assert_eq!(
        made["data"],
        json!({"own": "yes", "once": "x", "again": "xx"})
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_first_is_asked_once_more_in_its_order() {
    let api = Api::new(Config::default());
    let counted = json!([applied(
        "Object{data: Object.data{n: string(int(object.data.n) + 1)}}"
    )]);
    let again = || json!({"reinvocationPolicy": "IfNeeded"});
    let mut late = again();
    late["matchConditions"] = json!([{"name": "late", "expression": "object.data.n == '5'"}]);
    for (name, more) in [
        ("a", again()),
        ("b", again()),
        ("c", json!({})),
        ("d", late),
    ] {
        let given = policy(name, CONFIG_MAPS, counted.clone(), more);
        bind(&api, given, json!({})).await;
    }
    let made = create(&api, "m", json!({"n": "0"})).await.ok();
    assert_eq!(made["data"]["n"], "5");
    let url = format!("{MAPS}/m");
    let dry = format!("{url}?dryRun=All");
    let changed = api.merge(&dry, json!({"data": {"n": "10"}})).await.ok();
    assert_eq!(changed["data"]["n"], "15");
    assert_eq!(api.get(&url).await.ok()["data"]["n"], "5");
}

#[tokio::test(start_paused = true)]
async fn every_selected_parameter_counts_and_deletions_ask_nobody() {
    let api = Api::new(Config::default());
    for name in ["one", "two"] {
        let mut param = map(name, json!({name: "yes"}));
        param["metadata"]["labels"] = json!({"params": "yes"});
        api.post(MAPS, param).await.ok();
    }
    let annotated = || {
        json!([applied(
            "Object{metadata: Object.metadata{annotations: params.data}}"
        )])
    };
    let with = |resource| {
        json!({
            "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [
                {"name": "a", "expression": "object.metadata.name != 'strange' || object.none"},
                {"name": "b", "expression": "object.metadata.name != 'strange' || oldObject.none"},
                {"name": "no-params", "expression": "!has(object.metadata.labels)"},
            ],
            "matchConstraints": all_of(resource),
        })
    };
    let selector = json!({"matchLabels": {"params": "yes"}});
    let reference = json!({"paramRef": {"selector": selector, "parameterNotFoundAction": "Deny"}});
    let given = policy("p", CONFIG_MAPS, annotated(), with(CONFIG_MAPS));
    bind(&api, given, reference.clone()).await;
    let made = create(&api, "m", json!({})).await.ok();
    assert_eq!(
        made["metadata"]["annotations"],
        json!({"one": "yes", "two": "yes"})
    );
    let strange = create(&api, "strange", json!({})).await;
    assert_eq!(strange.status, 403);
    assert_eq!(
        strange.body["message"],
        "policy 'p' with binding 'p' denied request: [\
         expression 'object.metadata.name != 'strange' || object.none' resulted in error: no such key: none, \
         expression 'object.metadata.name != 'strange' || oldObject.none' resulted in error: no such key: none]"
    );
    // None is left: nothing can be written any more, and anything deleted.
    for name in ["one", "two", "m"] {
        api.delete(&format!("{MAPS}/{name}")).await.ok();
    }
    assert_eq!(create(&api, "n", json!({})).await.status, 403);
    let roles = ("rbac.authorization.k8s.io", "clusterroles");
    let given = policy("cluster", roles, annotated(), with(roles));
    bind(&api, given, reference).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": []});
    let url = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let refused = api.post(url, role.clone()).await;
    assert_eq!(
        refused.body["message"],
        "policy 'cluster' with binding 'cluster' denied request: failed to configure binding: \
         cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
    );
    // A binding that refers to no parameter leaves it null.
    let unbound = json!({"spec": {"paramRef": null}});
    let bindings = format!("{GROUP}/mutatingadmissionpolicybindings");
    api.merge(&format!("{bindings}/cluster"), unbound)
        .await
        .ok();
    let refused = api.post(url, role).await;
    assert_eq!(
        refused.body["message"],
        "policy 'cluster' with binding 'cluster' denied request: \
         expression 'Object{metadata: Object.metadata{annotations: params.data}}' resulted in error: no such key: data"
    );
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_changed_in_their_own_schema() {
    let api = Api::new(Config::default());
    let item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "port": {"type": "integer", "default": 80}}});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": item},
    }}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gates.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "gates", "kind": "Gate"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition).await.ok();
    let gates = "/apis/example.com/v1/namespaces/default/gates";
    api.until(gates, |list| list["kind"] == "GateList").await;
    let mutations = json!([
        applied(
            "Object{spec: Object.spec{ports: [Object.spec.ports{name: 'b'}, Object.spec.ports{name: 'a', port: 2}]}}"
        ),
        patch(
            "[JSONPatch{op: 'add', path: '/spec/what', value: 1}, JSONPatch{op: 'add', path: '/metadata/labels', value: {'gate': 'yes'}}]"
        ),
        applied("Object{spec: Object.spec{port: 1}}"),
    ]);
    let given = policy(
        "p",
        ("example.com", "gates"),
        mutations,
        json!({"failurePolicy": "Ignore"}),
    );
    bind(&api, given, json!({})).await;
    let gate = json!({"apiVersion": "example.com/v1", "kind": "Gate", "metadata": {"name": "g"}, "spec": {"ports": [{"name": "a", "port": 1}]}});
    let made = api.post(gates, gate).await.ok();
    assert_eq!(
        made["spec"],
        json!({"ports": [{"name": "b", "port": 80}, {"name": "a", "port": 2}]})
    );
    assert_eq!(made["metadata"]["labels"], json!({"gate": "yes"}));
}

/// Upstream decodes what a patch has made as the version it says it is, with that version's defaults, and converts it back.
#[tokio::test(start_paused = true)]
async fn a_patch_may_make_another_version_of_a_kind() {
    let api = Api::new(Config::default());
    let made = patch(
        "[JSONPatch{op: 'replace', path: '/apiVersion', value: 'autoscaling/v1'}, JSONPatch{op: 'remove', path: '/spec/metrics'}, JSONPatch{op: 'remove', path: '/status'}, \
         JSONPatch{op: 'add', path: '/spec/targetCPUUtilizationPercentage', value: 55}]",
    );
    let mut given = policy(
        "p",
        ("autoscaling", "horizontalpodautoscalers"),
        json!([made]),
        json!({}),
    );
    given["spec"]["matchConstraints"]["resourceRules"][0]["apiVersions"] = json!(["v2"]);
    bind(&api, given, json!({})).await;
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
                 "metrics": [{"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 80}}}]},
    });
    let path = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let made = api.post(path, scaler).await.ok();
    assert_eq!(made["apiVersion"], "autoscaling/v2");
    assert_eq!(
        made["spec"]["metrics"],
        json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 55}}}])
    );
}

#[tokio::test(start_paused = true)]
async fn a_custom_resource_may_become_another_version_and_nothing_else() {
    let api = Api::new(Config::default());
    let of = |field: &str| json!({"type": "object", "properties": {"a": {"type": "string"}, field: {"type": "string", "default": "d"}}});
    let version = |name: &str, field: &str| {
        let schema = json!({"type": "object", "properties": {"spec": of(field)}});
        json!({"name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema}})
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gates.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "gates", "kind": "Gate"},
            "versions": [version("v1", "old"), version("v2", "new")]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    api.post(definitions, definition).await.ok();
    let gates = "/apis/example.com/v1/namespaces/default/gates";
    api.until(gates, |list| list["kind"] == "GateList").await;
    // What the map's keys say is done to the gate.
    let replace = |field: &str| {
        patch(&format!(
            "has(object.metadata.labels) && '{field}' in object.metadata.labels ? [JSONPatch{{op: 'replace', path: '/{field}', \
             value: object.metadata.labels['{field}'].replace('_', '/')}}] : []"
        ))
    };
    let given = policy(
        "p",
        ("example.com", "gates"),
        json!([replace("apiVersion"), replace("kind")]),
        json!({}),
    );
    bind(&api, given, json!({})).await;
    let create = async |field: &str, value: &str| {
        let gate = json!({"apiVersion": "example.com/v1", "kind": "Gate", "spec": {"a": "b"},
            "metadata": {"name": "g", "labels": {field: value}}});
        api.post(gates, gate).await
    };
    for (field, value, status, message) in [
        (
            "kind",
            "Door",
            422,
            r#"Door.example.com "g" is invalid: kind: Invalid value: "Door": must be Gate"#,
        ),
        (
            "apiVersion",
            "example.com_v3",
            500,
            "request to convert CR from an invalid group/version: example.com/v3",
        ),
        (
            "apiVersion",
            "example.org_v1",
            500,
            r#"example.org/v1, Kind=Gate is unstructured and is not suitable for converting to "example.com/v1""#,
        ),
    ] {
        let answer = create(field, value).await;
        assert_eq!(
            (answer.status, answer.body["message"].as_str()),
            (status, Some(message))
        );
    }
    let made = create("apiVersion", "example.com_v2").await.ok();
    assert_eq!(made["apiVersion"], "example.com/v1");
    // The defaults of both versions, and what the own one does not know is dropped.
    assert_eq!(made["spec"], json!({"a": "b", "old": "d"}));
}

#[tokio::test(start_paused = true)]
async fn the_expressions_of_mutations_are_compiled_when_they_are_written() {
    let api = Api::new(Config::default());
    let mutations = json!([
        applied("1"),
        applied("Object{a: b}"),
        patch("Object{}"),
        patch("[]"),
        applied("object.spec"),
        patch("object.spec.a ? [] + [] : [JSONPatch{}] + []")
    ]);
    let given = policy("p", CONFIG_MAPS, mutations, json!({}));
    let policies = format!("{GROUP}/mutatingadmissionpolicies");
    let refused = api.post(&policies, given).await;
    assert_eq!(refused.status, 422);
    let causes = refused.body["details"]["causes"].as_array();
    let causes: Vec<String> = causes
        .into_iter()
        .flatten()
        .map(|cause| format!("{}: {}", cause["field"], cause["message"]).replace("\\\"", "'"))
        .collect();
    let shown = causes.join("\n");
    assert_eq!(causes.len(), 5, "{shown}");
    for (cause, why) in causes.iter().zip([
        "must evaluate to Object but got int",
        "undeclared reference to 'b' (in container '')",
        "must evaluate to list(JSONPatch) but got Object",
        "must evaluate to list(JSONPatch) but got list(dyn)",
        "must evaluate to Object but got dyn",
    ]) {
        assert!(cause.contains(why), "{cause}");
    }
}
