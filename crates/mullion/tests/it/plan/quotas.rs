//! `mullion plan` holds the pods that it would create against the quotas of their namespaces.

use serde_json::{Value, json};

use super::ask::{Ended, json_of, plan};

/// A quota of namespace default; `used` is what its status says, if anybody has counted.
fn quota(hard: Value, used: Option<Value>) -> Value {
    let mut quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team", "namespace": "default"},
        "spec": {"hard": hard},
    });
    if let Some(used) = used {
        quota["status"] = json!({"hard": quota["spec"]["hard"], "used": used});
    }
    quota
}

fn deployment(name: &str, replicas: u64, cpu: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
                {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": cpu}}},
            ]}},
        },
    })
}

/// A pod of the Deployment `web` that runs on node `n1`.
fn pod_of_web(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": name,
            "labels": {"app": "web", "pod-template-hash": "5d9"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9", "uid": "web", "controller": true,
            }],
        },
        "spec": {"nodeName": "n1", "containers": [
            {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "500m"}}},
        ]},
        "status": {"phase": "Running"},
    })
}

fn node(name: &str) -> Value {
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room},
    })
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Plans for a manifest on a cluster of these objects.
fn planned(state: &[Value], manifest: &[Value], args: &[&str]) -> Ended {
    let state_file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(state_file.path(), list(state)).expect("a writable file");
    let path = state_file.path().to_str().expect("UTF-8");
    let flags = ["--state", path, "--default-pools", "-f", "-"];
    plan(&[&flags[..], args].concat(), &list(manifest))
}

#[test]
fn pods_that_a_quota_refuses_are_named_with_its_words_and_buy_no_nodes() {
    let state = [quota(
        json!({"requests.cpu": "6", "pods": "10"}),
        Some(json!({"requests.cpu": "1", "pods": "1"})),
    )];
    let manifest = [
        deployment("web", 3, "1"),
        deployment("big", 2, "4"),
        deployment("small", 2, "1"),
    ];
    let said = planned(&state, &manifest, &["-o", "json"]);
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    let json = json_of(&said);
    let pods =
        json!({"asked": 7, "onExistingNodes": 0, "onNewNodes": 5, "unplaced": 0, "refused": 2});
    assert_eq!(json["pods"], pods);
    let reason = "exceeded quota: team, requested: requests.cpu=4, used: requests.cpu=4, limited: requests.cpu=6";
    let refused = json!([{"pods": ["default/big-0", "default/big-1"], "reason": reason}]);
    assert_eq!(json["refused"], refused);
    let said = planned(&state, &manifest, &[]);
    assert!(
        said.stdout.starts_with("7 pods: 5 need ")
            && said.stdout.contains(", 2 are refused by a quota.\n"),
        "{}",
        said.stdout
    );
    let group = format!(
        "\n  pods that a quota refuses\n        2  default/big-0, default/big-1\n           {reason}\n"
    );
    assert!(said.stdout.contains(&group), "{}", said.stdout);
    let bound = planned(&state, &manifest, &["--bound-only"]);
    assert_eq!(bound.code, Some(1));
    assert!(
        bound
            .stdout
            .starts_with("New nodes for 5 pods cost at least ")
            && bound
                .stdout
                .ends_with(" 2 more pods are refused by a quota.\n"),
        "{}",
        bound.stdout
    );
}

#[test]
fn pods_that_a_manifest_replaces_give_their_share_of_a_quota_back() {
    let pods = ["web-5d9-a", "web-5d9-b"].map(pod_of_web);
    // The status says what is used, or the pods do.
    for used in [Some(json!({"requests.cpu": "1"})), None] {
        let state = [
            &[node("n1"), quota(json!({"requests.cpu": "1"}), used)],
            &pods[..],
        ]
        .concat();
        let said = planned(&state, &[deployment("web", 2, "500m")], &["-o", "json"]);
        assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
        assert_eq!(json_of(&said)["pods"]["onExistingNodes"], 2);
        let said = planned(&state, &[deployment("web", 3, "400m")], &["-o", "json"]);
        assert_eq!(
            json_of(&said)["refused"][0]["pods"],
            json!(["default/web-2"])
        );
        // Another workload finds the quota full.
        let said = planned(&state, &[deployment("api", 1, "100m")], &["-o", "json"]);
        assert_eq!(
            json_of(&said)["refused"][0]["pods"],
            json!(["default/api-0"])
        );
    }
}

