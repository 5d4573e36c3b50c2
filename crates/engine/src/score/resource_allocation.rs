//! The amounts of one resource on one node that the scorers about resources read (kube-scheduler:
//! `resourceAllocationScorer`).

use crate::class::{Requests as PodRequests, Shape};
use crate::cluster::{Node, NodeId, Question};
use crate::intern::Symbol;

/// The requested and allocatable amounts of a resource, counting the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) requested: i64,
    /// The allocatable amount, never 0.
    pub(crate) allocatable: i64,
}

/// Which requests for cpu and memory count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requests {
    /// The requests as written.
    Real,
    /// Containers without requests count as 100m and 200 MiB.
    Weighed,
}

/// The devices that a node can use. They count for a resource that the node lacks and a DeviceClass stands for.
#[derive(Clone, Copy)]
pub(crate) struct Stock<'a> {
    question: &'a Question<'a>,
    node: NodeId,
}

impl<'a> Stock<'a> {
    /// Returns the stock of a node; `None` if no DeviceClass stands for a resource of the pod.
    pub(crate) fn of(question: &'a Question<'a>, node: NodeId) -> Option<Self> {
        let plan = question.devices?;
        (!plan.extended.is_empty()).then_some(Stock { question, node })
    }

    /// Returns the number of devices of the class that stands for a resource, and how many of them are allocated.
    fn count(self, resource: Symbol) -> Option<(i64, i64)> {
        let class = self.question.devices?.extended.class_for(resource)?;
        let cluster = self.question.cluster;
        let (all, taken) = cluster.devices().stock(class, cluster.site(self.node));
        (all > 0).then_some((all, taken))
    }
}

/// Returns the load of a resource on a node, with the pod if `with_pod`. `None` for a resource that the node does not
/// have, and for an extended resource that the pod does not request.
pub(crate) fn load(
    pod: &Shape,
    with_pod: bool,
    node: &Node,
    resource: Symbol,
    requests: Requests,
    stock: Option<Stock<'_>>,
) -> Option<Load> {
    let (own, real) = (&pod.requests, &pod.requests.real);
    let has = &node.fixed.allocatable;
    let (used, asked, allocatable) = match (resource, requests) {
        (Symbol::CPU, Requests::Real) => (node.used.cpu_milli, real.cpu_milli, has.cpu_milli),
        (Symbol::CPU, Requests::Weighed) => {
            (node.nonzero_cpu_milli, own.own_cpu_milli, has.cpu_milli)
        }
        (Symbol::MEMORY, Requests::Real) => {
            (node.used.memory_bytes, real.memory_bytes, has.memory_bytes)
        }
        (Symbol::MEMORY, Requests::Weighed) => (
            node.nonzero_memory_bytes,
            own.own_memory_bytes,
            has.memory_bytes,
        ),
        (Symbol::EPHEMERAL_STORAGE, _) => (
            node.used.ephemeral_bytes,
            real.ephemeral_bytes,
            has.ephemeral_bytes,
        ),
        (name, requests) => match scalar(own, name, requests) {
            // kube-scheduler's `calculateResourceAllocatableRequest`: other extended resources must not decide about
            // pods that do not use them.
            0 => return None,
            asked => {
                // A resource that the node offers itself is counted as such, even if a DeviceClass stands for it too.
                let counted = stock.filter(|_| has.scalar(name) == 0);
                match counted.and_then(|stock| stock.count(name)) {
                    Some((all, taken)) => (taken, asked, all),
                    None => (node.used.scalar(name), asked, has.scalar(name)),
                }
            }
        },
    };
    let asked = if with_pod { asked } else { 0 };
    (allocatable != 0).then_some(Load {
        requested: used.wrapping_add(asked),
        allocatable,
    })
}

fn scalar(pod: &PodRequests, name: Symbol, requests: Requests) -> i64 {
    match requests {
        Requests::Real => pod.real.scalar(name),
        Requests::Weighed => pod.own_scalar(name),
    }
}
