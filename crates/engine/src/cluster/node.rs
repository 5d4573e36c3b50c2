//! A node in the model: its own properties ([`NodeFixed`]) and the load that its pods cause.
//!
//! Invariant: the sums always equal those over `pods`.

use smallvec::SmallVec;

use crate::class::{HostPort, NodeClassId, NodeTaint, PodClass, PodClassId};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::resources::Amounts;
use crate::topology::ViewedNode;

use super::PodId;

/// The id of a node in a [`super::Cluster`]. Once a node is removed, a new node may get its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    pub(crate) fn at(index: usize) -> Self {
        NodeId(index as u32)
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The compiled properties of a node. The fields that placing a pod reads come last in memory, next to the fields of
/// [`Node`] that it changes: in large clusters the time goes into loading cache lines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct NodeFixed {
    pub(crate) taints: Box<[NodeTaint]>,
    /// All labels, including the hostname.
    pub(crate) labels: LabelSet,
    /// The image names with their sizes, sorted by symbol.
    pub(crate) images: Vec<(Symbol, i64)>,
    pub(crate) id: NodeId,
    pub(crate) class: NodeClassId,
    // The second cache line of a node starts here.
    pub(crate) name: Symbol,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Amounts,
}

impl NodeFixed {
    pub(crate) fn spot(&self) -> ViewedNode<'_> {
        ViewedNode {
            id: self.id,
            name: self.name,
            labels: &self.labels,
            taints: &self.taints,
        }
    }

    /// Returns whether the change to `other` can change counts in views.
    pub(super) fn differs_in_place(&self, other: &NodeFixed) -> bool {
        self.labels != other.labels || self.taints != other.taints || self.name != other.name
    }
}

/// The nodes that have an image. The size is that of the first holder, as in kube-scheduler's cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageHolders {
    pub(crate) size_bytes: i64,
    pub(crate) nodes: u32,
}

/// The number of pods of one class on a node; terminating pods are counted in an entry of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassCount {
    pub(crate) class: PodClassId,
    /// Twice the number of pods, plus one for terminating pods.
    pods: u32,
}

impl ClassCount {
    pub(crate) fn pods(self) -> i64 {
        i64::from(self.pods / 2)
    }

    pub(crate) fn terminating(self) -> bool {
        self.pods % 2 == 1
    }
}

/// The number of pod ids stored inside the node; a longer list moves to the heap.
const PODS_INLINE: usize = 16;
/// The number of class counts stored inside the node.
const CLASSES_INLINE: usize = 12;

/// A node with its load. It is aligned to cache lines, so that placing a pod touches as few of them as possible.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(crate) fixed: NodeFixed,
    /// The sum of the real requests of its pods, and their number.
    pub(crate) used: Amounts,
    pub(crate) nonzero_cpu_milli: i64,
    pub(crate) nonzero_memory_bytes: i64,
    pub(crate) pods: SmallVec<[PodId; PODS_INLINE]>,
    pub(crate) classes: SmallVec<[ClassCount; CLASSES_INLINE]>,
    pub(crate) ports: Vec<(HostPort, u32)>,
    /// The number of volumes of its pods; a volume counts once for each pod that has it.
    pub(crate) volumes: u32,
}

impl Node {
    pub(super) fn new(fixed: NodeFixed) -> Self {
        Node {
            fixed,
            used: Amounts::default(),
            nonzero_cpu_milli: 0,
            nonzero_memory_bytes: 0,
            pods: SmallVec::new(),
            classes: SmallVec::new(),
            ports: Vec::new(),
            volumes: 0,
        }
    }

    /// Adds a pod of a class to the sums.
    pub(super) fn take(&mut self, id: PodClassId, class: &PodClass, terminating: bool) {
        self.used.add(&class.shape.requests.real);
        self.used.pods += 1;
        self.nonzero_cpu_milli = self
            .nonzero_cpu_milli
            .wrapping_add(class.shape.requests.nonzero_cpu_milli);
        self.nonzero_memory_bytes = self
            .nonzero_memory_bytes
            .wrapping_add(class.shape.requests.nonzero_memory_bytes);
        self.volumes += class.volumes.len() as u32;
        match self.count_of(id, terminating) {
            // The lowest bit says whether the pods are terminating, so pods are counted in steps of two.
            Some(count) => self.classes[count].pods += 2,
            None => self.classes.push(ClassCount {
                class: id,
                pods: 2 + u32::from(terminating),
            }),
        }
        for port in &class.shape.host_ports {
            match self.ports.iter_mut().find(|(held, _)| held == port) {
                Some((_, holders)) => *holders += 1,
                None => self.ports.push((*port, 1)),
            }
        }
    }

    fn count_of(&self, id: PodClassId, terminating: bool) -> Option<usize> {
        let mut counts = self.classes.iter();
        counts.position(|count| count.class == id && count.terminating() == terminating)
    }

    /// Removes a pod of a class from the sums.
    pub(super) fn release(&mut self, id: PodClassId, class: &PodClass, terminating: bool) {
        self.used.subtract(&class.shape.requests.real);
        self.used.pods -= 1;
        // A resource that nothing uses leaves the list, so that equal loads are equal values.
        self.used.scalars.retain(|scalar| scalar.1 != 0);
        self.nonzero_cpu_milli = self
            .nonzero_cpu_milli
            .wrapping_sub(class.shape.requests.nonzero_cpu_milli);
        self.nonzero_memory_bytes = self
            .nonzero_memory_bytes
            .wrapping_sub(class.shape.requests.nonzero_memory_bytes);
        self.volumes -= class.volumes.len() as u32;
        if let Some(count) = self.count_of(id, terminating) {
            self.classes[count].pods -= 2;
            if self.classes[count].pods() == 0 {
                self.classes.remove(count);
            }
        }
        for port in &class.shape.host_ports {
            if let Some((_, holders)) = self.ports.iter_mut().find(|(held, _)| held == port) {
                *holders -= 1;
            }
        }
        self.ports.retain(|(_, holders)| *holders > 0);
    }
}
