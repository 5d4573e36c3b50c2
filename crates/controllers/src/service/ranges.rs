//! The ServiceCIDR controller: marks a range as ready as soon as it exists, and keeps a deleted range while the
//! address of a Service would be left without a range (kube-controller-manager: service-cidr-controller).
//!
//! kube-controller-manager watches all IPAddresses to learn when the last one is gone. This controller lists them
//! only while a range is being deleted, so that creating a Service wakes no controller.

use std::{net::IpAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{Context, Informer, Queue, api_error};

const WORKERS: usize = 1;
const MANAGER: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Selects the IPAddress objects that the API server allocated for Services.
const MANAGED: &str = "ipaddress.kubernetes.io/managed-by=ipallocator.k8s.io";
/// The minimum time between a range's deletion and its removal: a Service may be allocating an address from it.
const GRACE: Duration = Duration::from_secs(10);
/// The interval between checks whether IPAddress objects still use the range.
const RECHECK: Duration = Duration::from_secs(5);
const READY: &str = "Kubernetes Service CIDR is ready";
const IN_USE: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new(MANAGER);
    let ranges: Informer<ServiceCIDR> = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    ranges.on_change({
        let queue = queue.clone();
        move |change| queue.add(change.object().name_any())
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if !ranges.synced().await {
            return;
        }
        let controller = Controller {
            context: context.clone(),
            ranges,
            queue: queue.clone(),
        };
        queue.run(&context, WORKERS, move |name| {
            let controller = controller.clone();
            async move { controller.sync(&name).await }
        });
    });
}

#[derive(Clone)]
struct Controller {
    context: Context,
    ranges: Informer<ServiceCIDR>,
    queue: Queue<String>,
}

impl Controller {
    async fn sync(&self, name: &str) -> kube::Result<()> {
        let Some(range) = self.ranges.get("", name) else {
            return Ok(());
        };
        let Some(deleted) = &range.metadata.deletion_timestamp else {
            return self.prepare(&range).await;
        };
        if !is_held(&range) {
            return Ok(());
        }
        if self.holds_addresses(&range).await? {
            self.queue.add_after(name.to_owned(), RECHECK);
            return self
                .set_ready_condition(&range, "False", "Terminating", IN_USE)
                .await;
        }
        let left = remaining(deleted.0, self.context.clock.now());
        // The grace period starts with the deletion and is awaited last, when no address is left.
        if !left.is_zero() {
            self.queue.add_after(name.to_owned(), left);
            return Ok(());
        }
        let released = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
        self.patch(name, &released).await
    }

    /// Adds the finalizer and the condition Ready to a range that is not being deleted.
    async fn prepare(&self, range: &ServiceCIDR) -> kube::Result<()> {
        if !is_held(range) {
            let held = json!({"metadata": {"finalizers": [FINALIZER]}});
            self.patch(&range.name_any(), &held).await?;
        }
        self.set_ready_condition(range, "True", "", READY).await
    }

    async fn patch(&self, name: &str, patch: &Value) -> kube::Result<()> {
        let api: Api<ServiceCIDR> = Api::all(self.context.client.clone());
        let params = PatchParams::default();
        let patched = api.patch(name, &params, &Patch::Strategic(patch)).await;
        api_error::ignore_not_found(patched).map(drop)
    }

