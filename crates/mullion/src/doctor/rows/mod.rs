//! Defines the checks as functions of a snapshot, one file for each group of the table.

pub(super) mod access;
pub(super) mod network;
pub(super) mod nodes;
pub(super) mod pods;
pub(super) mod pools;
pub(super) mod reach;
pub(super) mod switches;
pub(super) mod system;
pub(super) mod without_address;
pub(super) mod workloads;

use mullion_api::labels;
use serde_json::Value;

use super::snapshot::{Snapshot, Unknown};
use crate::input::list;

/// Returns whether a node runs Windows.
pub(super) fn is_windows(node: &Value) -> bool {
    node["metadata"]["labels"][labels::OS] == labels::OS_WINDOWS
}

/// Returns whether a node's kubelet reports that it is ready.
pub(super) fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|own| own["type"] == "Ready" && own["status"] == "True")
}

/// Returns the Windows nodes, or the Linux nodes.
fn nodes(snapshot: &Snapshot, windows: bool) -> Result<Vec<&Value>, Unknown> {
    let nodes = snapshot.all("Node")?.iter();
    Ok(nodes.filter(|node| is_windows(node) == windows).collect())
}

/// Returns whether the cluster was started by `mullion up`, with simulated nodes.
pub(super) fn is_simulated(snapshot: &Snapshot) -> bool {
    snapshot
        .all("SimulatedAccount")
        .is_ok_and(|accounts| !accounts.is_empty())
}

/// Returns a node's instance type.
fn instance_type(node: &Value) -> &str {
    node["metadata"]["labels"][labels::INSTANCE_TYPE]
        .as_str()
        .unwrap_or_default()
}

/// Returns whether a label selector (`metav1.LabelSelector`) matches labels; an empty one matches all.
fn selects(selector: &Value, labels: &Value) -> bool {
    let mut exact = selector["matchLabels"].as_object().into_iter().flatten();
    let has = |(key, value): (&String, &Value)| labels[key.as_str()] == *value;
    let meets = |own: &Value| {
        let label = &labels[own["key"].as_str().unwrap_or_default()];
        let is_named = list(&own["values"]).any(|value| value == label);
        match own["operator"].as_str() {
            Some("In") => is_named,
            Some("NotIn") => !is_named,
            Some("Exists") => !label.is_null(),
            Some("DoesNotExist") => label.is_null(),
            _ => false,
        }
    };
    exact.all(has) && list(&selector["matchExpressions"]).all(meets)
}
