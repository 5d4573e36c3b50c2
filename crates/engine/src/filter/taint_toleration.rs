//! kube-scheduler: TaintToleration. The refusal names the first NoSchedule or NoExecute taint that the pod does not
//! tolerate.

use crate::class::{NodeTaint, Shape};
use crate::reason::Reason;

pub(crate) fn check(pod: &Shape, taints: &[NodeTaint]) -> Option<Reason> {
    let taint = taints
        .iter()
        .find(|taint| taint.is_hard() && !pod.tolerates(**taint))?;
    Some(Reason::UntoleratedTaint {
        key: taint.key,
        value: taint.value,
        effect: taint.effect,
    })
}
