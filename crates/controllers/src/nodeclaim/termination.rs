//! The end of a claim: its node first, then the instance, then the finalizer.
//!
//! Invariant: the finalizer goes only when the cloud no longer knows the instance, so a claim that is gone costs
//! nothing any more.

use std::time::Duration;

use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_cloud::instance_id;
use serde_json::json;

use super::{Error, POLL, edit, has_finalizer, pass, write_back};
use crate::{
    api_error,
    provisioner::{KarpenterContext, metrics::Metric},
};

/// Takes a deleted claim one step further. Returns when to look again.
pub(super) async fn finalize(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> Result<Option<Duration>, Error> {
    if !has_finalizer(claim.finalizers()) {
        return Ok(None);
    }
    // Written before the node is deleted, because the drain reads it from the claim.
    let claim = with_deadline(karpenter, claim).await?;
    let node = karpenter.node_of(&claim);
    let registered = claim.is(condition::REGISTERED);
    if let (true, Some(node)) = (registered, &node) {
        if node.metadata.deletion_timestamp.is_none() {
            delete_node(karpenter, &node.name_any()).await?;
        }
        // The node's own finalizer drains it and ends the instance; its deletion wakes this claim.
        return Ok(None);
    }
    if let Some(id) = claim.provider_id().and_then(instance_id) {
        let label = |key| claim.label(key).unwrap_or_default();
        let place = (label(labels::ZONE), label(labels::ZONE_ID));
        let ended = karpenter.terminate(id, place).await;
        let gone = ended.as_ref().is_err_and(|error| error.is_not_found());
        if !gone {
            ended?;
            let mut marked = claim.clone();
            edit(karpenter, &mut marked, |conditions| {
                conditions.set_true(condition::INSTANCE_TERMINATING);
            });
            // From now on the node no longer counts for its pool's budgets.
            write_back(karpenter, &claim, &marked).await?;
            return Ok(Some(POLL));
        }
    }
    // A node that never registered has no finalizer of ours and nobody else to delete it.
    if let (false, Some(node)) = (registered, &node) {
        delete_node(karpenter, &node.name_any()).await?;
    }
    remove_finalizer(karpenter, &claim).await?;
    Ok(None)
}

async fn delete_node(karpenter: &KarpenterContext, name: &str) -> Result<(), Error> {
    let deleted = karpenter
        .node_api()
        .delete(name, &DeleteParams::default())
        .await;
    api_error::ignore_not_found(deleted)?;
    Ok(())
}

async fn remove_finalizer(karpenter: &KarpenterContext, claim: &NodeClaim) -> Result<(), Error> {
    let mut finalizers = claim.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != labels::TERMINATION_FINALIZER);
    let patch = json!({ "metadata": {
        "resourceVersion": claim.resource_version(), "finalizers": finalizers
    }});
    let patched = karpenter
        .claim_api()
        .patch(
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    if api_error::ignore_not_found(patched)?.is_some() {
        karpenter.metrics.terminated(claim);
        observe_end(karpenter, claim);
        pass(karpenter, "nodeclaim.lifecycle", claim).info("deleted nodeclaim");
    }
    Ok(())
}

/// Writes into the metrics how long a claim and its instance took to end.
fn observe_end(karpenter: &KarpenterContext, claim: &NodeClaim) {
    let now = karpenter.base.clock.now();
    let conditions = claim.status.iter().flat_map(|status| &status.conditions);
    let mut ending = conditions
        .filter(|own| own.type_ == condition::INSTANCE_TERMINATING && own.status == "True");
    let ending = ending.next().map(|own| own.last_transition_time.0);
    let deleted = claim.metadata.deletion_timestamp.as_ref().map(|at| at.0);
    let labels = [("nodepool", claim.node_pool().unwrap_or_default())];
    for (metric, since) in [
        (Metric::ClaimTermination, deleted),
        (Metric::InstanceTermination, ending),
    ] {
        if let Some(since) = since {
            let took = now.duration_since(since).as_secs_f64();
            karpenter.metrics.observe(metric, &labels, took);
        }
    }
}

/// Writes the deadline into a deleted claim that has a `terminationGracePeriod`, and returns the claim with it.
async fn with_deadline(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> Result<NodeClaim, Error> {
    let deleted = claim.metadata.deletion_timestamp.as_ref();
    let grace = claim.spec.termination_grace_period.as_ref();
    let grace = grace.and_then(|grace| grace.duration());
    let (Some(deleted), Some(grace)) = (deleted, grace) else {
        return Ok(claim.clone());
    };
    if claim
        .annotations()
        .contains_key(labels::TERMINATION_TIMESTAMP)
    {
        return Ok(claim.clone());
    }
    let deadline = deleted
        .0
        .saturating_add(grace)
        .unwrap_or(jiff::Timestamp::MAX);
    let deadline = format!("{deadline:.0}");
    let patch = json!({ "metadata": {
        "resourceVersion": claim.resource_version(),
        "annotations": { labels::TERMINATION_TIMESTAMP: &deadline }
    }});
    let annotated = karpenter
        .claim_api()
        .patch(
            &claim.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with(labels::TERMINATION_TIMESTAMP, deadline.as_str())
        .info("annotated nodeclaim");
    let message = format!("All pods will be deleted by {deadline}");
    karpenter
        .recorder
        .warning(claim, "TerminationGracePeriodExpiring", message);
    Ok(annotated)
}
