//! Writes the plan for a recorded case as a line of JSON.

use std::collections::{BTreeMap, BTreeSet};

use mullion_engine::{
    Cluster,
    provision::{Plan, PlannedNode},
};
use serde::Serialize;

/// The answer to a case.
#[derive(Serialize)]
pub(super) struct Answer<'a> {
    nodes: Vec<Node<'a>>,
    /// The names of the pods placed on each existing node, by the node's name.
    existing: BTreeMap<&'a str, Vec<&'a str>>,
    /// For each pod that has no place, the reason.
    unplaced: BTreeMap<&'a str, String>,
}

/// A node to buy. Each of its instance types is sold in at least one of the zones and capacity types, and each holds the node's pods.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node_pool: &'a str,
    /// The instance types, cheapest first.
    types: Vec<&'a str>,
    zones: BTreeSet<&'a str>,
    capacity_types: BTreeSet<&'a str>,
    pods: Vec<&'a str>,
}

/// Turns a plan into the answer. Pods are called by their names without a namespace, because a case has only one.
pub(super) fn of<'a>(plan: &'a Plan, cluster: &Cluster) -> Answer<'a> {
    let mut answer = Answer {
        nodes: plan.nodes.iter().map(node).collect(),
        existing: BTreeMap::new(),
        unplaced: BTreeMap::new(),
    };
    for (pod, node) in &plan.existing {
        answer.existing.entry(node).or_default().push(name(pod));
    }
    for pod in &plan.unplaceable {
        let invalid = pod.invalid.iter().map(ToString::to_string);
        let refused = pod.pools.iter().map(|refusal| {
            format!(
                "{}: {}",
                refusal.pool,
                cluster.pool_reason_text(&refusal.reason)
            )
        });
        let why: Vec<String> = invalid.chain(refused).collect();
        let why = if why.is_empty() {
            "there are no pools".to_owned()
        } else {
            why.join("; ")
        };
        answer.unplaced.insert(name(&pod.pod), why);
    }
    answer
}

fn node(planned: &PlannedNode) -> Node<'_> {
    let offerings = || planned.options.iter().flat_map(|option| &option.offerings);
    Node {
        node_pool: &planned.pool,
        types: planned
            .options
            .iter()
            .map(|option| option.name.as_str())
            .collect(),
        zones: offerings().map(|offering| offering.0.as_str()).collect(),
        capacity_types: offerings().map(|offering| offering.1.as_str()).collect(),
        pods: planned.pods.iter().map(|pod| name(pod)).collect(),
    }
}

fn name(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, name)| name)
}
