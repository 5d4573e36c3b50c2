//! Limits repeated events about disruption: the loop runs every ten seconds, and would record the
//! same event each time.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Resource, ResourceExt};
use mullion_api::karpenter::{NodeClaim, NodePool};
use tokio::time::Instant;

use crate::{Recorder, events::EventType, nodeclaim::do_not_disrupt::Protection};

/// The same event about an object is recorded at most this often (Karpenter core: the recorder's
/// deduplication time).
const USUAL: Duration = Duration::from_secs(120);
/// The event `Unconsolidatable` is recorded at most this often.
const UNCONSOLIDATABLE: Duration = Duration::from_secs(15 * 60);

/// Records events about disruption, each of them at most once per interval.
pub(super) struct DisruptionEvents {
    recorder: Recorder,
    last: BTreeMap<(String, &'static str), (String, Instant)>,
    /// When entries of `last` that are too old to matter were removed last.
    cleaned: Instant,
}

impl DisruptionEvents {
    pub(super) fn new(recorder: Recorder) -> Self {
        DisruptionEvents {
            recorder,
            last: BTreeMap::new(),
            cleaned: Instant::now(),
        }
    }

    /// Records on the claim and its node why the node is not disrupted.
    pub(super) fn blocked(&mut self, node: Option<&Node>, claim: &NodeClaim, why: &str) {
        if let Some(node) = node {
            self.record(node, "DisruptionBlocked", why, USUAL);
        }
        self.record(claim, "DisruptionBlocked", why, USUAL);
    }

    /// Records on the claim and its node why the node is not consolidated.
    pub(super) fn unconsolidatable(&mut self, node: &Node, claim: &NodeClaim, why: &str) {
        self.record(node, "Unconsolidatable", why, UNCONSOLIDATABLE);
        self.record(claim, "Unconsolidatable", why, UNCONSOLIDATABLE);
    }

    /// Records on the claim and its node what consolidation is about to do with the node.
    pub(super) fn candidate(&mut self, node: &Node, claim: &NodeClaim, what: &str) {
        self.record(node, "ConsolidationCandidate", what, USUAL);
        self.record(claim, "ConsolidationCandidate", what, USUAL);
    }

    /// Records on the claim and its node that a proposal about the node did not stand when it was validated.
    pub(super) fn rejected(&mut self, node: &Node, claim: &NodeClaim, what: &str) {
        self.record(node, "ConsolidationRejected", what, USUAL);
        self.record(claim, "ConsolidationRejected", what, USUAL);
    }

    /// Records on an object how a move scores under the policy `Balanced`.
    pub(super) fn approved<K>(&mut self, object: &K, score: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        self.record(object, "ConsolidationApproved", score, USUAL);
    }

    /// Records on a pod until when its `do-not-disrupt` annotation protects it, or why it does not.
    pub(super) fn protection(&mut self, pod: &Pod, protection: &Protection) {
        if let Some((kind, reason, message)) = protection.event() {
            self.record_as(kind, pod, reason, &message, USUAL);
        }
    }

    /// Records on a pool that its disruption budgets allow no disruption for `reason`.
    pub(super) fn pool_blocked(&mut self, pool: &NodePool, reason: &str) {
        let message =
            format!("No allowed disruptions for disruption reason {reason} due to blocking budget");
        self.record(pool, "DisruptionBlocked", &message, Duration::from_secs(60));
    }

    fn record<K>(&mut self, object: &K, reason: &'static str, message: &str, rest: Duration)
    where
        K: Resource<DynamicType = ()>,
    {
        self.record_as(EventType::Normal, object, reason, message, rest);
    }

    fn record_as<K>(
        &mut self,
        kind: EventType,
        object: &K,
        reason: &'static str,
        message: &str,
        rest: Duration,
    ) where
        K: Resource<DynamicType = ()>,
    {
        let now = Instant::now();
        // Cleaning costs a pass over the map, so it is not done at every event.
        if now.duration_since(self.cleaned) >= USUAL {
            self.last
                .retain(|_, (_, at)| now.duration_since(*at) < UNCONSOLIDATABLE);
            self.cleaned = now;
        }
        let key = (object.uid().unwrap_or_default(), reason);
        let previous = self.last.get(&key);
        if previous.is_some_and(|(last, at)| last == message && now.duration_since(*at) < rest) {
            return;
        }
        self.last.insert(key, (message.to_owned(), now));
        self.recorder
            .record(object.object_ref(&()), kind, reason, message.to_owned());
    }
}
