//! kube-scheduler: NodeResourcesFit. Every requested resource and a pod slot must be free.
//!
//! The refusal has every missing resource, not just the first. A pod without requests needs only a pod slot. For a resource that the node does
//! not offer but a DeviceClass stands for, [`super::dynamic_resources`] decides.

use crate::class::Shape;
use crate::devices::ExtendedResources;
use crate::intern::Symbol;
use crate::reason::{Plugin, Reason, Refusal};
use crate::resources::Amounts;

pub(crate) fn check(
    pod: &Shape,
    allocatable: &Amounts,
    used: &Amounts,
    extended: Option<&ExtendedResources>,
) -> Option<Refusal> {
    let is_for_devices = |resource: Symbol| {
        // A node that has the resource itself serves it as an ordinary one (a device plugin), even if a class stands
        // for it too.
        let class = extended.and_then(|own| own.class_for(resource));
        class.is_some() && allocatable.scalar(resource) <= 0
    };
    let request = pod.demands();
    let allowed = allocatable.pods;
    // Wraps as Go's int64 does, so that absurd amounts give kube-scheduler's answer.
    let full = used.pods.wrapping_add(1) > allowed;
    if !full && fits(request, allocatable, used, &is_for_devices) {
        return None;
    }
    let mut reasons = full
        .then_some(Reason::TooManyPods { allowed })
        .into_iter()
        .chain(request.iter().filter_map(|(resource, requested)| {
            let allocatable = allocatable.amount(resource);
            let free = allocatable.wrapping_sub(used.amount(resource));
            let lacking = requested > free && resource != Symbol::PODS;
            let lacking = lacking && !is_for_devices(resource);
            lacking.then_some(Reason::Insufficient {
                resource,
                requested,
                free,
                allocatable,
            })
        }));
    let reason = reasons.next()?;
    Some(Refusal {
        plugin: Plugin::NodeResourcesFit,
        reason,
        more: reasons.collect(),
    })
}

/// Returns whether everything fits, without building reasons: most calls need no more.
fn fits(
    request: &Amounts,
    allocatable: &Amounts,
    used: &Amounts,
    is_for_devices: &impl Fn(Symbol) -> bool,
) -> bool {
    let fits = |request: i64, allocatable: i64, used: i64| {
        // What is not asked for is not compared: such a pod fits even where others hold more than there is.
        request <= 0 || request <= allocatable.wrapping_sub(used)
    };
    fits(request.cpu_milli, allocatable.cpu_milli, used.cpu_milli)
        && fits(
            request.memory_bytes,
            allocatable.memory_bytes,
            used.memory_bytes,
        )
        && fits(
            request.ephemeral_bytes,
            allocatable.ephemeral_bytes,
            used.ephemeral_bytes,
        )
        && request.scalars.iter().all(|&(name, amount)| {
            fits(amount, allocatable.scalar(name), used.scalar(name)) || is_for_devices(name)
        })
}
