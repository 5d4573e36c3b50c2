//! The inputs that the driver receives from the informers.
//!
//! Invariant: an update that is only the echo of the kubelet's own write is marked as such, so that a pod is
//! stepped only for changes by other clients.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use tokio::sync::mpsc;

use crate::{
    Change, Context,
    kubelet::{config::FoundObjects, pod::LookupPurpose},
};

#[derive(Debug)]
pub(super) enum Input {
    Pod(Arc<Pod>),
    /// An update by the kubelet's own write.
    Echo(Arc<Pod>),
    PodGone(Arc<Pod>),
    /// The answer to a pod's question.
    Answer {
        pod: Arc<Pod>,
        purpose: LookupPurpose,
        found: FoundObjects,
    },
    Node(Arc<Node>),
    NodeGone(String),
}

pub(super) fn watch_pods(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.pods.on_change(move |change| {
        let pod = change.object();
        if node_of(pod).is_empty() {
            return;
        }
        let input = match change {
            Change::Deleted(_) => Input::PodGone(Arc::clone(pod)),
            Change::Updated { old, new } if !concerns_kubelet(old, new) => {
                Input::Echo(Arc::clone(pod))
            }
            Change::Added(_) | Change::Updated { .. } => Input::Pod(Arc::clone(pod)),
        };
        // The channel is closed only when the process stops.
        let _ = inputs.send(input);
    });
}

pub(super) fn watch_nodes(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.nodes.on_change(move |change| {
        let input = match change {
            Change::Deleted(node) => {
                Input::NodeGone(node.metadata.name.clone().unwrap_or_default())
            }
            Change::Added(node) | Change::Updated { new: node, .. } => {
                Input::Node(Arc::clone(node))
            }
        };
        let _ = inputs.send(input);
    });
}

/// Returns whether an update is more than the echo of the kubelet's own status write.
fn concerns_kubelet(old: &Pod, new: &Pod) -> bool {
    let gated = new.spec.as_ref().is_some_and(|spec| {
        spec.readiness_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    });
    // Conditions of readiness gates are written by others into the status, where no generation shows it.
    gated
        || old.metadata.generation != new.metadata.generation
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.generation.is_none()
        || node_of(old) != node_of(new)
}

/// Returns the node to which a pod is bound, or an empty string.
pub(super) fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}
