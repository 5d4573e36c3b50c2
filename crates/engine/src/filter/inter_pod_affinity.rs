//! kube-scheduler: InterPodAffinity, the required terms: the pod's affinity and anti-affinity, and the anti-affinity
//! of existing pods.
//!
//! If the pod's affinity matches the pod itself and no other pod yet, the pod may go to any node that has the
//! topology keys.

use crate::class::PodClass;
use crate::cluster::Node;
use crate::reason::Reason;
use crate::topology::View;

pub(crate) fn check(pod: &PodClass, view: &View, node: &Node) -> Option<Reason> {
    let labels = &node.fixed.labels;
    let mut near = true;
    for term in &pod.affinity {
        let Some(value) = labels.value(term.key) else {
            return Some(Reason::Affinity);
        };
        // Not returned at once: a later key may be missing on the node, which refuses even the first pod of a group.
        near &= view.affinity.count(term.key, value) > 0;
    }
    // kube-scheduler's exception for a group that must be near itself: without it the first pod could never be
    // placed.
    let first_of_its_group = view.affinity.is_empty() && view.self_affine;
    if !(near || first_of_its_group) {
        return Some(Reason::Affinity);
    }
    if !view.anti.is_empty() {
        let taken = |key| {
            labels
                .value(key)
                .is_some_and(|value| view.anti.count(key, value) > 0)
        };
        if pod.anti_affinity.iter().any(|term| taken(term.key)) {
            return Some(Reason::AntiAffinity);
        }
    }
    let kept_away = !view.existing_anti.is_empty()
        && labels
            .iter()
            .any(|(key, value)| view.existing_anti.count(key, value) > 0);
    kept_away.then_some(Reason::ExistingAntiAffinity)
}
