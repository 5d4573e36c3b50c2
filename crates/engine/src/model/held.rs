//! The requests that count for a running pod while it is resized in place.

use super::{Quantity, ResourceMap};

/// Raises the requests of a running container to the maximum of the spec, the amounts it has and the amounts it was promised (`held`). If
/// the resize is `infeasible` on the node, the amounts of the spec do not count (kube-scheduler: `PodRequests` of component-helpers with the
/// status).
pub fn hold<'a>(
    requests: &mut ResourceMap,
    infeasible: bool,
    held: impl IntoIterator<Item = &'a ResourceMap>,
) {
    if infeasible {
        // The kubelet will never give what the spec asks for, so only what the container has counts.
        requests.clear();
    }
    for (name, amount) in held.into_iter().flatten() {
        match requests.get_mut(name) {
            Some(most) => *most = Quantity::max(*most, *amount),
            None => {
                requests.insert(name.clone(), *amount);
            }
        }
    }
}

/// The type of the condition about a pending resize, and its reason if the node can never satisfy the resize.
pub const RESIZE_PENDING: (&str, &str) = ("PodResizePending", "Infeasible");

/// Raises the pod-level requests of a running pod as [`hold`] does for a container. Only resources with a pod-level request in the spec
/// count, and overhead is added to the amounts of the status (kube-scheduler: `PodRequests` of component-helpers). A status without
/// `resources` has no amounts, so callers pass `held` only from a status that has them.
pub fn hold_pod_level<'a>(
    requests: &mut ResourceMap,
    infeasible: bool,
    held: impl IntoIterator<Item = &'a ResourceMap>,
) {
    if infeasible {
        requests
            .values_mut()
            // Set to zero and not removed: which resources have a pod-level request is what the spec says.
            .for_each(|own| *own = Quantity::default());
    }
    for (name, amount) in held.into_iter().flatten() {
        if let Some(most) = requests.get_mut(name) {
            *most = Quantity::max(*most, *amount);
        }
    }
}
