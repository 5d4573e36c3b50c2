//! What scorers of resources ask about one resource of one node (kube-scheduler: `resourceAllocationScorer`).

use crate::class::Shape;
use crate::cluster::Node;
use crate::intern::Symbol;

/// One resource with the pod on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requested: i64,
    /// Never 0.
    pub(crate) allocatable: i64,
}

/// Which requests count for cpu and memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// As written.
    Real,
    /// With 100m and 200 MiB for containers that ask for nothing.
    Weighed,
}

/// The load of a resource with `pod` (or without: `None`) on a node. Left out is a resource that the node does not
/// have, and an extended one that the pod does not ask for.
pub(crate) fn load(
    pod: &Shape,
    with_pod: bool,
    node: &Node,
    resource: Symbol,
    requests: Requests,
) -> Option<Load> {
    let (own, real) = (&pod.requests, &pod.requests.real);
    let has = &node.fixed.allocatable;
    let (used, asked, allocatable) = match (resource, requests) {
        (Symbol::CPU, Requests::Real) => (node.used.cpu_milli, real.cpu_milli, has.cpu_milli),
        (Symbol::CPU, Requests::Weighed) => {
            (node.nonzero_cpu_milli, own.nonzero_cpu_milli, has.cpu_milli)
        }
        (Symbol::MEMORY, Requests::Real) => {
            (node.used.memory_bytes, real.memory_bytes, has.memory_bytes)
        }
        (Symbol::MEMORY, Requests::Weighed) => (
            node.nonzero_memory_bytes,
            own.nonzero_memory_bytes,
            has.memory_bytes,
        ),
        (Symbol::EPHEMERAL_STORAGE, _) => (
            node.used.ephemeral_bytes,
            real.ephemeral_bytes,
            has.ephemeral_bytes,
        ),
        (name, _) => match real.scalar(name) {
            0 => return None,
            asked => (node.used.scalar(name), asked, has.scalar(name)),
        },
    };
    let asked = if with_pod { asked } else { 0 };
    (allocatable != 0).then_some(Load {
        requested: used.wrapping_add(asked),
        allocatable,
    })
}
