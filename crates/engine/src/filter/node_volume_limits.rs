//! kube-scheduler: NodeVolumeLimits. The number of volumes per driver on a node is limited. Volumes of the node's
//! pods, volumes that are attached without a pod, and the new pod's volumes count, each volume once.

use rustc_hash::FxHashSet;

use crate::class::Attach;
use crate::cluster::{Node, Question};
use crate::reason::Reason;
use crate::storage::Plan;

pub(crate) fn check(question: &Question<'_>, plan: &Plan, node: &Node) -> Option<Reason> {
    let storage = question.cluster.storage();
    let csi_node = storage.csi_node(node.fixed.name);
    if let Some(claim) = plan.uncounted {
        return Some(Reason::ClaimNotCounted {
            namespace: question.class.namespace,
            claim,
        });
    }
    let csi_node = csi_node.filter(|csi_node| csi_node.has_limits())?;
    let own = question.class.volumes.iter();
    let mut new: Vec<Attach> = Vec::new();
    let own = own.filter_map(|volume| storage.attach(question.class, volume));
    for attach in own {
        // A pod may mount one claim several times; the volume is attached once.
        if !new.contains(&attach) {
            new.push(attach);
        }
    }
    // Drivers without a limit on this node need no count of what is attached, which asks every pod there.
    if new
        .iter()
        .all(|attach| csi_node.limit(attach.driver).is_none())
    {
        return None;
    }
    let mut attached: FxHashSet<Attach> = FxHashSet::default();
    for count in &node.classes {
        let class = question.cluster.class(count.class);
        let theirs = class.volumes.iter();
        let theirs = theirs.filter_map(|volume| storage.attach(class, volume));
        attached.extend(theirs);
    }
    // A volume that a pod on the node has already is not attached again.
    new.retain(|attach| !attached.contains(attach));
    attached.extend(storage.attached_to(node.fixed.name));
    let of = |driver| move |attach: &&Attach| attach.driver == driver;
    new.iter().find_map(|attach| {
        let driver = attach.driver;
        let limit = csi_node.limit(driver)?;
        let wanted = new.iter().filter(of(driver)).count() as i64;
        let held = attached.iter().filter(of(driver)).count() as i64;
        (held + wanted > limit).then_some(Reason::VolumeLimit {
            driver,
            held,
            wanted,
            limit,
        })
    })
}
