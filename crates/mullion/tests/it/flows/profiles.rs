//! `--scheduler-config`: profiles of a kube-scheduler configuration file decide, and speak, in their own names.

use std::{path::PathBuf, process::Command};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{Cluster, PATIENCE},
    process::ended,
};

const PROFILES: &str = r"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podMaxBackoffSeconds: 5
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  plugins: &only-fit
    score:
      disabled: [{name: '*'}]
      enabled: [{name: NodeResourcesFit, weight: 1}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 1}]
- schedulerName: levelling
  plugins: *only-fit
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: cpu, weight: 1}]
        requestedToCapacityRatio:
          shape: [{utilization: 0, score: 10}, {utilization: 100, score: 0}]
- schedulerName: careless
  plugins:
    multiPoint:
      disabled: [{name: TaintToleration}]
- schedulerName: evenly
  pluginConfig:
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}
";

fn file(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("scheduler.yaml");
    std::fs::write(&path, text).expect("a file can be written");
    (dir, path)
}

fn start() -> Cluster {
    let (_dir, path) = file(PROFILES);
    Cluster::start(&[
        "--config",
        "eksctl-windows-nodegroup.yaml",
        "--speed",
        "1000",
        "--scheduler-config",
        path.to_str().expect("a UTF-8 path"),
    ])
}

/// A pod of 100m for a scheduler on nodes of an operating system.
fn pod(name: &str, scheduler: &str, os: &str, cpu: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {scheduler}}}}}\nspec:\n  schedulerName: {scheduler}\n  \
         nodeSelector: {{kubernetes.io/os: {os}}}\n  containers: [{{name: c, image: 'nginx:1.27', resources: {{requests: {{cpu: {cpu}}}}}}}]\n---\n"
    )
}

/// The nodes of three pods for a scheduler.
fn nodes_of_three(cluster: &Cluster, scheduler: &str) -> Vec<String> {
    let names = [1, 2, 3].map(|number| format!("{scheduler}-{number}"));
    let manifests = names
        .iter()
        .map(|name| pod(name, scheduler, "linux", "100m"));
    cluster.apply(&manifests.collect::<String>());
    let selector = format!("app={scheduler}");
    let bound = [
        "wait",
        "pods",
        "-l",
        &selector,
        "--for=condition=PodScheduled",
        "--timeout=60s",
    ];
    cluster.kubectl(&bound);
    let nodes = "jsonpath={.items[*].spec.nodeName}";
    let nodes = cluster.kubectl(&["get", "pods", "-l", &selector, "-o", nodes]);
    let mut nodes: Vec<_> = nodes.split(' ').map(str::to_owned).collect();
    nodes.sort();
    nodes
}

/// The plugins whose scores `mullion why` shows for a pod.
fn scored_by(cluster: &Cluster, pod: &str) -> Vec<String> {
    let mut why = Command::new(env!("CARGO_BIN_EXE_mullion"));
    why.args(["why", "pod", pod, "-o", "json", "--kubeconfig"]);
    let said = ended(why.arg(cluster.kubeconfig()), "", PATIENCE);
    let said: Value = serde_json::from_slice(&said.stdout).expect("one object");
    let nodes = said["answer"]["nodes"].as_array().expect("nodes");
    let scores = nodes.iter().find_map(|node| node["scores"].as_object());
    scores.expect("a node fits").keys().cloned().collect()
}

#[test]
fn each_profile_of_the_file_places_its_pods_its_own_way_and_speaks_in_its_own_name() {
    let cluster = start();
    let packed = nodes_of_three(&cluster, "packing");
    assert_eq!(packed[0], packed[2], "packed onto one node");
    assert_eq!(
        scored_by(&cluster, "packing-1"),
        ["NodeResourcesFit"],
        "`mullion why` asks by the profile"
    );
    let there = pod("packing-1", "packing", "linux", "100m");
    let mut why = Command::new(env!("CARGO_BIN_EXE_mullion"));
    why.args(["why", "-f", "-", "--kubeconfig"]);
    let said = ended(why.arg(cluster.kubeconfig()), &there, PATIENCE);
    let answer = String::from_utf8_lossy(&said.stdout);
    let note = String::from_utf8_lossy(&said.stderr);
    assert!(
        answer.starts_with("pod default/packing-1 goes to "),
        "{answer}{note}"
    );
    assert!(
        note.contains("packing-1 exists: the answer is for another one like it"),
        "{note}"
    );
    let levelled = nodes_of_three(&cluster, "levelling");
    assert!(
        levelled.iter().any(|node| *node != packed[0]),
        "the emptier node is filled first: {levelled:?} {packed:?}"
    );

    cluster.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: evenly}\nspec: {selector: {app: evenly}, ports: [{port: 80}]}\n",
    );
    let even = nodes_of_three(&cluster, "evenly");
    assert_ne!(even[0], even[2], "spread over both nodes");

    cluster.apply(&pod("careless", "careless", "windows", "100m"));
    let bound = [
        "wait",
        "pod/careless",
        "--for=condition=PodScheduled",
        "--timeout=60s",
    ];
    cluster.kubectl(&bound);
    cluster.apply(&pod("careful", "default-scheduler", "windows", "100m"));
    cluster.apply(&pod("huge", "packing", "linux", "64"));
    for (name, scheduler) in [("careful", "default-scheduler"), ("huge", "packing")] {
        let pod = format!("pod/{name}");
        let refused = [
            "wait",
            &pod,
            "--for=condition=PodScheduled=false",
            "--timeout=60s",
        ];
        cluster.kubectl(&refused);
        let about = format!("involvedObject.name={name}");
        let who = "jsonpath={.items[*].reason} {.items[*].reportingComponent}";
        let said = ["get", "events", "--field-selector", &about, "-o", who];
        // The provisioner says in the same words that it has no nodes for the pod.
        let is_scheduler = |word: &&str| !["FailedScheduling", "karpenter"].contains(word);
        cluster.until("an event of its scheduler", &said, |said| {
            let mut speakers: Vec<_> = said.split(' ').filter(is_scheduler).collect();
            speakers.dedup();
            speakers == [scheduler]
        });
    }
}
