//! Writes a pod's ResourceClaims before it is bound: kube-scheduler's DynamicResources, PreBind, Unreserve and PostFilter.
//!
//! The engine has chosen devices for claims without an allocation, and the model counts them as allocated. This module
//! writes the allocations, adds the pod to `reservedFor`, and waits for devices that have to be prepared.

use std::time::Duration;

use k8s_openapi::{
    api::{
        core::v1::Pod,
        resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Error, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use mullion_engine::model::{ClaimAllocation, DeviceChoices};
use serde_json::json;
use tokio::time::Instant;

use super::{allocation::allocation_of, extended};
use crate::{
    Context, EventType, Recorder, api_error,
    resource_claims::{PROTECTION, pod_claims::is_reserved_for},
    state::devices::{self, BINDING_PATIENCE, Readiness},
};

/// How many times a write is tried after conflicts, and the pause between two tries.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(10);
/// How often readiness is checked while waiting for devices.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// The devices chosen for a pod, and what was created for them.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    pub(super) choices: DeviceChoices,
    /// The name of the claim that was created for the pod's extended resources.
    pub(super) made: Option<String>,
}

/// The reason why a pod does not get its devices, with kube-scheduler's message.
#[derive(Debug, thiserror::Error)]
pub(super) enum DevicesError {
    /// There is no claim of this namespace and name.
    #[error("could not find ResourceClaim {0:?}")]
    NoClaim(String),
    /// The claim is being deleted.
    #[error("claim {0} got deleted in the meantime")]
    Deleted(String),
    /// Another scheduler has allocated the claim.
    #[error("claim {0} got allocated elsewhere in the meantime")]
    Allocated(String),
    /// The API server refuses to change a claim.
    #[error("{what} to claim {claim}: {}", api_error::message(.error))]
    Write {
        /// The change.
        what: &'static str,
        /// The namespace and name of the claim.
        claim: String,
        /// The refusal.
        error: Error,
    },
    /// A claim that has changed cannot be read again.
    #[error("get updated claim {claim} after conflict: {}", api_error::message(.error))]
    Read {
        /// The namespace and name of the claim.
        claim: String,
        /// The refusal.
        error: Error,
    },
    /// The API server refuses to create a claim for extended resources.
    #[error("create claim for extended resources {namespace}/: {}", api_error::message(.error))]
    Create {
        /// The namespace of the claim.
        namespace: String,
        /// The refusal.
        error: Error,
    },
    /// The API server refuses to change the status of the pod.
    #[error("update pod {pod} ExtendedResourceClaimStatus: {}", api_error::message(.error))]
    PodStatus {
        /// The namespace and name of the pod.
        pod: String,
        /// The refusal.
        error: Error,
    },
    /// A device cannot be used; the text says what its driver reports.
    #[error("{0}")]
    Failed(String),
    /// The devices of this claim are not ready in time.
    #[error("claim {0} binding timeout")]
    Overdue(String),
    /// Not all devices are ready in time.
    #[error("device binding timeout")]
    Timeout,
}

impl DevicesError {
    /// Returns whether a write conflicted with a newer version.
    fn is_conflict(&self) -> bool {
        matches!(self, DevicesError::Write { error: Error::Api(status), .. } if status.is_conflict())
    }
}

/// Writes allocations and reservations of the pod's claims, and waits until their devices are ready; calls `wrote` with each
/// written claim. The claim for extended resources is created if needed.
///
/// # Errors
/// A write is refused, a device fails, or a timeout expires.
pub(super) async fn pre_bind(
    context: &Context,
    recorder: Option<&Recorder>,
    (pod, node): (&Pod, &str),
    decided: &mut Decided,
    wrote: impl Fn(&ResourceClaim),
) -> Result<(), DevicesError> {
    let Decided { choices, made } = decided;
    let mut waits = false;
    let mut names = claims_of(pod);
    for name in &names {
        let choice = choices.claims.iter().find(|(own, _)| own == name);
        let allocation = choice.map(|(_, allocation)| allocation);
        let claim = known(context, pod, name)?;
        let claim = reserve(context, pod, claim, allocation).await?;
        wrote(&claim);
        waits |= devices::has_conditions(&claim);
    }
    if let Some(own) = &choices.extended {
        let claim = extended::make(context, pod, own).await?;
        let name = claim.name_any();
        // Recorded before the next step can fail, so that [`unreserve`] deletes the claim.
        *made = Some(name.clone());
        let claim = reserve(context, pod, claim, Some(&own.allocation)).await?;
        wrote(&claim);
        waits |= devices::has_conditions(&claim);
        extended::write_status(context, pod, own, &name).await?;
        names.push(name);
    }
    if waits {
        wait(context, recorder, pod, node, &names).await
    } else {
        Ok(())
    }
}

/// Returns the names of the existing claims of a pod.
fn claims_of(pod: &Pod) -> Vec<String> {
    let claims = devices::of_pod(pod).into_iter();
    let claims = claims.flat_map(|own| own.claims);
    claims.filter_map(|own| own.claim).collect()
}

/// Returns a claim from the informer.
fn known(context: &Context, pod: &Pod, name: &str) -> Result<ResourceClaim, DevicesError> {
    let namespace = pod.namespace().unwrap_or_default();
    match context.informers.resource_claims.get(&namespace, name) {
        Some(known) => Ok(ResourceClaim::clone(&known)),
        None => Err(DevicesError::NoClaim(format!("{namespace}/{name}"))),
    }
}

/// Writes the allocation of a claim, if it is new, and adds the pod to its consumers (kube-scheduler: `bindClaim`).
async fn reserve(
    context: &Context,
    pod: &Pod,
    mut claim: ResourceClaim,
    allocation: Option<&ClaimAllocation>,
) -> Result<ResourceClaim, DevicesError> {
    let namespace = pod.namespace().unwrap_or_default();
    let name = claim.name_any();
    let text = format!("{namespace}/{name}");
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    let mut tries = 1;
    loop {
        // An earlier attempt may have reserved the claim and failed afterwards.
        if is_reserved_for(&claim, pod) {
            return Ok(claim);
        }
        match reserve_once(context, &api, pod, claim, allocation, &text).await {
            Ok(claim) => return Ok(claim),
            Err(refused) if refused.is_conflict() && tries < TRIES => {}
            Err(refused) => return Err(refused),
        }
        tries += 1;
        tokio::time::sleep(PAUSE).await;
        let read = api.get(&name).await;
        claim = read.map_err(|error| DevicesError::Read {
            claim: text.clone(),
            error,
        })?;
    }
}

async fn reserve_once(
    context: &Context,
    api: &Api<ResourceClaim>,
    pod: &Pod,
    mut claim: ResourceClaim,
    allocation: Option<&ClaimAllocation>,
    text: &str,
) -> Result<ResourceClaim, DevicesError> {
    let refused = |what: &'static str, error: Error| DevicesError::Write {
        what,
        claim: text.to_owned(),
        error,
    };
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(DevicesError::Deleted(text.to_owned()));
    }
    let name = claim.name_any();
    if let Some(allocation) = allocation {
        let given = claim
            .status
            .as_ref()
            .and_then(|status| status.allocation.as_ref());
        if given.is_some() {
            return Err(DevicesError::Allocated(text.to_owned()));
        }
        if !claim.finalizers().iter().any(|own| own == PROTECTION) {
            // The finalizer is written before the allocation, or a deletion between the two would leak the
            // devices.
            claim.finalizers_mut().push(PROTECTION.to_owned());
            let written = api.replace(&name, &PostParams::default(), &claim).await;
            claim = written.map_err(|error| refused("add finalizer", error))?;
        }
        let written = allocation_of(context, &claim, allocation);
        claim.status.get_or_insert_default().allocation = Some(written);
    }
    let status = claim.status.get_or_insert_default();
    let consumers = status.reserved_for.get_or_insert_default();
    // Allocation and reservation go into one write: a claim that is allocated but reserved by nobody may be
    // freed.
    consumers.push(ResourceClaimConsumerReference {
        api_group: None,
        resource: "pods".to_owned(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    });
    // An allocation by another client is not changed.
    if let Some(given) = status.allocation.as_mut().filter(|_| allocation.is_some()) {
        let now = || Time(context.clock.now());
        given.allocation_timestamp.get_or_insert_with(now);
    }
    let what = match allocation {
        Some(_) => "add allocation and reservation",
        None => "add reservation",
    };
    let written = api
        .replace_status(&name, &PostParams::default(), &claim)
        .await;
    written.map_err(|error| refused(what, error))
}

