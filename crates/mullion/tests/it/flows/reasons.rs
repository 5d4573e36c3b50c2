//! What a cluster says and does when things do not fit or nodes go: reasons with counts, cordon, drain, taints, deleted nodes.

use crate::cluster::Cluster;

const TWO_LINUX: &[&str] = &[
    "--config",
    "eksctl-windows-nodegroup.yaml",
    "--speed",
    "1000",
];

#[test]
fn a_pod_that_fits_nowhere_says_why_per_reason_with_counts() {
    let cluster = Cluster::start(TWO_LINUX);
    cluster.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: huge}\nspec:\n  containers: [{name: c, image: nginx, resources: {requests: {cpu: '64'}}}]\n",
    );
    cluster.kubectl(&[
        "wait",
        "pod/huge",
        "--for=condition=PodScheduled=false",
        "--timeout=30s",
    ]);
    let message = cluster.kubectl(&[
        "get",
        "pod",
        "huge",
        "-o",
        "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].message}",
    ]);
    assert!(
        message.starts_with(
            "0/4 nodes are available: 2 Insufficient cpu, 2 node(s) had untolerated taint(s)."
        ),
        "{message}"
    );
    cluster.until(
        "a FailedScheduling event",
        &["describe", "pod", "huge"],
        |described| described.contains("FailedScheduling"),
    );
}

/// A Deployment `web` whose two pods run.
fn with_two_web_pods() -> Cluster {
    let cluster = Cluster::start(TWO_LINUX);
    cluster.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=nginx:1.27",
        "--replicas=2",
    ]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    cluster
}

/// A JSONPath into the list of its pods.
fn of_web(cluster: &Cluster, path: &str) -> String {
    let output = format!("jsonpath={{{path}}}");
    cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", &output])
}

#[test]
fn a_drain_moves_pods_and_honours_a_disruption_budget() {
    let cluster = with_two_web_pods();
    cluster.kubectl(&[
        "create",
        "poddisruptionbudget",
        "web",
        "--selector=app=web",
        "--min-available=2",
    ]);
    cluster.kubectl(&[
        "wait",
        "pdb/web",
        "--for=jsonpath={.status.currentHealthy}=2",
        "--timeout=30s",
    ]);
    let node = of_web(&cluster, ".items[0].spec.nodeName");

    let refused = cluster.refused(&["drain", &node, "--ignore-daemonsets", "--timeout=8s"], "");
    assert!(
        refused.contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{refused}"
    );
    let nodes = cluster.kubectl(&["get", "nodes"]);
    assert!(nodes.contains("Ready,SchedulingDisabled"), "{nodes}");

    cluster.kubectl(&["delete", "pdb", "web"]);
    cluster.kubectl(&["drain", &node, "--ignore-daemonsets", "--timeout=60s"]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let nodes = of_web(&cluster, ".items[*].spec.nodeName");
    assert!(!nodes.contains(&node), "pods are still on {node}: {nodes}");
    cluster.kubectl(&["uncordon", &node]);
}

#[test]
fn a_no_execute_taint_evicts_what_does_not_tolerate_it() {
    let cluster = with_two_web_pods();
    let pod = of_web(&cluster, ".items[0].metadata.name");
    let node = cluster.kubectl(&["get", "pod", &pod, "-o", "jsonpath={.spec.nodeName}"]);
    cluster.kubectl(&["taint", "nodes", &node, "maintenance=now:NoExecute"]);
    cluster.kubectl(&[
        "wait",
        "--for=delete",
        &format!("pod/{pod}"),
        "--timeout=60s",
    ]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let nodes = of_web(&cluster, ".items[*].spec.nodeName");
    assert!(!nodes.contains(&node), "pods are still on {node}: {nodes}");
}

#[test]
fn the_pods_of_a_deleted_node_run_elsewhere() {
    let cluster = Cluster::start(TWO_LINUX);
    cluster.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=nginx:1.27",
        "--replicas=1",
    ]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    let pod = of_web(&cluster, ".items[0].metadata.name");
    let node = cluster.kubectl(&["get", "pod", &pod, "-o", "jsonpath={.spec.nodeName}"]);
    cluster.kubectl(&["delete", "node", &node]);
    cluster.kubectl(&[
        "wait",
        "--for=delete",
        &format!("pod/{pod}"),
        "--timeout=110s",
    ]);
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=60s"]);
    assert!(
        !cluster
            .kubectl(&["get", "nodes", "-o", "name"])
            .contains(&node)
    );
}
