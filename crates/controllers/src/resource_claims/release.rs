//! Removes consumers that are gone or finished from a claim, deallocates a claim that lost its last consumer, and
//! deletes a claim that was created for a finished pod.
//!
//! Invariant: a consumer is removed only if it certainly runs nothing and never will. If the informer does not have
//! the pod, or has another one of that name, the API server is asked.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimConsumerReference},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{Controller, PROTECTION, pod_claims};
use crate::{Key, api_error, ownership, pods};

/// Returns whether no container of `pod` runs or will ever run.
pub(super) fn is_done(pod: &Pod) -> bool {
    pods::is_finished(pod) || pods::is_deleting(pod) && pods::node_name(pod).is_empty()
}

impl Controller {
    /// Updates a claim after its consumers changed.
    pub(super) async fn release(&self, key: &Key) -> kube::Result<()> {
        let Some(claim) = self.context.informers.resource_claims.get_key(key) else {
            return Ok(());
        };
        let reserved = reserved_for(&claim);
        let mut remaining = Vec::with_capacity(reserved.len());
        for consumer in reserved {
            if self.may_run(key.namespace(), consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let unused = remaining.is_empty();
        if remaining.len() < reserved.len() {
            let mut changed = ResourceClaim::clone(&claim);
            let status = changed.status.get_or_insert_default();
            status.reserved_for = Some(remaining).filter(|remaining| !remaining.is_empty());
            // The claim is deallocated when the last consumer is removed, not before the first one is added: the
            // scheduler may allocate it first and reserve it later.
            if unused && is_protected(&claim) {
                status.allocation = None;
            }
            let Some(written) = self.write_status(key, changed).await? else {
                return Ok(());
            };
            // The finalizer goes after the allocation, in a second write, because status and metadata are
            // written apart.
            if !pod_claims::is_allocated(&written) {
                self.unprotect(key, written).await?;
            }
        } else if unused && is_protected(&claim) && claim.metadata.deletion_timestamp.is_some() {
            let mut going = ResourceClaim::clone(&claim);
            if let Some(status) = going.status.as_mut().filter(|all| all.allocation.is_some()) {
                status.allocation = None;
                let Some(written) = self.write_status(key, going).await? else {
                    return Ok(());
                };
                going = written;
            }
            self.unprotect(key, going).await?;
        }
        if unused && self.is_of_a_pod_that_is_over(&claim) {
            self.delete(&claim).await?;
        }
        Ok(())
    }

    /// Returns whether a consumer may run, now or later. A consumer that is not a pod is kept, because its end is
    /// unknown here.
    async fn may_run(
        &self,
        namespace: &str,
        consumer: &ResourceClaimConsumerReference,
    ) -> kube::Result<bool> {
        let group = consumer.api_group.as_deref().unwrap_or_default();
        if !group.is_empty() || consumer.resource != "pods" {
            return Ok(true);
        }
        let same = |pod: &Pod| pod.metadata.uid.as_ref() == Some(&consumer.uid);
        let known = self.context.informers.pods.get(namespace, &consumer.name);
        if let Some(pod) = known.filter(|pod| same(pod)) {
            return Ok(!is_done(&pod));
        }
        let live: Api<Pod> = Api::namespaced(self.context.client.clone(), namespace);
        let live = live.get_opt(&consumer.name).await?;
        // The informer may not have a new pod yet, for which the scheduler has just reserved the claim.
        Ok(live.is_some_and(|pod| same(&pod)))
    }

    /// Writes the status of a claim; `None` if the claim is gone.
    async fn write_status(
        &self,
        key: &Key,
        claim: ResourceClaim,
    ) -> kube::Result<Option<ResourceClaim>> {
        let claims = self.claims(key.namespace());
        let written = claims
            .replace_status(key.name(), &PostParams::default(), &claim)
            .await;
        api_error::ignore_not_found(written)
    }

    /// Removes the finalizer of a claim without an allocation, so that it can be deleted.
    async fn unprotect(&self, key: &Key, mut claim: ResourceClaim) -> kube::Result<()> {
        if !is_protected(&claim) {
            return Ok(());
        }
        claim.finalizers_mut().retain(|name| name != PROTECTION);
        let claims = self.claims(key.namespace());
        let written = claims
            .replace(key.name(), &PostParams::default(), &claim)
            .await;
        api_error::ignore_not_found(written).map(drop)
    }

    /// Returns whether the claim was created for a pod that no longer needs it but still exists. The garbage
    /// collector deletes the claims of pods that are gone.
    fn is_of_a_pod_that_is_over(&self, claim: &ResourceClaim) -> bool {
        let owner = ownership::controller_of(claim)
            .filter(|owner| owner.api_version == "v1" && owner.kind == "Pod");
        owner.is_some_and(|owner| {
            let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
            let pod = self.context.informers.pods.get(namespace, &owner.name);
            pod.is_some_and(|pod| pod.metadata.uid.as_ref() != Some(&owner.uid) || is_done(&pod))
        })
    }

    async fn delete(&self, claim: &ResourceClaim) -> kube::Result<()> {
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: claim.uid(),
            ..Preconditions::default()
        });
        let claims = self.claims(claim.metadata.namespace.as_deref().unwrap_or_default());
        let deleted = claims.delete(&claim.name_any(), &params).await;
        api_error::ignore_not_found(deleted).map(drop)
    }
}

fn reserved_for(claim: &ResourceClaim) -> &[ResourceClaimConsumerReference] {
    let status = claim.status.as_ref();
    status
        .and_then(|status| status.reserved_for.as_deref())
        .unwrap_or_default()
}

fn is_protected(claim: &ResourceClaim) -> bool {
    claim.finalizers().iter().any(|name| name == PROTECTION)
}
