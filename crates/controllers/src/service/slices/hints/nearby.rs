//! Hints for `spec.trafficDistribution`: each ready endpoint is for clients in its own zone, and with
//! `PreferSameNode` also for clients on its own node.

use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::{Endpoint, EndpointHints, EndpointSlice, ForNode, ForZone},
};

use super::{endpoints, is_ready};

/// A Service's preference for close endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nearby {
    same_node: bool,
}

impl Nearby {
    /// Returns the Service's preference, or `None` if it has none.
    pub(super) fn of(service: &Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        match spec.traffic_distribution.as_deref()? {
            "PreferClose" | "PreferSameZone" => Some(Self { same_node: false }),
            "PreferSameNode" => Some(Self { same_node: true }),
            _ => None,
        }
    }

    /// Returns whether any ready endpoint of the slice has other hints than it should have.
    pub(super) fn is_missing_from(self, slice: &EndpointSlice) -> bool {
        endpoints(slice)
            .iter()
            .any(|endpoint| is_ready(endpoint) && endpoint.hints != self.hints(endpoint))
    }

    /// Sets the hints of the slice's ready endpoints.
    pub(super) fn apply(self, slice: &mut EndpointSlice) {
        for endpoint in slice.endpoints.iter_mut().flatten() {
            if is_ready(endpoint) {
                endpoint.hints = self.hints(endpoint);
            }
        }
    }

    fn hints(self, endpoint: &Endpoint) -> Option<EndpointHints> {
        let zone = |name: &String| vec![ForZone { name: name.clone() }];
        let node = |name: &String| vec![ForNode { name: name.clone() }];
        let for_zones = endpoint.zone.as_ref().map(zone);
        let for_nodes = endpoint
            .node_name
            .as_ref()
            .filter(|_| self.same_node)
            .map(node);
        (for_zones.is_some() || for_nodes.is_some()).then_some(EndpointHints {
            for_nodes,
            for_zones,
        })
    }
}
