//! A node in the model: what was told about it ([`NodeFixed`]) and what its pods make of it.
//!
//! Invariant: the sums are those of `pods`, always.

use smallvec::SmallVec;

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
    pub(crate) fn at(index: usize) -> Self {
        NodeId(index as u32)
    }

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
    /// All labels, the hostname too.
    pub(crate) labels: LabelSet,
    /// Image names with sizes, sorted by symbol.
    pub(crate) images: Vec<(Symbol, i64)>,
    pub(crate) id: NodeId,
    pub(crate) class: NodeClassId,
    // The second cache line of a node starts here.
    pub(crate) name: Symbol,
    pub(crate) unschedulable: bool,
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

/// How many pods of a class a node holds; those on their way out are counted by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassCount {
    pub(crate) class: PodClassId,
    /// Twice their number, and one if they are on their way out.
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

/// Pods that a node holds beside its other fields before they move to a place of their own.
const PODS_INLINE: usize = 16;
/// The same for classes.
const CLASSES_INLINE: usize = 12;

/// A node with its load. Aligned to cache lines, of which placing a pod then touches as few as there can be.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Node {
    pub(crate) fixed: NodeFixed,
    /// Real requests of its pods, and their number.
    pub(crate) used: Amounts,
    pub(crate) nonzero_cpu_milli: i64,
    pub(crate) nonzero_memory_bytes: i64,
    pub(crate) pods: SmallVec<[PodId; PODS_INLINE]>,
    pub(crate) classes: SmallVec<[ClassCount; CLASSES_INLINE]>,
    pub(crate) ports: Vec<(HostPort, u32)>,
    /// Volumes of its pods, each as often as pods have it.
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
        self.volumes += class.volumes.len() as u32;
        match self.count_of(id, terminating) {
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
