//! ResourceClaims, DeviceClasses and ResourceSlices in the cluster state, and decisions about claims that the watch
//! has not shown yet.

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use mullion_engine::{
    NodeId, PodClassId,
    model::{ClaimAllocation, DeviceChoices, ResourceClaimSpec},
};
use rustc_hash::FxHashMap;

use super::{ClusterState, name};
use crate::{
    resource_claims::EXTENDED,
    state::{devices, volumes::spec_of},
};

/// Unallocated claims and the decisions about claims, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct DeviceDecisions {
    /// Claims without an allocation as last seen, with their UIDs.
    wanting: FxHashMap<(String, String), (String, ResourceClaimSpec)>,
    /// The allocations that claims will get, until they are written, with the claims' UIDs.
    promised: FxHashMap<(String, String), (String, ClaimAllocation)>,
    /// UID and resource version of claims that this process wrote, until the watch shows them.
    written: FxHashMap<(String, String), (String, u64)>,
    /// Claims for extended resources, by the UID of their pod.
    extended: FxHashMap<String, (String, String)>,
}

/// The name prefix of claims for extended resources that are not created yet; the pod's UID follows. No real claim
/// can have this name.
const CLAIM_TO_BE: &str = "<extended-resources>";

impl ClusterState {
    /// Adds or updates a ResourceClaim. Decisions and writes about it stay in effect until the watch shows them.
    pub fn set_resource_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let (key, uid, version) = identity(claim);
        if let Some((written, newest)) = self.devices.written.get(&key) {
            // The watch lags behind the scheduler's own write. Taking the older claim would free devices that
            // are allocated.
            if *written == uid && version < *newest {
                return;
            }
            self.devices.written.remove(&key);
        }
        self.take_resource_claim(claim, now);
    }

    /// Updates a ResourceClaim that the scheduler has just written.
    pub fn wrote_resource_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let (key, uid, version) = identity(claim);
        self.devices.written.insert(key, (uid, version));
        self.take_resource_claim(claim, now);
    }

    fn take_resource_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let Some(mut spec) = devices::claim(claim, now) else {
            return;
        };
        let (key, uid, _) = identity(claim);
        if let Some(pod) = extended_for(claim) {
            if spec.allocation.is_some() {
                // The claim now contains the allocation that was promised to the pod.
                self.forget_extended(&key.0, pod);
            }
            self.devices.extended.insert(pod.to_owned(), key.clone());
        }
        let promised = self.devices.promised.get(&key);
        // A different UID means that the claim was deleted and created again; the promise was for the former
        // one.
        if spec.allocation.is_some() || promised.is_some_and(|(other, _)| *other != uid) {
            self.devices.promised.remove(&key);
        }
        match spec.allocation {
            Some(_) => self.devices.wanting.remove(&key),
            None => self
                .devices
                .wanting
                .insert(key.clone(), (uid, spec.clone())),
        };
        if let Some((_, allocation)) = self.devices.promised.get(&key) {
            spec.allocation = Some(allocation.clone());
            // The allocation is decided but not written, so pods cannot start with it yet.
            spec.pending = true;
        }
        self.cluster.set_resource_claim(&spec);
    }

    /// Removes a ResourceClaim.
    pub fn remove_resource_claim(&mut self, claim: &ResourceClaim) {
        let (namespace, name) = name(claim);
        let key = (namespace.to_owned(), name.to_owned());
        self.devices.wanting.remove(&key);
        self.devices.promised.remove(&key);
        self.devices.written.remove(&key);
        if let Some(pod) = extended_for(claim)
            && self.devices.extended.get(pod) == Some(&key)
        {
            self.devices.extended.remove(pod);
        }
        self.cluster.remove_resource_claim(namespace, name);
    }

    /// Returns the name of the existing claim for a pod's extended resources. If the pod has no node, a failed
    /// attempt to schedule it left the claim behind.
    pub fn extended_claim(&self, namespace: &str, pod: &str) -> Option<&str> {
        let (of, name) = self.devices.extended.get(pod)?;
        (of == namespace).then_some(name)
    }

    /// Adds or updates a DeviceClass.
    pub fn set_device_class(&mut self, class: &DeviceClass) {
        if let Some(spec) = spec_of(class) {
            self.cluster.set_device_class(&spec);
        }
    }

    /// Removes a DeviceClass.
    pub fn remove_device_class(&mut self, class: &DeviceClass) {
        self.cluster.remove_device_class(name(class).1);
    }

    /// Adds or updates a ResourceSlice.
    pub fn set_resource_slice(&mut self, slice: &ResourceSlice) {
        if let Some(spec) = spec_of(slice) {
            self.cluster.set_resource_slice(&spec);
        }
    }

    /// Removes a ResourceSlice.
    pub fn remove_resource_slice(&mut self, slice: &ResourceSlice) {
        self.cluster.remove_resource_slice(name(slice).1);
    }

    /// Chooses devices on `node` for the unallocated claims and the extended resources of a pod in `namespace`, and
    /// assumes them as allocated (kube-scheduler: DynamicResources' Reserve).
    pub fn reserve_devices(
        &mut self,
        class: PodClassId,
        node: NodeId,
        namespace: &str,
        pod: &str,
    ) -> DeviceChoices {
        let choices = self.cluster.device_choices(class, node);
        if let Some(extended) = &choices.extended {
            self.cluster.set_resource_claim(&ResourceClaimSpec {
                namespace: namespace.to_owned(),
                name: name_to_be(pod),
                requests: extended.requests.clone(),
                allocation: Some(extended.allocation.clone()),
                pending: true,
                ..ResourceClaimSpec::default()
            });
        }
        for (claim, allocation) in &choices.claims {
            let key = (namespace.to_owned(), claim.clone());
            if let Some((uid, spec)) = self.devices.wanting.get(&key) {
                let mut decided = spec.clone();
                decided.allocation = Some(allocation.clone());
                decided.pending = true;
                self.cluster.set_resource_claim(&decided);
                let promise = (uid.clone(), allocation.clone());
                self.devices.promised.insert(key, promise);
            }
        }
        choices
    }

    /// Undoes [`ClusterState::reserve_devices`], except for allocations that were written.
    pub fn release_devices(&mut self, namespace: &str, pod: &str, choices: &DeviceChoices) {
        if choices.extended.is_some() {
            self.forget_extended(namespace, pod);
        }
        for (claim, _) in &choices.claims {
            let key = (namespace.to_owned(), claim.clone());
            if self.devices.promised.remove(&key).is_some()
                // A claim that is no longer unallocated got its allocation written; that is not undone here.
                && let Some((_, spec)) = self.devices.wanting.get(&key)
            {
                self.cluster.set_resource_claim(spec);
            }
        }
    }

    fn forget_extended(&mut self, namespace: &str, pod: &str) {
        self.cluster
            .remove_resource_claim(namespace, &name_to_be(pod));
    }
}

