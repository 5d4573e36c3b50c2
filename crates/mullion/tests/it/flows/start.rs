//! Starting without any file, trying what the banner says, stopping.

use crate::cluster::{Cluster, text};

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

    let (_, command) = banner
        .split_once("kubectl run ")
        .expect("the banner says how to run a Windows pod");
    let (command, _) = command.rsplit_once("}}'").expect("it ends with overrides");
    let script = format!("kubectl run {command}}}}}'");
    let output = cluster.run("sh", &["-c", &script], "");
    assert!(
        output.status.success(),
        "{script}\n{}",
        text(&output.stderr)
    );
    cluster.kubectl(&["wait", "pod/win", "--for=condition=Ready", "--timeout=110s"]);
    let node = cluster.kubectl(&["get", "pod", "win", "-o", "jsonpath={.spec.nodeName}"]);
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
