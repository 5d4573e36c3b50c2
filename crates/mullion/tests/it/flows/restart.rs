//! A cluster with a name: it is killed, started again, copied, stopped, and stays the same cluster.

use std::path::Path;

use jiff::Timestamp;
use mullion_store::{Store, Window};
use serde_json::Value;

use crate::cluster::{Cluster, text};

const ARGS: &[&str] = &["--name", "demo", "--speed", "max"];

/// Name, uid and what else has to stay of every object of a kind.
fn identities(cluster: &Cluster, kind: &str, fields: &[&str]) -> Vec<Vec<Value>> {
    let list = cluster.get(&[kind, "-A"]);
    let items = list["items"].as_array().expect("a list").iter();
    let mut all: Vec<Vec<Value>> = items
        .map(|item| {
            let paths = ["/metadata/name", "/metadata/uid"].iter().chain(fields);
            paths
                .map(|path| item.pointer(path).cloned().unwrap_or_default())
                .collect()
        })
        .collect();
    all.sort_by_key(|row| row[0].to_string());
    all
}

fn everything(cluster: &Cluster) -> Vec<Vec<Vec<Value>>> {
    let pod = ["/spec/nodeName", "/status/podIP", "/status/startTime"];
    let node = ["/spec/providerID", "/status/addresses"];
    vec![
        identities(cluster, "pods", &pod),
        identities(cluster, "nodes", &node),
        identities(cluster, "nodeclaims", &["/status/providerID"]),
        identities(cluster, "services", &["/spec/clusterIPs"]),
        identities(cluster, "nodepools", &[]),
        identities(cluster, "namespaces", &[]),
    ]
}

fn windows_pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  os: {{name: windows}}\n  \
         nodeSelector: {{kubernetes.io/os: windows, node.kubernetes.io/windows-build: 10.0.20348}}\n  \
         tolerations: [{{key: os, value: windows}}]\n  \
         containers: [{{name: c, image: 'mcr.microsoft.com/windows/nanoserver:ltsc2022'}}]\n"
    )
}

#[test]
fn a_cluster_with_a_name_goes_on_after_it_was_killed() {
    let cluster = Cluster::start(ARGS);
    assert!(cluster.banner().contains("kept for the next start"));
    cluster.kubectl(&[
        "create",
        "deployment",
        "web",
        "--image=nginx:1.27",
        "--replicas=3",
    ]);
    cluster.kubectl(&["expose", "deployment", "web", "--port=80"]);
    cluster.kubectl(&["rollout", "status", "deployment", "web", "--timeout=110s"]);
    cluster.apply(&windows_pod("win"));
    cluster.kubectl(&["wait", "pod/win", "--for=condition=Ready", "--timeout=110s"]);
    // The config brings one as well.
    let karpenter = [
        "rollout",
        "status",
        "deployment/karpenter",
        "--timeout=110s",
    ];
    cluster.kubectl(&[["--namespace", "karpenter"].as_slice(), &karpenter].concat());
    cluster.kubectl(&["delete", "nodepool", "windows-2019"]);
    let before = everything(&cluster);
    let ca = cluster.kubectl(&["get", "configmap", "kube-root-ca.crt", "-o", "yaml"]);

    let cluster = cluster.kill_and_restart(ARGS);
    assert!(
        cluster.banner().contains("goes on as it was"),
        "{}",
        cluster.banner()
    );
    assert_eq!(everything(&cluster), before);
    assert_eq!(
        cluster.kubectl(&["get", "configmap", "kube-root-ca.crt", "-o", "yaml"]),
        ca
    );
    // It lives: new pods find addresses of their own, on the nodes there are.
    cluster.apply(&windows_pod("win-2"));
    cluster.kubectl(&["scale", "deployment", "web", "--replicas=5"]);
    cluster.kubectl(&["rollout", "status", "deployment", "web", "--timeout=110s"]);
    cluster.kubectl(&[
        "wait",
        "pod/win-2",
        "--for=condition=Ready",
        "--timeout=110s",
    ]);
    let pods = cluster.get(&["pods"]);
    let pods = pods["items"].as_array().expect("a list");
    let mut addresses: Vec<_> = pods
        .iter()
        .map(|pod| pod["status"]["podIP"].to_string())
        .collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 7);
    assert_eq!(identities(&cluster, "nodes", &[]).len(), before[1].len());

    let cluster = cluster.kill_and_restart(&["--name", "demo", "--speed", "max", "--fresh"]);
    assert_eq!(cluster.kubectl(&["get", "deployments"]), "");
    assert!(
        cluster
            .kubectl(&["get", "nodepools", "-o", "name"])
            .contains("windows-2019")
    );
}

