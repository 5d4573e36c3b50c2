//! kube-scheduler: TaintToleration's score, weight 3: fewer untolerated PreferNoSchedule taints are better.

use crate::class::{NodeTaint, Shape};

/// Untolerated PreferNoSchedule taints. Tolerations of another effect do not help.
pub(crate) fn raw(pod: &Shape, taints: &[NodeTaint]) -> i64 {
    let tolerated = |taint: NodeTaint| {
        pod.tolerations
            .iter()
            .any(|t| t.is_soft() && t.tolerates(taint))
    };
    taints
        .iter()
        .filter(|taint| !taint.is_hard() && !tolerated(**taint))
        .count() as i64
}
