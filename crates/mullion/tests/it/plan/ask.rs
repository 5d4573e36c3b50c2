//! Runs `mullion plan` for the tests of its questions.

use std::{path::Path, process::Command};

use serde_json::Value;

use crate::{
    cluster::{PATIENCE, text},
    process::ended,
};

pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// The root of the repository: commands of the documentation are run there.
pub(super) fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs `mullion plan` with this on stdin.
pub(super) fn plan(args: &[&str], stdin: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mullion"));
    command.arg("plan").args(args).current_dir(root());
    let output = ended(&mut command, stdin, PATIENCE);
    Ended {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// The same for files of the documentation and the pools of `mullion up`, with no cluster.
pub(super) fn offline(args: &[&str], files: &[&str]) -> Ended {
    let mut all = vec!["--offline", "--default-pools"];
    for file in files {
        all.extend(["-f", file]);
    }
    plan(&[&all[..], args].concat(), "")
}

pub(super) const SHOP: &str = "docs/plan/shop.yaml";
pub(super) const CLUSTER: &str = "docs/plan/cluster.yaml";

pub(super) fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).expect("one object")
}

/// A pool of the node class of `mullion up`'s Linux pool.
pub(super) const POOL: &str = "{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: NAME}, spec: {FIELD, template: {spec: {
    nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: linux}, requirements: []}}}}";
