//! Terminates nodes: taints and drains them, waits for their volumes, terminates the instance, and removes the finalizer.
//!
//! [`drain`] selects the pods to evict, [`eviction`] evicts them, [`detachment`] finds the volumes to wait for, and
//! [`deadline`] determines when waiting ends.
//!
//! Invariant: every step depends only on the present state of the API and the cloud, so the process may stop between any two
//! steps. Pods are evicted through the eviction API, which respects disruption budgets.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use mullion_api::{
    karpenter::{NodeClaim, node_claim_condition as condition},
    labels,
};
use mullion_cloud::instance_id;
use serde_json::json;

use super::{
    BACKOFF, Error, POLL, deadline, detachment, drain, edit, eviction, has_finalizer,
    initialization::is_ready, progress::Progress, write_back,
};
use crate::{
    Change, Queue, api_error,
    provisioner::{
        KarpenterContext,
        conditions::Status,
        decision_log::{Reconciliation, abbreviated},
        is_managed,
        metrics::Metric,
    },
};

const CONTROLLER: &str = "node.termination";
/// Group and kind of nodes, for the decision log.
const NODE: (&str, &str) = ("", "Node");
/// The minimum duration of a drain: a scheduler that has not seen the taint yet may still bind pods.
const SHORTEST_DRAIN: SignedDuration = SignedDuration::from_secs(5);
/// The maximum number of attachments named in an event.
const SHOWN: usize = 5;

