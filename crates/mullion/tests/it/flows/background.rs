//! A cluster in the background, as scripts use it: started, waited for, asked, stopped, deleted.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cluster::{PATIENCE, require_kubectl, text},
    process::ended,
};

/// A home of clusters, all of which are stopped when it is dropped.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().expect("a temporary directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs a command; all of its output is read, so it ends only when nobody in the background holds on to it.
    fn mullion(&self, args: &[&str], stdin: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
        command
            .args(args)
            .env("HOME", self.path())
            .env("XDG_STATE_HOME", self.path().join("state"))
            .env_remove("KUBECONFIG")
            .current_dir(self.path());
        ended(&mut command, stdin, PATIENCE)
    }

    /// Runs a command that must do its work; returns what it prints.
    fn does(&self, args: &[&str]) -> String {
        let output = self.mullion(args, "");
        assert!(
            output.status.success(),
            "mullion {}: {}{}",
            args.join(" "),
            text(&output.stdout),
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Runs a command that must end with this code; returns what it complains of.
    #[track_caller]
    fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.mullion(args, "");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        text(&output.stderr)
    }

    /// How the one cluster is, as data.
    fn status(&self) -> Value {
        let output = self.mullion(&["status", "-o", "json"], "");
        serde_json::from_slice(&output.stdout).expect("one object")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let list = self.mullion(&["list", "-o", "json"], "");
        let list: Value = serde_json::from_slice(&list.stdout).unwrap_or_default();
        let pids = list
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| one["pid"].as_u64());
        for pid in pids {
            // It may have ended already.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_cluster_is_started_waited_for_asked_stopped_and_deleted() {
    require_kubectl();
    let home = Home::new();
    let up = [
        "up", "--name", "ci", "--detach", "--wait", "--port", "0", "--speed", "max",
    ];
    let said = home.does(&[&up[..], &["--merge"]].concat());
    let status = home.status();
    let (pid, log) = (&status["pid"], status["log"].as_str().expect("a log"));
    let end = format!(
        "All 2 nodes are ready.\nIt runs in the background as process {pid} and logs to {log}\n`mullion down ci` stops it.\n"
    );
    assert!(said.ends_with(&end), "{said}");
    assert!(PathBuf::from(log).is_file());
    let directory = home.path().join("state/mullion/clusters/ci");
    assert_eq!(status["directory"].as_str(), directory.to_str());
    assert_eq!(status["nodes"], serde_json::json!({"ready": 2, "all": 2}));
    let told = home.does(&["status", "ci"]);
    assert!(
        told.starts_with(&format!("Cluster ci is running: process {pid}, for ")),
        "{told}"
    );

    let kubeconfig = home.path().join("copy");
    std::fs::write(&kubeconfig, home.does(&["kubeconfig", "ci"])).expect("writable");
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args(["get", "nodes", "-o", "name", "--kubeconfig"])
        .arg(&kubeconfig);
    let nodes = ended(&mut kubectl, "", PATIENCE);
    assert_eq!(
        text(&nodes.stdout).lines().count(),
        2,
        "{}",
        text(&nodes.stderr)
    );

    let running = home.fails(&["delete", "ci"], 1);
    assert!(
        running.starts_with(&format!("error: cluster ci is running (process {pid}), so it is not deleted\nhint:  stop it first: mullion down ci")),
        "{running}"
    );
    home.does(&["down", "ci"]);
    let stopped = home.mullion(&["status"], "");
    assert_eq!(stopped.status.code(), Some(1));
    assert_eq!(
        text(&stopped.stdout),
        format!(
            "Cluster ci is not running. It is kept in {}\n\nStart it:  mullion up --name ci\n",
            directory.display()
        )
    );
    assert_eq!(
        home.fails(&["kubeconfig", "ci"], 1),
        "error: cluster ci is not running\nhint:  start it: mullion up --name ci\n"
    );
    let config = home.path().join(".kube/config");
    assert_eq!(
        home.does(&["delete", "ci"]),
        format!(
            "cluster ci is deleted, with {}\nits kubeconfig {} is removed\n",
            directory.display(),
            config.display()
        )
    );
    assert!(!directory.exists() && !config.exists());
    assert_eq!(
        home.fails(&["delete", "ci"], 1),
        "error: there is no cluster ci\nhint:  `mullion list` shows the clusters there are\n"
    );
    assert!(
        home.fails(&["status"], 1)
            .starts_with("error: no cluster is running, and none is kept\n")
    );
}

#[cfg(unix)]
#[test]
fn a_quiet_start_in_the_background_prints_its_process_and_takes_a_config_from_stdin() {
    let home = Home::new();
    let config = "apiVersion: eksctl.io/v1alpha5\nkind: ClusterConfig\nmetadata: {name: shop, region: us-west-2}\n\
                  managedNodeGroups: [{name: l, desiredCapacity: 1}]\n";
    let up = [
        "up", "-q", "-d", "--port", "0", "--speed", "max", "--config", "-",
    ];
    let started = home.mullion(&up, config);
    assert!(started.status.success(), "{}", text(&started.stderr));
    let status = home.status();
    assert_eq!(text(&started.stdout), format!("{}\n", status["pid"]));
    assert_eq!(text(&started.stderr), "");
    assert_eq!(
        (&status["name"], &status["directory"]),
        (&"shop".into(), &Value::Null)
    );
    assert_eq!(home.does(&["down"]), "cluster shop is stopped\n");
    // A cluster in memory that is stopped in order leaves nothing behind.
    let log = status["log"].as_str().expect("a log");
    assert!(!PathBuf::from(log).exists());
}

#[cfg(unix)]
#[test]
fn clusters_of_one_name_are_told_apart_by_their_process_and_port() {
    let home = Home::new();
    let up = ["up", "-q", "-d", "--port", "0", "--speed", "max"];
    let pids = [home.does(&up), home.does(&up)].map(|pid| pid.trim().to_owned());
    let list: Value = serde_json::from_str(&home.does(&["list", "-o", "json"])).expect("a list");
    let server = |index: usize| list[index]["server"].as_str().expect("a server");
    for command in ["down", "status", "kubeconfig"] {
        let said = home.fails(&[command], 2);
        assert_eq!(
            said,
            format!(
                "error: 2 clusters are running: mullion (process {}, {}), mullion (process {}, {})\n\
                 hint:  say which one by its process or port: mullion {command} {}\n",
                pids[0],
                server(0),
                pids[1],
                server(1),
                pids[0]
            )
        );
    }
    assert!(home.does(&["status", &pids[1]]).contains(server(1)));
    home.does(&["down", &pids[0]]);
    let (_, port) = server(1).rsplit_once(':').expect("a port");
    assert_eq!(home.does(&["down", port]), "cluster mullion is stopped\n");
}

#[cfg(unix)]
#[test]
fn a_cluster_that_runs_already_is_named_with_its_process_and_what_to_do() {
    let home = Home::new();
    let up = [
        "up", "-q", "-d", "--name", "demo", "--port", "0", "--speed", "max",
    ];
    let pid = home.does(&up);
    let status = home.status();
    let server = status["server"].as_str().expect("a server");
    let said = home.fails(&up, 2);
    assert_eq!(
        said,
        format!(
            "error: cluster demo runs already: process {}, {server}\n\
             hint:  use it: kubectl --kubeconfig {} get nodes; stop it: mullion down demo\n",
            pid.trim(),
            home.path().join("state/mullion/kubeconfig").display()
        )
    );
    let copy = home.path().join("demo.kubeconfig");
    let path = copy.to_str().expect("UTF-8");
    let told = home.does(&["kubeconfig", "demo", "--kubeconfig", path]);
    assert_eq!(told, format!("export KUBECONFIG={path}\n"));
    // Another one of its name is said to be one, as is a directory that is made for it.
    let other = [
        "up",
        "-d",
        "--name",
        "demo",
        "--data-dir",
        "new/other",
        "--port",
        "0",
        "--speed",
        "max",
    ];
    let started = home.mullion(&other, "");
    assert!(started.status.success(), "{}", text(&started.stderr));
    let notes = text(&started.stderr);
    let made = "note:  making the directory new/other\n";
    assert!(notes.starts_with(made), "{notes}");
    let same = format!(
        "note:  another cluster demo is kept in {}: say which one is meant with --data-dir DIR\n",
        home.path().join("state/mullion/clusters/demo").display()
    );
    assert!(notes.contains(&same), "{notes}");
}

#[cfg(unix)]
#[test]
fn whoever_waits_hears_of_every_node_and_of_one_that_is_deleted() {
    let home = Home::new();
    let up = ["up", "--detach", "--wait", "--port", "0", "--speed", "2"];
    let started = home.mullion(&up, "");
    assert!(started.status.success(), "{}", text(&started.stderr));
    // A node is in the banner when it is ready by then, and else in a line of its own.
    let (banner, said) = (text(&started.stdout), text(&started.stderr));
    let nodes = banner.lines().find(|line| line.contains("2 x m5.large"));
    let nodes = nodes.unwrap_or_else(|| panic!("no nodes in {banner}"));
    let expected = match nodes {
        nodes if nodes.ends_with("starting") => 2,
        nodes if nodes.ends_with("1 of 2 ready") => 1,
        _ => 0,
    };
    assert_eq!(
        said.matches(" node ready: ").count(),
        expected,
        "{banner}{said}"
    );
    let status = home.status();
    let log = PathBuf::from(status["log"].as_str().expect("a log"));
    let kubeconfig = home.path().join("state/mullion/kubeconfig");
    let kubectl = |args: &[&str]| {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(&kubeconfig).args(args);
        text(&ended(&mut kubectl, "", PATIENCE).stdout)
    };
    let nodes = kubectl(&["get", "nodes", "-o", "name"]);
    let name = nodes.lines().next().expect("a node");
    kubectl(&["delete", name]);
    let name = name.trim_start_matches("node/");
    let removed = format!(" node removed: {name}, m5.large, Amazon Linux 2023");
    let began = std::time::Instant::now();
    loop {
        let log = std::fs::read_to_string(&log).expect("it is there");
        if log.contains(&removed) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{log}");
        std::thread::yield_now();
    }
}

#[cfg(unix)]
#[test]
fn a_start_in_the_background_that_fails_says_why_and_ends_so() {
    let home = Home::new();
    assert_eq!(
        home.fails(
            &["up", "--detach", "--port", "0", "--kubeconfig", "/dev/full"],
            2
        ),
        "error: kubeconfig /dev/full cannot be written: it is a device, not a file\n\
         hint:  name a file that you may write: --kubeconfig PATH\n"
    );
    for detach in [&["--detach"][..], &[]] {
        let up = ["up", "-q", "--port", "0", "--speed", "0.001", "--wait=1ms"];
        let late = home.fails(&[&up[..], detach].concat(), 1);
        assert!(
            late.starts_with("error: not all nodes are ready after 1ms: ip-10-0-"),
            "{late}"
        );
        assert!(
            late.contains("; cluster mullion is stopped\nhint:  wait longer with --wait=20m, "),
            "{late}"
        );
    }
    assert_eq!(home.does(&["list", "-o", "json"]), "[]\n");
}
