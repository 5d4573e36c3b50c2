//! Sets topology hints: the zone or node whose clients should use an endpoint, so that traffic stays close.
//!
//! [`nearby`] follows `spec.trafficDistribution`. [`proportional`] follows the older annotation
//! `service.kubernetes.io/topology-mode: Auto`, which distributes endpoints by the CPUs of the zones and has
//! precedence. Invariant: no slice is written only because of a hint that was already right.

mod nearby;
mod proportional;

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{Node, Service},
    discovery::v1::{Endpoint, EndpointSlice},
};
use kube::ResourceExt;

use super::plan::Plan;
use crate::{Key, events::EventType};

pub(super) use proportional::Topology;

/// The annotation that requests proportional hints. The deprecated spelling comes first and has precedence.
const ANNOTATIONS: [&str; 2] = [
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// An event about a Service: type, reason and message.
pub(super) type Notice = (EventType, &'static str, String);

/// Updates the hints of a Service's slices. Slices of `existing` whose hints must change are added to `plan`.
pub(super) fn apply(
    topology: &Topology,
    service: &Service,
    existing: &[Arc<EndpointSlice>],
    plan: &mut Plan,
    address_type: &str,
    nodes: impl FnOnce() -> Vec<Arc<Node>>,
) -> Option<Notice> {
    let key = Key::of(service);
    if is_proportional(service) {
        let notice = topology.apply(&key, existing, plan, nodes);
        return notice.map(|notice| with_address_type(notice, address_type));
    }
    // A Service that dropped the annotation must lose its place in the cache, whatever it asks for instead.
    let notice = topology.give_up(&key);
    match nearby::Nearby::of(service) {
        Some(nearby) => {
            include(plan, existing, |slice| nearby.is_missing_from(slice));
            plan.written().for_each(|slice| nearby.apply(slice));
        }
        None => remove(plan, existing),
    }
    notice.map(|notice| with_address_type(notice, address_type))
}

fn with_address_type((kind, reason, text): Notice, address_type: &str) -> Notice {
    (kind, reason, format!("{text}, addressType: {address_type}"))
}

/// Removes all hints from the slices.
fn remove(plan: &mut Plan, existing: &[Arc<EndpointSlice>]) {
    include(plan, existing, |slice| {
        endpoints(slice)
            .iter()
            .any(|endpoint| endpoint.hints.is_some())
    });
    for slice in plan.written() {
        for endpoint in slice.endpoints.iter_mut().flatten() {
            endpoint.hints = None;
        }
    }
}

/// Adds to the plan's updates those slices that the plan leaves alone and that `is_wanted` selects.
fn include(
    plan: &mut Plan,
    existing: &[Arc<EndpointSlice>],
    mut is_wanted: impl FnMut(&EndpointSlice) -> bool,
) {
    for slice in existing {
        if plan.keeps_unchanged(slice) && is_wanted(slice) {
            plan.update.push(EndpointSlice::clone(slice));
        }
    }
}

fn is_proportional(service: &Service) -> bool {
    let annotations = service.annotations();
    let value = ANNOTATIONS.iter().find_map(|name| annotations.get(*name));
    value.is_some_and(|value| value == "Auto" || value == "auto")
}

fn endpoints(slice: &EndpointSlice) -> &[Endpoint] {
    slice.endpoints.as_deref().unwrap_or_default()
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint
        .conditions
        .as_ref()
        .is_some_and(|conditions| conditions.ready == Some(true))
}

#[cfg(test)]
pub(super) mod tests;
