//! Claims of devices, their classes and slices, and what was decided about claims that the watch has not shown yet.

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use mullion_engine::{
    NodeId, PodClassId,
    model::{ClaimAllocation, ResourceClaimSpec},
};
use rustc_hash::FxHashMap;

use super::{ClusterState, name};
use crate::state::{devices, volumes::spec_of};

/// Claims about which something may be or was decided, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct DeviceDecisions {
    /// Claims as last seen, if they have no devices.
    wanting: FxHashMap<(String, String), ResourceClaimSpec>,
    /// The devices that claims will get, until the watch shows it.
    promised: FxHashMap<(String, String), ClaimAllocation>,
}

impl ClusterState {
    /// A ResourceClaim appeared or changed. What was decided about it counts until the claim itself says so.
    pub fn set_resource_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let Some(mut spec) = devices::claim(claim, now) else {
            return;
        };
        let key = (spec.namespace.clone(), spec.name.clone());
        if spec.allocation.is_some() {
            self.devices.wanting.remove(&key);
            self.devices.promised.remove(&key);
        } else {
            self.devices.wanting.insert(key.clone(), spec.clone());
        }
        if let Some(allocation) = self.devices.promised.get(&key) {
            spec.allocation = Some(allocation.clone());
            spec.pending = true;
        }
        self.cluster.set_resource_claim(&spec);
    }

    /// A ResourceClaim is gone.
    pub fn remove_resource_claim(&mut self, claim: &ResourceClaim) {
        let (namespace, name) = name(claim);
        let key = (namespace.to_owned(), name.to_owned());
        self.devices.wanting.remove(&key);
        self.devices.promised.remove(&key);
        self.cluster.remove_resource_claim(namespace, name);
    }

    /// A DeviceClass appeared or changed.
    pub fn set_device_class(&mut self, class: &DeviceClass) {
        if let Some(spec) = spec_of(class) {
            self.cluster.set_device_class(&spec);
        }
    }

    /// A DeviceClass is gone.
    pub fn remove_device_class(&mut self, class: &DeviceClass) {
        self.cluster.remove_device_class(name(class).1);
    }

    /// A ResourceSlice appeared or changed.
    pub fn set_resource_slice(&mut self, slice: &ResourceSlice) {
        if let Some(spec) = spec_of(slice) {
            self.cluster.set_resource_slice(&spec);
        }
    }

    /// A ResourceSlice is gone.
    pub fn remove_resource_slice(&mut self, slice: &ResourceSlice) {
        self.cluster.remove_resource_slice(name(slice).1);
    }

    /// Decides which devices the claims of a pod of `namespace` get on `node` that have none, by name of the claim, and counts them as taken
    /// (kube-scheduler: DynamicResources' Reserve).
    pub fn reserve_devices(
        &mut self,
        class: PodClassId,
        node: NodeId,
        namespace: &str,
    ) -> Vec<(String, ClaimAllocation)> {
        let choices = self.cluster.device_choices(class, node);
        for (claim, allocation) in &choices {
            let key = (namespace.to_owned(), claim.clone());
            if let Some(spec) = self.devices.wanting.get(&key) {
                let mut decided = spec.clone();
                decided.allocation = Some(allocation.clone());
                decided.pending = true;
                self.cluster.set_resource_claim(&decided);
                self.devices.promised.insert(key, allocation.clone());
            }
        }
        choices
    }

    /// Takes back what [`ClusterState::reserve_devices`] counted as taken, as far as the watch has not shown it.
    pub fn release_devices<'c>(
        &mut self,
        namespace: &str,
        choices: impl Iterator<Item = &'c (String, ClaimAllocation)>,
    ) {
        for (claim, _) in choices {
            let key = (namespace.to_owned(), claim.clone());
            if self.devices.promised.remove(&key).is_some()
                && let Some(spec) = self.devices.wanting.get(&key)
            {
                self.cluster.set_resource_claim(spec);
            }
        }
    }
}
