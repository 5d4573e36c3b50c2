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
    let name = node["metadata"]["name"].as_str().expect("a name");
    let [bought, ready] = [
        format!("node bought: {name}, "),
        format!("node ready: {name}, "),
    ];
    cluster.until("the lines about the node", &["get", "nodes"], |_| {
        cluster.stderr().contains(&ready)
    });
    let said = cluster.stderr();
    let mut lines = said.lines();
    let bought = lines
        .find(|line| line.contains(&bought))
        .expect("it was bought before");
    assert!(
        bought.contains(", Windows Server 2022 Datacenter, ")
            && bought.ends_with(" USD/h without its volume, NodePool windows-2022"),
        "{bought}"
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
    // kubectl writes the file anew; Mullion knows its own entries all the same, and the user's.
    cluster.kubectl(&[
        "config",
        "set-context",
        "mullion",
        "--namespace=kube-system",
    ]);
    cluster.kubectl(&["config", "set-credentials", "me", "--token=secret"]);
    let kubeconfig = cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a UTF-8 path");
    let refused = |args: &[&str]| {
        let up = ["up", "--port", "0", "--kubeconfig", kubeconfig];
        let output = cluster.mullion(&[&up[..], args].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let mine = format!(
        "error: {kubeconfig} holds a user me that Mullion did not write, so it is not replaced\n"
    );
    assert!(refused(&[]).starts_with(&mine), "{}", refused(&[]));
    let running = refused(&["--merge"]);
    assert!(
        running.contains(" leads to a running cluster, https://127.0.0.1:"),
        "{running}"
    );
    // A cluster in memory takes its context with it.
    let down = cluster.mullion(&["down"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    let left = cluster.kubectl(&["config", "view", "--raw", "-o", "json"]);
    assert!(
        left.contains("secret") && !left.contains("mullion"),
        "{left}"
    );
}

#[test]
fn a_kubeconfig_that_kubectl_has_changed_is_still_mullions() {
    let cluster = Cluster::start(&["--speed", "max"]);
    cluster.kubectl(&[
        "config",
        "set-context",
        "--current",
        "--namespace=kube-system",
    ]);
    let cluster = cluster.kill_and_restart(&["--speed", "max"]);
    assert!(
        cluster
            .kubectl(&["get", "namespaces"])
            .contains("kube-system")
    );
}
