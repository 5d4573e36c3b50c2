//! Reads the facts about nodes and pods that concern addresses.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use mullion_api::labels::{self, PRIVATE_IPV4};
use mullion_engine::ip::{Cidr, PodUid};

use crate::{
    Key,
    ipam::{events::reference, node_state::AddressedPod},
    pods,
};

/// Returns whether a node runs Windows.
pub(super) fn is_windows(node: &Node) -> bool {
    node.labels()
        .get(labels::OS)
        .is_some_and(|os| os == labels::OS_WINDOWS)
}

/// Returns whether a node is ready.
pub(super) fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the number of addresses in the node's capacity.
pub(super) fn capacity(node: &Node) -> Option<u64> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    capacity.get(PRIVATE_IPV4)?.0.parse().ok()
}

pub(super) fn uid_of(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::from)
}

/// Returns whether a pod needs or has an address. Like VRC, it checks only the requests of the ordinary containers.
pub(super) fn is_concerned(pod: &Pod) -> bool {
    if pods::node_name(pod).is_empty() {
        return false;
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut requests =
        containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    requests.any(|requests| requests.contains_key(PRIVATE_IPV4))
        || pod.annotations().contains_key(PRIVATE_IPV4)
}

/// Returns whether a pod waits for an address.
pub(super) fn waits(pod: &Pod) -> bool {
    let needs = !pods::is_finished(pod) && member(pod).is_some();
    needs && !pod.annotations().contains_key(PRIVATE_IPV4)
}

/// Returns a pod as a member of its node, with the address in its annotation; `None` if it needs none.
pub(super) fn member(pod: &Pod) -> Option<(PodUid, AddressedPod, Option<Cidr>)> {
    if !is_concerned(pod) {
        return None;
    }
    let annotation = match pod.annotations().get(PRIVATE_IPV4) {
        // An annotation that is no address was written by somebody else; the pod is left alone.
        Some(text) => Some(text.parse().ok()?),
        // A pod that is being deleted starts no more containers.
        None if pods::is_deleting(pod) => return None,
        None => None,
    };
    Some((
        uid_of(pod)?,
        AddressedPod::new(Key::of(pod), reference(pod)),
        annotation,
    ))
}
