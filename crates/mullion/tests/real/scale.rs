//! How long a thousand simulated nodes and twenty thousand pods take beside kube-apiserver, etcd, kube-controller-manager and kube-scheduler.
//!
//! It measures, so it is run by hand on a machine that does nothing else, with a release build in the place of the tests' own program: `just scale`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{cluster::Cluster, deployment};

/// 20 pods on each node.
const NODES: usize = 1_000;
const PODS: u32 = 20_000;
/// How long each part may take.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// A twentieth of the nodes run Windows.
const CLUSTER: &str = "
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: large, region: us-west-2}
nodeGroups:
- {name: linux, instanceType: m5.2xlarge, desiredCapacity: 950}
- {name: windows, instanceType: m5.2xlarge, desiredCapacity: 50, amiFamily: WindowsServer2022CoreContainer, taints: {os: \"windows:NoSchedule\"}}
";

/// Requests a second that Kubernetes' programs may make; their own limits (20 and 50) would be all that is measured.
const RATE: [(&str, &str); 2] = [("kube-api-qps", "5000"), ("kube-api-burst", "5000")];

#[test]
#[ignore = "it measures, for minutes: see the top of this file"]
fn a_thousand_nodes_run_twenty_thousand_pods() {
    let mut cluster = Cluster::start();
    cluster.run_controller_manager_with(&RATE);
    cluster.run_scheduler_with(&RATE);
    let file = cluster.write("large.yaml", CLUSTER);
    let began = Instant::now();
    let args = ["nodes", "--config", &file, "--speed", "max"];
    let _nodes = cluster.mullion("nodes", &args);
    cluster.within(PATIENCE, "all nodes are ready", || {
        ready_nodes(&cluster) == NODES
    });
    report("nodes Ready", NODES, began);

    let container =
        json!([{"name": "web", "image": "nginx", "resources": {"requests": {"cpu": "10m"}}}]);
    let began = Instant::now();
    cluster.apply(&deployment("web", PODS, json!({"containers": container})));
    cluster.within(PATIENCE, "all pods are ready", || {
        let path = "jsonpath={.status.readyReplicas}";
        cluster.get(&["get", "deployment", "web", "-o", path]) == PODS.to_string()
    });
    report("pods Ready", PODS as usize, began);
}

fn ready_nodes(cluster: &Cluster) -> usize {
    let path = "jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}";
    let states = cluster.get(&["get", "nodes", "-o", path]);
    states.split(' ').filter(|state| *state == "True").count()
}

fn report(what: &str, count: usize, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} {what} after {seconds:.1} s: {:.0} a second",
        count as f64 / seconds
    );
}
