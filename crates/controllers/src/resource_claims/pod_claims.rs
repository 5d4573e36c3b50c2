//! Determines which ResourceClaims a pod uses, and whether it may
//! (`k8s.io/dynamic-resource-allocation/resourceclaim`).
//!
//! An entry of `spec.resourceClaims` names a claim, or a template from which one is created for this pod. The name
//! of the created claim is in the pod's status. All code that needs a pod's claims uses this module.

use k8s_openapi::api::{
    core::v1::{Pod, PodResourceClaim},
    resource::v1::ResourceClaim,
};
use thiserror::Error;

use crate::{Key, ownership};

/// The claim of an entry of a pod's `spec.resourceClaims`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed<'a> {
    /// The name of a claim that a user created.
    Named(&'a str),
    /// The name of a claim that was created for the pod. Before using it, callers must check that the pod owns it
    /// ([`check_owner`]).
    Made(&'a str),
    /// The entry has no claim and needs none.
    Nothing,
}

impl<'a> Claimed<'a> {
    /// Returns the claim's name, if there is a claim.
    pub fn name(self) -> Option<&'a str> {
        match self {
            Self::Named(name) | Self::Made(name) => Some(name),
            Self::Nothing => None,
        }
    }
}

/// The reasons for which the claim of an entry is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unknown {
    /// The claim was not created yet.
    #[error("pod \"{pod}\": ResourceClaim not created yet")]
    NotCreated {
        /// The pod.
        pod: Key,
    },
    /// The form of the entry is not supported.
    #[error("pod \"{pod}\", spec.resourceClaim {entry:?}: none of the supported fields are set")]
    Unsupported {
        /// The pod.
        pod: Key,
        /// The entry's name.
        entry: String,
    },
}

/// The error that a claim was not created for a pod.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("ResourceClaim {claim} was not created for Pod {pod} (Pod is not owner)")]
pub struct NotOwner {
    /// The claim.
    pub claim: Key,
    /// The pod that may not use it.
    pub pod: Key,
}

/// Iterates the entries of `spec.resourceClaims`.
pub fn entries(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.resource_claims.iter().flatten())
}

/// Returns the name of the claim for the extended resources that `pod` gets as devices.
pub fn extended(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?.extended_resource_claim_status.as_ref();
    status.map(|status| status.resource_claim_name.as_str())
}

/// Returns the claim of `entry`, an entry of `pod`.
///
/// # Errors
/// Returns an error if the claim was not created yet, or if the entry names neither a claim nor a template.
pub fn claimed<'a>(pod: &'a Pod, entry: &'a PodResourceClaim) -> Result<Claimed<'a>, Unknown> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Claimed::Named(name));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(Unknown::Unsupported {
            pod: Key::of(pod),
            entry: entry.name.clone(),
        });
    }
    let status = pod.status.iter();
    let mut statuses = status.flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|own| own.name == entry.name) {
        Some(own) => Ok(match &own.resource_claim_name {
            Some(name) => Claimed::Made(name),
            None => Claimed::Nothing,
        }),
        None => Err(Unknown::NotCreated { pod: Key::of(pod) }),
    }
}

/// Checks that `claim` was created for `pod`.
///
/// # Errors
/// Returns an error if the pod does not control the claim.
pub fn check_owner(pod: &Pod, claim: &ResourceClaim) -> Result<(), NotOwner> {
    // The name alone proves nothing: a user may have created a claim of that name, which has devices for
    // somebody else.
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if claim.metadata.namespace == pod.metadata.namespace && ownership::is_controlled_by(claim, uid)
    {
        return Ok(());
    }
    Err(NotOwner {
        claim: Key::of(claim),
        pod: Key::of(pod),
    })
}

/// Returns whether `claim` is reserved for `pod`.
pub fn is_reserved_for(claim: &ResourceClaim, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let status = claim.status.iter();
    let mut consumers = status.flat_map(|status| status.reserved_for.iter().flatten());
    consumers.any(|consumer| consumer.uid == uid)
}

/// Returns whether `claim` has an allocation.
pub fn is_allocated(claim: &ResourceClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.allocation.is_some())
}

