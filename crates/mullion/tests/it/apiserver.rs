//! `mullion apiserver`, as tests of controllers use it.

use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use crate::crash::{arguments, start_by};

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
