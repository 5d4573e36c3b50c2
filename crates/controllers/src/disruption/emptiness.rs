//! Which nodes are empty, and since when. Pure.
//!
//! Invariant: a node is empty when no pod on it would need another place, unless such a pod's eviction costs nothing; it may go when it has been so for its pool's
//! `consolidateAfter`, counted from its last pod event, or from its initialization if it never had a pod.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use mullion_api::karpenter::{NodeClaim, NodePool, node_claim_condition as condition};

use super::protection::{NODE_MILLI, disruption_milli};
use crate::provisioner::{conditions::true_since, pending::is_reschedulable};

/// Returns whether nothing of weight on a node would need another place (core: `IsEmpty`).
pub fn is_empty<'a>(pods: impl Iterator<Item = &'a Pod>) -> bool {
    disruption_milli(pods.filter(|pod| is_reschedulable(pod))) <= NODE_MILLI
}

/// Returns how long until a node without pod events may be removed: zero if it may now, `None` if its pool never allows
/// it.
pub fn due_in(claim: &NodeClaim, pool: &NodePool, now: Timestamp) -> Option<SignedDuration> {
    let after = pool.spec.disruption.consolidate_after.duration()?;
    let status = claim.status.as_ref()?;
    let initialized = true_since(&status.conditions, condition::INITIALIZED)?;
    let last = status.last_pod_event_time.as_ref().map(|time| time.0);
    // Pods may be bound before the node is initialized; the time counts from when they could have run.
    let since = last.map_or(initialized, |last| last.max(initialized));
    // A duration beyond the range of the clock means the same as never.
    let after = SignedDuration::try_from(after).unwrap_or(SignedDuration::MAX);
    let left = after.saturating_sub(now.duration_since(since));
    Some(left.max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(after: &str) -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": []
                }},
                "disruption": { "consolidationPolicy": "WhenEmpty", "consolidateAfter": after }
            }
        }))
        .expect("a pool")
    }

    fn claim(last_pod_event: Value) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1" },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": {
                "lastPodEventTime": last_pod_event,
                "conditions": [{ "type": "Initialized", "status": "True", "reason": "Initialized", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" }]
            }
        }))
        .expect("a claim")
    }

    fn due(claim: &NodeClaim, after: &str, now: &str) -> Option<i64> {
        let due = due_in(claim, &pool(after), now.parse().expect("a time"));
        due.map(|due| due.as_secs())
    }

    #[test]
    fn time_counts_from_the_last_pod_event_or_initialization() {
        let unused = claim(Value::Null);
        assert_eq!(due(&unused, "30s", "2026-01-01T00:00:10Z"), Some(20));
        let used = claim(json!("2026-01-01T00:01:00Z"));
        assert_eq!(due(&used, "30s", "2026-01-01T00:01:10Z"), Some(20));
        assert_eq!(due(&used, "30s", "2026-01-01T00:02:00Z"), Some(0));
        assert_eq!(due(&used, "Never", "2026-01-01T09:00:00Z"), None);
    }

    #[test]
    fn daemons_and_finished_pods_leave_a_node_empty() {
        let pod = |kind: &str, phase: &str| -> Pod {
            let owner = json!({ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true });
            let pod = json!({
                "metadata": { "name": "p", "ownerReferences": [owner] },
                "spec": { "containers": [] }, "status": { "phase": phase }
            });
            serde_json::from_value(pod).expect("a pod")
        };
        let (daemon, done) = (pod("DaemonSet", "Running"), pod("Job", "Succeeded"));
        assert!(is_empty([&daemon, &done].into_iter()));
        assert!(!is_empty([&pod("ReplicaSet", "Running")].into_iter()));
    }
}
