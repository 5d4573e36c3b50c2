//! Removing nodes that are no longer needed.
//!
//! Every ten seconds, and when a node is about to be empty long enough, [`emptiness`] is looked for; what may go is
//! bounded by [`budget`]s, whose windows follow a [`schedule`]. A node goes by its claim being deleted: taint first, so that no pod lands on it meanwhile,
//! then [`crate::nodeclaim`] drains and ends it.
//!
//! Invariant: nothing here is remembered; a decision that was not carried out is made again.

pub mod budget;
pub mod emptiness;
pub mod schedule;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_api::{
    karpenter::{DisruptionReason, NodeClaim, NodePool, node_claim_condition as condition},
    labels,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    api_error,
    nodeclaim::{drain::disrupted_taint, initialization::is_ready},
    provisioner::{
        BY_POOL, KarpenterContext,
        conditions::{Conditions, Status},
    },
};

const CONTROLLER: &str = "disruption";
/// How often the cluster is looked at.
const POLL: Duration = Duration::from_secs(10);

/// Starts the loop.
pub(crate) fn start(karpenter: &KarpenterContext) {
    let disruption = karpenter.clone();
    let run = async move {
        if !disruption.synced().await {
            return;
        }
        loop {
            let next = match pass(&disruption).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "disruption failed, will retry");
                    POLL
                }
            };
            sleep(next.clamp(Duration::from_millis(100), POLL)).await;
        }
    };
    let shutdown = karpenter.base.shutdown.clone();
    karpenter.base.tasks.spawn(async move {
        shutdown.run_until_cancelled(run).await;
    });
}

/// A node that may go now.
struct Candidate {
    claim: Arc<NodeClaim>,
    node: Arc<Node>,
}

/// Looks at every pool once. Returns when the next node may be due.
async fn pass(karpenter: &KarpenterContext) -> kube::Result<Duration> {
    let mut next = POLL;
    for pool in karpenter.pools.list() {
        let name = pool.name_any();
        let claims = karpenter.claims.by_index(BY_POOL, &name);
        let mut candidates = Vec::new();
        for claim in &claims {
            match judge(karpenter, claim, &pool).await? {
                Verdict::Stays => {}
                Verdict::Later(wait) => next = next.min(wait),
                Verdict::Goes(candidate) => candidates.push(candidate),
            }
        }
        if candidates.is_empty() {
            continue;
        }
        let counted = Counted::of(karpenter, &claims);
        let now = karpenter.base.clock.now();
        let reason = DisruptionReason::Empty;
        let allowed = budget::allowed(&pool, reason, counted.nodes, now);
        if allowed == 0 {
            let message = format!(
                "No allowed disruptions for disruption reason {} due to blocking budget",
                reason.as_str()
            );
            karpenter
                .recorder
                .normal(&*pool, "DisruptionBlocked", message);
        }
        let room = allowed.saturating_sub(counted.disrupted);
        candidates.truncate(room);
        if !candidates.is_empty() {
            remove(karpenter, &candidates).await?;
        }
    }
    Ok(next)
}

/// The nodes of a pool as its budgets count them.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Initialized nodes whose instance is not going down yet.
    nodes: usize,
    /// Those of them that are on their way out, or not ready.
    disrupted: usize,
}

impl Counted {
    fn of(karpenter: &KarpenterContext, claims: &[Arc<NodeClaim>]) -> Self {
        let with_node = claims
            .iter()
            .map(|claim| (&**claim, karpenter.node_of(claim)));
        let mut counted = Self::default();
        for (claim, node) in with_node {
            counted.add(claim, node.as_deref());
        }
        counted
    }

    fn add(&mut self, claim: &NodeClaim, node: Option<&Node>) {
        let Some(node) = node else { return };
        if !claim.is(condition::INITIALIZED) || claim.is(condition::INSTANCE_TERMINATING) {
            return;
        }
        self.nodes += 1;
        let going = claim.metadata.deletion_timestamp.is_some()
            || node.metadata.deletion_timestamp.is_some();
        if going || !is_ready(node) {
            self.disrupted += 1;
        }
    }
}

enum Verdict {
    Stays,
    Later(Duration),
    Goes(Candidate),
}

async fn judge(
    karpenter: &KarpenterContext,
    claim: &Arc<NodeClaim>,
    pool: &NodePool,
) -> kube::Result<Verdict> {
    let Some(node) = karpenter.node_of(claim) else {
        return Ok(Verdict::Stays);
    };
    if !emptiness::is_candidate(claim, &node) {
        return Ok(Verdict::Stays);
    }
    let Some(wait) = emptiness::due_in(claim, pool, karpenter.base.clock.now()) else {
        return Ok(Verdict::Stays);
    };
    mark_consolidatable(karpenter, claim, wait.is_zero()).await?;
    let pods = karpenter.pods_on(&node.name_any());
    let on_node = || pods.iter().map(|pod| &**pod);
    if !emptiness::is_empty(on_node()) || emptiness::is_held(on_node()) {
        return Ok(Verdict::Stays);
    }
    if !wait.is_zero() {
        return Ok(Verdict::Later(wait.unsigned_abs()));
    }
    let nominations = &karpenter.nominations;
    if nominations.is_nominated(&node.name_any()) || nominations.is_nominated(&claim.name_any()) {
        let message = "Node is nominated for a pending pod";
        karpenter
            .recorder
            .normal(&*node, "DisruptionBlocked", message);
        karpenter
            .recorder
            .normal(&**claim, "DisruptionBlocked", message);
        return Ok(Verdict::Stays);
    }
    Ok(Verdict::Goes(Candidate {
        claim: Arc::clone(claim),
        node,
    }))
}

