//! Checks the devices that a pod claims: before its sandbox is created, each of its claims must be allocated and
//! reserved for it (kubelet: `pkg/kubelet/cm/dra`). Simulated nodes have no drivers, so nothing more is prepared.
//!
//! Invariant: a pod without claims never causes a lookup.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::api::{core::v1::Pod, resource::v1::ResourceClaim};

use crate::{
    kubelet::config::{self, ConfigError, FoundObjects, Object},
    resource_claims::pod_claims::{self, Claimed, Unknown},
};

/// The interval after which a pod is synced again whose devices could not be prepared. The kubelet does not treat
/// this as an error, so it is the ordinary resync interval.
pub(super) const RESYNC: SignedDuration = SignedDuration::from_mins(1);

/// Iterates the claims of a pod in the order in which the kubelet prepares them.
fn claimed(pod: &Pod) -> impl Iterator<Item = Result<Claimed<'_>, Unknown>> {
    let extended = pod_claims::extended(pod).map(|name| Ok(Claimed::Named(name)));
    pod_claims::entries(pod)
        .map(|entry| pod_claims::claimed(pod, entry))
        .chain(extended)
}

/// Returns whether a pod claims devices.
pub(super) fn any(pod: &Pod) -> bool {
    claimed(pod).next().is_some()
}

/// Returns the claims to look up.
pub(super) fn objects(pod: &Pod) -> BTreeSet<Object> {
    claimed(pod)
        .filter_map(|claimed| claimed.ok()?.name())
        .map(|name| Object::ResourceClaim(name.to_owned()))
        .collect()
}

/// The reason why a pod does not get its devices.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// It is not known which claim an entry of the pod stands for.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The pod may not use a claim.
    #[error(transparent)]
    Claim(#[from] ConfigError),
}

/// Checks that the claims that were found give the pod its devices.
///
/// # Errors
/// The pod may not use a claim; this is the first one.
pub(super) fn prepare(pod: &Pod, found: &FoundObjects) -> Result<(), PrepareError> {
    for claimed in claimed(pod) {
        if let Some(name) = claimed?.name() {
            config::of_devices(name).payload(found)?;
        }
    }
    Ok(())
}

/// Returns why a pod may not use the devices of an existing claim.
pub(in crate::kubelet) fn trouble(pod: &Pod, claim: &ResourceClaim) -> Option<String> {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    if claimed(pod).any(|claimed| claimed == Ok(Claimed::Made(name)))
        && let Err(not_owner) = pod_claims::check_owner(pod, claim)
    {
        return Some(not_owner.to_string());
    }
    let uid = |uid: &Option<String>| uid.clone().unwrap_or_default();
    if !pod_claims::is_reserved_for(claim, pod) {
        return Some(format!(
            "pod {} ({}) is not allowed to use ResourceClaim {name} ({})",
            pod.metadata.name.as_deref().unwrap_or_default(),
            uid(&pod.metadata.uid),
            uid(&claim.metadata.uid)
        ));
    }
    (!pod_claims::is_allocated(claim)).then(|| format!("ResourceClaim {name}: not allocated"))
}
