//! kube-scheduler: NodeUnschedulable. A cordoned node accepts only pods that tolerate the taint
//! `node.kubernetes.io/unschedulable`.

use crate::class::{NodeTaint, Shape};
use crate::intern::Symbol;
use crate::model::TaintEffect;
use crate::reason::Reason;

const CORDON: NodeTaint = NodeTaint {
    key: Symbol::UNSCHEDULABLE,
    value: Symbol::EMPTY,
    effect: TaintEffect::NoSchedule,
};

pub(crate) fn check(pod: &Shape, unschedulable: bool) -> Option<Reason> {
    (unschedulable && !pod.tolerates(CORDON)).then_some(Reason::Unschedulable)
}
