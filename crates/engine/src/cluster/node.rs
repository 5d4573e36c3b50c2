//! A node in the model: what was told about it ([`NodeFixed`]) and what its pods make of it.
//!
//! Invariant: the sums are those of `pods`, always.

use crate::class::{HostPort, NodeClassId, NodeTaint, PodClass, PodClassId};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::resources::Amounts;
use crate::topology::Spot;

use super::PodId;

/// A node of a [`super::Cluster`]. An id is used again once its node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What was told about a node, compiled. In the order of memory what placing a pod reads comes last, next to what it
/// changes ([`Node`]): in large clusters it is the cache lines that take the time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct NodeFixed {
    pub(crate) taints: Box<[NodeTaint]>,
    pub(crate) unschedulable: bool,
    pub(crate) id: NodeId,
    /// All labels, the hostname too.
    pub(crate) labels: LabelSet,
    pub(crate) name: Symbol,
    pub(crate) class: NodeClassId,
    /// Image names with sizes, sorted by symbol.
    pub(crate) images: Vec<(Symbol, i64)>,
    pub(crate) allocatable: Amounts,
}

impl NodeFixed {
    pub(crate) fn spot(&self) -> Spot<'_> {
        Spot {
            id: self.id,
            name: self.name,
            labels: &self.labels,
            taints: &self.taints,
        }
    }

    /// Whether views would count it differently.
    pub(super) fn differs_in_place(&self, other: &NodeFixed) -> bool {
        self.labels != other.labels || self.taints != other.taints || self.name != other.name
    }
}

/// Who holds an image. The size is that of its first holder, as upstream keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageHolders {
    pub(crate) size_bytes: i64,
    pub(crate) nodes: u32,
}

/// How many pods of a class a node holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassCount {
    pub(crate) class: PodClassId,
    pub(crate) running: u32,
    pub(crate) terminating: u32,
}

/// A node with its load.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Node {
    pub(crate) fixed: NodeFixed,
    /// Real requests of its pods, and their number.
    pub(crate) used: Amounts,
    pub(crate) nonzero_cpu_milli: i64,
    pub(crate) nonzero_memory_bytes: i64,
    pub(crate) pods: Vec<PodId>,
    pub(crate) classes: Vec<ClassCount>,
    pub(crate) ports: Vec<(HostPort, u32)>,
}

impl Node {
    pub(super) fn new(fixed: NodeFixed) -> Self {
        Node {
            fixed,
            used: Amounts::default(),
            nonzero_cpu_milli: 0,
            nonzero_memory_bytes: 0,
            pods: Vec::new(),
            classes: Vec::new(),
            ports: Vec::new(),
        }
    }

    /// Counts a pod of a class in.
    pub(super) fn take(&mut self, id: PodClassId, class: &PodClass, terminating: bool) {
        self.used.add(&class.shape.requests.real);
        self.used.pods += 1;
        self.nonzero_cpu_milli = self
            .nonzero_cpu_milli
            .wrapping_add(class.shape.requests.nonzero_cpu_milli);
        self.nonzero_memory_bytes = self
            .nonzero_memory_bytes
            .wrapping_add(class.shape.requests.nonzero_memory_bytes);
        let index = self
            .classes
            .iter()
            .position(|count| count.class == id)
            .unwrap_or_else(|| {
                self.classes.push(ClassCount {
                    class: id,
                    running: 0,
                    terminating: 0,
                });
                self.classes.len() - 1
            });
        let count = &mut self.classes[index];
        *if terminating {
            &mut count.terminating
        } else {
            &mut count.running
        } += 1;
        for port in &class.shape.host_ports {
            match self.ports.iter_mut().find(|(held, _)| held == port) {
                Some((_, holders)) => *holders += 1,
                None => self.ports.push((*port, 1)),
            }
        }
    }

    /// Counts a pod of a class out.
    pub(super) fn release(&mut self, id: PodClassId, class: &PodClass, terminating: bool) {
        self.used.subtract(&class.shape.requests.real);
        self.used.pods -= 1;
        self.used.scalars.retain(|scalar| scalar.1 != 0);
        self.nonzero_cpu_milli = self
            .nonzero_cpu_milli
            .wrapping_sub(class.shape.requests.nonzero_cpu_milli);
        self.nonzero_memory_bytes = self
            .nonzero_memory_bytes
            .wrapping_sub(class.shape.requests.nonzero_memory_bytes);
        if let Some(count) = self.classes.iter_mut().find(|count| count.class == id) {
            *if terminating {
                &mut count.terminating
            } else {
                &mut count.running
            } -= 1;
        }
        self.classes
            .retain(|count| count.running + count.terminating > 0);
        for port in &class.shape.host_ports {
            if let Some((_, holders)) = self.ports.iter_mut().find(|(held, _)| held == port) {
                *holders -= 1;
            }
        }
        self.ports.retain(|(_, holders)| *holders > 0);
    }
}
