//! Controller references: whether a controller owns an object, may adopt it, or must release it.
//!
//! The decision ([`claim`]) is pure; [`claim_from`] carries it out. An owner adopts only after a live read has
//! shown that it still exists and is not being deleted, so that garbage collection and adoption never conflict.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::{NamespaceResourceScope, Selector, SelectorExt},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    Informer, api_error,
    informers::{BY_CONTROLLER, orphans_of},
};

/// Returns the reference to the controller of `object`.
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object
        .meta()
        .owner_references
        .as_ref()?
        .iter()
        .find(|owner| owner.controller == Some(true))
}

/// Returns whether the owner with `uid` controls `object`.
pub fn is_controlled_by<K: Resource>(object: &K, uid: &str) -> bool {
    controller_of(object).is_some_and(|owner| owner.uid == uid)
}

/// Returns a controller reference to `owner` that blocks the owner's foreground deletion.
pub fn controller_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Parses a label selector; an invalid or missing one selects nothing.
pub fn selector(selector: Option<&LabelSelector>) -> Option<Selector> {
    Selector::try_from(selector?.clone()).ok()
}

/// The decision of an owner about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    /// The owner already controls the object.
    Own,
    /// The object has no controller and matches, so the owner adopts it.
    Adopt,
    /// The owner controls the object but it no longer matches, so the owner releases it.
    Release,
    /// The object does not concern the owner.
    Ignore,
}

/// Decides about one object (kube-controller-manager: `ControllerRefManager.ClaimObject`).
fn claim<O: Resource, K: Resource>(owner: &O, selector: &Selector, object: &K) -> Claim {
    let owner_deleting = owner.meta().deletion_timestamp.is_some();
    let matches = || selector.matches(object.labels());
    match controller_of(object) {
        Some(reference) if Some(&reference.uid) != owner.meta().uid.as_ref() => Claim::Ignore,
        Some(_) if matches() => Claim::Own,
        Some(_) if owner_deleting => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_deleting || object.meta().deletion_timestamp.is_some() || !matches() => {
            Claim::Ignore
        }
        None => Claim::Adopt,
    }
}

/// Returns the objects of `informer` (indexed by [`BY_CONTROLLER`]) that `owner` controls, after adopting orphans
/// and releasing objects that no longer match. Objects that are not `eligible` keep their owner and are left out.
pub async fn claim_from<O, K>(
    client: &Client,
    owner: &O,
    selector: &Selector,
    informer: &Informer<K>,
    eligible: impl Fn(&K) -> bool,
) -> kube::Result<Vec<Arc<K>>>
where
    O: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + Debug,
{
    let namespace = owner.meta().namespace.as_deref().unwrap_or_default();
    let uid = owner.meta().uid.as_deref().unwrap_or_default();
    let mut candidates = informer.by_index(BY_CONTROLLER, uid);
    candidates.extend(informer.by_index(BY_CONTROLLER, &orphans_of(namespace)));
    candidates.retain(|object| eligible(object));
    let claimer = Claimer {
        owner,
        selector,
        owners: Api::namespaced(client.clone(), namespace),
        objects: Api::namespaced(client.clone(), namespace),
    };
    claimer.claim_all(candidates).await
}

/// Claims objects of kind `K` for one owner of kind `O`.
struct Claimer<'a, O, K> {
    owner: &'a O,
    selector: &'a Selector,
    /// The API for the live read before an adoption.
    owners: Api<O>,
    /// The API for adoptions and releases.
    objects: Api<K>,
}

