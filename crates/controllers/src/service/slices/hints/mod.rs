//! Hints: for which zone or node an endpoint is meant, so that traffic stays close.
//!
//! [`nearby`] follows `spec.trafficDistribution`; [`proportional`] follows the older annotation
//! `service.kubernetes.io/topology-mode: Auto`, which shares endpoints out by the CPUs of the zones and has precedence.
//! Invariant: whatever is decided, no slice is written only because of a hint that was right already.

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

/// The annotation that asks for proportional hints, and its deprecated spelling, which counts first.
const ANNOTATIONS: [&str; 2] = [
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// Something to tell about a Service: type, reason and message of an event.
pub(super) type Notice = (EventType, &'static str, String);

/// Brings the hints of a Service's slices up to date. `plan` grows by the slices of `existing` whose hints must change.
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

/// Takes all hints away.
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

/// Adds slices that the plan leaves alone to those it updates.
fn include(
    plan: &mut Plan,
    existing: &[Arc<EndpointSlice>],
    mut is_wanted: impl FnMut(&EndpointSlice) -> bool,
) {
    for slice in existing {
        if plan.leaves_alone(slice) && is_wanted(slice) {
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
