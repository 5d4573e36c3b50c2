//! The README's tour, run as it is written: every command of it in order, in a home that nobody has used.
//!
//! `cargo run --release --` is the program under test, the first command is the cluster itself, and logs are not followed.

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;

use crate::{
    cluster::{Cluster, PATIENCE, require_kubectl, text},
    process::ended,
};

const README: &str = include_str!("../../../../../README.md");
const RUN: &str = "cargo run --release --";
/// The command that starts the tour.
const FIRST: &str = "cargo run --release -- up --config examples/eksctl-cluster.yaml";
/// Between the outputs of two commands.
const DIVIDER: &str = "=-=-=";

/// A command of the README, and what came of it.
struct Done {
    command: String,
    code: i32,
    output: String,
}

/// Returns the lines of the tour's code blocks.
fn commands() -> Vec<String> {
    let (_, tour) = README.split_once("## The ten-minute tour").expect("a tour");
    let (tour, _) = tour.split_once("## What is simulated").expect("its end");
    let blocks = tour.split("```").skip(1).step_by(2);
    blocks
        .flat_map(str::lines)
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Runs commands in one shell, as a user does.
fn run(commands: &[String], home: &Path, kubeconfig: &Path) -> Vec<Done> {
    let program = env!("CARGO_BIN_EXE_mullion");
    let mut script = String::new();
    for command in commands {
        let command = command.replace(RUN, program);
        let command = command.replace(" up --name", " up --port 0 --name");
        let command = command.replace("kubectl logs -f ", "kubectl logs ");
        script += &format!("{command}\necho \"{DIVIDER}$?\"\n");
    }
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .env("HOME", home)
        .env("XDG_STATE_HOME", home.join("state"))
        .env("KUBECONFIG", kubeconfig)
        .current_dir(home);
    let said = text(&ended(&mut shell, "", 2 * PATIENCE).stdout);
    let mut done = Vec::new();
    let mut output = String::new();
    for line in said.lines() {
        match line.strip_prefix(DIVIDER) {
            Some(code) => done.push(Done {
                command: commands[done.len()].clone(),
                code: code.parse().expect("an exit code"),
                output: std::mem::take(&mut output),
            }),
            None => output += &format!("{line}\n"),
        }
    }
    assert_eq!(done.len(), commands.len(), "{said}");
    done
}

/// Returns a home with a copy of the examples in it.
fn home() -> TempDir {
    let home = tempfile::tempdir().expect("a temporary directory");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let copies = home.path().join("examples");
    fs::create_dir(&copies).expect("a directory");
    for file in fs::read_dir(examples).expect("there are examples") {
        let file = file.expect("a file");
        fs::copy(file.path(), copies.join(file.file_name())).expect("it can be copied");
    }
    home
}

#[test]
fn the_tour_of_the_readme_runs_as_it_is_written() {
    require_kubectl();
    let all = commands();
    let (first, rest) = all.split_first().expect("commands");
    assert_eq!(first, FIRST);
    let home = home();
    let cluster = Cluster::start(&["--config", "eksctl-cluster.yaml", "--speed", "100"]);
    let asks = |command: &String| command.starts_with("kubectl run ");
    let (buys, asks) = rest.split_at(rest.iter().position(asks).expect("a pod is asked about"));
    let mut done = run(buys, home.path(), &cluster.kubeconfig());
    // They go by themselves after half a minute that the README tells its reader to wait.
    cluster.kubectl(&["delete", "nodes", "-l", "karpenter.sh/nodepool"]);
    done.extend(run(asks, home.path(), &cluster.kubeconfig()));
    for Done {
        command,
        code,
        output,
    } in &done
    {
        // A pod without a place is the answer no, as are findings.
        let asks_of_the_one = command.contains("why pod") || command.contains("why --state");
        let expected = i32::from(asks_of_the_one || command.contains(" check "));
        assert_eq!(*code, expected, "{command}\n{output}");
    }
    let said = |part: &str| {
        let found = done.iter().find(|own| own.command.contains(part));
        let found = found.unwrap_or_else(|| panic!("the README does not say {part}"));
        &*found.output
    };
    assert!(
        said("get nodeclaims").contains(" c6a.xlarge "),
        "{}",
        said("get nodeclaims")
    );
    let removed = said("kubectl patch");
    assert_eq!(removed.matches(" patched\n").count(), 2, "{removed}");
    let nodes = said("get nodes -L");
    for build in ["10.0.17763", "10.0.20348"] {
        assert!(nodes.contains(build), "{nodes}");
    }
    for word in ["launched nodeclaim", "registered nodeclaim"] {
        let story = said("app.kubernetes.io/name=karpenter");
        assert_eq!(story.matches(word).count(), 2, "{story}");
    }
    // A file that holds what the README says it should is answered as the cluster itself.
    assert_eq!(said("why pod iis"), said("why --state -"));
    let why = said("why pod iis");
    let label = "give nodes of Provisioner windows2022 the label disk=ssd";
    assert!(why.contains(label), "{why}");
    assert!(said(" check ").contains("eks:kube-proxy-windows"));
    assert!(said("delete demo").starts_with("cluster demo is deleted"));
}
