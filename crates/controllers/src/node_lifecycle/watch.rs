//! The inputs of the node lifecycle loop.

use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{Node, Pod, Toleration},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::ResourceExt;
use tokio::sync::mpsc;

use crate::{Change, Context, kubelet::node::LEASE_NAMESPACE, pods};

/// An input of the loop.
#[derive(Debug)]
pub(super) enum Input {
    Node(Arc<Node>),
    NodeGone(Arc<Node>),
    Lease(String, Option<MicroTime>),
    Pod(Arc<Pod>),
    PodGone(Arc<Pod>),
    /// A write to this node has finished.
    Written(String),
}

/// Reports changes of nodes, their leases and pods. Only pods on a node are reported, and only changes that
/// eviction depends on.
pub(super) fn start(context: &Context, inputs: &mpsc::UnboundedSender<Input>) {
    // A send fails only when the process stops.
    let tx = inputs.clone();
    context.informers.nodes.on_change(move |change| {
        let node = Arc::clone(change.object());
        let _ = tx.send(if change.is_deleted() {
            Input::NodeGone(node)
        } else {
            Input::Node(node)
        });
    });
    let tx = inputs.clone();
    context.informers.pods.on_change(move |change| {
        let pod = change.object();
        if pods::node_name(pod).is_empty() {
            return;
        }
        let input = match change {
            Change::Deleted(_) => Input::PodGone(Arc::clone(pod)),
            Change::Updated { old, new }
                if pods::node_name(old) == pods::node_name(new)
                    && tolerations(old) == tolerations(new) =>
            {
                // Status updates are most of a pod's changes, and evictions do not depend on them.
                return;
            }
            _ => Input::Pod(Arc::clone(pod)),
        };
        let _ = tx.send(input);
    });
    let tx = inputs.clone();
    context.informers.leases.on_change(move |change| {
        let lease = change.object();
        let is_of_a_node = lease.metadata.namespace.as_deref() == Some(LEASE_NAMESPACE);
        if is_of_a_node && !change.is_deleted() {
            let renewal = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let _ = tx.send(Input::Lease(lease.name_any(), renewal));
        }
    });
}

fn tolerations(pod: &Pod) -> &[Toleration] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}
