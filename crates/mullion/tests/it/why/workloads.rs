//! `mullion why deployment NAME`, and likewise for other workloads.

use serde_json::{Value, json};

use super::{Ended, file, node_of_4, path, pod_of, why};
use crate::cluster::{Cluster, text};

const QUOTA: &str = "pods \"web-5f-\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4";

/// A Deployment that wants 6 pods and is refused some by a quota.
fn deployment(conditions: Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "d"},
        "spec": {"replicas": 6, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"replicas": 4, "conditions": conditions},
    })
}

/// A pod of the Deployment.
fn replica(name: &str, cpu: &str, node: Option<&str>) -> Value {
    let mut pod = pod_of(name, cpu, 0, node);
    pod["metadata"]["labels"] = json!({"app": "web", "pod-template-hash": "5f"});
    pod["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5f", "uid": "r", "controller": true},
    ]);
    pod
}

fn pulls(mut pod: Value) -> Value {
    pod["status"] = json!({
        "phase": "Pending",
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": format!("Back-off {}", pod["metadata"]["name"])}}}],
    });
    pod
}

fn said(items: &Value, words: &[&str]) -> Ended {
    let state = file(&json!({"kind": "List", "items": items}).to_string());
    why(
        &[&["--state", path(&state), "-n", "shop"], words].concat(),
        String::new(),
    )
}

#[test]
fn a_deployment_says_what_its_controller_was_refused_and_each_cause_for_which_pods_wait_once() {
    let conditions = json!([
        {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
        {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": QUOTA},
    ]);
    let items = json!([
        node_of_4("n0"),
        deployment(conditions),
        replica("web-5f-a", "1", Some("n0")),
        pulls(replica("web-5f-b", "1", Some("n0"))),
        pulls(replica("web-5f-c", "1", Some("n0"))),
        replica("web-5f-d", "9", None),
        // Another Deployment's.
        pod_of("web-6", "9", 0, None),
    ]);
    let text = said(&items, &["deploy/web"]);
    let start = format!(
        "Deployment shop/web wants 6 pods: 4 exist, 1 is ready.\nIts controller creates no more: FailedCreate: {QUOTA}\n\n\
         2 pods wait or are not ready for the same cause, the first of them:\npod shop/web-5f-b is on n0: "
    );
    assert!(text.stdout.starts_with(&start), "{}", text.stdout);
    let pulls = "\n    container c waits: ImagePullBackOff: Back-off \"web-5f-b\"\n";
    assert!(text.stdout.contains(pulls), "{}", text.stdout);
    let waits = "\n\n1 pod waits or is not ready:\npod shop/web-5f-d ";
    assert!(text.stdout.contains(waits), "{}", text.stdout);
    assert!(!text.stdout.contains("web-6"), "{}", text.stdout);
    assert_eq!(text.code, Some(1));
    // The explanation is the one that the pod gets when it is asked about itself.
    let own = said(&items, &["pod", "web-5f-d"]).stdout;
    assert!(text.stdout.ends_with(&own), "{own}\n{}", text.stdout);

    let json = said(&items, &["deployment", "web", "-o", "json"]);
    let json: Value = serde_json::from_str(&json.stdout).expect("one object");
    let counts = ["wanted", "existing", "ready"].map(|field| json[field].as_u64());
    assert_eq!(counts, [Some(6), Some(4), Some(1)]);
    assert_eq!(json["refused"], json!([format!("FailedCreate: {QUOTA}")]));
    let causes = json["causes"].as_array().expect("causes").iter();
    let causes: Vec<_> = causes
        .map(|own| (own["pods"].as_u64(), own["first"]["pod"].as_str()))
        .collect();
    assert_eq!(
        causes,
        [
            (Some(2), Some("pod shop/web-5f-b")),
            (Some(1), Some("pod shop/web-5f-d"))
        ]
    );
}

#[test]
fn the_last_event_says_what_conditions_do_not() {
    let event = |name: &str, (kind, about): (&str, &str), last: &str, message: &str| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "shop"},
            "type": "Warning", "reason": "FailedCreate", "message": message, "lastTimestamp": last,
            "involvedObject": {"kind": kind, "namespace": "shop", "name": about},
        })
    };
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": []}}},
        "status": {"replicas": 0},
    });
    let items = json!([
        node_of_4("n0"),
        set,
        deployment(json!([])),
        event(
            "a",
            ("StatefulSet", "db"),
            "2026-01-02T00:00:00Z",
            "admission webhook \"w\" denied the request: no"
        ),
        event(
            "b",
            ("StatefulSet", "db"),
            "2026-01-01T00:00:00Z",
            "earlier"
        ),
        event("c", ("ReplicaSet", "web-5f"), "2026-01-01T00:00:00Z", QUOTA),
        event(
            "d",
            ("ReplicaSet", "web-app-5f"),
            "2026-01-03T00:00:00Z",
            "of another"
        ),
    ]);
    let text = said(&items, &["sts/db", "deploy/web"]);
    assert_eq!(
        text.stdout,
        format!(
            "StatefulSet shop/db wants 1 pod: 0 exist, 0 are ready.\n\
             Its controller creates no more: FailedCreate: admission webhook \"w\" denied the request: no\n\n\
             Deployment shop/web wants 6 pods: 0 exist, 0 are ready.\n\
             Its controller creates no more: FailedCreate: {QUOTA}\n"
        )
    );
    assert_eq!((text.code, text.stderr.as_str()), (Some(1), ""));
}