/// Indexes a pod by the claims that it uses ([`crate::informers::BY_RESOURCE_CLAIM`]).
pub(crate) fn file_by_claim(pod: &Pod, file_under: &mut dyn FnMut(&str)) {
    // A claim that is not created yet has no name. The update of the pod's status that names it files the pod
    // again.
    let names = entries(pod).filter_map(|entry| claimed(pod, entry).ok()?.name());
    for name in names {
        file_under(Key::new(namespace(pod), name).as_str());
    }
}

/// Indexes a pod by the templates of its claims ([`crate::informers::BY_RESOURCE_CLAIM_TEMPLATE`]).
pub(crate) fn file_by_template(pod: &Pod, file_under: &mut dyn FnMut(&str)) {
    for template in entries(pod).filter_map(|entry| entry.resource_claim_template_name.as_ref()) {
        file_under(Key::new(namespace(pod), template).as_str());
    }
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::informer::IndexFn;

    fn pod(statuses: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "namespace": "ns", "name": "p", "uid": "u" },
            "spec": { "containers": [], "resourceClaims": [
                { "name": "shared", "resourceClaimName": "gpus" },
                { "name": "own", "resourceClaimTemplateName": "one-gpu" },
                { "name": "other" },
            ] },
            "status": { "resourceClaimStatuses": statuses },
        }))
        .expect("a pod")
    }

    fn claims_of(pod: &Pod) -> Vec<Result<Option<&str>, String>> {
        let all = entries(pod).map(|entry| claimed(pod, entry));
        all.map(|claimed| claimed.map(Claimed::name).map_err(|why| why.to_string()))
            .collect()
    }

    #[test]
    fn an_entry_stands_for_the_claim_it_names_or_the_one_that_the_status_tells_of() {
        let none =
            r#"pod "ns/p", spec.resourceClaim "other": none of the supported fields are set"#;
        let fresh = pod(json!([]));
        let yet = Err(r#"pod "ns/p": ResourceClaim not created yet"#.to_owned());
        assert_eq!(
            claims_of(&fresh),
            [Ok(Some("gpus")), yet, Err(none.to_owned())]
        );
        let known = pod(json!([{ "name": "own", "resourceClaimName": "p-own-x" }]));
        let made = claimed(&known, entries(&known).nth(1).expect("an entry"));
        assert_eq!(made, Ok(Claimed::Made("p-own-x")));
        let needless = pod(json!([{ "name": "own" }]));
        assert_eq!(claims_of(&needless)[1], Ok(None));
    }

    #[test]
    fn a_pod_is_filed_under_what_is_known_of_its_claims_and_under_its_templates() {
        let filed = |by: IndexFn<Pod>, pod: &Pod| {
            let mut under = Vec::new();
            by(pod, &mut |value| under.push(value.to_owned()));
            under
        };
        let fresh = pod(json!([]));
        assert_eq!(filed(file_by_claim, &fresh), ["ns/gpus"]);
        assert_eq!(filed(file_by_template, &fresh), ["ns/one-gpu"]);
        let known = pod(json!([{ "name": "own", "resourceClaimName": "p-own-x" }]));
        assert_eq!(filed(file_by_claim, &known), ["ns/gpus", "ns/p-own-x"]);
        assert!(filed(file_by_claim, &Pod::default()).is_empty());
    }

    #[test]
    fn a_claim_is_the_pods_if_the_pod_controls_it() {
        let claim = |controller: bool| -> ResourceClaim {
            let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": controller });
            serde_json::from_value(json!({
                "metadata": { "namespace": "ns", "name": "c", "ownerReferences": [owner] },
                "spec": {},
                "status": { "reservedFor": [{ "resource": "pods", "name": "p", "uid": "u" }] },
            }))
            .expect("a claim")
        };
        let pod = pod(json!([]));
        assert_eq!(check_owner(&pod, &claim(true)), Ok(()));
        let why = check_owner(&pod, &claim(false)).expect_err("it is not");
        let text = "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)";
        assert_eq!(why.to_string(), text);
        assert!(is_reserved_for(&claim(true), &pod));
        assert!(!is_reserved_for(&claim(true), &Pod::default()));
        assert!(!is_allocated(&claim(true)));
    }
}
