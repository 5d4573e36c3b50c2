//! Disks that are full and directories that are not to be used, as a user's process meets them.

use std::{fs, path::Path, process::Command};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt, api::ListParams, api::PostParams};
use serde_json::json;

use crate::crash::{arguments, start_by};

fn server(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.args(arguments(directory));
    command
}

/// What a start that must fail says, without the directory's name.
fn refusal(directory: &Path) -> String {
    let mut command = server(directory);
    let output = command
        .env("XDG_STATE_HOME", directory.join("state"))
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.replace(&directory.display().to_string(), "DIR")
}

async fn names(client: &Client) -> Vec<String> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let list = maps.list(&ListParams::default()).await;
    let list = list.expect("reads go on").into_iter();
    list.map(|map| map.name_any())
        .filter(|name| name.starts_with("large-"))
        .collect()
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_not_grow_refuses_writes_and_keeps_what_was_answered() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut limited = Command::new("sh");
    // 16 MiB where a block is 512 bytes, twice that elsewhere.
    limited.args(["-c", "ulimit -f 32768; exec \"$@\"", "sh"]);
    limited.arg(env!("CARGO_BIN_EXE_mullion"));
    limited.args(arguments(directory.path()));
    let (server_process, client) = start_by(limited, directory.path()).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let mut taken = Vec::new();
    let refused = loop {
        let name = format!("large-{:03}", taken.len());
        let map = serde_json::from_value(json!({
            "metadata": {"name": name}, "data": {"text": "x".repeat(900_000)},
        }));
        let map = map.expect("a ConfigMap");
        match maps.create(&PostParams::default(), &map).await {
            Ok(_) => taken.push(name),
            Err(kube::Error::Api(status)) => break status,
            Err(error) => panic!("the server does not answer: {error}"),
        }
        assert!(taken.len() < 300, "the limit was never met");
    };
    assert_eq!((refused.code, &*refused.reason), (500, "InternalError"));
    assert!(
        refused.message.contains("the file may not become longer"),
        "{}",
        refused.message
    );
    assert_eq!(names(&client).await, taken);
    drop(server_process);
    let (_server, client) = start_by(server(directory.path()), directory.path()).await;
    let found = names(&client).await;
    // What was refused may have come as far as the disk.
    let also = format!("large-{:03}", taken.len());
    let expected = found.iter().filter(|name| **name != also).cloned();
    assert_eq!(expected.collect::<Vec<_>>(), taken);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_used_is_refused_in_a_sentence_and_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let (first, _client) = start_by(server(directory.path()), directory.path()).await;
    let running = refusal(directory.path());
    let numbered = running.replace(|c: char| c.is_ascii_digit(), "");
    assert_eq!(
        numbered,
        "error: cluster apiserver runs already: process , https://...:\n\
         hint:  use it: kubectl --kubeconfig DIR/kubeconfig get nodes; stop it: mullion down apiserver\n"
    );
    // Killed, with something in the journal.
    drop(first);
    let journal = data.join("journal.0");
    let whole = fs::read(&journal).expect("it is there");
    fs::write(&journal, &whole[..1000]).expect("writable");
    let hint = "hint:  go back to a snapshot with `mullion snapshot restore FILE --force`, or start anew with `mullion up --fresh`\n";
    assert_eq!(
        refusal(directory.path()),
        format!("error: DIR/data/journal.0 is damaged: it is cut short\n{hint}")
    );
    fs::write(&journal, whole).expect("writable");
    drop(start_by(server(directory.path()), directory.path()).await);

    let state = data.join("state.redb");
    let whole = fs::read(&state).expect("it is there");
    fs::write(&state, &whole[..whole.len() / 2]).expect("writable");
    let said = refusal(directory.path());
    let begins = "error: DIR/data/state.redb is damaged: ";
    assert!(said.starts_with(begins) && said.ends_with(hint), "{said}");
    fs::write(&state, whole).expect("writable");
    drop(start_by(server(directory.path()), directory.path()).await);
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_in_a_directory_of_its_own_is_listed_until_the_directory_goes() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let list = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        let output = command
            .args(["list", "-o", "json"])
            .env("XDG_STATE_HOME", directory.path().join("state"))
            .output();
        let output = output.expect("the program starts");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let data = directory.path().join("data");
    let (running, _client) = start_by(server(directory.path()), directory.path()).await;
    let listed = list();
    assert_eq!(
        (listed[0]["state"].as_str(), listed.as_array().map(Vec::len)),
        (Some("running"), Some(1))
    );
    drop(running);
    let stopped = json!([{"name": "apiserver", "state": "stopped", "directory": data}]);
    assert_eq!(list(), stopped);
    fs::remove_dir_all(&data).expect("it is there");
    assert_eq!(list(), json!([]));
}
