//! kube-scheduler: PodTopologySpread, the DoNotSchedule constraints, in the order of the pod's spec.
//!
//! A node is refused if `matching pods in its domain + 1 if the pod matches itself - the minimum over all domains >
//! maxSkew`. The class's [`View`] has the counts.

use crate::cluster::Node;
use crate::intern::Symbol;
use crate::reason::Reason;
use crate::topology::{SpreadCounts, View};

pub(crate) fn check(view: &View, node: &Node) -> Option<Reason> {
    view.hard.iter().find_map(|counts| too_uneven(counts, node))
}

/// Returns the first ScheduleAnyway constraint of the pod that a node would violate. Planning treats these preferences as
/// requirements where it is free to choose the place. Constraints over hosts are left out, because otherwise each pod
/// would need a new node.
pub(crate) fn check_preferences(view: &View, node: &Node) -> Option<Reason> {
    let declared = view
        .soft
        .iter()
        .filter(|counts| view.soft_declared && counts.rule.key != Symbol::HOSTNAME);
    declared
        .into_iter()
        .find_map(|counts| too_uneven(counts, node))
}

fn too_uneven(counts: &SpreadCounts, node: &Node) -> Option<Reason> {
    let key = counts.rule.key;
    let Some(value) = node.fixed.labels.value(key) else {
        return Some(Reason::SpreadKeyMissing { key });
    };
    let max_skew = counts.rule.max_skew;
    let skew = skew_of(counts, counts.pods_at(value));
    (skew > max_skew).then_some(Reason::Spread {
        key,
        skew,
        max_skew,
        fewest: None,
    })
}

/// Returns the skew if the pod were added to a domain with `pods` matching pods.
pub(crate) fn skew_of(counts: &SpreadCounts, pods: i64) -> i64 {
    pods + i64::from(counts.self_match) - counts.fewest()
}
