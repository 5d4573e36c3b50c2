//! The watches that wake the provisioner's loop, and those that tell the scheduler what becomes of planned places.

use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, node_claim_condition, node_pool_condition};

use super::{KarpenterContext, pending::is_provisionable};
use crate::{Change, state::PlaceChange};

/// Opens a batch when something changes what has to be, or can be, planned.
pub(super) fn watch(karpenter: &KarpenterContext) {
    let batcher = karpenter.batcher.clone();
    karpenter.base.informers.pods.on_change(move |change| {
        // A batch opens once per pod, when the scheduler gives up on it. Later updates of the same
        // pod would keep the batch open without changing what is needed.
        let newly = match change {
            Change::Added(pod) => is_provisionable(pod),
            Change::Updated { old, new } => is_provisionable(new) && !is_provisionable(old),
            Change::Deleted(_) => false,
        };
        if newly {
            batcher.trigger(change.object().uid().unwrap_or_default());
        }
    });
    // Pods of a claim that is being deleted need another place. Deleted claims, and pools and classes that became ready,
    // change what can be planned for waiting pods.
    let batcher = karpenter.batcher.clone();
    karpenter.claims.on_change(move |change| {
        let goes = |claim: &NodeClaim| claim.metadata.deletion_timestamp.is_some();
        let newly = match change {
            Change::Added(claim) => goes(claim),
            Change::Updated { old, new } => goes(new) && !goes(old),
            Change::Deleted(_) => true,
        };
        if newly {
            batcher.trigger(change.object().uid().unwrap_or_default());
        }
    });
    // The scheduler must know when the nodes on which pods have a planned place change.
    let state = karpenter.state.clone();
    karpenter.claims.on_change(move |change| {
        for place_change in place_changes(change) {
            state.queue_place_change(place_change);
        }
    });
    // The number of addresses on a Windows node decides how many nodes a plan needs.
    let batcher = karpenter.batcher.clone();
    karpenter.vpc_cni.on_change(move |change| {
        batcher.trigger(change.object().uid().unwrap_or_default());
    });
    let batcher = karpenter.batcher.clone();
    karpenter.pools.on_change(move |change| {
        let pool = change.object();
        let before = change.previous().is_some_and(|old| {
            old.is(node_pool_condition::READY)
                // A pool that stays ready with a changed spec may fit pods that it did not fit
                // before.
                && old.metadata.generation == pool.metadata.generation
        });
        if pool.is(node_pool_condition::READY) && !before {
            batcher.trigger(pool.uid().unwrap_or_default());
        }
    });
}

/// Returns what a change of a claim means for the pods that have a planned place on its node.
fn place_changes(change: &Change<'_, NodeClaim>) -> Vec<PlaceChange> {
    let claim = change.object();
    let place = claim.name_any();
    if change.is_deleted() || claim.metadata.deletion_timestamp.is_some() {
        return vec![PlaceChange::Gone(place)];
    }
    let before = change.previous();
    let mut changes = Vec::new();
    let was_named = before.is_some_and(|old| old.node_name() == claim.node_name());
    if let Some(node) = claim.node_name().filter(|_| !was_named) {
        let (place, node) = (place.clone(), node.to_owned());
        changes.push(PlaceChange::Named { place, node });
    }
    let is_ready = |claim: &NodeClaim| claim.is(node_claim_condition::INITIALIZED);
    if is_ready(claim) && !before.is_some_and(|old| is_ready(old)) {
        changes.push(PlaceChange::Ready(place));
    }
    changes
}
