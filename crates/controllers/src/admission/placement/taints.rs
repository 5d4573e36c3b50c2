//! Determines the taints that Windows pods have to tolerate: those of every Windows node and pool, and of no Linux
//! one.
//!
//! A taint of only some Windows nodes deliberately keeps pods away from them, so it is not tolerated.

use std::{collections::BTreeSet, sync::Arc};

use mullion_api::labels::{OS, OS_LINUX, OS_WINDOWS};
use serde_json::Value;

use super::{Taint, items, usual_taint};
use crate::admission::ClusterReader;

/// Prefixes of the keys of taints that change with the state of a node.
const TRANSIENT: [&str; 3] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "karpenter.sh/",
];

/// Returns the taints that all Windows nodes and NodePools of the cluster have and no Linux one has, or the usual
/// taint if there are no Windows nodes and NodePools.
pub fn common(cluster: &dyn ClusterReader) -> Vec<Taint> {
    let (mut windows, mut linux): (Vec<BTreeSet<Taint>>, Vec<_>) = (Vec::new(), Vec::new());
    let mut sort = |is_windows: bool, taints: &Value| {
        if is_windows {
            windows.push(lasting(taints))
        } else {
            linux.push(lasting(taints))
        }
    };
    for node in cluster.list("", "nodes", None) {
        sort(
            node["metadata"]["labels"][OS] == OS_WINDOWS,
            &node["spec"]["taints"],
        );
    }
    for pool in cluster.list("karpenter.sh", "nodepools", None) {
        if let Some(is_windows) = is_windows_pool(&pool, cluster) {
            sort(is_windows, &pool["spec"]["template"]["spec"]["taints"]);
        }
    }
    let common = windows
        .into_iter()
        .reduce(|one, another| one.intersection(&another).cloned().collect());
    let Some(mut common) = common else {
        return vec![usual_taint()];
    };
    // A taint that Linux nodes have too is not about Windows, and tolerating it would undo what it is for.
    common.retain(|taint| !linux.iter().any(|taints| taints.contains(taint)));
    common.into_iter().collect()
}

fn lasting(taints: &Value) -> BTreeSet<Taint> {
    let taints = items(taints).iter().map(|taint| {
        let text = |field: &str| taint[field].as_str().unwrap_or_default().to_owned();
        Taint {
            key: text("key"),
            value: text("value"),
            effect: text("effect"),
        }
    });
    let is_lasting = |taint: &Taint| {
        let transient = TRANSIENT.iter().any(|start| taint.key.starts_with(start));
        // PreferNoSchedule keeps no pod away, so nothing has to tolerate it.
        !transient && matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute")
    };
    taints.filter(is_lasting).collect()
}

/// Returns whether a NodePool buys Windows nodes, by its requirements or else by its EC2NodeClass; `None` if
/// neither decides it.
fn is_windows_pool(pool: &Value, cluster: &dyn ClusterReader) -> Option<bool> {
    let spec = &pool["spec"]["template"]["spec"];
    let requirements = items(&spec["requirements"]).iter();
    let about_system = requirements.filter(|own| own["key"] == OS);
    let admits = |system: &str| {
        about_system.clone().all(|own| {
            let is_listed = items(&own["values"]).iter().any(|value| value == system);
            match own["operator"].as_str() {
                Some("In") => is_listed,
                Some("NotIn") => !is_listed,
                _ => true,
            }
        })
    };
    match (admits(OS_LINUX), admits(OS_WINDOWS)) {
        (true, false) => Some(false),
        (false, true) => Some(true),
        _ => {
            let name = spec["nodeClassRef"]["name"].as_str()?;
            let class = cluster.find("karpenter.k8s.aws", "ec2nodeclasses", None, name)?;
            Some(is_windows_class(&class))
        }
    }
}

fn is_windows_class(class: &Arc<Value>) -> bool {
    let spec = &class["spec"];
    let aliases = items(&spec["amiSelectorTerms"])
        .iter()
        .map(|term| &term["alias"]);
    let mut names = aliases
        .chain([&spec["amiFamily"]])
        .filter_map(Value::as_str);
    names.any(|name| name.to_ascii_lowercase().starts_with(OS_WINDOWS))
}
