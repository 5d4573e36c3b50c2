//! Asking the pods of a node that goes to leave: through the eviction API, which respects disruption budgets, or, when time is up, by
//! deleting them.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, Preconditions},
};
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};
use serde_json::json;

use super::Error;
use crate::{
    api_error,
    provisioner::{KarpenterContext, metrics::Metric},
};

const CONTROLLER: &str = "eviction-queue";
/// What kube-apiserver answers when several budgets select a pod.
const SEVERAL_BUDGETS: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";

/// Deletes a pod that would outlive its node.
pub(super) async fn delete(
    karpenter: &KarpenterContext,
    claim: Option<&NodeClaim>,
    pod: &Pod,
    seconds: u32,
    deadline: Timestamp,
) -> Result<(), Error> {
    let params = DeleteParams {
        grace_period_seconds: Some(seconds),
        // A StatefulSet may have made a new pod of this name meanwhile, which must not be deleted in its
        // place.
        preconditions: Some(only_this(pod)),
        ..DeleteParams::default()
    };
    let name = pod.name_any();
    match pods_api(karpenter, pod).delete(&name, &params).await {
        Ok(_) => {
            let message = cut_short(pod, seconds, deadline);
            karpenter.recorder.normal(pod, "Disrupted", message);
            karpenter
                .log
                .reconciliation(CONTROLLER)
                .with("Pod", json!({ "name": name, "namespace": pod.namespace() }))
                .with("pod.terminationGracePeriodSeconds", grace_seconds(pod))
                .with("delete.gracePeriodSeconds", seconds)
                .with("nodeclaim.terminationTime", format!("{deadline:.0}"))
                .debug("deleting pod");
            count_drained(karpenter, claim);
            Ok(())
        }
        Err(error) if is_another(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the event's message for a pod that gets less time than it asked for; times are written as Go prints them.
fn cut_short(pod: &Pod, seconds: u32, deadline: Timestamp) -> String {
    let deadline = deadline.strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
    format!(
        "Deleting the pod to accommodate the terminationTime {deadline} of the node. The pod was granted {seconds} \
         seconds of grace-period of its {} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the \
         do-not-disrupt annotation.",
        grace_seconds(pod)
    )
}

fn grace_seconds(pod: &Pod) -> i64 {
    let spec = pod.spec.as_ref();
    let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
    // The API server's default for `terminationGracePeriodSeconds`.
    own.unwrap_or(30)
}

/// Evicts a pod, as far as its budget allows.
pub(super) async fn evict(
    karpenter: &KarpenterContext,
    node: &Node,
    claim: Option<&NodeClaim>,
    pod: &Arc<Pod>,
) -> Result<(), Error> {
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(only_this(pod)),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let name = pod.name_any();
    let error = match pods_api(karpenter, pod).evict(&name, &params).await {
        Ok(_) => {
            count_request(karpenter, 200);
            let message = format!("Evicted pod: {}", reason_of(claim));
            karpenter.recorder.normal(&**pod, "Evicted", message);
            count_drained(karpenter, claim);
            return Ok(());
        }
        Err(error) => error,
    };
    // Upstream counts every answer of the API by its code, also refusals.
    if let Some(status) = api_error::status(&error) {
        count_request(karpenter, status.code);
    }
    if is_another(&error) {
        return Ok(());
    }
    let Some(why) = held_back(&error) else {
        return Err(error.into());
    };
    let namespace = pod.namespace().unwrap_or_default();
    let message = format!("Failed to drain node, {why} (Pod={namespace}/{name})");
    karpenter.recorder.warning(node, "FailedDraining", message);
    Ok(())
}

/// Returns the reason why the node of a claim is being removed.
fn reason_of(claim: Option<&NodeClaim>) -> &str {
    claim
        .and_then(|claim| claim.condition(condition::DISRUPTION_REASON))
        .map_or("Forceful Termination", |condition| &condition.reason)
}

fn count_request(karpenter: &KarpenterContext, code: u16) {
    let code = code.to_string();
    let labels = [("code", code.as_str())];
    karpenter.metrics.count(Metric::EvictionRequests, &labels);
}

fn count_drained(karpenter: &KarpenterContext, claim: Option<&NodeClaim>) {
    let labels = [("reason", reason_of(claim))];
    karpenter.metrics.count(Metric::PodsDrained, &labels);
}

/// Returns why a pod may not be evicted now, if its budgets are the reason.
fn held_back(error: &kube::Error) -> Option<&'static str> {
    let status = api_error::status(error)?;
    if status.message == SEVERAL_BUDGETS {
        return Some("eviction does not support multiple PDBs");
    }
    // kube-apiserver answers 429 when evicting now would violate a budget; the queue asks again later.
    (status.code == 429).then_some("evicting pod violates a PDB")
}

fn only_this(pod: &Pod) -> Preconditions {
    Preconditions {
        uid: pod.uid(),
        resource_version: None,
    }
}

/// Returns whether the error means that the pod is gone, or that another pod has its name now.
fn is_another(error: &kube::Error) -> bool {
    api_error::is_not_found(error) || api_error::is_conflict(error)
}

fn pods_api(karpenter: &KarpenterContext, pod: &Pod) -> Api<Pod> {
    let namespace = pod.namespace().unwrap_or_default();
    Api::namespaced(karpenter.base.client.clone(), &namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_must_go_early_is_told_when_and_why() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": { "containers": [], "terminationGracePeriodSeconds": 90 }
        }))
        .expect("a pod");
        let deadline = "2026-01-27T12:00:20Z".parse().expect("a time");
        assert_eq!(
            cut_short(&pod, 20, deadline),
            "Deleting the pod to accommodate the terminationTime 2026-01-27 12:00:20 +0000 UTC of the node. The pod was \
             granted 20 seconds of grace-period of its 90 terminationGracePeriodSeconds. This bypasses the PDB of the pod \
             and the do-not-disrupt annotation."
        );
    }
}
