//! Starting without any file, trying what the banner says, stopping.

use crate::cluster::Cluster;

#[test]
fn the_first_windows_pod_buys_its_own_node() {
    let cluster = Cluster::start(&["--speed", "max"]);
    let banner = cluster.banner();
    assert!(
        banner.contains("2 x m5.large") && banner.contains("export KUBECONFIG="),
        "{banner}"
    );
    let pools = cluster.kubectl(&[
        "get",
        "nodepools",
        "-o",
        "jsonpath={.items[*].metadata.name}",
    ]);
    assert_eq!(pools, "linux windows-2019 windows-2022 windows-2025");

    let command = banner
        .lines()
        .find_map(|line| line.trim().strip_prefix("kubectl run "))
        .expect("the banner says how to run a Windows pod");
    let (flags, overrides) = command
        .split_once(" --overrides=")
        .expect("it overrides the pod's spec");
    let overrides = format!("--overrides={}", overrides.trim_matches('\''));
    let mut args = vec!["run"];
    args.extend(flags.split(' '));
    args.push(&overrides);
    cluster.kubectl(&args);
    cluster.kubectl(&["wait", "pod/iis", "--for=condition=Ready", "--timeout=110s"]);
    let node = cluster.kubectl(&["get", "pod", "iis", "-o", "jsonpath={.spec.nodeName}"]);
    let node = cluster.get(&["node", &node]);
    assert_eq!(
        node["metadata"]["labels"]["node.kubernetes.io/windows-build"],
        "10.0.20348"
    );
    assert_eq!(
        node["metadata"]["labels"]["karpenter.sh/nodepool"],
        "windows-2022"
    );
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_cluster_cleanly() {
    let cluster = Cluster::start(&["--speed", "max"]);
    assert!(cluster.kubectl(&["get", "nodes"]).contains("Ready"));
    assert_eq!(cluster.interrupt(), Some(0));
}

#[test]
fn a_merged_context_stands_beside_the_users_own() {
    let cluster = Cluster::start(&["--speed", "max", "--merge"]);
    assert!(
        cluster
            .banner()
            .contains("kubectl config use-context mullion"),
        "{}",
        cluster.banner()
    );
    assert!(
        cluster
            .kubectl(&["--context", "mullion", "get", "namespaces"])
            .contains("kube-system")
    );
}
