//! kube-scheduler: VolumeRestrictions. Two pods on one node cannot use a disk that cannot be shared, and a
//! ReadWriteOncePod claim has at most one pod in the whole cluster.

use crate::class::Volume;
use crate::cluster::{Node, Question};
use crate::reason::Reason;
use crate::storage::Plan;

pub(crate) fn check(question: &Question<'_>, plan: &Plan, node: &Node) -> Option<Reason> {
    let disks = question
        .class
        .volumes
        .iter()
        .filter_map(|volume| match volume {
            Volume::Disk { disk, .. } => Some(disk),
            Volume::Claim { .. } => None,
        });
    for own in disks {
        let theirs = node
            .classes
            .iter()
            .flat_map(|count| &question.cluster.class(count.class).volumes);
        for volume in theirs {
            if matches!(volume, Volume::Disk { disk, .. } if own.clashes(disk)) {
                return Some(Reason::DiskTaken);
            }
        }
    }
    let storage = question.cluster.storage();
    // In a trial only the number of claims still in use is corrected, as in kube-scheduler, which does not work out
    // again which one.
    let taken = match question.cluster.trial() {
        Some(trial) => plan.exclusive.first().filter(|_| trial.has_taken_claims()),
        None => plan.exclusive.iter().find(|key| storage.is_used(**key)),
    };
    taken.map(|key| Reason::ClaimTaken { claim: key.1 })
}