#[test]
fn pods_of_a_workload_that_is_scaled_count_as_well() {
    let state = [
        node("n1"),
        quota(json!({"pods": "3"}), Some(json!({"pods": "1"}))),
        pod_of_web("web-5d9-a"),
    ];
    let scaled = |scale: &[&str]| {
        let said = planned(
            &state,
            &[deployment("api", 1, "100m")],
            &[scale, &["-o", "json"]].concat(),
        );
        let both = json_of(&said);
        (
            said.code,
            both["then"]["pods"].clone(),
            both["difference"].clone(),
        )
    };
    let (code, pods, _) = scaled(&["--scale", "deployment/web=5"]);
    assert_eq!((code, &pods["refused"]), (Some(1), &json!(3)));
    // Fewer pods of one workload leave room for those of another.
    let (code, pods, _) = scaled(&["--scale", "deployment/web=0", "--scale", "deployment/api=3"]);
    assert_eq!((code, &pods["refused"]), (Some(0), &json!(null)));
    let said = planned(
        &state,
        &[deployment("api", 1, "100m")],
        &["--scale", "deployment/web=5"],
    );
    let row = "  refused by a quota        0      3          +3\n";
    assert!(said.stdout.contains(row), "{}", said.stdout);
}

#[test]
fn a_quota_of_a_manifest_counts_and_so_do_pods_of_daemon_sets() {
    let said = plan(
        &["--offline", "--default-pools", "-f", "-", "-o", "json"],
        &list(&[deployment("web", 3, "1"), quota(json!({"pods": "2"}), None)]),
    );
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    let reason = "exceeded quota: team, requested: pods=1, used: pods=2, limited: pods=2";
    let refused = json!([{"pods": ["default/web-2"], "reason": reason}]);
    assert_eq!(json_of(&said)["refused"], refused);
    // A quota that is there is replaced, and keeps what is used of it.
    let there = quota(json!({"pods": "1"}), Some(json!({"pods": "1"})));
    let larger = quota(json!({"pods": "3"}), None);
    let said = planned(
        &[there],
        &[deployment("web", 3, "1"), larger],
        &["-o", "json"],
    );
    assert_eq!(json_of(&said)["pods"]["refused"], 1, "{}", said.stdout);

    let mut agent = deployment("agent", 1, "100m");
    agent["kind"] = json!("DaemonSet");
    agent["spec"]
        .as_object_mut()
        .expect("an object")
        .remove("replicas");
    let state = [
        node("n1"),
        node("n2"),
        quota(json!({"pods": "1"}), Some(json!({"pods": "0"}))),
    ];
    let said = planned(&state, &[agent], &["-o", "json"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert_eq!(
        json_of(&said)["refused"][0]["pods"],
        json!(["default/agent-n2"])
    );
}

#[test]
fn a_pod_that_does_not_say_what_a_quota_limits_is_refused() {
    let state = [quota(
        json!({"limits.cpu": "2"}),
        Some(json!({"limits.cpu": "0"})),
    )];
    let said = planned(&state, &[deployment("web", 2, "1")], &["-o", "json"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert_eq!(
        json_of(&said)["refused"][0]["reason"],
        "failed quota: team: must specify limits.cpu for: c"
    );
}

#[test]
fn a_daemon_set_of_a_flag_gets_back_what_its_pods_use_of_a_quota() {
    let mut agent = deployment("agent", 1, "100m");
    agent["kind"] = json!("DaemonSet");
    agent["spec"]
        .as_object_mut()
        .expect("a spec")
        .remove("replicas");
    let mut own = pod_of_web("agent-1");
    own["metadata"]["labels"] = json!({"app": "agent"});
    own["metadata"]["ownerReferences"][0] = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "agent", "controller": true,
    });
    let full = |used: &str| quota(json!({"pods": used}), Some(json!({"pods": used})));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), agent.to_string()).expect("a writable file");
    let path = file.path().to_str().expect("UTF-8");
    let asked = |state: &[Value]| {
        let state_file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(state_file.path(), list(state)).expect("a writable file");
        let state = state_file.path().to_str().expect("UTF-8");
        plan(&["--state", state, "--daemon", path, "-o", "json"], "")
    };
    let said = asked(&[node("n1"), full("1"), own]);
    assert_eq!(said.code, Some(0), "{}{}", said.stdout, said.stderr);
    // Without a pod that goes, there is no room for the new one.
    let said = asked(&[node("n1"), full("0")]);
    assert_eq!(said.code, Some(1), "{}{}", said.stdout, said.stderr);
    let refused = &json_of(&said)["then"]["refused"][0]["reason"];
    let reason = "exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0";
    assert_eq!(refused, reason, "{}", said.stdout);
}
