//! Drift: nodes that are no longer what their pool and class ask for.
//!
//! [`reason`] decides, the [`Marker`] writes the condition `Drifted`, [`replacement`] says what takes a node's place.
//!
//! Invariant: the condition `Drifted` of a claim names the first reason that holds, by Karpenter's names and in its
//! order; the condition is removed when none holds.

mod mark;
mod reason;

use std::sync::Arc;

use kube::ResourceExt;
use mullion_api::karpenter::{
    DisruptionReason, NodeClaim, NodePool, node_claim_condition as condition,
};
use mullion_engine::{ModelError, disrupt::StayReason};

pub(super) use mark::Marker;

use super::{
    candidate::{Candidate, CandidateChecker},
    command::Command,
    consolidation,
    events::DisruptionEvents,
};
use crate::provisioner::{
    BY_POOL, KarpenterContext, conditions::true_since, demand::Demand, market::amounts,
};

/// The condition of a claim whose node has drifted.
const DRIFTED: &str = condition::DRIFTED;

/// Returns the drifted nodes of a static pool that may be replaced, in the same order as [`candidates`] (core:
/// `StaticDrift`).
pub(super) fn static_candidates(
    checker: &CandidateChecker<'_>,
    karpenter: &KarpenterContext,
    pool: &Arc<NodePool>,
    events: &mut DisruptionEvents,
) -> Vec<Candidate> {
    let mut candidates = of_pool(checker, karpenter, pool, events);
    sort(&mut candidates);
    candidates
}

/// Returns the drifted nodes of other pools that may be replaced: those without pods first, then those that drifted
/// first.
pub(super) fn candidates(
    checker: &CandidateChecker<'_>,
    karpenter: &KarpenterContext,
    events: &mut DisruptionEvents,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pool in karpenter.pools.list() {
        if pool.spec.replicas.is_some() {
            continue;
        }
        candidates.extend(of_pool(checker, karpenter, &pool, events));
    }
    sort(&mut candidates);
    candidates
}

fn of_pool(
    checker: &CandidateChecker<'_>,
    karpenter: &KarpenterContext,
    pool: &Arc<NodePool>,
    events: &mut DisruptionEvents,
) -> Vec<Candidate> {
    let claims = karpenter.claims.by_index(BY_POOL, &pool.name_any());
    let drifted = claims
        .iter()
        .filter(|claim| claim.is(DRIFTED) && !is_backing_off(karpenter, claim));
    drifted
        .filter_map(|claim| checker.candidate(claim, pool, true, events))
        .collect()
}

fn sort(candidates: &mut [Candidate]) {
    candidates.sort_by_key(|own| {
        let conditions = own.claim.status.as_ref().map(|status| &status.conditions);
        let since = conditions.and_then(|conditions| true_since(conditions, DRIFTED));
        // The name decides last, so that every pass tries the same node first.
        (!own.pods.is_empty(), since, own.node.name_any())
    });
}

fn is_backing_off(karpenter: &KarpenterContext, claim: &Arc<NodeClaim>) -> bool {
    let node = karpenter.node_of(claim);
    node.is_some_and(|node| karpenter.disrupting.is_backing_off(&node.name_any()))
}

/// The reason why a drifted node cannot be replaced.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoReplacement {
    /// The pods of the node have to stay; the text is what the model says about them.
    #[error("{0}")]
    Stays(String),
    /// Some pods would have no node.
    #[error("Not all pods would schedule")]
    Unschedulable,
}

/// Returns the command that replaces a drifted node at any price, or Karpenter's message why its pods have no other
/// place.
///
/// Returns an error if a node or pool offers an invalid amount.
pub(super) async fn replacement(
    karpenter: &KarpenterContext,
    candidate: &Candidate,
) -> Result<Result<Command, NoReplacement>, ModelError> {
    let mut question = Demand::of_all(karpenter).await.into_consolidation();
    let node = candidate.node.name_any();
    let status = candidate.claim.status.as_ref();
    question.candidates = vec![mullion_engine::disrupt::Candidate {
        node: node.clone(),
        pool: candidate.pool.name_any(),
        capacity: status
            .map(|status| amounts(&status.capacity))
            .unwrap_or_default(),
        ..mullion_engine::disrupt::Candidate::default()
    }];
    let answer = karpenter.state.with(|state| {
        let cluster = state.cluster_mut();
        let answer = cluster.relocate(&question)?;
        Ok::<_, ModelError>(answer.map_err(|stays| match stays {
            StayReason::PodStuck { .. } | StayReason::MoreCombinations { .. } => {
                let message = consolidation::message(&stays, |why| cluster.message(why));
                NoReplacement::Stays(message.unwrap_or_default())
            }
            _ => NoReplacement::Unschedulable,
        }))
    })?;
    Ok(answer.map(|made| Command {
        reason: DisruptionReason::Drifted,
        candidates: vec![candidate.clone()],
        destinations: made.existing.into_iter().map(|(_, node)| node).collect(),
        replacements: made.replacements,
        // Drift is mended at any price, so no saving is shown for it.
        saving: 0,
    }))
}
