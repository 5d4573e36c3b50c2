//! The memory of simulated Windows nodes. Windows ends no container that uses too much: beyond its limit a
//! container's allocations fail, and when all containers use more than the node has, the node pages and everything
//! slows down (Kubernetes: concepts/configuration/windows-resource-management).
//!
//! The amount that a container uses comes from [`super::usage`], but only from the pod's own annotation.

use k8s_openapi::api::core::v1::{Container, Pod};
use mullion_engine::model::Quantity;

use super::{annotations, usage};

/// Returns the bytes that a container needs by the pod's annotation, whatever its limit.
pub(super) fn needed(pod: &Pod, container: &Container, is_app: bool) -> Option<i64> {
    let annotations = pod.metadata.annotations.as_ref();
    let plan = annotations::usage(annotations, &container.name, is_app)?;
    Some(plan.memory?.quantity.value())
}

/// Returns a container's limit in bytes.
pub(super) fn limit(container: &Container) -> Option<i64> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    let limit: Quantity = limits.get("memory")?.0.parse().ok()?;
    Some(limit.value())
}

/// Returns the bytes that a running container uses.
pub(super) fn used(pod: &Pod, container: &Container, is_app: bool) -> i64 {
    let needed = needed(pod, container, is_app).unwrap_or_else(|| usage::usual_memory(container));
    // A job object keeps a Windows container at its limit: further allocations fail instead of using memory.
    limit(container).map_or(needed, |limit| needed.min(limit))
}
