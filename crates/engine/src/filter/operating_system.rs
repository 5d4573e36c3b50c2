//! Mullion's own filter: `spec.os.name` must equal the node's `kubernetes.io/os` label.
//!
//! kube-scheduler ignores the field, and then the kubelet rejects the pod again and again.
//! [`crate::Options::os_filter`] turns the filter on.

use crate::class::Shape;
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::reason::Reason;

pub(crate) fn check(pod: &Shape, labels: &LabelSet) -> Option<Reason> {
    let wanted = pod.os?;
    let found = labels.value(Symbol::OS);
    (found != Some(wanted)).then_some(Reason::OperatingSystem { wanted, found })
}
