//! kube-scheduler: NodeAffinity. The node affinity that the profile adds, the node selector and the required node
//! affinity must all match.

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
    if !pod.profile_allows(labels, name, names) {
        return Some(Reason::EnforcedAffinity);
    }
    (!pod.selects(labels, name, names)).then(|| Reason::NodeAffinity {
        mismatch: pod.mismatch(labels, names),
    })
}
