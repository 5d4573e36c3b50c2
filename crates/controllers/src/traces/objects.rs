//! The spans that objects show by themselves: a pod from its creation to its binding, a NodeClaim until it is initialized.
//!
//! Invariant: spans of a NodeClaim are made from its status alone, so every process makes the same ones, whenever it sees them. Their
//! times are whole seconds, as those of the status are.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};

use super::{Span, SpanId, Trace, key};
use crate::{Change, Context, pods::node_name, provisioner::KarpenterContext};

/// Records the ways of pods, and with a provisioner those of its NodeClaims, until the context ends.
///
/// # Caveats
/// Of two processes that do this, each records the span of a pod as a whole; both have the same id.
pub fn follow(context: &Context, karpenter: Option<&KarpenterContext>) {
    if !context.traces.is_on() {
        return;
    }
    follow_pods(context, karpenter.cloned());
    if let Some(karpenter) = karpenter {
        follow_claims(karpenter);
    }
}

fn follow_pods(context: &Context, karpenter: Option<KarpenterContext>) {
    let (clock, traces) = (context.clock.clone(), context.traces.clone());
    context.informers.pods.on_change(move |change| {
        let is_bound = |pod: &Pod| !node_name(pod).is_empty();
        let pod: &Pod = change.object();
        let Some(trace) = traces.of_pod(pod) else {
            return;
        };
        let now = clock.now();
        match change {
            Change::Added(_) if !is_bound(pod) => trace.record(trace.step("pending", now, now)),
            Change::Updated { old, .. } if is_bound(pod) && !is_bound(old) => {
                let node = node_name(pod);
                let whole = trace.root("pod", created(pod, now), now);
                trace.record(whole.with(key::NODE, node));
                if let Some(karpenter) = &karpenter
                    && let Some(node) = karpenter.base.informers.nodes.get("", node)
                    && let Some(claim) = karpenter.claim_of(&node)
                {
                    record_wait(&trace, pod, &claim);
                }
            }
            Change::Deleted(_) if !is_bound(pod) => {
                let whole = trace.root("pod", created(pod, now), now);
                trace.record(whole.failed("the pod was deleted before it had a node"));
            }
            _ => {}
        }
    });
}

fn follow_claims(karpenter: &KarpenterContext) {
    let own = karpenter.clone();
    karpenter.claims.on_change(move |change| {
        let claim: &NodeClaim = change.object();
        let is_initialized = |claim: &NodeClaim| claim.is(condition::INITIALIZED);
        match change {
            Change::Updated { old, .. } if is_initialized(claim) && !is_initialized(old) => {
                record_claim_times(&own, claim);
                // The others record it when they are bound.
                for pod in own.pods_on(claim.node_name().unwrap_or_default()) {
                    if let Some(trace) = own.base.traces.of_pod(&pod) {
                        record_wait(&trace, &pod, claim);
                    }
                }
            }
            Change::Deleted(_) if !is_initialized(claim) => {
                if let Some(trace) = own.base.traces.of_claim(claim) {
                    let now = own.base.clock.now();
                    let whole = trace.root("nodeclaim", created(claim, now), now);
                    trace.record(whole.failed("the claim ended before its node was initialized"));
                }
            }
            _ => {}
        }
    });
}

/// Records the way of an initialized claim in its own trace. The launch, which failed attempts may precede, records itself.
fn record_claim_times(karpenter: &KarpenterContext, claim: &NodeClaim) {
    let traces = &karpenter.base.traces;
    let (Some(trace), Some(way)) = (traces.of_claim(claim), ClaimTimes::of(claim)) else {
        return;
    };
    let whole = about(trace.root("nodeclaim", way.created, way.initialized), claim);
    let steps = way.steps(&trace, claim, whole.id);
    trace.record(whole);
    for step in steps.into_iter().skip(1) {
        trace.record(step);
    }
}

/// Records the way of an initialized claim in the trace of a pod that waited for its node.
fn record_wait(trace: &Trace, pod: &Pod, claim: &NodeClaim) {
    let Some(way) = ClaimTimes::of(claim) else {
        return;
    };
    // The node of an older claim was there, or on its way, without the pod.
    if created(pod, way.created) > way.created {
        return;
    }
    let whole = trace.step("nodeclaim", way.created, way.initialized);
    let whole = about(whole, claim)
        .with(
            key::NODE_CLAIM,
            claim.metadata.name.clone().unwrap_or_default(),
        )
        .with_some(key::NODE_POOL, claim.node_pool())
        .linked_to(claim.metadata.uid.as_deref());
    let steps = way.steps(trace, claim, whole.id);
    trace.record(whole);
    for step in steps {
        trace.record(step);
    }
}

/// The times at which an initialized NodeClaim reached each state.
struct ClaimTimes {
    created: Timestamp,
    launched: Timestamp,
    registered: Timestamp,
    initialized: Timestamp,
}

impl ClaimTimes {
    fn of(claim: &NodeClaim) -> Option<Self> {
        let since = |kind: &str| {
            let condition = claim.condition(kind);
            let reached = condition.filter(|condition| condition.status == "True")?;
            Some(reached.last_transition_time.0)
        };
        Some(ClaimTimes {
            created: claim.metadata.creation_timestamp.as_ref()?.0,
            launched: since(condition::LAUNCHED)?,
            registered: since(condition::REGISTERED)?,
            initialized: since(condition::INITIALIZED)?,
        })
    }

    /// Returns the spans of the launch, the registration and the initialization.
    fn steps(&self, trace: &Trace, claim: &NodeClaim, parent: SpanId) -> [Span; 3] {
        let launch = trace.step("launch", self.created, self.launched);
        let register = trace.step("register", self.launched, self.registered);
        let initialize = trace.step("initialize", self.registered, self.initialized);
        [
            about(launch, claim),
            register.with_some(key::NODE, claim.node_name()),
            initialize,
        ]
        .map(|step| step.below(parent))
    }
}

/// Adds what was bought for a claim.
fn about(span: Span, claim: &NodeClaim) -> Span {
    span.with_some(key::INSTANCE_TYPE, claim.label(labels::INSTANCE_TYPE))
        .with_some(key::ZONE, claim.label(labels::ZONE))
        .with_some(key::CAPACITY_TYPE, claim.label(labels::CAPACITY_TYPE))
}

fn created(object: &impl Resource, otherwise: Timestamp) -> Timestamp {
    let created = object.meta().creation_timestamp.as_ref();
    created.map_or(otherwise, |time| time.0)
}
