//! The blog on Karpenter for Windows: nodes are bought for ten pods of each build and given back when they are gone.

use serde_json::Value;

use crate::cluster::Cluster;

const ARGS: &[&str] = &["--config", "eksctl-cluster.yaml", "--speed", "1000"];

#[test]
fn windows_nodes_are_bought_when_needed_and_given_back_when_empty() {
    let cluster = Cluster::start(ARGS);
    set_up(&cluster);
    scale_out(&cluster, "2022", "10.0.20348");
    scale_out(&cluster, "2019", "10.0.17763");
    let linux_before = names(&cluster, "kubernetes.io/os=linux");

    let windows = names(&cluster, "kubernetes.io/os=windows");
    cluster.kubectl(&[
        "delete",
        "deployment",
        "windows-server-iis-simple-2022",
        "windows-server-iis-simple-2019",
    ]);
    for node in &windows {
        cluster.kubectl(&[
            "wait",
            "--for=delete",
            &format!("node/{node}"),
            "--timeout=110s",
        ]);
    }
    assert_eq!(names(&cluster, "kubernetes.io/os=linux"), linux_before);
    cluster.until(
        "the end of all node claims",
        &["get", "nodeclaims", "-o", "name"],
        str::is_empty,
    );

    let story = cluster.kubectl(&[
        "logs",
        "-n",
        "karpenter",
        "-l",
        "app.kubernetes.io/name=karpenter",
        "-c",
        "controller",
        "--tail=-1",
    ]);
    let mut rest = story.as_str();
    for step in [
        "found provisionable pod(s)",
        "computed new nodeclaim(s) to fit pod(s)",
        "created nodeclaim",
        "launched nodeclaim",
        "registered nodeclaim",
        "initialized nodeclaim",
        "disrupting node(s)",
        "tainted node",
        "deleted node",
        "deleted nodeclaim",
    ] {
        let (_, after) = rest
            .split_once(step)
            .unwrap_or_else(|| panic!("the log does not say {step:?} in its place:\n{story}"));
        rest = after;
    }
    for line in story.lines() {
        assert!(
            serde_json::from_str::<Value>(line).is_ok(),
            "not a JSON line: {line}"
        );
    }
}

#[test]
fn a_killed_process_leaves_nothing_that_hinders_the_next() {
    let cluster = Cluster::start(ARGS);
    set_up(&cluster);
    cluster.kubectl(&[
        "scale",
        "deployment",
        "windows-server-iis-simple-2022",
        "--replicas",
        "10",
    ]);
    cluster.until(
        "a node claim",
        &["get", "nodeclaims", "-o", "name"],
        |claims| !claims.is_empty(),
    );
    let cluster = cluster.kill_and_restart(ARGS);
    is_fresh(&cluster);
    // And once more where everything runs.
    set_up(&cluster);
    scale_out(&cluster, "2022", "10.0.20348");
    is_fresh(&cluster.kill_and_restart(ARGS));
}

fn is_fresh(cluster: &Cluster) {
    assert_eq!(names(cluster, "kubernetes.io/os=linux").len(), 2);
    assert!(names(cluster, "kubernetes.io/os=windows").is_empty());
    assert_eq!(cluster.kubectl(&["get", "deployments"]), "");
}

fn set_up(cluster: &Cluster) {
    for file in [
        "amazon-vpc-cni.yaml",
        "karpenter-provisioner-2019.yaml",
        "karpenter-provisioner-2022.yaml",
        "windows-server-iis-simple-2019.yaml",
        "windows-server-iis-simple-2022.yaml",
    ] {
        cluster.kubectl(&["apply", "-f", file]);
    }
}

fn scale_out(cluster: &Cluster, version: &str, build: &str) {
    let deployment = format!("windows-server-iis-simple-{version}");
    cluster.kubectl(&["scale", "deployment", &deployment, "--replicas", "10"]);
    cluster.kubectl(&[
        "rollout",
        "status",
        "deployment",
        &deployment,
        "--timeout=110s",
    ]);
    let nodes = cluster.get(&[
        "nodes",
        "-l",
        &format!("node.kubernetes.io/windows-build={build}"),
    ]);
    let nodes = nodes["items"].as_array().expect("a list of nodes");
    assert_eq!(
        nodes.len(),
        1,
        "ten pods of Windows {version} fit on one node"
    );
    let node = &nodes[0];
    let labels = &node["metadata"]["labels"];
    // The cheapest with ten addresses, at the price of Windows.
    assert_eq!(
        labels["node.kubernetes.io/instance-type"], "c6a.xlarge",
        "{labels}"
    );
    let allocatable = &node["status"]["allocatable"];
    assert_eq!(allocatable["cpu"], "3920m");
    assert_eq!(allocatable["pods"], "110");
    assert_eq!(allocatable["vpc.amazonaws.com/PrivateIPv4Address"], "14");
    assert_eq!(node["status"]["nodeInfo"]["operatingSystem"], "windows");
    let pods = cluster.get(&["pods", "-l", &format!("app={deployment}")]);
    for pod in pods["items"].as_array().expect("a list of pods") {
        assert_eq!(pod["spec"]["nodeName"], node["metadata"]["name"]);
    }
}

fn names(cluster: &Cluster, selector: &str) -> Vec<String> {
    let nodes = cluster.get(&["nodes", "-l", selector]);
    let items = nodes["items"].as_array().expect("a list of nodes");
    items
        .iter()
        .filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned))
        .collect()
}
