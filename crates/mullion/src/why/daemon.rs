//! A DaemonSet's pods: one on every node that its controller finds it is meant for, tied there by node affinity.

use mullion_engine::{
    Plugin,
    model::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, PodSpec,
    },
};
use serde::Serialize;

use super::answer::Record;

/// Nodes that do not let a pod in are asked one by one whether it makes room for itself there, up to so many.
const MOST_ASKED: usize = 100;

/// Refusals for which the controller makes no pod: by labels and names, and by taints.
const NOT_MEANT: [Plugin; 4] = [
    Plugin::NodeName,
    Plugin::NodeAffinity,
    Plugin::PreFilter,
    Plugin::TaintToleration,
];

/// Where the pods of a DaemonSet go.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Daemon {
    pub(crate) runs_on: Vec<String>,
    /// Nodes on which its pod evicts others.
    pub(super) makes_room_on: Vec<String>,
    /// Nodes for which a pod is made that they do not let in.
    pub(crate) waits_on: Vec<String>,
    /// How many of them, the last, were not asked whether it makes room for itself there.
    #[serde(skip_serializing_if = "is_none")]
    pub(super) unasked: usize,
    /// How many nodes it is not meant for.
    pub(crate) left_out: usize,
}

impl Daemon {
    /// By what each node says of a pod that any of them could take.
    pub(crate) fn of(answer: &Record) -> Self {
        let mut daemon = Daemon::default();
        for node in &answer.nodes {
            let not_meant = NOT_MEANT.map(Plugin::name);
            match node.plugin {
                None => daemon.runs_on.push(node.name.clone()),
                Some(plugin) if not_meant.contains(&plugin) => daemon.left_out += 1,
                Some(_) => daemon.waits_on.push(node.name.clone()),
            }
        }
        daemon
    }

    /// The nodes that are to be asked whether it makes room for itself there.
    pub(super) fn ask_some(&mut self) -> Vec<String> {
        self.unasked = self.waits_on.len().saturating_sub(MOST_ASKED);
        let nodes = self.waits_on.iter().take(MOST_ASKED);
        nodes.cloned().collect()
    }

    pub(super) fn make_room(&mut self, node: &str) {
        self.waits_on.retain(|own| own != node);
        self.makes_room_on.push(node.to_owned());
    }
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// The pod that is made for a node.
pub(crate) fn on(pod: &PodSpec, node: &str) -> PodSpec {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: Operator::In,
        values: vec![node.to_owned()],
    };
    let term = NodeSelectorTerm {
        match_fields: vec![by_name],
        ..NodeSelectorTerm::default()
    };
    let mut own = pod.clone();
    let affinity = &mut own.template.affinity.node_affinity;
    let affinity: &mut NodeAffinity = affinity.get_or_insert_default();
    affinity.required = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
    own
}
