//! kube-scheduler: PodTopologySpread, the DoNotSchedule constraints in their order.
//!
//! Refused: `matching pods here + the pod itself if it matches - the fewest anywhere > maxSkew`. Counts live in the
//! class's [`View`].

use crate::cluster::Node;
use crate::intern::Symbol;
use crate::reason::Reason;
use crate::topology::{SpreadCounts, View};

pub(crate) fn check(view: &View, node: &Node) -> Option<Reason> {
    view.hard.iter().find_map(|counts| too_uneven(counts, node))
}

/// The constraints that a pod declares as preferences, taken as demands where planning can still choose the place.
/// Hosts are left out: a preference must not buy a node for every pod.
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
    })
}

/// How uneven places would be with one more pod where there are `pods` matching ones.
pub(crate) fn skew_of(counts: &SpreadCounts, pods: i64) -> i64 {
    pods + i64::from(counts.self_match) - counts.fewest()
}
