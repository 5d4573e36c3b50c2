//! kube-scheduler: DynamicResources. Allocated claims must be usable from the node. For unallocated claims, and for extended resources that a
//! DeviceClass stands for and the node itself does not offer, the node must have free devices.

use crate::cluster::{NodeId, Question};
use crate::devices::{Failure, Plan};
use crate::reason::Reason;

pub(crate) fn check(question: &Question<'_>, plan: &Plan, node: NodeId) -> Option<Reason> {
    let cluster = question.cluster;
    let site = cluster.site(node);
    // The pod got a claim for extended resources in an earlier attempt, which has to be deleted first.
    if plan.extended.left.is_some() {
        return Some(Reason::ExtendedClaimLeft);
    }
    let extended = match plan.extended.on(&cluster.at(node).fixed.allocatable) {
        Ok(extended) => extended.unallocated_claim(),
        Err(reason) => return Some(reason),
    };
    // The search is the costly part, so it is skipped when every claim is allocated and no extended resource needs
    // devices.
    if plan.wants_devices() || extended.is_some() {
        let found = cluster.find_devices(plan, node);
        let found = found.and_then(|found| {
            found
                .iter()
                .try_for_each(|own| own.allocation(site).map(drop))
        });
        match found {
            Ok(()) => {}
            Err(Failure::NotEnough) => return Some(Reason::DevicesTaken),
            Err(Failure::InvalidPools) => return Some(Reason::DevicePoolsInvalid),
            Err(Failure::TooLong) => return Some(Reason::DevicesUndecided),
            Err(Failure::Error(_)) => return Some(Reason::DevicesFailed),
        }
    }
    let mut claims = plan.claims.iter();
    let usable = claims.all(|own| cluster.devices().is_usable(*own, site));
    (!usable).then_some(Reason::DevicesElsewhere)
}
