//! kube-scheduler: PodTopologySpread, the DoNotSchedule constraints in their order.
//!
//! Refused: `matching pods here + the pod itself if it matches - the fewest anywhere > maxSkew`. Counts live in the
//! class's [`View`].

use crate::cluster::Node;
use crate::reason::Reason;
use crate::topology::View;

pub(crate) fn check(view: &View, node: &Node) -> Option<Reason> {
    view.hard.iter().find_map(|counts| {
        let key = counts.rule.key;
        let Some(value) = node.fixed.labels.value(key) else {
            return Some(Reason::SpreadKeyMissing { key });
        };
        let skew = counts.pods_at(value) + i64::from(counts.self_match) - counts.fewest();
        let max_skew = counts.rule.max_skew;
        (skew > max_skew).then_some(Reason::Spread {
            key,
            skew,
            max_skew,
        })
    })
}
