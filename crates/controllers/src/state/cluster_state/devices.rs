//! Claims of devices, their classes and slices, and what was decided about claims that the watch has not shown yet.

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

/// Claims about which something may be or was decided, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct DeviceDecisions {
    /// Claims as last seen, if they have no devices, with their UIDs.
    wanting: FxHashMap<(String, String), (String, ResourceClaimSpec)>,
    /// The devices that claims, by their UIDs, will get, until that is written.
    promised: FxHashMap<(String, String), (String, ClaimAllocation)>,
    /// UID and version of claims as they were written, until the watch shows it.
    written: FxHashMap<(String, String), (String, u64)>,
    /// Claims for extended resources, by the UID of their pod.
    extended: FxHashMap<String, (String, String)>,
}

/// Claims for extended resources that are not made yet are called so, each with the UID of its pod. No claim can be.
const CLAIM_TO_BE: &str = "<extended-resources>";

impl ClusterState {
    /// A ResourceClaim appeared or changed. What was decided and written about it counts until the watch has come so far.
    pub fn set_resource_claim(&mut self, claim: &ResourceClaim, now: Timestamp) {
        let (key, uid, version) = identity(claim);
        if let Some((written, newest)) = self.devices.written.get(&key) {
            if *written == uid && version < *newest {
                return;
            }
            self.devices.written.remove(&key);
        }
        self.take_resource_claim(claim, now);
    }

    /// A ResourceClaim was written by the scheduler: it counts as it is now.
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
                // What was promised to the pod is in this claim now.
                self.forget_extended(&key.0, pod);
            }
            self.devices.extended.insert(pod.to_owned(), key.clone());
        }
        let promised = self.devices.promised.get(&key);
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
        self.devices.written.remove(&key);
        if let Some(pod) = extended_for(claim)
            && self.devices.extended.get(pod) == Some(&key)
        {
            self.devices.extended.remove(pod);
        }
        self.cluster.remove_resource_claim(namespace, name);
    }

    /// The claim for extended resources that there is of a pod. A pod without a node should have none: an attempt to place it has left it behind.
    pub fn extended_claim(&self, namespace: &str, pod: &str) -> Option<&str> {
        let (of, name) = self.devices.extended.get(pod)?;
        (of == namespace).then_some(name)
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

    /// Decides which devices the claims of a pod of `namespace` get on `node` that have none, and its extended resources, and counts them as
    /// taken (kube-scheduler: DynamicResources' Reserve).
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

    /// Takes back what [`ClusterState::reserve_devices`] counted as taken, as far as it was not written.
    pub fn release_devices(&mut self, namespace: &str, pod: &str, choices: &DeviceChoices) {
        if choices.extended.is_some() {
            self.forget_extended(namespace, pod);
        }
        for (claim, _) in &choices.claims {
            let key = (namespace.to_owned(), claim.clone());
            if self.devices.promised.remove(&key).is_some()
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

/// What a claim for the extended resources of a pod is called until it is made.
fn name_to_be(pod: &str) -> String {
    format!("{CLAIM_TO_BE}/{pod}")
}

/// The UID of the pod whose extended resources a claim is for.
fn extended_for(claim: &ResourceClaim) -> Option<&str> {
    let annotations = claim.metadata.annotations.as_ref()?;
    if annotations.get(EXTENDED).is_none_or(|own| own != "true") {
        return None;
    }
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|own| own.controller == Some(true) && own.kind == "Pod")?;
    Some(&owner.uid)
}

/// Namespace and name, UID and version of a claim.
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
