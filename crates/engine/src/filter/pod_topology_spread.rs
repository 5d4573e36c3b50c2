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
    is_too_uneven(counts, value).then(|| Reason::Spread {
        key,
        skew: skew(counts, value),
        max_skew,
    })
}

/// Whether one more pod in a place is one too many.
pub(crate) fn is_too_uneven(counts: &SpreadCounts, place: Symbol) -> bool {
    skew(counts, place) > counts.rule.max_skew
}

fn skew(counts: &SpreadCounts, place: Symbol) -> i64 {
    counts.pods_at(place) + i64::from(counts.self_match) - counts.fewest()
}