/// Writes down whether a claim has been without pod events for long enough.
async fn mark_consolidatable(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
    due: bool,
) -> kube::Result<()> {
    let marked = claim.is(condition::CONSOLIDATABLE);
    if marked == due {
        return Ok(());
    }
    edit(karpenter, &claim.name_any(), |conditions| match due {
        true => conditions.set_true(condition::CONSOLIDATABLE),
        false => conditions.clear(condition::CONSOLIDATABLE),
    })
    .await
}

/// Edits the conditions of the claim as it is now.
async fn edit(
    karpenter: &KarpenterContext,
    name: &str,
    work: impl FnOnce(&mut Conditions<'_>),
) -> kube::Result<()> {
    let api = karpenter.claim_api();
    let Some(claim) = api.get_opt(name).await? else {
        return Ok(());
    };
    let mut status = claim.status.unwrap_or_default();
    let before = status.conditions.clone();
    let now = karpenter.base.clock.now();
    work(&mut Conditions::new(
        &mut status.conditions,
        now,
        claim.metadata.generation,
    ));
    if before == status.conditions {
        return Ok(());
    }
    let patch = json!({
        "metadata": { "resourceVersion": claim.metadata.resource_version },
        "status": { "conditions": status.conditions },
    });
    let patched = api
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        // Somebody wrote at the same time; the next look sees what it is now.
        Err(error) if api_error::is_conflict(&error) || api_error::is_not_found(&error) => Ok(()),
        other => other.map(drop),
    }
}

/// Ends empty nodes.
async fn remove(karpenter: &KarpenterContext, candidates: &[Candidate]) -> kube::Result<()> {
    let reason = DisruptionReason::Empty;
    let nodes: Vec<Value> = candidates.iter().map(describe).collect();
    let command = candidates.first().and_then(|first| first.claim.uid());
    karpenter
        .log
        .pass(CONTROLLER)
        .with("command-id", command.unwrap_or_default())
        .with("reason", reason.as_str().to_lowercase())
        .with("decision", "delete")
        .with("disrupted-node-count", candidates.len())
        .with("replacement-node-count", 0)
        .with("pod-count", 0)
        .with("disrupted-nodes", nodes)
        .with("replacement-nodes", Vec::<Value>::new())
        .info("disrupting node(s)");
    for candidate in candidates {
        let (claim, node) = (&candidate.claim, &candidate.node);
        taint(karpenter, node).await?;
        let name = claim.name_any();
        edit(karpenter, &name, |conditions| {
            if !conditions.is_true(condition::DISRUPTION_REASON) {
                let why = reason.as_str();
                conditions.set(condition::DISRUPTION_REASON, Status::True, why, why);
            }
        })
        .await?;
        let why = reason.as_str();
        karpenter.recorder.normal(
            &**node,
            "DisruptionTerminating",
            format!("Disrupting Node: {why}"),
        );
        karpenter.recorder.normal(
            &**claim,
            "DisruptionTerminating",
            format!("Disrupting NodeClaim: {why}"),
        );
        let deleted = karpenter
            .claim_api()
            .delete(&name, &DeleteParams::default())
            .await;
        api_error::ignore_not_found(deleted)?;
    }
    Ok(())
}

fn describe(candidate: &Candidate) -> Value {
    let label = |key: &str| candidate.claim.label(key).unwrap_or_default().to_owned();
    json!({
        "Node": { "name": candidate.node.name_any() },
        "NodeClaim": { "name": candidate.claim.name_any() },
        "capacity-type": label(labels::CAPACITY_TYPE),
        "instance-type": label(labels::INSTANCE_TYPE),
    })
}

/// Keeps new pods away from a node that is about to go.
async fn taint(karpenter: &KarpenterContext, node: &Node) -> kube::Result<()> {
    let name = node.name_any();
    let Some(node) = karpenter.node_api().get_opt(&name).await? else {
        return Ok(());
    };
    let wanted = disrupted_taint();
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    if taints.iter().any(|taint| taint.key == wanted.key) {
        return Ok(());
    }
    taints.push(wanted);
    let patch = json!({
        "metadata": { "resourceVersion": node.metadata.resource_version },
        "spec": { "taints": taints },
    });
    let patched = karpenter
        .node_api()
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    api_error::ignore_not_found(patched).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(conditions: &[&str], going: bool) -> NodeClaim {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|kind| {
                json!({
                    "type": kind, "status": "True", "reason": kind, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"
                })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "deletionTimestamp": going.then_some("2026-01-01T00:00:00Z") },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "conditions": conditions }
        }))
        .expect("a claim")
    }

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n" }, "status": { "conditions": [{ "type": "Ready", "status": ready }] }
        }))
        .expect("a node")
    }

    #[test]
    fn budgets_count_initialized_nodes_and_those_not_ready_or_leaving_against_them() {
        let mut counted = Counted::default();
        counted.add(&claim(&["Initialized"], false), Some(&node("True")));
        counted.add(&claim(&["Initialized"], false), Some(&node("False")));
        counted.add(&claim(&["Initialized"], true), Some(&node("True")));
        counted.add(&claim(&[], true), Some(&node("True")));
        let ended = ["Initialized", "InstanceTerminating"];
        counted.add(&claim(&ended, true), Some(&node("True")));
        counted.add(&claim(&["Initialized"], true), None);
        let expected = Counted {
            nodes: 3,
            disrupted: 2,
        };
        assert_eq!(counted, expected);
    }
}
