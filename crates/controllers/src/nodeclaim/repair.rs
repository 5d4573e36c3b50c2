//! Repair: nodes that have been unhealthy for too long are ended, whatever protects their pods (core: `node.health`; behind the gate
//! NodeRepair).
//!
//! Invariant: nothing is repaired while more than a fifth of the nodes of the pool (or, for a claim without one, of the cluster) are
//! unhealthy: then something else is broken, and replacing nodes would make it worse.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition};
use kube::ResourceExt;
use mullion_api::{karpenter::NodeClaim, labels};

use super::{BACKOFF, Error, deadline};
use crate::{
    Change, Queue,
    provisioner::{KarpenterContext, is_managed, metrics::Metric},
};

const CONTROLLER: &str = "node.health";
/// What is unhealthy, and for how many minutes that is borne: the kubelet's condition, and those of EKS's node monitoring agent (AWS provider:
/// `RepairPolicies`). The last column is the condition's name in the metrics.
const POLICIES: [(&str, &str, i64, &str); 7] = [
    ("Ready", "False", 30, "ready"),
    ("Ready", "Unknown", 30, "ready"),
    (
        "AcceleratedHardwareReady",
        "False",
        10,
        "accelerated_hardware_ready",
    ),
    ("StorageReady", "False", 30, "storage_ready"),
    ("NetworkingReady", "False", 30, "networking_ready"),
    ("KernelReady", "False", 30, "kernel_ready"),
    (
        "ContainerRuntimeReady",
        "False",
        30,
        "container_runtime_ready",
    ),
];
/// The percentage of nodes that may be unhealthy, rounded up to whole nodes.
const ALLOWED_PERCENT: usize = 20;
/// While more nodes are unhealthy, a node is reconciled again after this long.
const BLOCKED: Duration = Duration::from_secs(300);

/// Starts the controller, if its gate is open.
pub(super) fn start(karpenter: &KarpenterContext) {
    if !karpenter.options.gates.node_repair {
        return;
    }
    let queue = Queue::with_backoff(CONTROLLER, BACKOFF);
    let nodes = queue.clone();
    karpenter.base.informers.nodes.on_change(move |change| {
        let node = change.object();
        let is_news = change.previous().is_none_or(|old| turned(old, node));
        if is_managed(node) && is_news && !matches!(change, Change::Deleted(_)) {
            nodes.add(node.name_any());
        }
    });
    let (karpenter, again) = (karpenter.clone(), queue.clone());
    let base = karpenter.base.clone();
    queue.run(&base, 2, move |name: String| {
        let (karpenter, again) = (karpenter.clone(), again.clone());
        async move {
            if let Some(delay) = reconcile(&karpenter, &name).await? {
                again.add_after(name, delay);
            }
            Ok::<_, Error>(())
        }
    });
}

/// Ends a node that has been unhealthy for too long. Returns when to look again.
async fn reconcile(karpenter: &KarpenterContext, name: &str) -> Result<Option<Duration>, Error> {
    let Some(node) = karpenter.base.informers.nodes.get("", name) else {
        return Ok(None);
    };
    let Some((due, condition)) = due(&node) else {
        return Ok(None);
    };
    // Judged by the node's own condition time, so a restart of this process does not start the toleration
    // anew.
    let left = due.duration_since(karpenter.base.clock.now());
    if left.is_positive() {
        return Ok(Some(left.unsigned_abs()));
    }
    let Some(claim) = karpenter.claim_of(&node) else {
        return Ok(None);
    };
    // Read afresh: what was done a moment ago must not be done and told twice.
    let Some(claim) = karpenter.claim_api().get_opt(&claim.name_any()).await? else {
        return Ok(None);
    };
    if let Some(why) = blocked(karpenter, &claim) {
        let recorder = &karpenter.recorder;
        recorder.warning(&*node, "NodeRepairBlocked", why);
        return Ok(Some(BLOCKED));
    }
    let pass = karpenter
        .log
        .reconciliation_of(CONTROLLER, ("", "Node"), name)
        .with_ref("NodeClaim", &claim.name_any());
    let now = karpenter.base.clock.now();
    let is_over = deadline::of(&claim).is_ok_and(|at| at.is_some_and(|at| at < now));
    // The deadline is set before the deletion: draining an unhealthy node would otherwise wait for pods that
    // never end.
    if !is_over {
        let at = deadline::set_now(karpenter, &claim).await?;
        pass.clone()
            .with(labels::TERMINATION_TIMESTAMP, at)
            .info("annotated nodeclaim");
    }
    if claim.metadata.deletion_timestamp.is_none() {
        karpenter.delete_claim(&claim.name_any()).await?;
        karpenter.count_disrupted(&claim, None, "unhealthy");
        let of_claim = |key: &str| claim.label(key).unwrap_or_default();
        let image = claim.status.as_ref().map_or("", |own| &own.image_id);
        let counted = [
            ("capacity_type", of_claim(labels::CAPACITY_TYPE)),
            ("condition", condition),
            ("image_id", image),
            ("nodepool", of_claim(labels::NODEPOOL)),
        ];
        karpenter
            .metrics
            .count(Metric::UnhealthyDisrupted, &counted);
        pass.info("deleting unhealthy node");
    }
    Ok(None)
}

