//! Writes what a pod's volumes need before the pod is bound: kube-scheduler's VolumeBinding, Reserve and PreBind.
//!
//! The engine has chosen which claim gets which volume, and which volumes are to be provisioned ([`VolumeChoices`]); the
//! model assumes both. This module writes the choice to the API and waits: the PersistentVolume controller binds a
//! volume, and its driver provisions one, for the node in the claim's annotation.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mullion_engine::VolumeChoices;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    Context, api_error, pods,
    volumes::matching::{self, BOUND_BY_CONTROLLER, SELECTED_NODE},
};

/// `bindTimeoutSeconds` of VolumeBindingArgs.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often progress is checked: the first interval, and the longest.
const CHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Writes the choices to the API and waits until the claims are bound.
///
/// # Errors
/// A write is refused, a volume cannot be provisioned, or a timeout expires.
pub(super) async fn pre_bind(
    context: &Context,
    pod: &Pod,
    node: &str,
    choices: &VolumeChoices,
) -> Result<(), VolumesError> {
    let namespace = pod.namespace().unwrap_or_default();
    // Both writes come before the wait, so that binding and provisioning run side by side.
    for (claim, volume) in &choices.matched {
        promise(context, &namespace, claim, volume).await?;
    }
    for claim in &choices.provisioned {
        select_node(context, &namespace, claim, node).await?;
    }
    Ok(wait(context, pod, node, choices).await?)
}

/// The reason why a pod does not get its volumes, with kube-scheduler's message.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumesError {
    /// There is no volume of this name.
    #[error("persistentvolume {0:?} not found")]
    NoVolume(String),
    /// There is no claim of this name.
    #[error(transparent)]
    NoClaim(#[from] NoClaim),
    /// The API server refuses a write.
    #[error("{}", api_error::message(.0))]
    Write(#[from] kube::Error),
    /// The volumes are not bound.
    #[error("binding volumes: {0}")]
    Binding(#[from] BindingError),
}

/// There is no claim of this name.
#[derive(Debug, thiserror::Error)]
#[error("persistentvolumeclaim {0:?} not found")]
pub(super) struct NoClaim(String);

/// The reason why volumes are not bound.
#[derive(Debug, thiserror::Error)]
pub(super) enum BindingError {
    /// The pod of this name is gone or is being deleted.
    #[error("pod does not exist any more: pod {0:?} not found")]
    NoPod(String),
    /// There is no claim of this name.
    #[error(transparent)]
    NoClaim(#[from] NoClaim),
    /// The driver makes no volume for the claim of this name.
    #[error("provisioning failed for PVC {0:?}")]
    NotProvisioned(String),
    /// The volumes are not bound in time.
    #[error("context deadline exceeded")]
    Timeout,
}

/// Reserves a volume for a claim by its `claimRef`; the PersistentVolume controller completes the binding.
async fn promise(
    context: &Context,
    namespace: &str,
    claim: &str,
    volume: &str,
) -> Result<(), VolumesError> {
    let claim = claim_of(context, namespace, claim)?;
    let known = context.informers.volumes.get("", volume);
    let known = known.ok_or_else(|| VolumesError::NoVolume(volume.to_owned()))?;
    if matching::is_bound_to(&known, &claim) && matching::claim_uid(&known).is_some() {
        return Ok(());
    }
    let mut set_aside = PersistentVolume::clone(&known);
    let by_controller = !matching::is_bound_to(&known, &claim);
    if let Some(spec) = &mut set_aside.spec {
        spec.claim_ref = Some(ObjectReference {
            resource_version: claim.resource_version(),
            ..claim.object_ref(&())
        });
    }
    // The annotation tells the PersistentVolume controller that it may undo the binding if the claim
    // vanishes.
    if by_controller {
        set_aside
            .annotations_mut()
            .insert(BOUND_BY_CONTROLLER.to_owned(), "yes".to_owned());
    }
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    let written = api
        .replace(volume, &PostParams::default(), &set_aside)
        .await;
    written.map(drop).map_err(VolumesError::Write)
}

/// Annotates a claim with the node for which its driver is to provision the volume.
async fn select_node(
    context: &Context,
    namespace: &str,
    claim: &str,
    node: &str,
) -> Result<(), VolumesError> {
    let known = claim_of(context, namespace, claim)?;
    if known.annotations().get(SELECTED_NODE).map(String::as_str) == Some(node) {
        return Ok(());
    }
    let patch =
        json!({ "metadata": { "uid": known.uid(), "annotations": { SELECTED_NODE: node } } });
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let written = api
        .patch(claim, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    written.map(drop).map_err(VolumesError::Write)
}

fn claim_of(
    context: &Context,
    namespace: &str,
    claim: &str,
) -> Result<Arc<PersistentVolumeClaim>, NoClaim> {
    let known = context.informers.claims.get(namespace, claim);
    known.ok_or_else(|| NoClaim(claim.to_owned()))
}

async fn wait(
    context: &Context,
    pod: &Pod,
    node: &str,
    choices: &VolumeChoices,
) -> Result<(), BindingError> {
    let namespace = pod.namespace().unwrap_or_default();
    let patience_ends = Instant::now() + PATIENCE;
    let mut pause = CHECK_INTERVALS[0];
    // The informer may not show the annotation just written yet.
    let mut seen = vec![false; choices.provisioned.len()];
    loop {
        let latest = context.informers.pods.get(&namespace, &pod.name_any());
        // Provisioning may take minutes; a pod that was deleted meanwhile must not hold the wait for all of
        // them.
        if latest.is_none_or(|latest| latest.uid() != pod.uid() || pods::is_deleting(&latest)) {
            return Err(BindingError::NoPod(pod.name_any()));
        }
        let mut bound = true;
        for (claim, _) in &choices.matched {
            bound &= is_bound(&*claim_of(context, &namespace, claim)?);
        }
        for (claim, seen) in choices.provisioned.iter().zip(&mut seen) {
            let claim = claim_of(context, &namespace, claim)?;
            if is_bound(&claim) {
                continue;
            }
            bound = false;
            match claim.annotations().get(SELECTED_NODE) {
                Some(selected) if selected == node => *seen = true,
                // The driver removes the annotation if it cannot provision the volume for this node.
                _ if *seen => {
                    return Err(BindingError::NotProvisioned(claim.name_any()));
                }
                _ => {}
            }
        }
        if bound {
            return Ok(());
        }
        if Instant::now() >= patience_ends {
            return Err(BindingError::Timeout);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(CHECK_INTERVALS[1]);
    }
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    matching::volume_name(claim).is_some() && matching::is_bind_completed(claim)
}