#[test]
fn a_snapshot_brings_a_cluster_back_to_what_it_was() {
    let cluster = Cluster::start(ARGS);
    cluster.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]);
    // What changes by itself after the copy cannot be compared with it.
    cluster.kubectl(&[
        "rollout",
        "status",
        "-n",
        "karpenter",
        "deployment/karpenter",
        "--timeout=120s",
    ]);
    let before = everything(&cluster);
    let said = cluster.mullion(&["snapshot", "save", "demo.snapshot"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    cluster.kubectl(&["delete", "configmap", "kept"]);
    let restore = [
        "snapshot",
        "restore",
        "demo.snapshot",
        "--name",
        "demo",
        "--force",
    ];
    let busy = cluster.mullion(&restore);
    assert_eq!(busy.status.code(), Some(2));
    assert!(
        text(&busy.stderr).starts_with("error: cluster demo runs already: process "),
        "{}",
        text(&busy.stderr)
    );

    let list = cluster.mullion(&["list"]);
    assert!(
        text(&list.stdout).contains("demo   running"),
        "{}",
        text(&list.stdout)
    );
    let down = cluster.mullion(&["down", "demo"]);
    assert!(text(&down.stdout).starts_with("cluster demo is stopped and kept in "));
    let list = cluster.mullion(&["list", "-o", "json"]);
    let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert_eq!(list[0]["state"], "stopped");
    let again = cluster.mullion(&["down", "demo"]);
    assert_eq!(again.status.code(), Some(1));
    let said = text(&again.stderr);
    assert!(
        said.starts_with("error: no cluster demo is running\n"),
        "{said}"
    );
    let said = cluster.mullion(&restore);
    assert!(said.status.success(), "{}", text(&said.stderr));

    let cluster = cluster.kill_and_restart(ARGS);
    assert_eq!(
        cluster.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]),
        "b"
    );
    assert_eq!(everything(&cluster), before);
}

#[test]
fn one_directory_is_of_one_cluster_at_a_time() {
    let cluster = Cluster::start(ARGS);
    let second = cluster.mullion(&["up", "--name", "demo", "--port", "0"]);
    assert_eq!(second.status.code(), Some(2));
    let said = text(&second.stderr);
    assert!(
        said.starts_with("error: cluster demo runs already: process ")
            && said.contains("stop it: mullion down demo\n"),
        "{said}"
    );
    cluster.kubectl(&["get", "nodes"]);
}

/// Writes into a stopped cluster's directory what a version wrote there that noted no names of definitions.
fn note_as_an_earlier_version(directory: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let store = Store::open(directory, Window::default(), Timestamp::now());
        let store = store.expect("a stopped cluster's directory");
        store.notes().put("cluster/definitions", "1234567890");
        store.close().await;
    });
}

#[test]
fn a_cluster_of_an_earlier_version_gets_the_definitions_of_this_one() {
    let cluster = Cluster::start(ARGS);
    let columns = r#"[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns"}]"#;
    let patch = |name: &str, manager: &str| {
        let definition = format!("crd/{name}");
        let manager = format!("--field-manager={manager}");
        cluster.kubectl(&["patch", &definition, &manager, "--type=json", "-p", columns]);
    };
    // An older definition, one that the user has changed, two that there were not, and one that the user has deleted.
    patch("nodepools.karpenter.sh", "mullion");
    patch("ec2nodeclasses.karpenter.k8s.aws", "kubectl-patch");
    for kind in [
        "cninodes.vpcresources.k8s.aws",
        "simulatedaccounts.cloud.mullion.dev",
        "awsnodetemplates.karpenter.k8s.aws",
    ] {
        cluster.kubectl(&["delete", "crd", kind]);
    }
    cluster.kubectl(&["delete", "clusterrolebinding", "eks:kube-proxy-windows"]);
    let down = cluster.mullion(&["down", "demo"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    note_as_an_earlier_version(&cluster.home().join("state/mullion/clusters/demo"));

    let cluster = cluster.kill_and_restart(ARGS);
    let count = |name: &str| {
        let definition = cluster.get(&["crd", name]);
        let columns = definition["spec"]["versions"][0]["additionalPrinterColumns"].as_array();
        columns.map_or(0, Vec::len)
    };
    assert!(count("nodepools.karpenter.sh") > 0);
    assert_eq!(count("ec2nodeclasses.karpenter.k8s.aws"), 0);
    let said = cluster.stderr();
    let notes = said
        .lines()
        .filter(|line| line.contains("ec2nodeclasses.karpenter.k8s.aws"));
    let notes: Vec<_> = notes.collect();
    assert_eq!(notes.len(), 1, "{said}");
    assert!(
        notes[0].ends_with("kubectl-patch has changed it, so that it stays as it is"),
        "{said}"
    );
    let all = cluster.kubectl(&["get", "crd", "-o", "name"]);
    assert!(all.contains("/cninodes."), "{all}");
    assert!(!all.contains("/awsnodetemplates."), "{all}");
    cluster.kubectl(&["get", "simulatedaccount", "aws"]);
    cluster.kubectl(&["get", "clusterrolebinding", "eks:kube-proxy-windows"]);
}