    /// Sets the range's condition Ready unless the range already has it with this status and message.
    async fn set_ready_condition(
        &self,
        range: &ServiceCIDR,
        status: &str,
        reason: &str,
        message: &str,
    ) -> kube::Result<()> {
        if has_ready_condition(range, status, message) {
            return Ok(());
        }
        let mut condition = json!({
            "type": "Ready", "status": status, "message": message, "lastTransitionTime": self.context.now(),
        });
        if !reason.is_empty() {
            condition["reason"] = reason.into();
        }
        let name = range.name_any();
        let applied = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "status": {"conditions": [condition]},
        });
        let api: Api<ServiceCIDR> = Api::all(self.context.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        let written = api
            .patch_status(&name, &params, &Patch::Apply(applied))
            .await;
        api_error::ignore_not_found(written).map(drop)
    }

    /// Returns whether removing the range would leave the address of a Service without a range.
    async fn holds_addresses(&self, range: &ServiceCIDR) -> kube::Result<bool> {
        let others = self.other_networks(range);
        let own = networks(range);
        if own
            .iter()
            // Another range covers this one, so no address could be left without one; the list is not needed.
            .all(|own| others.iter().any(|other| other.covers(own)))
        {
            return Ok(false);
        }
        let api: Api<IPAddress> = Api::all(self.context.client.clone());
        let managed = api.list(&ListParams::default().labels(MANAGED)).await?;
        let mut addresses = managed
            .items
            .iter()
            .filter_map(|ip| ip.name_any().parse().ok());
        let within = |networks: &[Network], ip| networks.iter().any(|network| network.has(ip));
        Ok(addresses.any(|ip: IpAddr| within(&own, ip) && !within(&others, ip)))
    }

    /// Returns the networks of all other ranges.
    fn other_networks(&self, range: &ServiceCIDR) -> Vec<Network> {
        let all = self.ranges.list();
        let others = all
            .iter()
            .filter(|other| other.name_any() != range.name_any());
        others.flat_map(|other| networks(other)).collect()
    }
}

/// Returns whether the range has the condition Ready with this status and message.
fn has_ready_condition(range: &ServiceCIDR, status: &str, message: &str) -> bool {
    let conditions = range
        .status
        .iter()
        .filter_map(|status| status.conditions.as_ref());
    conditions
        .flatten()
        .any(|own| own.type_ == "Ready" && own.status == status && own.message == message)
}

fn is_held(range: &ServiceCIDR) -> bool {
    range.finalizers().iter().any(|name| name == FINALIZER)
}

/// Returns how much of [`GRACE`] is left after a deletion.
fn remaining(deleted: Timestamp, now: Timestamp) -> Duration {
    let passed = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
    GRACE.saturating_sub(passed)
}

/// Returns the networks of a range.
fn networks(range: &ServiceCIDR) -> Vec<Network> {
    let cidrs = range
        .spec
        .iter()
        .flat_map(|spec| spec.cidrs.iter().flatten());
    cidrs.filter_map(|cidr| Network::parse(cidr)).collect()
}

/// A network of either address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    length: u32,
}

impl Network {
    fn parse(cidr: &str) -> Option<Self> {
        let (address, length) = cidr.split_once('/')?;
        Some(Network {
            address: address.parse().ok()?,
            length: length.parse().ok()?,
        })
    }

    fn has(&self, ip: IpAddr) -> bool {
        let (own, other, width) = match (self.address, ip) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                (u128::from(u32::from(own)), u128::from(u32::from(ip)), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => (u128::from(own), u128::from(ip), 128),
            _ => return false,
        };
        // Shifting by the whole width gives `None` on both sides, so a network of length 0 has every address.
        let rest = width - self.length.min(width);
        own.checked_shr(rest) == other.checked_shr(rest)
    }

    fn covers(&self, other: &Network) -> bool {
        self.length <= other.length && self.has(other.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(cidr: &str) -> Network {
        Network::parse(cidr).expect("it is one")
    }

    #[test]
    fn a_network_has_its_addresses_and_those_of_its_parts() {
        let wide = network("10.96.0.0/16");
        assert!(wide.has("10.96.255.1".parse().expect("an address")));
        assert!(!wide.has("10.97.0.1".parse().expect("an address")));
        assert!(!wide.has("fd00::1".parse().expect("an address")));
        assert!(wide.covers(&network("10.96.8.0/24")) && wide.covers(&wide));
        assert!(!network("10.96.8.0/24").covers(&wide));
        let all = network("::/0");
        assert!(
            all.covers(&network("fd00::/64")) && all.has("fd00::1".parse().expect("an address"))
        );
    }

    #[test]
    fn a_range_has_ten_seconds_after_its_deletion() {
        let at = |second| Timestamp::from_second(second).expect("a time");
        assert_eq!(remaining(at(100), at(104)), Duration::from_secs(6));
        assert_eq!(remaining(at(100), at(200)), Duration::ZERO);
        assert_eq!(remaining(at(100), at(99)), GRACE);
    }
}
