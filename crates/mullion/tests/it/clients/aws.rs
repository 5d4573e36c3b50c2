//! Clients of AWS against `mullion cloud`: boto3 and the AWS CLI.

use std::{process::Command, time::Duration};

use k8s_openapi::api::core::v1::{Node, Taint};
use kube::{Api, ResourceExt, runtime::wait::await_condition};
use mullion_api::eksctl::KubernetesVersion;
use tokio::time::timeout;

use super::{installed, sources};
use crate::{
    cluster::text,
    crash::{arguments, start_by},
    process::{Running, ended},
};

/// One node that is there before any is launched.
const NODES: &str = "
apiVersion: eksctl.io/v1alpha5
kind: ClusterConfig
metadata: {name: mixed, region: us-west-2}
nodeGroups:
- {name: linux, instanceType: m5.large, desiredCapacity: 1}
";

/// The scripts give up by themselves before.
const PATIENCE: Duration = Duration::from_secs(240);

#[test]
fn boto3_and_the_aws_cli_work() {
    let cloud = Running::start(Command::new(env!("CARGO_BIN_EXE_mullion")).args([
        "cloud",
        "--cluster-name",
        "demo",
        "--subnet-size",
        "/27",
        "--speed",
        "max",
    ]));
    let told = cloud.says("export ");
    drive(
        &told,
        Command::new("python3").arg(sources().join("aws/session.py")),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_of_aws_launches_becomes_a_node_with_the_labels_of_its_user_data() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.args(arguments(directory.path()));
    let (_server, client) = start_by(command, directory.path()).await;
    let config = directory.path().join("cluster.yaml");
    std::fs::write(&config, NODES).expect("a file can be written");
    let machines = Running::start(
        Command::new(env!("CARGO_BIN_EXE_mullion"))
            .args(["nodes", "--speed", "max", "--aws-port", "0", "--config"])
            .arg(config)
            .arg("--kubeconfig")
            .arg(directory.path().join("kubeconfig")),
    );
    let told = machines.says("export ");
    let version = KubernetesVersion::NEWEST.to_string();
    let script = sources().join("aws/node.py");
    let name = drive(&told, Command::new("python3").arg(script).arg(version));
    let nodes: Api<Node> = Api::all(client);
    let is_there = |node: Option<&Node>| node.is_some();
    let node = timeout(PATIENCE, await_condition(nodes, name.trim(), is_there)).await;
    let node = node.expect("it registers").expect("the server answers");
    let node = node.expect("it is there");
    let labels = node.labels();
    assert_eq!(labels["karpenter.sh/nodepool"], "windows");
    assert_eq!(labels["kubernetes.io/os"], "windows");
    assert_eq!(labels["node.kubernetes.io/instance-type"], "m5.xlarge");
    let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    let is_unregistered = |taint: &Taint| taint.key == "karpenter.sh/unregistered";
    assert!(taints.iter().any(is_unregistered), "{taints:?}");
}

/// Runs a script with the variables that a user would paste into a shell; returns what it printed.
fn drive(told: &str, script: &mut Command) -> String {
    let clients = installed();
    let variables = told.trim_start_matches("export ").split(' ');
    let variables = variables.map(|pair| pair.split_once('=').expect("a variable"));
    script
        .envs(variables)
        .env("NO_PROXY", "127.0.0.1")
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .env("PYTHONPATH", clients.join("aws"))
        .env("PYTHONPYCACHEPREFIX", clients.join("pycache"));
    let output = ended(script, "", PATIENCE);
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{complained}");
    said
}
