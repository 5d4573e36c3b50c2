//! What scorers of resources ask about one resource of one node (kube-scheduler: `resourceAllocationScorer`).

use crate::class::{Requests as PodRequests, Shape};
use crate::cluster::{Node, NodeId, Question};
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

/// The devices that a node can use: where it lacks a resource that a class stands for, they count.
#[derive(Clone, Copy)]
pub(crate) struct Stock<'a> {
    question: &'a Question<'a>,
    node: NodeId,
}

impl<'a> Stock<'a> {
    /// None where no class stands for any of the pod's resources.
    pub(crate) fn of(question: &'a Question<'a>, node: NodeId) -> Option<Self> {
        let plan = question.devices?;
        (!plan.extended.is_empty()).then_some(Stock { question, node })
    }

    /// How many devices of the class that stands for a resource there are, and how many of them are taken.
    fn count(self, resource: Symbol) -> Option<(i64, i64)> {
        let class = self.question.devices?.extended.class_for(resource)?;
        let cluster = self.question.cluster;
        let (all, taken) = cluster.devices().stock(class, cluster.site(self.node));
        (all > 0).then_some((all, taken))
    }
}

/// The load of a resource with `pod` (or without: `None`) on a node. Left out is a resource that the node does not
/// have, and an extended one that the pod does not ask for.
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
            0 => return None,
            asked => {
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
