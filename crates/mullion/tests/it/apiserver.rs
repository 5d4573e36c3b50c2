//! `mullion apiserver`, as tests of controllers use it.

use std::{path::Path, process::Command};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::json;

#[cfg(unix)]
use crate::process::Running;
use crate::{
    cluster::{PATIENCE, text},
    crash::{Server, arguments, start_by},
    process::ended,
};

#[tokio::test(flavor = "multi_thread")]
async fn pods_come_in_without_a_service_account_unless_that_plugin_is_asked_for() {
    for (flags, is_strict) in [
        (&[][..], false),
        (&["--disable-admission-plugins", ""], true),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        command.args(arguments(directory.path())).args(flags);
        let (_server, client) = start_by(command, directory.path()).await;
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let pod = serde_json::from_value(pod).expect("a pod");
        let pods: Api<Pod> = Api::default_namespaced(client);
        match pods.create(&PostParams::default(), &pod).await {
            Ok(made) => assert_eq!((made.name_any().as_str(), is_strict), ("p", false)),
            Err(kube::Error::Api(status)) => {
                assert_eq!((status.code, is_strict), (403, true), "{status:?}");
            }
            Err(error) => panic!("the server does not answer: {error}"),
        }
    }
}

/// Shells start programs with a low limit of open files, and a connection is an open file.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn as_many_files_may_be_open_as_the_system_lets_the_process_have() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -S -n 200; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_mullion"))
        .args(arguments(directory.path()));
    let (server, _) = start_by(command, directory.path()).await;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid()));
    let limits = limits.expect("the process runs");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let mut numbers = line.expect("the limit is there").split_whitespace().skip(3);
    let (soft, hard) = (numbers.next(), numbers.next());
    assert_eq!(soft, hard, "{limits}");
}

/// To the doctor a node that no simulation made is a real one. Nobody runs its pods here.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_measurement_of_the_network_that_is_interrupted_leaves_no_namespace() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (_server, client) = with_a_real_node(directory.path()).await;
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_mullion"));
    doctor.args(["doctor", "--network", "--kubeconfig"]);
    let doctor = Running::start(doctor.arg(directory.path().join("kubeconfig")));
    let said = doctor.complains("Probe pods run in the namespace");
    assert_eq!(doctor.interrupt(), Some(1));
    assert_removed(&client, &said).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connectivity_test_that_takes_too_long_fails_and_leaves_no_namespace() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (_server, client) = with_a_real_node(directory.path()).await;
    let mut test = Command::new(env!("CARGO_BIN_EXE_mullion"));
    test.args(["connectivity", "test", "--timeout=1s", "--kubeconfig"]);
    test.arg(directory.path().join("kubeconfig"));
    let output = ended(&mut test, "", PATIENCE);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("1 s were not enough"), "{said}");
    assert_removed(&client, &said).await;
}

/// A server with a node that is ready, as far as it says.
async fn with_a_real_node(directory: &Path) -> (Server, Client) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.args(arguments(directory));
    let (server, client) = start_by(command, directory).await;
    let labels = json!({"kubernetes.io/os": "linux", "kubernetes.io/hostname": "real"});
    let node = json!({
        "metadata": {"name": "real", "labels": labels},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let node: Node = serde_json::from_value(node).expect("a node");
    let nodes: Api<Node> = Api::all(client.clone());
    let params = PostParams::default();
    nodes.create(&params, &node).await.expect("it is created");
    (server, client)
}

/// Asserts that the namespace that was announced is deleted.
async fn assert_removed(client: &Client, said: &str) {
    let name = said
        .split(' ')
        .find(|word| word.starts_with("mullion-network-"));
    let name = name.expect("its name").trim_end_matches(',');
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let all = namespaces
        .list(&ListParams::default())
        .await
        .expect("a list");
    let own = all.items.iter().find(|own| own.name_any() == name);
    // The server has no controller that would empty it.
    let own = own.expect("it is there");
    assert!(own.metadata.deletion_timestamp.is_some(), "{own:?}");
}