/// Returns the name of the claim for a pod's extended resources until it is created.
fn name_to_be(pod: &str) -> String {
    format!("{CLAIM_TO_BE}/{pod}")
}

/// Returns the UID of the pod for whose extended resources a claim was created.
fn extended_for(claim: &ResourceClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    if annotations.get(EXTENDED).is_none_or(|own| own != "true") {
        return None;
    }
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|own| own.controller == Some(true) && own.kind == "Pod")?;
    Some(&owner.uid)
}

/// Returns namespace and name, UID and resource version of a claim.
fn identity(claim: &ResourceClaim) -> ((String, String), String, u64) {
    let (namespace, name) = name(claim);
    let version = claim.metadata.resource_version.as_deref();
    let version = version.and_then(|version| version.parse().ok());
    (
        (namespace.to_owned(), name.to_owned()),
        claim.metadata.uid.clone().unwrap_or_default(),
        version.unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use mullion_engine::Options;
    use serde_json::{Value, json};

    use super::*;

    fn claim(version: &str, uid: &str, status: Value) -> ResourceClaim {
        let claim = json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": uid, "resourceVersion": version },
            "spec": {},
            "status": status,
        });
        serde_json::from_value(claim).expect("a claim")
    }

    #[test]
    fn what_was_written_is_not_undone_by_an_older_picture_but_by_a_newer_one_and_another_claim() {
        let mut state = ClusterState::new(Options::default());
        let key = ("ns".to_owned(), "c".to_owned());
        let (now, given) = (
            Timestamp::UNIX_EPOCH,
            json!({ "allocation": { "devices": {} } }),
        );
        let is_wanting = |state: &ClusterState| state.devices.wanting.contains_key(&key);
        let promise = |state: &mut ClusterState, uid: &str| {
            let promise = (uid.to_owned(), ClaimAllocation::default());
            state.devices.promised.insert(key.clone(), promise);
        };
        state.set_resource_claim(&claim("5", "u", json!({})), now);
        promise(&mut state, "u");
        state.set_resource_claim(&claim("6", "u", json!({})), now);
        assert!(
            state.devices.promised.contains_key(&key),
            "nothing is written yet"
        );
        state.wrote_resource_claim(&claim("9", "u", given.clone()), now);
        assert!(!is_wanting(&state) && state.devices.promised.is_empty());
        state.set_resource_claim(&claim("7", "u", json!({})), now);
        assert!(!is_wanting(&state), "the watch is behind");
        state.set_resource_claim(&claim("12", "u", json!({})), now);
        assert!(is_wanting(&state), "it was given back meanwhile");
        promise(&mut state, "u");
        state.set_resource_claim(&claim("13", "other", json!({})), now);
        assert!(
            state.devices.promised.is_empty(),
            "another claim has no promise"
        );
    }
}
