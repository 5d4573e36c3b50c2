//! Creates the claims that pods request by templates, writes their names into the pods' status, and reserves claims
//! for pods that were bound to their node without the scheduler.
//!
//! Invariant: no second claim is created for an entry of a pod while the first one exists, even if the pod's status
//! could not be written.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use k8s_openapi::{
    api::{
        core::v1::{Pod, PodResourceClaim},
        resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use rustc_hash::FxHashMap;
use serde_json::json;

use super::{
    Controller, Failure,
    pod_claims::{self, Claimed, Unknown},
};
use crate::{Key, api_error, informers::BY_CONTROLLER, ownership, pods};

/// The field manager of the claim names in a pod's status.
const MANAGER: &str = "ResourceClaimController";
/// The annotation of a created claim with the entry of `spec.resourceClaims` for which it was created.
const MADE_FOR: &str = "resource.kubernetes.io/pod-claim-name";
/// The longest prefix of a name of 63 characters. The API server appends five random characters.
const LONGEST_PREFIX: usize = 57;

impl Controller {
    /// Creates and reserves the claims of a pod as needed.
    pub(super) async fn provide(&self, key: &Key) -> Result<(), Failure> {
        let Some(pod) = self.context.informers.pods.get_key(key) else {
            return Ok(());
        };
        // A claim that was deleted because its pod has ended must not be created again.
        if pods::is_deleting(&pod) || pods::is_finished(&pod) {
            return Ok(());
        }
        let mut new_names = BTreeMap::new();
        for entry in pod_claims::entries(&pod) {
            match self.claim_to_report(&pod, entry).await {
                Ok(Some(name)) => {
                    new_names.insert(entry.name.as_str(), name);
                }
                Ok(None) => {}
                Err(failure) => {
                    let message = format!("PodResourceClaim {}: {failure}", entry.name);
                    self.recorder
                        .warning(&*pod, "FailedResourceClaimCreation", message);
                    // Names found so far are not lost: the retry finds their claims again.
                    return Err(failure);
                }
            }
        }
        if !new_names.is_empty() {
            self.write_statuses(&pod, &new_names).await?;
        }
        // The scheduler reserves claims for pods without a node. A claim whose name was just written into the
        // status is reserved when the informer shows the pod with it.
        if pods::node_name(&pod).is_empty() {
            return Ok(());
        }
        for entry in
            pod_claims::entries(&pod).filter(|entry| !new_names.contains_key(entry.name.as_str()))
        {
            self.reserve(&pod, entry).await?;
        }
        Ok(())
    }

    /// Returns the claim that was created for `entry` if the pod's status does not report it yet, creating it if
    /// needed.
    async fn claim_to_report(
        &self,
        pod: &Pod,
        entry: &PodResourceClaim,
    ) -> Result<Option<String>, Failure> {
        let reported = match pod_claims::claimed(pod, entry) {
            Ok(Claimed::Named(_) | Claimed::Nothing) => return Ok(None),
            Ok(Claimed::Made(name)) => Some(name),
            Err(Unknown::NotCreated { .. }) => None,
            Err(unknown) => return Err(Failure::Unclear(unknown)),
        };
        let claims = &self.context.informers.resource_claims;
        let claim = reported.and_then(|name| claims.get(namespace(pod), name));
        if claim.is_some_and(|claim| pod_claims::check_owner(pod, &claim).is_ok()) {
            return Ok(None);
        }
        let name = match self.find(pod, &entry.name).await? {
            Some(name) => name,
            None => self.make(pod, entry).await?,
        };
        Ok(Some(name).filter(|name| reported != Some(name)))
    }

    /// Returns the claim that was created for an entry of the pod, even if the informer does not show it yet.
    async fn find(&self, pod: &Pod, entry: &str) -> kube::Result<Option<String>> {
        let claims = &self.context.informers.resource_claims;
        let owned = claims.by_index(BY_CONTROLLER, uid(pod));
        let mut names = owned
            .iter()
            .filter(|claim| is_made_for(claim, pod, entry))
            .map(|claim| claim.name_any());
        // There should be only one.
        if let Some(name) = names.next() {
            return Ok(Some(name));
        }
        let Some(name) = self.created.name(pod, entry) else {
            return Ok(None);
        };
        let live = self.claims(namespace(pod)).get_opt(&name).await?;
        if live.is_some_and(|claim| is_made_for(&claim, pod, entry)) {
            return Ok(Some(name));
        }
        self.created.forget_entry(pod, entry);
        Ok(None)
    }

    async fn make(&self, pod: &Pod, entry: &PodResourceClaim) -> Result<String, Failure> {
        let template = entry
            .resource_claim_template_name
            .as_deref()
            .unwrap_or_default();
        let Some(template) = self.templates.get(namespace(pod), template) else {
            return Err(Failure::NoTemplate(template.to_owned()));
        };
        let from = template.spec.metadata.clone().unwrap_or_default();
        let mut annotations = from.annotations.unwrap_or_default();
        annotations.insert(MADE_FOR.to_owned(), entry.name.clone());
        let claim = ResourceClaim {
            metadata: ObjectMeta {
                generate_name: Some(prefix(&pod.name_any(), &entry.name)),
                labels: from.labels,
                annotations: Some(annotations),
                owner_references: Some(vec![OwnerReference {
                    // As in kube-controller-manager, a claim does not block the foreground deletion of its pod.
                    block_owner_deletion: None,
                    ..ownership::controller_reference(pod)
                }]),
                ..ObjectMeta::default()
            },
            spec: template.spec.spec.clone(),
            status: None,
        };
        let made = self
            .claims(namespace(pod))
            .create(&PostParams::default(), &claim)
            .await
            .map_err(|error| Failure::NotMade(api_error::message(&error)))?;
        let name = made.name_any();
        // Remembered before anything else can fail: a retry must find this claim although no informer shows
        // it yet.
        self.created.remember(pod, &entry.name, &name);
        let informers = &self.context.informers;
        // The events that forget an entry may have arrived before it was recorded.
        if informers.resource_claims.get_key(&Key::of(&made)).is_some()
            || informers.pods.get_key(&Key::of(pod)).is_none()
        {
            self.created.forget(&made);
        }
        Ok(name)
    }

    /// Writes the claims that were created for a pod into its status: `new_names` and those that it already reports.
    async fn write_statuses(
        &self,
        pod: &Pod,
        new_names: &BTreeMap<&str, String>,
    ) -> kube::Result<()> {
        let reported = pod
            .status
            .iter()
            .flat_map(|status| status.resource_claim_statuses.iter().flatten());
        let reported = reported.filter_map(|reported| {
            Some((
                reported.name.as_str(),
                reported.resource_claim_name.as_deref()?.to_owned(),
            ))
        });
        let mut all: BTreeMap<&str, String> = reported.collect();
        // Applying replaces all entries of this manager, so those reported earlier are repeated.
        all.extend(new_names.iter().map(|(entry, name)| (*entry, name.clone())));
        let statuses: Vec<_> = all
            .iter()
            .map(|(entry, name)| json!({ "name": entry, "resourceClaimName": name }))
            .collect();
        let body = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod.name_any() },
            "status": { "resourceClaimStatuses": statuses },
        });
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace(pod));
        let params = PatchParams::apply(MANAGER).force();
        let written = pods
            .patch_status(&pod.name_any(), &params, &Patch::Apply(body))
            .await;
        api_error::ignore_not_found(written).map(drop)
    }

    async fn reserve(&self, pod: &Pod, entry: &PodResourceClaim) -> kube::Result<()> {
        let Ok(claimed) = pod_claims::claimed(pod, entry) else {
            return Ok(());
        };
        let claims = &self.context.informers.resource_claims;
        let claim = claimed
            .name()
            .and_then(|name| claims.get(namespace(pod), name));
        let Some(claim) = claim.filter(|claim| must_reserve(pod, claimed, claim)) else {
            return Ok(());
        };
        let mut claim = ResourceClaim::clone(&claim);
        let consumer = ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".to_owned(),
            name: pod.name_any(),
            uid: uid(pod).to_owned(),
        };
        let status = claim.status.get_or_insert_default();
        status.reserved_for.get_or_insert_default().push(consumer);
        let written = self
            .claims(namespace(pod))
            .replace_status(&claim.name_any(), &PostParams::default(), &claim)
            .await;
        api_error::ignore_not_found(written).map(drop)
    }

    pub(super) fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.context.client.clone(), namespace)
    }
}

