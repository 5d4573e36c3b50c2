//! Classes: pods with equal templates share one pod class, and nodes that differ only in name and free resources
//! share one node class.
//!
//! Invariant: a class is compiled from content alone and never changes, so whatever does not depend on load is worked
//! out once per (pod class, node class) and kept ([`verdict`]).

mod device;
mod extended;
mod features;
mod node;
mod pod;
mod preference;
mod requests;
mod shape;
mod spread;
mod term;
mod toleration;
mod verdict;
mod volume;

pub(crate) use device::ClaimedDevices;
pub(crate) use extended::{CLASS_PREFIX, ExtendedResource, RequestUse, is_extended};
pub(crate) use features::Features;
pub(crate) use node::{NodeClass, NodeTaint};
pub(crate) use pod::PodClass;
pub(crate) use requests::Requests;
pub(crate) use shape::{HostPort, NodeRules, Shape};
pub(crate) use spread::SpreadRule;
pub(crate) use term::{Namespaces, PodTerm};
pub(crate) use verdict::{ShapeVerdicts, StaticRules, StaticVerdict, Target};
pub(crate) use volume::{Attach, EphemeralOwner, Handle, Volume};

/// The number of a pod class. It is valid only for the cluster that returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodClassId(pub(crate) u32);

/// The number of a node class: the properties that nodes share if they differ only in name and free resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeClassId(pub(crate) u32);

/// The number of a shape: the properties that pod classes share if they differ only in labels and pod affinity terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShapeId(pub(crate) u32);

impl ShapeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl PodClassId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl NodeClassId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
