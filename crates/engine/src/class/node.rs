//! What of a node decides static predicates: labels (all but the hostname), taints, cordon, declared features.
//!
//! Invariant: nothing that is unique per node may be in here, or classes would be as many as nodes.

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

    /// Whether it keeps pods away rather than making the node less wanted.
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
    /// What its kubelet declares.
    pub(crate) features: Features,
}

impl NodeClass {
    /// The class of a node, whose full labels are given.
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
