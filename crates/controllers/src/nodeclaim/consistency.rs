//! Checks that nodes have at least nine tenths of each requested resource (Karpenter core: `nodeclaim/consistency`, check
//! `NodeShape`).
//!
//! A claim is checked after its launch and every ten minutes from then on. The condition `ConsistentStateFound` has the
//! result, and a Warning event names each resource that falls short. The controller takes no further action: the next plan
//! uses the amounts that the node reports ([`crate::provisioner::discovered`]).
//!
//! Invariant: the times of the last checks only save work; after a restart every claim is checked at once.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};
use mullion_engine::model::Quantity;
use serde_json::json;
use tokio::time::Instant;

use super::{Error, edit, pass};
use crate::{
    Change, Queue, api_error,
    informers::BY_PROVIDER_ID,
    provisioner::{KarpenterContext, conditions::Status, market::amounts},
    state::convert,
};

/// How often a claim is checked.
const SCAN_PERIOD: Duration = Duration::from_secs(600);
/// The fraction of the expected amount that a node must have.
const ENOUGH: f64 = 0.9;

/// When each claim was last checked, by uid.
type Scanned = Arc<Mutex<HashMap<String, Instant>>>;

pub(super) fn start(karpenter: &KarpenterContext) {
    let queue: Queue<String> = Queue::new("nodeclaim.consistency");
    let scanned = Scanned::default();
    let (claims, forgotten) = (queue.clone(), scanned.clone());
    karpenter.claims.on_change(move |change| match change {
        Change::Deleted(claim) => {
            let mut scanned = forgotten.lock().unwrap_or_else(PoisonError::into_inner);
            scanned.remove(&claim.uid().unwrap_or_default());
        }
        change => claims.add(change.object().name_any()),
    });
    let (claims, informer) = (queue.clone(), karpenter.claims.clone());
    karpenter.base.informers.nodes.on_change(move |change| {
        let spec = change.object().spec.as_ref();
        if let Some(id) = spec.and_then(|spec| spec.provider_id.as_deref()) {
            for claim in informer.by_index(BY_PROVIDER_ID, id) {
                claims.add(claim.name_any());
            }
        }
    });
    let (checks, again) = (karpenter.clone(), queue.clone());
    queue.run(&karpenter.base, 2, move |name: String| {
        let (karpenter, again, scanned) = (checks.clone(), again.clone(), scanned.clone());
        async move {
            if is_due(&karpenter, &scanned, &name) {
                // Scheduled before the check, so that a failed check does not end the series.
                again.add_after(name.clone(), SCAN_PERIOD);
                check(&karpenter, &name).await?;
            }
            Ok::<_, Error>(())
        }
    });
}

/// Returns whether a launched claim is due for a check, and if so records the check.
fn is_due(karpenter: &KarpenterContext, scanned: &Scanned, name: &str) -> bool {
    let Some(claim) = karpenter.claims.get("", name) else {
        return false;
    };
    if claim.provider_id().is_none_or(str::is_empty) {
        return false;
    }
    let (now, uid) = (Instant::now(), claim.uid().unwrap_or_default());
    let mut scanned = scanned.lock().unwrap_or_else(PoisonError::into_inner);
    let last = scanned.get(&uid);
    let is_due = last.is_none_or(|last| now.duration_since(*last) >= SCAN_PERIOD);
    if is_due {
        scanned.insert(uid, now);
    }
    is_due
}

