//! kube-scheduler: NodeAffinity. Node selector and required node affinity must both match.

use crate::class::Shape;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::reason::Reason;

pub(crate) fn check(
    pod: &Shape,
    labels: &LabelSet,
    name: Symbol,
    names: &Interner,
) -> Option<Reason> {
    (!pod.selects(labels, name, names)).then(|| Reason::NodeAffinity {
        mismatch: pod.mismatch(labels, names),
    })
}