pub(super) fn start(karpenter: &KarpenterContext) {
    let queue = Queue::with_backoff("node.termination", BACKOFF);
    let nodes = queue.clone();
    karpenter.base.informers.nodes.on_change(move |change| {
        if is_ending(change.object()) {
            nodes.add(change.object().name_any());
        }
    });
    // The deleted pod may be the last that the node waited for.
    let (nodes, informer) = (queue.clone(), karpenter.base.informers.nodes.clone());
    karpenter.base.informers.pods.on_change(move |change| {
        let node = crate::pods::node_name(change.object());
        if matches!(change, Change::Deleted(_))
            && informer.get("", node).is_some_and(|node| is_ending(&node))
        {
            nodes.add(node.to_owned());
        }
    });
    let terminator = Terminator {
        karpenter: karpenter.clone(),
        progress: Progress::default(),
    };
    let again = queue.clone();
    queue.run(&karpenter.base, 4, move |name: String| {
        let (terminator, again) = (terminator.clone(), again.clone());
        async move {
            if let Some(delay) = terminator.finalize(&name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, Error>(())
        }
    });
}

/// The reconciler of nodes that are being deleted.
#[derive(Clone)]
struct Terminator {
    karpenter: KarpenterContext,
    progress: Progress,
}

impl Terminator {
    /// Takes a deleted node one step further. Returns when to reconcile it again.
    async fn finalize(&self, name: &str) -> Result<Option<Duration>, Error> {
        let karpenter = &self.karpenter;
        let Some(node) = karpenter.node_api().get_opt(name).await? else {
            self.progress.forget(name);
            return Ok(None);
        };
        if !is_ending(&node) {
            return Ok(None);
        }
        let mut log = karpenter.log.reconciliation_of(CONTROLLER, NODE, name);
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
        // The instance of a node that is not ready may be gone; then there is nothing left to drain.
        if !is_ready(&node)
            && let Some(id) = &instance
            && let Err(error) = karpenter.cloud.get(id.clone()).await
        {
            return if error.is_not_found() {
                remove_finalizer(karpenter, &node, &log).await
            } else {
                Err(error.into())
            };
        }
        // An unreadable deadline is an error, because guessing could delete protected pods.
        let ending = Ending::of(karpenter, &node, claim.as_ref())?;
        // Tainted before the first eviction, or replacements of the evicted pods could be bound to this node.
        taint(karpenter, &node, &log).await?;
        if !self.is_drained(&ending).await? || !ending.is_detached().await? {
            return Ok(Some(POLL));
        }
        if let Some(id) = instance {
            let label = |key| node.labels().get(key).map_or("", String::as_str);
            let place = (label(labels::ZONE), label(labels::ZONE_ID));
            // The finalizer stays until the cloud no longer knows the instance, so terminate is asked again
            // until then.
            let ended = karpenter.terminate(id, place).await;
            if !ended.as_ref().is_err_and(|error| error.is_not_found()) {
                ended?;
                let (kind, status) = (condition::INSTANCE_TERMINATING, Status::True);
                ending.mark(kind, status, kind).await?;
                return Ok(Some(POLL));
            }
        }
        remove_finalizer(karpenter, &node, &log).await
    }

    /// Evicts the next pods. Returns whether the node is drained.
    async fn is_drained(&self, ending: &Ending<'_>) -> Result<bool, Error> {
        let kind = condition::DRAINED;
        let since = ending.drained_since();
        if since.is_none() {
            ending.mark(kind, Status::Unknown, "Draining").await?;
        }
        let pods = self.pods_on(ending.node).await?;
        let now = self.karpenter.base.clock.now();
        let step = drain::step(&pods, now, ending.deadline);
        if step.waiting > 0 {
            ending.ask(&step).await?;
            return Ok(false);
        }
        match since {
            Some(Drain::Done) => Ok(true),
            // The shortest drain counts from the condition, which survives a restart.
            Some(Drain::Since(since)) if now.duration_since(since) >= SHORTEST_DRAIN => {
                ending.mark(kind, Status::True, kind).await?;
                let labels = [("nodepool", pool_of(ending.node))];
                self.karpenter.metrics.count(Metric::NodesDrained, &labels);
                Ok(true)
            }
            // Without a claim there is no condition in which the start of the drain could be recorded.
            None if ending.claim.is_none() => Ok(true),
            _ => Ok(false),
        }
    }

    /// Returns the pods of a node from the informer, or from the API server if the drain makes no progress.
    async fn pods_on(&self, node: &Node) -> Result<Vec<Arc<Pod>>, Error> {
        let (karpenter, name) = (&self.karpenter, node.name_any());
        let pods = karpenter.pods_on(&name);
        let now = karpenter.base.clock.now();
        let waiting = pods.iter().filter(|pod| drain::is_waited_for(pod, now));
        // An informer that lost an event would show a pod for ever; a drain that stands still asks the server
        // itself.
        if !self.progress.stands_still(&name, waiting) {
            return Ok(pods);
        }
        let api: Api<Pod> = Api::all(karpenter.base.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
        let list = api.list(&params).await?;
        Ok(list.items.into_iter().map(Arc::new).collect())
    }
}

/// The state of a drain, according to the claim's condition `Drained`.
enum Drain {
    /// The drain began at this time.
    Since(Timestamp),
    /// The drain is complete.
    Done,
}

/// A node that is being terminated, and its claim.
struct Ending<'a> {
    karpenter: &'a KarpenterContext,
    node: &'a Node,
    claim: Option<&'a NodeClaim>,
    /// The end of the claim's termination grace period; after it nothing holds the node back.
    deadline: Option<Timestamp>,
}

impl<'a> Ending<'a> {
    fn of(
        karpenter: &'a KarpenterContext,
        node: &'a Node,
        claim: Option<&'a NodeClaim>,
    ) -> Result<Self, Error> {
        let text = claim.and_then(deadline::text);
        if let Some(text) = text {
            let message = format!("All pods will be deleted by {text}");
            let reason = "TerminationGracePeriodExpiring";
            karpenter.recorder.warning(node, reason, message);
        }
        Ok(Self {
            karpenter,
            node,
            claim,
            deadline: claim.map(deadline::of).transpose()?.flatten(),
        })
    }

    fn drained_since(&self) -> Option<Drain> {
        let condition = self.claim?.condition(condition::DRAINED)?;
        Some(match condition.status.as_str() {
            "True" => Drain::Done,
            _ => Drain::Since(condition.last_transition_time.0),
        })
    }

    /// Deletes and evicts the pods that [`drain`] selected.
    async fn ask(&self, step: &drain::Step) -> Result<(), Error> {
        let karpenter = self.karpenter;
        if let Some(deadline) = self.deadline {
            for (pod, seconds) in &step.delete {
                eviction::delete(karpenter, self.claim, pod, *seconds, deadline).await?;
            }
        }
        for pod in &step.evict {
            eviction::evict(karpenter, self.node, self.claim, pod).await?;
        }
        let message = format!(
            "Failed to drain node, {} pods are waiting to be evicted",
            step.waiting
        );
        let recorder = &karpenter.recorder;
        // Upstream reports every round of a drain that is not complete as an error; the recorder merges
        // repeats.
        recorder.warning(self.node, "FailedDraining", message);
        Ok(())
    }

    /// Returns whether no volume that the node waits for is attached; after the deadline it waits for none.
    async fn is_detached(&self) -> Result<bool, Error> {
        let karpenter = self.karpenter;
        let kind = condition::VOLUMES_DETACHED;
        let pending = detachment::pending(karpenter, &self.node.name_any()).await?;
        if pending.is_empty() {
            self.mark(kind, Status::True, kind).await?;
            return Ok(true);
        }
        let now = karpenter.base.clock.now();
        if self.deadline.is_some_and(|deadline| now > deadline) {
            let reason = "TerminationGracePeriodElapsed";
            self.mark(kind, Status::False, reason).await?;
            return Ok(true);
        }
        let reason = "AwaitingVolumeDetachment";
        let message = format!(
            "Awaiting deletion of bound volumeattachments ({})",
            abbreviated(&pending, SHOWN)
        );
        karpenter.recorder.normal(self.node, reason, message);
        self.mark(kind, Status::Unknown, reason).await?;
        Ok(false)
    }

    /// Sets a condition of the claim, if there is one.
    async fn mark(&self, kind: &str, status: Status, reason: &str) -> Result<(), Error> {
        let Some(claim) = self.claim else {
            return Ok(());
        };
        // The claim may be out of date after the previous step, so the condition is set on the latest version.
        let karpenter = self.karpenter;
        let stored = karpenter.claim_api().get_opt(&claim.name_any()).await?;
        let Some(stored) = stored else { return Ok(()) };
        let mut marked = stored.clone();
        edit(karpenter, &mut marked, |conditions| match status {
            Status::True if conditions.is_true(kind) => {}
            Status::True => conditions.set_true(kind),
            Status::False | Status::Unknown => {
                conditions.set(kind, status, reason, reason);
            }
        });
        if stored.status == marked.status {
            Ok(())
        } else {
            write_back(karpenter, &stored, &marked).await
        }
    }
}

fn is_ending(node: &Node) -> bool {
    node.metadata.deletion_timestamp.is_some()
        && has_finalizer(node.finalizers())
        && is_managed(node)
}

/// Returns the node's claim, read from the API server.
async fn claim_of(karpenter: &KarpenterContext, node: &Node) -> Result<Option<NodeClaim>, Error> {
    match karpenter.claim_of(node) {
        Some(claim) => Ok(karpenter.claim_api().get_opt(&claim.name_any()).await?),
        None => Ok(None),
    }
}

/// Taints the node, so that no new pods are scheduled to it, and labels it so that load balancers exclude it.
async fn taint(
    karpenter: &KarpenterContext,
    node: &Node,
    log: &Reconciliation,
) -> Result<(), Error> {
    let wanted = drain::disrupted_taint();
    // The patch replaces the whole list, guarded by the resource version: a conflict is retried with fresh
    // taints.
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

async fn remove_finalizer(
    karpenter: &KarpenterContext,
    node: &Node,
    log: &Reconciliation,
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
        count_end(karpenter, &latest);
        log.info("deleted node");
    }
    Ok(None)
}

/// Returns the name of a node's pool.
fn pool_of(node: &Node) -> &str {
    let pool = node.labels().get(labels::NODEPOOL);
    pool.map(String::as_str).unwrap_or_default()
}

/// Records in the metrics that a node is gone, how long its termination took, and how long it lived.
fn count_end(karpenter: &KarpenterContext, node: &Node) {
    let metrics = &karpenter.metrics;
    let pool = ("nodepool", pool_of(node));
    let zone = node.labels().get(labels::ZONE);
    let zone = zone.map(String::as_str).unwrap_or_default();
    metrics.count(Metric::NodesTerminated, &[pool, ("zone", zone)]);
    let now = karpenter.base.clock.now();
    for (metric, since) in [
        (Metric::NodesTermination, &node.metadata.deletion_timestamp),
        (Metric::NodesLifetime, &node.metadata.creation_timestamp),
    ] {
        if let Some(since) = since {
            let took = now.duration_since(since.0).as_secs_f64();
            metrics.observe(metric, &[pool], took);
        }
    }
}