async fn check(karpenter: &KarpenterContext, name: &str) -> Result<(), Error> {
    let Some(stored) = karpenter.claim_api().get_opt(name).await? else {
        return Ok(());
    };
    let Some(node) = karpenter.node_of(&stored) else {
        return Ok(());
    };
    let mut claim = stored.clone();
    let issues = issues(&node, &claim);
    for issue in &issues {
        pass(karpenter, "nodeclaim.consistency", &claim)
            .with("issue", issue.as_str())
            .info("failed consistency check");
        karpenter
            .recorder
            .warning(&claim, "FailedConsistencyCheck", issue.as_str());
    }
    let kind = condition::CONSISTENT_STATE_FOUND;
    let is_true = claim.is(kind);
    edit(karpenter, &mut claim, |conditions| {
        if !issues.is_empty() {
            conditions.set(
                kind,
                Status::False,
                "ConsistencyCheckFailed",
                "Consistency Check Failed",
            );
        // Set only when it is not true already, so that the condition keeps the generation of its last
        // transition.
        } else if !is_true {
            conditions.set_true(kind);
        }
    });
    if claim.status == stored.status {
        return Ok(());
    }
    let conditions = claim.status.as_ref().map(|status| &status.conditions);
    let patch = Patch::Merge(json!({
        "metadata": { "resourceVersion": stored.resource_version() },
        "status": { "conditions": conditions },
    }));
    let params = PatchParams::default();
    let patched = karpenter
        .claim_api()
        .patch_status(name, &params, &patch)
        .await;
    api_error::ignore_not_found(patched)?;
    Ok(())
}

/// Returns a message for each requested resource of which the node has less than nine tenths. A claim that is not
/// initialized or is being deleted has no issues.
fn issues(node: &Node, claim: &NodeClaim) -> Vec<String> {
    if claim.metadata.deletion_timestamp.is_some() || !claim.is(condition::INITIALIZED) {
        return Vec::new();
    }
    let status = claim.status.as_ref();
    let expected = status.map(|own| amounts(&own.capacity)).unwrap_or_default();
    let there = convert::node(node).capacity;
    let issue = |(name, requested): (&String, &Quantity)| {
        let expected = expected.get(name).copied().unwrap_or_default();
        // Only requested resources matter to the pods; what was not expected cannot fall short.
        if requested.is_zero() || expected.is_zero() {
            return None;
        }
        let found = there.get(name).copied().unwrap_or_default();
        let part = found.milli_value() as f64 / expected.milli_value() as f64;
        let percent = part * 100.0;
        (part < ENOUGH).then(|| {
            format!("expected {expected} of resource {name}, but found {found} ({percent:.1}% of expected)")
        })
    };
    let requests = amounts(&claim.spec.resources.requests);
    requests.iter().filter_map(issue).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim(initialized: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "w-1" },
            "spec": {
                "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                "resources": { "requests": { "cpu": "1", "memory": "1Gi", "pods": "1", "example.com/card": "0" } }
            },
            "status": {
                "capacity": { "cpu": "4", "memory": "16Gi", "pods": "58", "example.com/card": "4", "ephemeral-storage": "20Gi" },
                "conditions": [{
                    "type": "Initialized", "status": initialized, "reason": "R", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"
                }]
            }
        }))
        .expect("a claim")
    }

    fn node(capacity: Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n" }, "status": { "capacity": capacity }
        }))
        .expect("a node")
    }

    #[test]
    fn a_node_is_short_of_what_it_has_less_than_nine_tenths_of() {
        let found = |capacity| issues(&node(capacity), &claim("True"));
        let none: [&str; 0] = [];
        let whole = json!({ "cpu": "3600m", "memory": "16Gi", "pods": "58" });
        assert_eq!(found(whole), none, "exactly nine tenths are enough");
        let half = json!({ "cpu": "3599m", "memory": "8Gi", "pods": "58" });
        assert_eq!(
            found(half),
            [
                "expected 4 of resource cpu, but found 3599m (90.0% of expected)",
                "expected 16Gi of resource memory, but found 8Gi (50.0% of expected)",
            ]
        );
        // Nobody asked for cards and storage.
        let without = json!({ "cpu": "4", "memory": "16Gi" });
        assert_eq!(
            found(without),
            ["expected 58 of resource pods, but found 0 (0.0% of expected)"]
        );
    }

    #[test]
    fn a_node_that_starts_or_goes_has_no_issues() {
        let short = node(json!({ "cpu": "1" }));
        assert!(!issues(&short, &claim("True")).is_empty());
        assert!(issues(&short, &claim("Unknown")).is_empty());
        let mut goes = claim("True");
        goes.metadata.deletion_timestamp =
            serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        assert!(issues(&short, &goes).is_empty());
    }
}
