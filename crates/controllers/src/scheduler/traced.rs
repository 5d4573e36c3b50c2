//! The spans of scheduling attempts and bindings.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::round::Verdict;
use crate::{Context, traces::key};

/// Records an attempt that began at `began`, with its outcome and the reason of a refusal.
pub(super) fn attempt(context: &Context, pod: &Pod, began: Timestamp, verdict: &Verdict) {
    let Some(trace) = context.traces.of_pod(pod) else {
        return;
    };
    let span = trace.step("schedule", began, context.clock.now());
    trace.record(match verdict {
        Verdict::Bind { node, .. } => span
            .with(key::OUTCOME, "node found")
            .with(key::NODE, node.as_str()),
        Verdict::Hold => span
            .with(key::OUTCOME, "held")
            .with(key::MESSAGE, "the pod waits until its ResourceClaims exist"),
        Verdict::Refuse {
            message, victims, ..
        } => span
            .with(key::OUTCOME, "refused")
            .with(key::MESSAGE, message.as_str())
            .with("mullion.victims", victims.len()),
        Verdict::Fail { message } => span.with(key::OUTCOME, "failed").failed(message.as_str()),
    });
}

/// Records a binding that began at `began`; `error` says why it failed.
pub(super) fn binding(
    context: &Context,
    pod: &Pod,
    node: &str,
    began: Timestamp,
    error: Option<&str>,
) {
    let Some(trace) = context.traces.of_pod(pod) else {
        return;
    };
    let span = trace.step("bind", began, context.clock.now());
    let span = span.with(key::NODE, node);
    trace.record(match error {
        Some(error) => span.failed(error),
        None => span,
    });
}
