//! Clients other than kubectl, as their users run them: helm, the Python and Node.js libraries, and kube-rs.
//!
//! `tests/clients` holds their scripts and charts, and `install`, which has their versions and puts them below the target directory.

mod aws;
mod charts;
mod helm;
mod kube_rs;
mod scripts;

use std::{
    path::PathBuf,
    process::{Command, Output},
    time::Duration,
};

use crate::{
    cluster::{Cluster, text},
    installed::clients::{installed, sources},
    process,
};

/// The kubectls among the clients.
pub(crate) fn kubectls() -> Vec<PathBuf> {
    let folder = installed().join("bin");
    let programs = folder.read_dir().expect("the installer made it");
    let mut found: Vec<_> = programs
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.to_string_lossy().contains("/kubectl-"))
        .collect();
    found.sort();
    found
}

/// Runs a client against a cluster; fails the test, with all that was said, when the client fails or has not ended within `patience`.
pub(super) fn drive(cluster: &Cluster, patience: Duration, command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = ended(cluster, patience, command);
    assert!(
        output.status.success(),
        "{shown}: {}\n{}{}\n--- the cluster's log\n{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr),
        cluster.stderr()
    );
    text(&output.stdout)
}

/// What a client said until it ended, by itself or because it took longer than `patience`.
pub(super) fn ended(cluster: &Cluster, patience: Duration, command: &mut Command) -> Output {
    command
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("HOME", cluster.home());
    process::ended(command, "", patience)
}
