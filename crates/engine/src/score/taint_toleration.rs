//! kube-scheduler: TaintToleration's score, weight 3. Fewer untolerated PreferNoSchedule taints score
//! higher.

use crate::class::{NodeTaint, Shape};

/// Returns the number of untolerated PreferNoSchedule taints. Tolerations with another effect do not count.
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