/// Returns whether a pod was bound to a node without its claim being reserved for it.
pub(super) fn must_reserve(pod: &Pod, claimed: Claimed<'_>, claim: &ResourceClaim) -> bool {
    !pods::node_name(pod).is_empty()
        && pod_claims::is_allocated(claim)
        && claim.metadata.deletion_timestamp.is_none()
        && !pod_claims::is_reserved_for(claim, pod)
        && (matches!(claimed, Claimed::Named(_)) || pod_claims::check_owner(pod, claim).is_ok())
}

fn is_made_for(claim: &ResourceClaim, pod: &Pod, entry: &str) -> bool {
    let made_for = claim.annotations().get(MADE_FOR);
    made_for.is_some_and(|made_for| made_for == entry)
        && pod_claims::check_owner(pod, claim).is_ok()
}

/// Returns the name prefix of a claim: the pod's name and the entry's, both shortened in proportion if they are too
/// long.
fn prefix(pod: &str, entry: &str) -> String {
    let whole = format!("{pod}-{entry}-");
    if whole.len() <= LONGEST_PREFIX {
        return whole;
    }
    // Names of pods and of entries are ASCII.
    let part = |name: &str| {
        let length = name.len() * LONGEST_PREFIX / whole.len();
        name.get(..length).unwrap_or(name).to_owned()
    };
    format!("{}-{}", part(pod), part(entry))
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The claims that were created but are not in the informer yet: their names, by the UID of their pod and the
/// entry.
///
/// Invariant: all entries are of pods that the informer has.
#[derive(Debug, Default)]
pub(super) struct Created(Mutex<FxHashMap<String, BTreeMap<String, String>>>);

impl Created {
    fn remember(&self, pod: &Pod, entry: &str, claim: &str) {
        let mut all = self.lock();
        let of_pod = all.entry(uid(pod).to_owned()).or_default();
        of_pod.insert(entry.to_owned(), claim.to_owned());
    }

    fn name(&self, pod: &Pod, entry: &str) -> Option<String> {
        self.lock().get(uid(pod))?.get(entry).cloned()
    }

    /// Forgets a claim that the informer shows, or never will.
    pub(super) fn forget(&self, claim: &ResourceClaim) {
        if let Some(owner) = ownership::controller_of(claim) {
            self.retain(&owner.uid, |_, name| {
                Some(name) != claim.metadata.name.as_deref()
            });
        }
    }

    fn forget_entry(&self, pod: &Pod, entry: &str) {
        self.retain(uid(pod), |of, _| of != entry);
    }

    fn retain(&self, pod: &str, keep: impl Fn(&str, &str) -> bool) {
        let mut all = self.lock();
        if let Some(of_pod) = all.get_mut(pod) {
            of_pod.retain(|entry, name| keep(entry, name));
            if of_pod.is_empty() {
                all.remove(pod);
            }
        }
    }

    pub(super) fn forget_pod(&self, pod: &Pod) {
        self.lock().remove(uid(pod));
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_was_made_is_remembered_until_it_is_seen_or_its_pod_is_gone() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "uid": "u" } }))
            .expect("a pod");
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true });
        let claim = json!({ "metadata": { "name": "c", "ownerReferences": [owner] }, "spec": {} });
        let claim: ResourceClaim = serde_json::from_value(claim).expect("a claim");
        let created = Created::default();
        for (entry, name) in [("gpu", "c"), ("net", "d"), ("disk", "e")] {
            created.remember(&pod, entry, name);
        }
        assert_eq!(created.name(&pod, "gpu").as_deref(), Some("c"));
        created.forget(&claim);
        created.forget_entry(&pod, "net");
        let left = ["gpu", "net", "disk"].map(|entry| created.name(&pod, entry));
        assert_eq!(left, [None, None, Some("e".to_owned())]);
        created.forget_pod(&pod);
        assert!(created.lock().is_empty());
    }

    #[test]
    fn a_claim_is_called_after_its_pod_and_its_entry_and_both_are_shortened_alike() {
        assert_eq!(prefix("web", "gpu"), "web-gpu-");
        let longest = prefix(&"p".repeat(52), "gpu");
        assert_eq!(longest.len(), LONGEST_PREFIX);
        assert!(longest.ends_with("-gpu-"));
        let (pod, entry) = ("p".repeat(100), "c".repeat(50));
        let expected = format!("{}-{}", "p".repeat(37), "c".repeat(18));
        assert_eq!(prefix(&pod, &entry), expected);
    }
}