impl<O, K> Claimer<'_, O, K>
where
    O: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    /// Returns those of `candidates` that the owner controls, after adopting and releasing some as needed.
    async fn claim_all(&self, candidates: Vec<Arc<K>>) -> kube::Result<Vec<Arc<K>>> {
        let mut owned = Vec::with_capacity(candidates.len());
        let mut may_adopt = None;
        for candidate in candidates {
            match claim(self.owner, self.selector, &*candidate) {
                Claim::Ignore => {}
                Claim::Own => owned.push(candidate),
                Claim::Release => self.release(&candidate).await?,
                Claim::Adopt => {
                    if may_adopt.is_none() {
                        // Read at most once per sync, and only if there is an orphan to adopt.
                        may_adopt = Some(self.owner_still_lives().await?);
                    }
                    if may_adopt == Some(true) && self.adopt(&candidate).await? {
                        owned.push(candidate);
                    }
                }
            }
        }
        Ok(owned)
    }

    async fn owner_still_lives(&self) -> kube::Result<bool> {
        let live = self.owners.get_opt(&self.owner.name_any()).await?;
        Ok(live.is_some_and(|live| {
            live.uid() == self.owner.uid() && live.meta().deletion_timestamp.is_none()
        }))
    }

    async fn adopt(&self, object: &K) -> kube::Result<bool> {
        let patch = json!({"metadata": {
            "ownerReferences": [controller_reference(self.owner)],
            "uid": object.uid(),
        }});
        let patched = self
            .objects
            .patch(
                &object.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await;
        Ok(api_error::ignore_not_found(patched)?.is_some())
    }

    async fn release(&self, object: &K) -> kube::Result<()> {
        let patch = json!({"metadata": {
            "ownerReferences": [{"$patch": "delete", "uid": self.owner.uid()}],
            "uid": object.uid(),
        }});
        match self
            .objects
            .patch(
                &object.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await
        {
            // The object is gone, was replaced by another of its name, or has no owner any more: in each case it is
            // released.
            Err(error) if api_error::is_not_found(&error) || api_error::is_invalid(&error) => {
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{apps::v1::ReplicaSet, core::v1::Pod},
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
        jiff::Timestamp,
    };

    use super::*;

    fn owner(deleting: bool) -> ReplicaSet {
        let metadata = ObjectMeta {
            name: Some("owner".to_owned()),
            uid: Some("owner-uid".to_owned()),
            deletion_timestamp: deleting.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        };
        ReplicaSet {
            metadata,
            ..ReplicaSet::default()
        }
    }

    fn pod(controller: Option<&str>, app: &str, deleting: bool) -> Pod {
        let reference = |uid: &str| OwnerReference {
            uid: uid.to_owned(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let metadata = ObjectMeta {
            labels: Some([("app".to_owned(), app.to_owned())].into()),
            owner_references: controller.map(|uid| vec![reference(uid)]),
            deletion_timestamp: deleting.then_some(Time(Timestamp::UNIX_EPOCH)),
            ..ObjectMeta::default()
        };
        Pod {
            metadata,
            ..Pod::default()
        }
    }

    fn decide(owner: &ReplicaSet, pod: &Pod) -> Claim {
        claim(owner, &Selector::from_iter([("app", "web")]), pod)
    }

    #[test]
    fn objects_of_another_controller_are_left_alone() {
        assert_eq!(
            decide(&owner(false), &pod(Some("other"), "web", false)),
            Claim::Ignore
        );
    }

    #[test]
    fn own_objects_are_kept_while_they_match_and_released_when_not() {
        assert_eq!(
            decide(&owner(false), &pod(Some("owner-uid"), "web", false)),
            Claim::Own
        );
        assert_eq!(
            decide(&owner(false), &pod(Some("owner-uid"), "web", true)),
            Claim::Own
        );
        assert_eq!(
            decide(&owner(false), &pod(Some("owner-uid"), "db", false)),
            Claim::Release
        );
        assert_eq!(
            decide(&owner(true), &pod(Some("owner-uid"), "db", false)),
            Claim::Ignore
        );
    }

    #[test]
    fn orphans_are_adopted_only_between_living_parties_that_match() {
        assert_eq!(
            decide(&owner(false), &pod(None, "web", false)),
            Claim::Adopt
        );
        assert_eq!(
            decide(&owner(false), &pod(None, "db", false)),
            Claim::Ignore
        );
        assert_eq!(
            decide(&owner(false), &pod(None, "web", true)),
            Claim::Ignore
        );
        assert_eq!(
            decide(&owner(true), &pod(None, "web", false)),
            Claim::Ignore
        );
    }
}
