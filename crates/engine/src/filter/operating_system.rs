//! Ours: `spec.os.name` counts as a requirement on the node's `kubernetes.io/os` label.
//!
//! Upstream ignores the field, and the kubelet then refuses the pod over and over. Switched by
//! [`crate::Options::os_filter`].

use crate::class::Shape;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::reason::Reason;

pub(crate) fn check(pod: &Shape, labels: &LabelSet) -> Option<Reason> {
    let wanted = pod.os?;
    let found = labels.value(Symbol::OS);
    (found != Some(wanted)).then_some(Reason::OperatingSystem { wanted, found })
}
