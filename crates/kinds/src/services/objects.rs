//! The IPAddress objects of Services: one for each allocated address, which refers to the Service and is deleted with it.
//!
//! Source: pkg/registry/core/service/ipallocator. The pools allocate addresses, and the objects show them. An IPAddress that a user creates
//! keeps its address from being allocated.

use std::net::IpAddr;

use mullion_schema::tree::Tree;
use serde_json::{Value, json};

use super::pools::Claim;
use crate::{Allocation, Companion};

/// The API group of IPAddresses.
pub const GROUP: &str = "networking.k8s.io";
/// The plural of IPAddresses.
pub const PLURAL: &str = "ipaddresses";
/// The label of the IPAddress objects that belong to Services.
pub const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";

/// The allocation for a write, with the IPAddress objects that are created and deleted with it.
pub(crate) struct ServiceAllocation {
    claim: Claim,
    companions: Vec<Companion>,
}

impl ServiceAllocation {
    /// Returns the allocation for the write of a Service.
    pub(super) fn to_service(claim: Claim, service: &Value) -> Self {
        let [taken, released] = claim.addresses();
        let coming = taken.into_iter().map(|ip| of_service(ip, service));
        let going = released.into_iter().map(|ip| gone(ip.to_string()));
        let companions = coming.chain(going).collect();
        ServiceAllocation { claim, companions }
    }

    /// Returns the allocation for the write of an IPAddress.
    pub(crate) fn to_address(claim: Claim, companion: Option<Companion>) -> Self {
        let companions = companion.into_iter().collect();
        ServiceAllocation { claim, companions }
    }
}

impl Allocation for ServiceAllocation {
    fn commit(self: Box<Self>) {
        Box::new(self.claim).commit();
    }

    fn companions(&mut self) -> Vec<Companion> {
        std::mem::take(&mut self.companions)
    }
}

/// Returns the creation of the IPAddress object for an address of a Service.
pub fn of_service(ip: IpAddr, service: &Value) -> Companion {
    let (managed_by, allocator) = MANAGED_BY;
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    let (name, metadata) = (ip.to_string(), &service["metadata"]);
    let parent = json!({"resource": "services", "namespace": metadata["namespace"], "name": metadata["name"]});
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": name, "labels": {FAMILY: family, managed_by: allocator}},
        "spec": {"parentRef": parent},
    });
    Companion {
        object: Some(object),
        ..gone(name)
    }
}

/// Returns the deletion of the IPAddress object of a released address.
pub fn gone(name: String) -> Companion {
    Companion {
        group: GROUP,
        plural: PLURAL,
        name,
        object: None,
    }
}

/// Returns the cluster IPs of a Service.
pub fn addresses(service: &Value) -> impl Iterator<Item = IpAddr> {
    let spec = &service["spec"];
    let has = super::needs_cluster_ip(service);
    let ips = spec.items("clusterIPs").iter().filter(move |_| has);
    ips.filter_map(|ip| ip.as_str()?.parse().ok())
}
