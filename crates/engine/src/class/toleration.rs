//! Compiled tolerations (core/v1 `Toleration.ToleratesTaint`).
//!
//! `Gt` and `Lt` never tolerate a taint: the feature gate for these operators is off by default in
//! Kubernetes.

use super::NodeTaint;
use crate::intern::{Interner, Symbol};
use crate::model::{TaintEffect, Toleration, TolerationOperator};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CompiledToleration {
    key: Symbol,
    operator: TolerationOperator,
    value: Symbol,
    effect: Option<TaintEffect>,
}

impl CompiledToleration {
    pub(crate) fn compile(toleration: &Toleration, names: &mut Interner) -> Self {
        CompiledToleration {
            key: names.intern(&toleration.key),
            operator: toleration.operator,
            value: names.intern(&toleration.value),
            effect: toleration.effect,
        }
    }

    pub(crate) fn tolerates(self, taint: NodeTaint) -> bool {
        // No effect matches every effect, and an empty key (with `Exists`) every key.
        self.effect.is_none_or(|effect| effect == taint.effect)
            && (self.key == Symbol::EMPTY || self.key == taint.key)
            && match self.operator {
                TolerationOperator::Equal => self.value == taint.value,
                TolerationOperator::Exists => true,
                TolerationOperator::Gt | TolerationOperator::Lt => false,
            }
    }

    /// Returns whether the toleration can apply to a PreferNoSchedule taint.
    pub(crate) fn is_soft(self) -> bool {
        self.effect
            .is_none_or(|effect| effect == TaintEffect::PreferNoSchedule)
    }
}
