//! Nodes that may be disrupted, and why others may not.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use mullion_api::{
    karpenter::{NodeClaim, NodePool, node_claim_condition as condition},
    labels,
};

use super::{
    events::DisruptionEvents,
    protection::{Budgets, NODE_MILLI, disruption_milli},
};
use crate::{
    nodeclaim::do_not_disrupt::Protection,
    pods,
    provisioner::{KarpenterContext, pending::is_reschedulable},
};

/// Why a node stays that is on its way out.
pub const LEAVING: &str = "Node is deleting or marked for deletion";

/// A node that may be disrupted.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) claim: Arc<NodeClaim>,
    pub(super) node: Arc<Node>,
    pub(super) pool: Arc<NodePool>,
    /// The pods that will need another place.
    pub(super) pods: Vec<Arc<Pod>>,
    /// The disruption cost of its removal: [`disruption_milli`].
    pub(super) disruption_milli: u64,
}

impl Candidate {
    /// Returns whether no pod on the node costs anything to evict (core: `IsEmpty`).
    pub(super) fn is_empty(&self) -> bool {
        self.disruption_milli <= NODE_MILLI
    }
}

/// Checks which nodes may be disrupted, by the disruption budgets and the time of its creation.
pub(super) struct CandidateChecker<'a> {
    karpenter: &'a KarpenterContext,
    budgets: Budgets,
    now: Timestamp,
}

impl<'a> CandidateChecker<'a> {
    pub(super) fn new(karpenter: &'a KarpenterContext) -> Self {
        let informer = &karpenter.base.informers.pod_disruption_budgets;
        let budgets = informer.list();
        CandidateChecker {
            karpenter,
            budgets: Budgets::of(budgets.iter().map(|own| &**own)),
            now: karpenter.base.clock.now(),
        }
    }

    /// Returns the node of a claim if it may be disrupted now; otherwise records events that say why not.
    /// `is_eventual`: pods that object hold the node only if its claim has no `terminationGracePeriod` (core:
    /// `EventualDisruptionClass`).
    pub(super) fn candidate(
        &self,
        claim: &Arc<NodeClaim>,
        pool: &Arc<NodePool>,
        is_eventual: bool,
        events: &mut DisruptionEvents,
    ) -> Option<Candidate> {
        let node = self.karpenter.node_of(claim);
        match self.judge(claim, node.as_ref(), pool, is_eventual, events) {
            Ok(candidate) => Some(candidate),
            Err(Some(why)) => {
                events.blocked(node.as_deref(), claim, &why);
                None
            }
            Err(None) => None,
        }
    }

    /// Returns the candidate, or why the node may not be disrupted, in Karpenter's words. The error is `None` if a
    /// command is about the node already.
    fn judge(
        &self,
        claim: &Arc<NodeClaim>,
        node: Option<&Arc<Node>>,
        pool: &Arc<NodePool>,
        is_eventual: bool,
        events: &mut DisruptionEvents,
    ) -> Result<Candidate, Option<String>> {
        let Some(node) = node else {
            return Err(Some(
                "Nodeclaim does not have an associated node".to_owned(),
            ));
        };
        let name = node.name_any();
        // No event: the command that has the node in hand already recorded what happens to it.
        if self.karpenter.disrupting.contains(&name) {
            return Err(None);
        }
        let nominations = &self.karpenter.nominations;
        let is_nominated =
            nominations.is_nominated(&name) || nominations.is_nominated(&claim.name_any());
        if let Some(why) = held(claim, node, is_nominated) {
            return Err(Some(why));
        }
        let pods = self.karpenter.pods_on(&name);
        // Protection is reported for every pod, also for those behind the first one that blocks the node.
        for pod in pods.iter().filter(|pod| pods::is_active(pod)) {
            events.protection(pod, &Protection::of(pod, self.now));
        }
        let blocked = self
            .budgets
            .refusal(pods.iter().map(|pod| &**pod), self.now);
        if let Some(why) = blocked {
            // With a grace period the pods are deleted in the end, so a drifted node may go although they
            // object.
            let will_end = claim.spec.termination_grace_period.is_some();
            if !(is_eventual && will_end) {
                return Err(Some(why));
            }
        }
        let pods: Vec<Arc<Pod>> = pods
            .into_iter()
            .filter(|pod| is_reschedulable(pod))
            .collect();
        Ok(Candidate {
            claim: Arc::clone(claim),
            node: Arc::clone(node),
            pool: Arc::clone(pool),
            disruption_milli: disruption_milli(pods.iter().map(|pod| &**pod)),
            pods,
        })
    }
}

/// Returns why a node itself is not to be disrupted, in Karpenter's words (core: `ValidateNodeDisruptable`); `None` if it may be.
pub fn held(claim: &NodeClaim, node: &Node, is_nominated: bool) -> Option<String> {
    let goes =
        claim.metadata.deletion_timestamp.is_some() || node.metadata.deletion_timestamp.is_some();
    let kept = node.annotations().get(labels::DO_NOT_DISRUPT);
    if !claim.is(condition::INITIALIZED) {
        Some("Node isn't initialized".to_owned())
    } else if goes {
        Some(LEAVING.to_owned())
    } else if is_nominated {
        Some("Node is nominated for a pending pod".to_owned())
    } else if kept.is_some_and(|value| value == "true") {
        Some(format!(
            "Disruption is blocked through the {:?} annotation",
            labels::DO_NOT_DISRUPT
        ))
    } else {
        None
    }
}