/// Returns why no node is repaired now, in upstream's words.
fn blocked(karpenter: &KarpenterContext, claim: &NodeClaim) -> Option<&'static str> {
    let pool = claim.node_pool();
    let nodes = karpenter.base.informers.nodes.list();
    let of_pool = nodes.iter().filter(|node| {
        let own = node.labels().get(labels::NODEPOOL).map(String::as_str);
        pool.is_none() || own == pool
    });
    if are_healthy(of_pool.map(|node| &**node)) {
        return None;
    }
    Some(match pool {
        Some(_) => "more than 20% nodes are unhealthy in the nodepool",
        None => "more then 20% nodes are unhealthy in the cluster",
    })
}

/// Returns whether few enough nodes are unhealthy.
fn are_healthy<'a>(nodes: impl Iterator<Item = &'a Node>) -> bool {
    let (mut all, mut unhealthy) = (0, 0);
    for node in nodes {
        all += 1;
        unhealthy += usize::from(due(node).is_some());
    }
    // Rounded up, so that a pool of fewer than five nodes may still repair one.
    unhealthy <= (all * ALLOWED_PERCENT).div_ceil(100)
}

/// Returns when an unhealthy node is to be ended: the earliest time among its conditions, and the name of that
/// condition in the metrics.
fn due(node: &Node) -> Option<(Timestamp, &'static str)> {
    let due = conditions(node).filter_map(|condition| {
        let (_, _, minutes, name) = POLICIES
            .into_iter()
            .find(|(kind, status, ..)| condition.type_ == *kind && condition.status == *status)?;
        let since = condition.last_transition_time.as_ref()?.0;
        let at = since.checked_add(SignedDuration::from_mins(minutes)).ok()?;
        Some((at, name))
    });
    due.min()
}

/// Returns whether a condition came, went or changed.
fn turned(old: &Node, new: &Node) -> bool {
    let key = |condition: &NodeCondition| {
        let since = condition.last_transition_time.clone();
        (condition.type_.clone(), condition.status.clone(), since)
    };
    !conditions(old).map(key).eq(conditions(new).map(key))
}

fn conditions(node: &Node) -> impl Iterator<Item = &NodeCondition> {
    let status = node.status.iter();
    status.flat_map(|status| status.conditions.iter().flatten())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(conditions: &[(&str, &str)]) -> Node {
        let conditions: Vec<_> = conditions
            .iter()
            .map(|(kind, status)| {
                json!({ "type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "n" }, "status": { "conditions": conditions }
        }))
        .expect("a node")
    }

    #[test]
    fn a_node_is_due_by_the_condition_that_is_borne_shortest() {
        let minutes = |conditions: &[(&str, &str)]| {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
            due(&node(conditions)).map(|(at, _)| at.duration_since(start).as_mins())
        };
        assert_eq!(minutes(&[("Ready", "True")]), None);
        assert_eq!(minutes(&[("Ready", "Unknown")]), Some(30));
        assert_eq!(minutes(&[("StorageReady", "Unknown")]), None);
        let both = [("Ready", "False"), ("AcceleratedHardwareReady", "False")];
        assert_eq!(minutes(&both), Some(10));
    }

    #[test]
    fn a_fifth_of_the_nodes_may_be_unhealthy_and_always_one() {
        let healthy = |count: usize, broken: usize| {
            let good = std::iter::repeat_n(node(&[("Ready", "True")]), count - broken);
            let bad = std::iter::repeat_n(node(&[("Ready", "False")]), broken);
            are_healthy(good.chain(bad).collect::<Vec<_>>().iter())
        };
        assert!(healthy(1, 1) && healthy(3, 1) && healthy(10, 2) && healthy(11, 3));
        assert!(!healthy(3, 2) && !healthy(10, 3) && !healthy(5, 2));
    }
}
