//! The properties of a node that decide the static filters: labels (without the hostname), taints,
//! `spec.unschedulable` and declared features.
//!
//! Invariant: nothing that is unique to one node may be in a node class, or there would be as many classes as
//! nodes.

use super::Features;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{NodeSpec, Taint, TaintEffect};

/// An interned taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeTaint {
    pub(crate) key: Symbol,
    pub(crate) value: Symbol,
    pub(crate) effect: TaintEffect,
}

impl NodeTaint {
    pub(crate) fn intern(taint: &Taint, names: &mut Interner) -> Self {
        NodeTaint {
            key: names.intern(&taint.key),
            value: names.intern(&taint.value),
            effect: taint.effect,
        }
    }

    /// Returns whether the taint keeps pods off the node, instead of only lowering the node's score.
    pub(crate) fn is_hard(self) -> bool {
        self.effect != TaintEffect::PreferNoSchedule
    }
}

/// The content of a node class.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeClass {
    pub(crate) labels: LabelSet,
    pub(crate) taints: Box<[NodeTaint]>,
    pub(crate) unschedulable: bool,
    /// The features that the kubelet declares.
    pub(crate) features: Features,
}

impl NodeClass {
    /// Returns the class of a node. `labels` are all labels of the node, including the hostname.
    pub(crate) fn of(spec: &NodeSpec, labels: &LabelSet, names: &mut Interner) -> Self {
        let taints = spec
            .taints
            .iter()
            .map(|taint| NodeTaint::intern(taint, names));
        NodeClass {
            labels: labels.without(Symbol::HOSTNAME),
            taints: taints.collect(),
            unschedulable: spec.unschedulable,
            features: Features::declared(&spec.declared_features),
        }
    }
}
