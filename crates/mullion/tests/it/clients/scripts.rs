//! The libraries of Python and Node.js: their own test runners run the scripts, each against a cluster of its own.

use std::{process::Command, time::Duration};

use super::{drive, installed, sources};
use crate::cluster::Cluster;

/// The scripts give up by themselves before.
const PATIENCE: Duration = Duration::from_secs(240);

fn python(script: &str) {
    let clients = installed();
    let cluster = Cluster::start(&["--speed", "max"]);
    let mut command = Command::new("python3");
    command
        .arg(sources().join("python").join(script))
        .env("PYTHONPATH", clients.join("python"))
        // The compiled scripts would lie beside them.
        .env("PYTHONPYCACHEPREFIX", clients.join("pycache"));
    drive(&cluster, PATIENCE, &mut command);
}

#[test]
fn the_official_python_client_works() {
    python("typed.py");
}

#[test]
fn the_dynamic_and_asynchronous_python_clients_work() {
    python("untyped.py");
}

#[test]
fn kr8s_works() {
    python("kr8s_session.py");
}

#[test]
fn the_official_node_client_works() {
    let clients = installed().join("node");
    let cluster = Cluster::start(&["--speed", "max"]);
    // Node.js looks for packages beside a script.
    std::fs::copy(
        sources().join("node/session.mjs"),
        clients.join("session.mjs"),
    )
    .expect("the script can be copied");
    let mut command = Command::new("node");
    command
        .args(["--test", "--test-reporter=spec", "session.mjs"])
        .current_dir(&clients);
    drive(&cluster, PATIENCE, &mut command);
}