/// Waits until the drivers report the devices of all the pod's claims as ready.
async fn wait(
    context: &Context,
    recorder: Option<&Recorder>,
    pod: &Pod,
    node: &str,
    names: &[String],
) -> Result<(), DevicesError> {
    if let Some(recorder) = recorder {
        let note = format!("waiting for binding conditions for device on node {node}");
        let (object, kind) = (pod.object_ref(&()), EventType::Normal);
        let reason = "BindingConditionsPending";
        recorder.record_action(object, None, kind, reason, "Scheduling", note);
    }
    let patience_ends = Instant::now() + BINDING_PATIENCE;
    loop {
        let mut ready = true;
        for name in names {
            let claim = known(context, pod, name)?;
            match devices::readiness(&claim) {
                Readiness::Ready => {}
                Readiness::Failed(why) => return Err(DevicesError::Failed(why)),
                Readiness::Waits if devices::is_overdue(&claim, context.clock.now()) => {
                    return Err(DevicesError::Overdue(name.clone()));
                }
                Readiness::Waits => ready = false,
            }
        }
        // The informer may not show the latest writes yet; then a claim has no devices and is not ready.
        if ready && is_seen(context, pod, names) {
            return Ok(());
        }
        if Instant::now() >= patience_ends {
            return Err(DevicesError::Timeout);
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Returns whether the informer shows the pod as a consumer of all its claims.
fn is_seen(context: &Context, pod: &Pod, names: &[String]) -> bool {
    let mut claims = names.iter().map(|name| known(context, pod, name));
    claims.all(|claim| claim.is_ok_and(|claim| is_reserved_for(&claim, pod)))
}

/// Removes a pod that was not bound from the consumers of its claims, and deletes the claim that was created for it.
pub(super) async fn unreserve(context: &Context, pod: &Pod, decided: &Decided) {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    for name in claims_of(pod) {
        let Some(claim) = context.informers.resource_claims.get(&namespace, &name) else {
            continue;
        };
        let patch = json!({
            // A claim that was deleted and made anew under this name must not lose a reservation.
            "metadata": { "uid": claim.uid() },
            "status": { "reservedFor": [{ "$patch": "delete", "uid": pod.uid() }] },
        });
        let patched = api
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await;
        if let Err(error) = patched {
            // The next attempt, or the ResourceClaim controller, repeats this.
            tracing::debug!(%error, claim = %name, "reservation of a claim not taken back");
        }
    }
    if let Some(name) = &decided.made {
        delete(context, pod, name).await;
    }
}

/// Deletes the claim for the extended resources of a pod. A failure is only logged, because a later attempt repeats it.
pub(super) async fn delete(context: &Context, pod: &Pod, name: &str) {
    if let Err(error) = extended::delete(context, pod, name).await {
        tracing::debug!(%error, claim = %name, "claim for extended resources not deleted");
    }
}

/// Deallocates a claim that no other pod has reserved, so that it can get other devices.
///
/// # Errors
/// Returns an error if the API server refuses the write. After a conflict, the newer version of the claim wakes the pod.
pub(super) async fn deallocate(context: &Context, pod: &Pod, name: &str) -> Result<(), Error> {
    let namespace = pod.namespace().unwrap_or_default();
    let Some(known) = context.informers.resource_claims.get(&namespace, name) else {
        return Ok(());
    };
    let mut claim = ResourceClaim::clone(&known);
    // Another pod may have reserved the claim since the decision.
    let consumers = claim
        .status
        .iter()
        .flat_map(|status| status.reserved_for.iter().flatten());
    let uid = pod.metadata.uid.as_deref();
    if !consumers
        .into_iter()
        .all(|consumer| Some(consumer.uid.as_str()) == uid)
    {
        return Ok(());
    }
    if let Some(status) = &mut claim.status {
        status.allocation = None;
        status.reserved_for = None;
        // What drivers reported belongs to the old devices.
        status.devices = None;
    }
    let api: Api<ResourceClaim> = Api::namespaced(context.client.clone(), &namespace);
    api.replace_status(name, &PostParams::default(), &claim)
        .await?;
    Ok(())
}
