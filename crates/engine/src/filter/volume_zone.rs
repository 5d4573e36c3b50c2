//! kube-scheduler: VolumeZone. The zone and region labels of bound volumes must match those of the
//! node.
//!
//! A node without zone and region labels matches, because a cluster without them is taken to be a
//! single zone.

use crate::labels::LabelSet;
use crate::reason::Reason;
use crate::storage::{PLACES, Plan};

pub(crate) fn check(plan: &Plan, labels: &LabelSet) -> Option<Reason> {
    if plan.zones.is_empty() || PLACES.iter().all(|(key, _)| labels.value(*key).is_none()) {
        return None;
    }
    let elsewhere = plan.zones.iter().find(|demand| {
        // Nodes may have the old label, the new one or both; the volume's own key comes first.
        let value = labels.value(demand.key).or(labels.value(demand.modern));
        value.is_none_or(|value| !demand.values.contains(&value))
    });
    elsewhere.map(|demand| Reason::VolumeZone { key: demand.key })
}
