//! Determines where a DaemonSet's pods go: its controller makes a pod for each eligible node and ties it to that node by node affinity.

use mullion_engine::{
    Plugin,
    model::{
        NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, PodSpec,
    },
};
use serde::Serialize;

use super::answer::Record;

/// The largest number of refusing nodes that are asked one by one whether the pod can make room there by preemption.
const MOST_ASKED: usize = 100;

/// The field of nodes by which the controller ties a pod to its node.
const NAME: &str = "metadata.name";

/// The plugins whose refusals mean that the DaemonSet controller makes no pod for the node: they check node names, labels and taints.
const NOT_MEANT: [Plugin; 4] = [
    Plugin::NodeName,
    Plugin::NodeAffinity,
    Plugin::PreFilter,
    Plugin::TaintToleration,
];

/// The nodes by what happens to the DaemonSet's pod on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Daemon {
    pub(crate) runs_on: Vec<String>,
    /// Nodes on which the DaemonSet's pod preempts other pods.
    pub(super) makes_room_on: Vec<String>,
    /// Nodes for which a pod is made, but on which it does not fit.
    pub(crate) waits_on: Vec<String>,
    /// The number of nodes at the end of `waits_on` for which preemption was not tried.
    #[serde(skip_serializing_if = "is_none")]
    pub(super) unasked: usize,
    /// The number of nodes that are not eligible.
    pub(crate) left_out: usize,
}

impl Daemon {
    /// Sorts the nodes by the scheduler's answer about a pod that is not tied to any node.
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

    /// Returns the nodes for which preemption is to be tried, at most [`MOST_ASKED`], and counts the others.
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

/// Returns the node that a pod of a DaemonSet was made for; `None` for other pods, and for one that its controller has not tied to a node.
pub(super) fn node_of(pod: &PodSpec) -> Option<&str> {
    let owner = pod.template.owner.as_ref()?;
    let affinity = pod.template.affinity.node_affinity.as_ref()?;
    let terms = &affinity.required.as_ref()?.node_selector_terms;
    let mut fields = terms.iter().flat_map(|term| &term.match_fields);
    let by_name = fields.find(|field| field.key == NAME && field.operator == Operator::In)?;
    match by_name.values.as_slice() {
        [node] if owner.kind == "DaemonSet" => Some(node),
        _ => None,
    }
}

/// Returns the DaemonSet's pod for a node, tied to it by node affinity.
pub(crate) fn on(pod: &PodSpec, node: &str) -> PodSpec {
    let by_name = NodeSelectorRequirement {
        key: NAME.to_owned(),
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
