//! kube-controller-manager and kube-scheduler as clients of the program's API server: `steps.txt` has them do what clusters do, once beside
//! kube-apiserver, which proves the steps, and once beside ours. What they report as an error or a warning beside ours alone fails the test, and
//! so does a default role that differs.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{cluster::Cluster, start_nodes};

const STEPS: &str = include_str!("steps.txt");

/// How long a command may take until it prints what it has to: the garbage collector looks for new kinds every 30 s.
const PATIENCE: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(200);

/// The programs whose reports are compared.
const PROGRAMS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// Errors that any server causes at times, since the client had not heard of its own write or of another's yet; the client tries again. A
/// line is such an error if it has all parts.
const RACES: [&[&str]; 4] = [
    &["is not as new as written version"],
    &[
        "the object has been modified; please apply your changes to the latest version and try again",
    ],
    // An update of an object that is gone, or there again under its name: its controller has not heard of the deletion.
    &["Precondition failed: UID in precondition: "],
    // A write of an object that is gone: its controller has not heard of the deletion. If a server did not find what is there, the steps
    // themselves would fail.
    &["\\\" not found"],
];

/// One thing that is done, or asked for.
struct Act {
    command: String,
    input: String,
    /// What it has to print in the end; `None` where it only has to succeed.
    wanted: Option<String>,
}

/// The acts of each step, by its title.
fn steps() -> Vec<(&'static str, Vec<Act>)> {
    let mut steps: Vec<(&str, Vec<Act>)> = Vec::new();
    for line in STEPS.lines() {
        if let Some(title) = line.strip_prefix("# ") {
            steps.push((title, Vec::new()));
            continue;
        }
        let Some((_, acts)) = steps.last_mut() else {
            continue;
        };
        if let Some(command) = line.strip_prefix("$ ") {
            acts.push(Act {
                command: command.to_owned(),
                input: String::new(),
                wanted: None,
            });
        } else if line == "apply" {
            acts.push(Act {
                command: "kubectl apply -f -".to_owned(),
                input: String::from("\n"),
                wanted: None,
            });
        } else if let Some(more) = line.strip_prefix("  ") {
            let act = acts.last_mut().expect("it belongs to a command");
            match (&mut act.wanted, act.input.is_empty()) {
                (_, false) => act.input.extend([more, "\n"]),
                (Some(wanted), true) => wanted.extend(["\n", more]),
                (wanted @ None, true) => *wanted = Some(more.to_owned()),
            }
        } else {
            assert!(
                line.is_empty(),
                "steps.txt: {line:?} is no step, command or text of one"
            );
        }
    }
    steps
}

/// Whether a text is as wanted, where `*` stands for anything.
fn is_like(text: &str, wanted: &str) -> bool {
    let mut pieces = wanted.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut pieces = pieces.peekable();
    if pieces.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some(at) = rest.find(piece) else {
            return false;
        };
        rest = &rest[at + piece.len()..];
    }
    true
}

/// Does it, and returns how it went wrong.
fn act(cluster: &Cluster, act: &Act) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let output = cluster.shell(&act.command, &act.input);
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        let Some(wanted) = &act.wanted else {
            let fails = || format!("$ {}\nfails:\n{text}", act.command);
            return output.status.success().then_some(()).ok_or_else(fails);
        };
        if is_like(&text, wanted) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(format!(
                "$ {}\nprints:\n{text}\nand never:\n{wanted}",
                act.command
            ));
        }
        thread::sleep(LOOK);
    }
}

/// A cluster in which the steps have been done.
struct Done {
    roles: BTreeMap<String, Value>,
    reports: BTreeMap<&'static str, BTreeSet<String>>,
    failures: Vec<String>,
}

fn run(mut cluster: Cluster, server: &str) -> Done {
    let roles = roles(&cluster);
    cluster.run_controller_manager();
    cluster.run_scheduler();
    let _nodes = start_nodes(&cluster);
    let mut failures = Vec::new();
    for (title, acts) in steps() {
        let began = Instant::now();
        let failed = acts.iter().find_map(|one| act(&cluster, one).err());
        eprintln!("{server}: {:.1} s: {title}", began.elapsed().as_secs_f64());
        if let Some(how) = failed {
            failures.push(format!("{server}: {title}: {how}"));
            break;
        }
    }
    let reports = PROGRAMS.map(|name| (name, reports(&cluster.said(name))));
    Done {
        roles,
        reports: reports.into(),
        failures,
    }
}

/// The errors and warnings of a log, without the time, and without the names that differ from run to run.
fn reports(log: &str) -> BTreeSet<String> {
    let told = |line: &&str| {
        let level = line.starts_with(['E', 'W']);
        level
            && line
                .get(1..5)
                .is_some_and(|date| date.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let lines = log.lines().filter(told);
    let is_race = |line: &str| {
        let mut races = RACES.iter();
        races.any(|parts| parts.iter().all(|part| line.contains(part)))
    };
    lines
        .filter(|line| !is_race(line))
        .map(without_names)
        .collect()
}

/// Returns the level, the place in the source and the message of a line, in which words with digits or slashes are only dots: pods, addresses, versions.
fn without_names(line: &str) -> String {
    let level = &line[..1];
    // Level and date, time and thread stand before the place.
    let rest = line.split_whitespace().skip(3);
    let words = rest.enumerate().map(|(at, word)| {
        let names = at > 0 && word.contains(|c: char| c.is_ascii_digit() || c == '/');
        if names { "..." } else { word }
    });
    [level]
        .into_iter()
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The roles and bindings that a cluster starts with, which are there when its API server is ready: all but what differs from cluster to cluster.
fn roles(cluster: &Cluster) -> BTreeMap<String, Value> {
    let kinds = "clusterroles,clusterrolebindings,roles,rolebindings";
    let ask = ["get", kinds, "-A", "-o", "json"];
    let list: Value = serde_json::from_str(&cluster.get(&ask)).expect("kubectl prints JSON");
    let items = list["items"].as_array().expect("a list");
    let of = |object: &Value| {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = [&object["kind"], &metadata["namespace"], &metadata["name"]].map(text);
        let rest = ["rules", "subjects", "roleRef", "aggregationRule"];
        let rest = rest.map(|field| object[field].clone());
        // The rules of a role that is filled from others are a sum of theirs.
        let rest = if object["aggregationRule"].is_null() {
            json!(rest)
        } else {
            json!(rest[3])
        };
        (
            name.join(" "),
            json!([metadata["labels"], metadata["annotations"], rest]),
        )
    };
    items.iter().map(of).collect()
}

#[test]
fn kubernetes_own_controllers_do_beside_our_api_server_what_they_do_beside_theirs() {
    let theirs = run(Cluster::start(), "kube-apiserver");
    let ours = run(Cluster::start_with_our_api_server(), "our API server");
    let mut failures = [theirs.failures, ours.failures].concat();
    for (name, role) in &theirs.roles {
        match ours.roles.get(name) {
            Some(same) if same == role => {}
            other => failures.push(format!(
                "{name} is\n{other:?}\nand beside kube-apiserver\n{role}"
            )),
        }
    }
    for name in PROGRAMS {
        for report in ours.reports[name].difference(&theirs.reports[name]) {
            failures.push(format!(
                "{name} reports beside our API server alone: {report}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
