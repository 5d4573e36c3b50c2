//! Determines which operating system a pod requests, by all fields that the scheduler and the kubelet understand.
//!
//! Placement from images is separate: it writes its result into the fields that this module reads.

use mullion_api::labels::{BETA_OS, OS, OS_LINUX, OS_WINDOWS, WINDOWS_BUILD};
use serde_json::Value;

use super::ClusterReader;

/// Returns whether a pod's spec allows only nodes of one operating system (`linux` or `windows`).
///
/// Any of these is enough: the node selector (the current label, the beta label or a Windows build), the
/// RuntimeClass's node selector, `spec.os.name`, a required node affinity whose terms all imply the system, and the
/// node to which the pod is bound.
pub fn is_required(spec: &Value, system: &str, cluster: &dyn ClusterReader) -> bool {
    selects(&spec["nodeSelector"], system)
        || spec["os"]["name"] == system
        || class_selects(spec, system, cluster)
        || affinity_requires(spec, system, cluster)
        || runs_on(spec["nodeName"].as_str(), system, cluster)
}

/// Returns whether a container of the pod is a HostProcess container. Then all of them are, and use the host
/// network.
pub fn is_host_process(spec: &Value) -> bool {
    let says_so = |owner: &Value| owner["securityContext"]["windowsOptions"]["hostProcess"] == true;
    let mut containers = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| items(&spec[list]));
    says_so(spec) || containers.any(says_so)
}

fn selects(selector: &Value, system: &str) -> bool {
    let by_name = [OS, BETA_OS].iter().any(|label| selector[label] == system);
    by_name || (system == OS_WINDOWS && selector[WINDOWS_BUILD].is_string())
}

/// Returns whether the RuntimeClass's node selector selects the system. kube-apiserver's RuntimeClass plugin has
/// already copied it into the pod, unless that plugin is disabled.
fn class_selects(spec: &Value, system: &str, cluster: &dyn ClusterReader) -> bool {
    let name = spec["runtimeClassName"].as_str().unwrap_or_default();
    if name.is_empty() {
        return false;
    }
    let class = cluster.find("node.k8s.io", "runtimeclasses", None, name);
    class.is_some_and(|class| selects(&class["scheduling"]["nodeSelector"], system))
}

fn affinity_requires(spec: &Value, system: &str, cluster: &dyn ClusterReader) -> bool {
    let node_affinity = &spec["affinity"]["nodeAffinity"];
    let required = &node_affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    // A term without requirements matches no node, so it does not count.
    let mut terms = items(&required["nodeSelectorTerms"])
        .iter()
        .filter(|term| !items(&term["matchExpressions"]).is_empty() || has_fields(term))
        .peekable();
    terms.peek().is_some() && terms.all(|term| term_requires(term, system, cluster))
}

fn has_fields(term: &Value) -> bool {
    !items(&term["matchFields"]).is_empty()
}

fn term_requires(term: &Value, system: &str, cluster: &dyn ClusterReader) -> bool {
    let mut expressions = items(&term["matchExpressions"]).iter();
    let mut fields = items(&term["matchFields"]).iter();
    expressions.any(|expression| implies(expression, system))
        || fields.any(|field| names_nodes(field, system, cluster))
}

/// Returns whether only nodes of the system can match the expression. Every kubelet sets the label of its system.
fn implies(expression: &Value, system: &str) -> bool {
    let key = expression["key"].as_str().unwrap_or_default();
    let operator = expression["operator"].as_str().unwrap_or_default();
    let values = items(&expression["values"]);
    match (key, operator) {
        (OS | BETA_OS, "In") => !values.is_empty() && values.iter().all(|value| value == system),
        (OS | BETA_OS, "NotIn") => values.iter().any(|value| value == other(system)),
        (WINDOWS_BUILD, "In" | "Exists") => system == OS_WINDOWS,
        _ => false,
    }
}

/// Returns whether a requirement on `metadata.name` allows only nodes of the system. The DaemonSet controller sets
/// such a requirement with one name.
fn names_nodes(field: &Value, system: &str, cluster: &dyn ClusterReader) -> bool {
    let names = items(&field["values"]);
    field["key"] == "metadata.name"
        && field["operator"] == "In"
        && !names.is_empty()
        && names
            .iter()
            .all(|name| runs_on(name.as_str(), system, cluster))
}

fn runs_on(node: Option<&str>, system: &str, cluster: &dyn ClusterReader) -> bool {
    let Some(name) = node.filter(|name| !name.is_empty()) else {
        return false;
    };
    let node = cluster.find("", "nodes", None, name);
    node.is_some_and(|node| node["metadata"]["labels"][OS] == system)
}

/// Returns the other one of the two operating systems on which kubelets run.
fn other(system: &str) -> &'static str {
    match system {
        OS_WINDOWS => OS_LINUX,
        _ => OS_WINDOWS,
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}
