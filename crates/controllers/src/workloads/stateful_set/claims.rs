//! Creates the claims of a StatefulSet's pods before the pods, and keeps or deletes them by the retention policy.
//!
//! The set owns a claim that is deleted with the set. When the set shrinks, the pod owns a claim that is deleted
//! with it, as soon as the pod's ordinal is no longer wanted. The garbage collector then deletes the claims.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Api, Resource, ResourceExt, api::PostParams};

use super::identity;
use crate::{Context, Recorder, api_error, ownership};

/// The retention policy of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention {
    /// Claims are deleted with the set.
    delete_with_set: bool,
    /// Claims are deleted with their pod when the set shrinks.
    delete_with_pod: bool,
}

impl Retention {
    pub(super) fn of(set: &StatefulSet) -> Self {
        let spec = set.spec.as_ref();
        let policy = spec.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |policy: Option<&String>| policy.is_some_and(|policy| policy == "Delete");
        Self {
            delete_with_set: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            delete_with_pod: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        }
    }
}

/// Returns whether the set should own a pod's claim, and whether the pod should.
fn owners(retention: Retention, is_wanted: bool) -> (bool, bool) {
    let by_pod = retention.delete_with_pod && !is_wanted;
    // Never both: the garbage collector keeps an object while any of its owners exists.
    (retention.delete_with_set && !by_pod, by_pod)
}

/// Returns the owners that the claim should have; `None` if it already has them.
fn corrected(
    set: &StatefulSet,
    pod: &Pod,
    is_wanted: bool,
    claim: &PersistentVolumeClaim,
) -> Option<Vec<OwnerReference>> {
    let owners_now = claim.metadata.owner_references.clone().unwrap_or_default();
    let (set_uid, pod_uid) = (set.uid().unwrap_or_default(), pod.uid().unwrap_or_default());
    // A claim that another object controls is left alone.
    let foreign = owners_now.iter().any(|owner| {
        owner.controller == Some(true) && owner.uid != set_uid && owner.uid != pod_uid
    });
    if foreign {
        return None;
    }
    let (by_set, by_pod) = owners(Retention::of(set), is_wanted);
    let mut wanted: Vec<_> = owners_now
        .iter()
        .filter(|owner| owner.uid != set_uid && owner.uid != pod_uid)
        .cloned()
        .collect();
    if by_set {
        wanted.push(ownership::controller_reference(set));
    }
    if by_pod {
        wanted.push(ownership::controller_reference(pod));
    }
    let uids = |owners: &[OwnerReference]| {
        let mut uids: Vec<_> = owners
            .iter()
            .map(|owner| (owner.uid.clone(), owner.controller))
            .collect();
        uids.sort();
        uids
    };
    (uids(&wanted) != uids(&owners_now)).then_some(wanted)
}

/// The reason why a pod has not all of its claims.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimsError {
    /// The claim of this name is being deleted.
    #[error("pvc {0} is being deleted")]
    BeingDeleted(String),
    /// The API server refuses to create a claim.
    #[error("failed to create PVC {name}: {}", api_error::message(.error))]
    Create { name: String, error: kube::Error },
}

/// Creates the missing claims of a pod.
///
/// # Errors
/// Fails if a claim cannot be created or is being deleted.
pub(super) async fn create_missing(
    context: &Context,
    recorder: &Recorder,
    set: &StatefulSet,
    pod: &str,
    ordinal: i32,
) -> Result<(), ClaimsError> {
    let namespace = set.namespace().unwrap_or_default();
    for (_, claim) in identity::claims(set, ordinal) {
        let name = claim.name_any();
        if let Some(existing) = context.informers.claims.get(&namespace, &name) {
            // A pod started now would use a volume that is about to be deleted.
            if existing.metadata.deletion_timestamp.is_some() {
                return Err(ClaimsError::BeingDeleted(name));
            }
            continue;
        }
        let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
        match api.create(&PostParams::default(), &claim).await {
            Ok(_) => recorder.normal(
                set,
                "SuccessfulCreate",
                format!(
                    "create Claim {name} Pod {pod} in StatefulSet {} success",
                    set.name_any()
                ),
            ),
            Err(error) if api_error::is_already_exists(&error) => {}
            Err(error) => {
                let why = api_error::message(&error);
                recorder.warning(
                    set,
                    "FailedCreate",
                    format!(
                        "create Claim {name} for Pod {pod} in StatefulSet {} failed error: {why}",
                        set.name_any()
                    ),
                );
                return Err(ClaimsError::Create { name, error });
            }
        }
    }
    Ok(())
}

/// Returns whether a claim of the pod to be created is still owned by a deleted pod. Such a claim must be deleted
/// first.
pub(super) fn is_stale(context: &Context, set: &StatefulSet, ordinal: i32) -> bool {
    if !Retention::of(set).delete_with_pod {
        return false;
    }
    let namespace = set.namespace().unwrap_or_default();
    identity::claims(set, ordinal).iter().any(|(_, claim)| {
        let claim = context.informers.claims.get(&namespace, &claim.name_any());
        claim.is_some_and(|claim| {
            let owners = claim.metadata.owner_references.iter().flatten();
            let mut owners = owners.filter(|owner| owner.kind == Pod::kind(&()));
            owners.any(|owner| {
                let pod = context.informers.pods.get(&namespace, &owner.name);
                pod.is_none_or(|pod| pod.metadata.uid.as_ref() != Some(&owner.uid))
            })
        })
    })
}

/// Gives the claims of a pod the owners that the retention policy requires.
pub(super) async fn retain(
    context: &Context,
    set: &StatefulSet,
    pod: &Pod,
    ordinal: i32,
) -> kube::Result<()> {
    let namespace = set.namespace().unwrap_or_default();
    for (_, claim) in identity::claims(set, ordinal) {
        let Some(claim) = context.informers.claims.get(&namespace, &claim.name_any()) else {
            continue;
        };
        let Some(owners) = corrected(set, pod, identity::is_wanted(set, ordinal), &claim) else {
            continue;
        };
        let mut changed = PersistentVolumeClaim::clone(&claim);
        changed.metadata.owner_references = Some(owners);
        let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
        let written = api
            .replace(&claim.name_any(), &PostParams::default(), &changed)
            .await;
        api_error::ignore_not_found(written)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_belong_to_the_set_to_their_pod_or_to_nobody() {
        let of = |set: bool, pod: bool| Retention {
            delete_with_set: set,
            delete_with_pod: pod,
        };
        assert_eq!(owners(of(false, false), true), (false, false));
        assert_eq!(owners(of(true, false), false), (true, false));
        assert_eq!(owners(of(false, true), true), (false, false));
        assert_eq!(owners(of(false, true), false), (false, true));
        assert_eq!(owners(of(true, true), true), (true, false));
        assert_eq!(owners(of(true, true), false), (false, true));
    }
}