#[test]
fn a_workload_that_lacks_nothing_or_that_nobody_refuses_is_said_to_be_so() {
    let mut idle = deployment(json!([]));
    idle["spec"]["replicas"] = json!(0);
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "night", "namespace": "shop"},
        "spec": {"parallelism": 2, "completions": 5}, "status": {"succeeded": 4},
    });
    let agent = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": []}}},
        "status": {"desiredNumberScheduled": 0},
    });
    let items = json!([node_of_4("n0"), idle, job, agent]);
    let text = said(&items, &["deploy/web", "job/night", "ds/agent"]);
    assert_eq!(
        text.stdout,
        "Deployment shop/web wants 0 pods: 0 exist, 0 are ready.\nNo pod is wanted: spec.replicas is 0.\n\n\
         Job shop/night wants 1 pod: 0 exist, 0 are ready.\nNo condition of it says why pods are missing, nor does an Event in the file.\n\n\
         DaemonSet shop/agent wants 0 pods: 0 exist, 0 are ready.\nNo node is one that it runs on: mullion why -f FILE says why.\n"
    );
    assert_eq!(text.code, Some(0));
    let missing = said(&items, &["rs/web"]);
    assert_eq!(
        (missing.code, missing.stderr.as_str()),
        (
            Some(2),
            "error: there is no ReplicaSet web in namespace shop\nhint:  kubectl get replicasets -A shows those there are\n"
        )
    );
}

#[test]
fn a_running_cluster_says_what_a_quota_refuses() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.apply(
        "---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
{apiVersion: v1, kind: ResourceQuota, metadata: {name: small, namespace: shop}, spec: {hard: {pods: '0'}}}",
    );
    // Pods are refused for other reasons before the quota is counted and the namespace has its account.
    let hard = "jsonpath={.status.hard.pods}";
    let quota = ["get", "quota/small", "-n", "shop", "-o", hard];
    cluster.until("the quota's status", &quota, |text| text == "0");
    let accounts = ["get", "serviceaccounts", "-n", "shop", "-o", "name"];
    cluster.until("the account", &accounts, |all| all.contains("default"));
    cluster.apply(
        "---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: shop}, spec: {replicas: 3, selector: {matchLabels: {app: web}}, template: {
  metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: nginx}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: shop}, spec: {serviceName: db, selector: {matchLabels: {app: db}}, template: {
  metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: nginx}]}}}}",
    );
    let events = ["get", "events", "-n", "shop", "-o", "name"];
    cluster.until("an Event about the StatefulSet", &events, |all| {
        all.contains("/db.")
    });
    let types = "jsonpath={.status.conditions[*].type}";
    let conditions = ["get", "deployment/web", "-n", "shop", "-o", types];
    cluster.until("the condition", &conditions, |all| {
        all.contains("ReplicaFailure")
    });
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let asked = [
        "why",
        "deploy/web",
        "sts/db",
        "-n",
        "shop",
        "--kubeconfig",
        kubeconfig,
    ];
    let said = cluster.mullion(&asked);
    let stdout = text(&said.stdout);
    assert_eq!(text(&said.stderr), "");
    for expected in [
        "Deployment shop/web wants 3 pods: 0 exist, 0 are ready.\nIts controller creates no more: FailedCreate: pods \"web-",
        "StatefulSet shop/db wants 1 pod: 0 exist, 0 are ready.\nIts controller creates no more: FailedCreate: ",
    ] {
        assert!(stdout.contains(expected), "{stdout}");
    }
    assert_eq!(
        stdout.matches("exceeded quota: small").count(),
        2,
        "{stdout}"
    );
    assert_eq!(said.status.code(), Some(1));
}
