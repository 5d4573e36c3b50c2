//! The spans of plans: what a plan means for each of its pods, and the NodeClaim that is created for them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mullion_api::karpenter::NodeClaim;
use mullion_engine::provision::{Plan, PlannedNode};

use crate::traces::{Span, Trace, Tracer, key};

/// The number of alternatives that a span names.
const SHOWN: usize = 5;

/// A plan that was made, as the spans of its pods describe it.
pub(super) struct PlanSpans {
    tracer: Tracer,
    began: Timestamp,
    ended: Timestamp,
    pods: usize,
    nodes: usize,
    price_micro_usd: u64,
}

impl PlanSpans {
    /// Describes a plan for a number of pods, which was made between these times.
    pub(super) fn of(
        tracer: &Tracer,
        plan: &Plan,
        pods: usize,
        (began, ended): (Timestamp, Timestamp),
    ) -> Self {
        PlanSpans {
            tracer: tracer.clone(),
            began,
            ended,
            pods,
            nodes: plan.nodes.len(),
            price_micro_usd: plan.price_micro_usd(),
        }
    }

    /// Records that a pod has a place on a node that is there or on its way.
    pub(super) fn placed(&self, pod: &Pod, place: &str) {
        if let Some((trace, span)) = self.span(pod) {
            let span = span.with(key::OUTCOME, "place found");
            trace.record(span.with("mullion.place", place));
        }
    }

    /// Records that there is no node to be bought for a pod.
    pub(super) fn refused(&self, pod: &Pod, why: &str) {
        if let Some((trace, span)) = self.span(pod) {
            let span = span.with(key::OUTCOME, "refused");
            trace.record(span.with(key::MESSAGE, why));
        }
    }

    /// Records that a node is bought for a pod, by a claim that was created between these times.
    pub(super) fn bought(
        &self,
        pod: &Pod,
        planned: &PlannedNode,
        claim: &NodeClaim,
        (began, ended): (Timestamp, Timestamp),
    ) {
        let Some((trace, span)) = self.span(pod) else {
            return;
        };
        let alternatives = planned.options.iter().take(SHOWN).map(|option| {
            let price = usd(option.price_micro_usd + planned.node_price_micro_usd);
            format!("{} ${price}", option.name)
        });
        let span = span
            .with(key::OUTCOME, "node bought")
            .with(key::NODE_POOL, planned.pool.as_str())
            .with(key::PRICE, usd(planned.price_micro_usd()))
            .with("mullion.instance_types", planned.options.len())
            .with("mullion.cheapest", alternatives.collect::<Vec<_>>())
            .with("mullion.pods_on_node", planned.pods.len());
        let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
        let creation = trace
            .step("create nodeclaim", began, ended)
            .below(span.id)
            .with(key::NODE_CLAIM, claim_name)
            .linked_to(claim.metadata.uid.as_deref());
        trace.record(span);
        trace.record(creation);
    }

    fn span(&self, pod: &Pod) -> Option<(Trace, Span)> {
        let trace = self.tracer.of_pod(pod)?;
        let span = trace
            .step("plan", self.began, self.ended)
            .with("mullion.plan.pods", self.pods)
            .with("mullion.plan.nodes", self.nodes)
            .with("mullion.plan.price_usd_per_hour", usd(self.price_micro_usd));
        Some((trace, span))
    }
}

fn usd(micro_usd: u64) -> f64 {
    micro_usd as f64 / 1e6
}
