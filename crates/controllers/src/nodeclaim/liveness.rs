//! Liveness: a claim that does not become a node in time is given up, so that its pods get another one.
//!
//! Invariant: times count from the claim's creation, as upstream counts them, so a restart does not extend them.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{ResourceExt, api::DeleteParams};
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};

use super::{Error, pass};
use crate::{api_error, provisioner::KarpenterContext};

/// A claim must be launched within this time.
const LAUNCH: SignedDuration = SignedDuration::from_mins(5);
/// A claim's node must register within this time.
const REGISTRATION: SignedDuration = SignedDuration::from_mins(15);

/// Deletes a claim that is too late. Returns when it will be.
pub(super) async fn step(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> Result<Option<Duration>, Error> {
    let Some((what, left)) = deadline(claim, karpenter.base.clock.now()) else {
        return Ok(None);
    };
    if left.is_positive() {
        return Ok(Some(left.unsigned_abs()));
    }
    pass(karpenter, "nodeclaim.lifecycle", claim).info(&format!("terminating due to {what} ttl"));
    let deleted = karpenter
        .claim_api()
        .delete(&claim.name_any(), &DeleteParams::default())
        .await;
    api_error::ignore_not_found(deleted)?;
    Ok(None)
}

/// What a claim still has to reach, and how long it has for it.
fn deadline(claim: &NodeClaim, now: Timestamp) -> Option<(&'static str, SignedDuration)> {
    let created = claim.metadata.creation_timestamp.as_ref()?.0;
    let age = now.duration_since(created);
    if !claim.is(condition::LAUNCHED) {
        return Some(("launch", LAUNCH - age));
    }
    if !claim.is(condition::REGISTERED) {
        return Some(("registration", REGISTRATION - age));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(conditions: &[&str]) -> NodeClaim {
        let at = "2026-01-01T00:00:00Z";
        let conditions: Vec<_> = conditions
            .iter()
            .map(|kind| json!({ "type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at }))
            .collect();
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "creationTimestamp": at },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "conditions": conditions }
        }))
        .expect("a claim")
    }

    #[test]
    fn a_claim_has_five_minutes_to_launch_and_fifteen_to_register() {
        let now = "2026-01-01T00:04:00Z".parse().expect("a time");
        let minutes = SignedDuration::from_mins;
        assert_eq!(deadline(&claim(&[]), now), Some(("launch", minutes(1))));
        let launched = claim(&["Launched"]);
        assert_eq!(
            deadline(&launched, now),
            Some(("registration", minutes(11)))
        );
        assert_eq!(deadline(&claim(&["Launched", "Registered"]), now), None);
    }
}
