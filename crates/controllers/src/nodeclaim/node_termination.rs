//! The end of a node: tainted, drained, its instance terminated, then gone.
//!
//! Invariant: every step is decided from what the API and the cloud say now, so the process may die between any two of
//! them. Pods leave through the eviction API, which respects disruption budgets.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions},
};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_cloud::instance_id;
use serde_json::json;

use super::{
    BACKOFF, Error, POLL, drain, edit, has_finalizer, initialization::is_ready, write_back,
};
use crate::{
    Change, Queue, api_error,
    provisioner::{
        KarpenterContext, conditions::Status, conditions::is_true, decision_log::Pass, is_managed,
    },
};

const CONTROLLER: &str = "node.termination";
/// Group and kind of nodes in the decision log.
const NODE: (&str, &str) = ("", "Node");

pub(super) fn start(karpenter: &KarpenterContext) {
    let queue = Queue::with_backoff("node.termination", BACKOFF);
    let nodes = queue.clone();
    karpenter.base.informers.nodes.on_change(move |change| {
        if is_ending(change.object()) {
            nodes.add(change.object().name_any());
        }
    });
    // A pod that left may be the one the node waited for.
    let (nodes, informer) = (queue.clone(), karpenter.base.informers.nodes.clone());
    karpenter.base.informers.pods.on_change(move |change| {
        let node = crate::pods::node_name(change.object());
        if matches!(change, Change::Deleted(_))
            && informer.get("", node).is_some_and(|node| is_ending(&node))
        {
            nodes.add(node.to_owned());
        }
    });
    let (terminator, again) = (karpenter.clone(), queue.clone());
    queue.run(&karpenter.base, 4, move |name: String| {
        let (karpenter, again) = (terminator.clone(), again.clone());
        async move {
            if let Some(delay) = finalize(&karpenter, &name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, Error>(())
        }
    });
}

fn is_ending(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_some()
        && has_finalizer(node.finalizers())
        && is_managed(node)
}

/// Takes a deleted node one step further. Returns when to look again.
async fn finalize(karpenter: &KarpenterContext, name: &str) -> Result<Option<Duration>, Error> {
    let Some(node) = karpenter.node_api().get_opt(name).await? else {
        return Ok(None);
    };
    if !is_ending(&node) {
        return Ok(None);
    }
    let mut log = karpenter.log.pass_over(CONTROLLER, NODE, name);
    let claim = claim_of(karpenter, &node).await?;
    if let Some(claim) = &claim {
        log = log.with_ref("NodeClaim", &claim.name_any());
        if claim.metadata.deletion_timestamp.is_none() {
            karpenter.delete_claim(&claim.name_any()).await?;
        }
    }
    let spec = node.spec.as_ref();
    let instance = spec
        .and_then(|spec| spec.provider_id.as_deref())
        .and_then(instance_id);
    // A node that stopped talking may have lost its instance; there is nobody left to drain then.
    if !is_ready(&node)
        && let Some(id) = &instance
        && let Err(error) = karpenter.cloud.get(id.clone()).await
    {
        return match error.is_not_found() {
            true => remove_finalizer(karpenter, &node, &log).await,
            false => Err(error.into()),
        };
    }
    taint(karpenter, &node, &log).await?;
    let deadline = claim.as_ref().and_then(deadline);
    if let Some(deadline) = deadline {
        let message = format!("All pods will be deleted by {deadline:.0}");
        karpenter
            .recorder
            .warning(&node, "TerminationGracePeriodExpiring", message);
    }
    if !drained(karpenter, &node, claim.as_ref(), deadline).await? {
        return Ok(Some(POLL));
    }
    mark(karpenter, claim.as_ref(), condition::DRAINED, None).await?;
    let now = karpenter.base.clock.now();
    let attached = match deadline.is_none_or(|deadline| now < deadline) {
        true => attached_volumes(karpenter, name).await?,
        false => 0,
    };
    if attached > 0 {
        let message = format!("Awaiting deletion of {attached} VolumeAttachments bound to node");
        karpenter
            .recorder
            .warning(&node, "AwaitingVolumeDetachment", message);
        let waiting = Some("AwaitingVolumeDetachment");
        mark(
            karpenter,
            claim.as_ref(),
            condition::VOLUMES_DETACHED,
            waiting,
        )
        .await?;
        return Ok(Some(POLL));
    }
    mark(karpenter, claim.as_ref(), condition::VOLUMES_DETACHED, None).await?;
    if let Some(id) = instance {
        let ended = karpenter.cloud.terminate(id).await;
        if !ended.as_ref().is_err_and(|error| error.is_not_found()) {
            ended?;
            mark(
                karpenter,
                claim.as_ref(),
                condition::INSTANCE_TERMINATING,
                None,
            )
            .await?;
            return Ok(Some(POLL));
        }
    }
    remove_finalizer(karpenter, &node, &log).await
}

/// The node's claim, read afresh.
async fn claim_of(karpenter: &KarpenterContext, node: &Node) -> Result<Option<NodeClaim>, Error> {
    match karpenter.claim_of(node) {
        Some(claim) => Ok(karpenter.claim_api().get_opt(&claim.name_any()).await?),
        None => Ok(None),
    }
}

/// When nothing holds the node back any more.
fn deadline(claim: &NodeClaim) -> Option<Timestamp> {
    claim
        .annotations()
        .get(labels::TERMINATION_TIMESTAMP)?
        .parse()
        .ok()
}

/// Keeps new pods and load balancers away.
async fn taint(karpenter: &KarpenterContext, node: &Node, log: &Pass) -> Result<(), Error> {
    let wanted = drain::disrupted_taint();
    let own = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    let mut taints = own.unwrap_or_default();
    let tainted = taints
        .iter()
        .any(|taint| taint.key == wanted.key && taint.effect == wanted.effect);
    if tainted && node.labels().contains_key(labels::EXCLUDE_BALANCERS) {
        return Ok(());
    }
    if !tainted {
        taints.retain(|taint| taint.key != wanted.key);
        taints.push(wanted.clone());
    }
    let patch = json!({
        "metadata": {
            "resourceVersion": node.resource_version(),
            "labels": { labels::EXCLUDE_BALANCERS: "karpenter" }
        },
        "spec": { "taints": taints },
    });
    karpenter
        .node_api()
        .patch(
            &node.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;
    log.clone()
        .with("taint.Key", wanted.key)
        .with("taint.Value", "")
        .with("taint.Effect", wanted.effect)
        .info("tainted node");
    Ok(())
}

/// Asks the next pods to leave. Returns whether none is left that the node waits for.
async fn drained(
    karpenter: &KarpenterContext,
    node: &Node,
    claim: Option<&NodeClaim>,
    deadline: Option<Timestamp>,
) -> Result<bool, Error> {
    let pods = karpenter.pods_on(&node.name_any());
    let step = drain::step(&pods, karpenter.base.clock.now(), deadline);
    if step.waiting == 0 {
        return Ok(true);
    }
    if let Some(deadline) = deadline {
        for (pod, seconds) in &step.delete {
            delete(karpenter, pod, *seconds, deadline).await?;
        }
    }
    for pod in &step.evict {
        evict(karpenter, node, claim, pod).await?;
    }
    let message = format!(
        "Failed to drain node, {} pods are waiting to be evicted",
        step.waiting
    );
    karpenter.recorder.warning(node, "FailedDraining", message);
    mark(karpenter, claim, condition::DRAINED, Some("Draining")).await?;
    Ok(false)
}

/// Deletes a pod that would outlive its node.
async fn delete(
    karpenter: &KarpenterContext,
    pod: &Pod,
    seconds: u32,
    deadline: Timestamp,
) -> Result<(), Error> {
    let params = DeleteParams {
        grace_period_seconds: Some(seconds),
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods_api(karpenter, pod)
        .delete(&pod.name_any(), &params)
        .await
    {
        Ok(_) => {
            let message = cut_short(pod, seconds, deadline);
            karpenter.recorder.normal(pod, "Disrupted", message);
            Ok(())
        }
        Err(error) if is_another(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What a pod is told that gets less time than it asked for; times are written as Go prints them.
fn cut_short(pod: &Pod, seconds: u32, deadline: Timestamp) -> String {
    let deadline = deadline.strftime("%Y-%m-%d %H:%M:%S +0000 UTC");
    let own = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    format!(
        "Deleting the pod to accommodate the terminationTime {deadline} of the node. The pod was granted {seconds} \
         seconds of grace-period of its {} terminationGracePeriodSeconds. This bypasses the PDB of the pod and the \
         do-not-disrupt annotation.",
        own.unwrap_or(30)
    )
}

async fn evict(
    karpenter: &KarpenterContext,
    node: &Node,
    claim: Option<&NodeClaim>,
    pod: &Arc<Pod>,
) -> Result<(), Error> {
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
    let name = pod.name_any();
    match pods_api(karpenter, pod).evict(&name, &params).await {
        Ok(_) => {
            let reason = claim
                .and_then(|claim| claim.condition(condition::DISRUPTION_REASON))
                .map_or("Forceful Termination", |condition| &condition.reason);
            let message = format!("Evicted pod: {reason}");
            karpenter.recorder.normal(&**pod, "Evicted", message);
            Ok(())
        }
        Err(error) if is_another(&error) => Ok(()),
        Err(error) if api_error::status(&error).is_some_and(|status| status.code == 429) => {
            let namespace = pod.namespace().unwrap_or_default();
            let message = format!(
                "Failed to drain node, evicting pod violates a PDB (Pod={namespace}/{name})"
            );
            karpenter.recorder.warning(node, "FailedDraining", message);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// The pod is gone, or another one has its name.
fn is_another(error: &kube::Error) -> bool {
    api_error::is_not_found(error) || api_error::is_conflict(error)
}

fn pods_api(karpenter: &KarpenterContext, pod: &Pod) -> Api<Pod> {
    let namespace = pod.namespace().unwrap_or_default();
    Api::namespaced(karpenter.base.client.clone(), &namespace)
}

/// How many volumes are still attached to the node. A server that does not know of attachments has none.
async fn attached_volumes(karpenter: &KarpenterContext, node: &str) -> Result<usize, Error> {
    let api: Api<VolumeAttachment> = Api::all(karpenter.base.client.clone());
    let all = api_error::ignore_not_found(api.list(&ListParams::default()).await)?;
    let all = all.into_iter().flat_map(|list| list.items);
    Ok(all.filter(|volume| volume.spec.node_name == node).count())
}

/// Sets a condition of the claim: true, or unknown with the reason it waits for.
async fn mark(
    karpenter: &KarpenterContext,
    claim: Option<&NodeClaim>,
    kind: &str,
    waiting: Option<&str>,
) -> Result<(), Error> {
    let Some(stored) = claim else { return Ok(()) };
    // The claim in hand may be a step old; only the conditions of the latest may be written back.
    let Some(stored) = karpenter.claim_api().get_opt(&stored.name_any()).await? else {
        return Ok(());
    };
    let mut marked = stored.clone();
    edit(karpenter, &mut marked, |conditions| match waiting {
        None if !conditions.is_true(kind) => conditions.set_true(kind),
        None => {}
        Some(reason) => {
            conditions.set(kind, Status::Unknown, reason, reason);
        }
    });
    let has_it = stored
        .status
        .as_ref()
        .is_some_and(|status| waiting.is_none() && is_true(&status.conditions, kind));
    match has_it {
        true => Ok(()),
        false => write_back(karpenter, &stored, &marked).await,
    }
}

async fn remove_finalizer(
    karpenter: &KarpenterContext,
    node: &Node,
    log: &Pass,
) -> Result<Option<Duration>, Error> {
    let latest = karpenter.node_api().get_opt(&node.name_any()).await?;
    let Some(latest) = latest else {
        return Ok(None);
    };
    let mut finalizers = latest.finalizers().to_vec();
    finalizers.retain(|finalizer| finalizer != labels::TERMINATION_FINALIZER);
    let patch = json!({ "metadata": {
        "resourceVersion": latest.resource_version(), "finalizers": finalizers
    }});
    let patched = karpenter
        .node_api()
        .patch(
            &node.name_any(),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await;
    if api_error::ignore_not_found(patched)?.is_some() {
        log.info("deleted node");
    }
    Ok(None)
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
