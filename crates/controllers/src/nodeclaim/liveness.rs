//! Deletes claims that are not launched or registered in time, so that their pods get another node.
//!
//! Invariant: the time counts from the last transition of the condition that is waited for, which is stored in the
//! claim, so a restart does not extend it.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mullion_api::karpenter::{NodeClaim, node_claim_condition as condition};

use super::{Error, pass, registration::pool_uid};
use crate::{kubelet::pace::go_duration, nodepool::health::Failure, provisioner::KarpenterContext};

/// A claim must be launched within this time.
const LAUNCH: SignedDuration = SignedDuration::from_mins(5);
/// A claim's node must register within this time.
const REGISTRATION: SignedDuration = SignedDuration::from_mins(15);

/// Deletes a claim whose deadline has passed. Otherwise returns how long it still has.
pub(super) async fn step(
    karpenter: &KarpenterContext,
    claim: &NodeClaim,
) -> Result<Option<Duration>, Error> {
    let Some(deadline) = deadline(claim, karpenter.base.clock.now()) else {
        return Ok(None);
    };
    if deadline.left.is_positive() {
        return Ok(Some(deadline.left.unsigned_abs()));
    }
    if let Some(pool) = pool_uid(claim) {
        // Recorded on the pool before the claim, which holds the reason, is gone.
        karpenter.registrations.failed(pool, failure(claim));
    }
    karpenter.delete_claim(&claim.name_any()).await?;
    karpenter.count_disrupted(claim, None, deadline.reason);
    pass(karpenter, "nodeclaim.lifecycle", claim)
        .with("timeout", go_duration(deadline.timeout))
        .with("reason", deadline.reason)
        .debug("terminating due to timeout");
    Ok(None)
}

/// Returns the reason and message that the pool records about a claim that was not launched or registered in time.
fn failure(claim: &NodeClaim) -> Failure {
    match claim.condition(condition::LAUNCHED) {
        Some(launched) if launched.status != "True" => Failure {
            reason: launched.reason.clone(),
            message: launched.message.clone(),
        },
        _ => Failure {
            reason: "RegistrationFailed".to_owned(),
            message: "Failed to register node".to_owned(),
        },
    }
}

/// The condition that a claim must reach next, its timeout, and the time left.
#[derive(Debug, PartialEq, Eq)]
struct Deadline {
    reason: &'static str,
    timeout: SignedDuration,
    left: SignedDuration,
}

fn deadline(claim: &NodeClaim, now: Timestamp) -> Option<Deadline> {
    if claim.is(condition::REGISTERED) {
        return None;
    }
    // An instance takes minutes to boot and join, so registration has longer than the launch.
    let (kind, timeout, reason) = if claim.is(condition::LAUNCHED) {
        (condition::REGISTERED, REGISTRATION, "registration_timeout")
    } else {
        (condition::LAUNCHED, LAUNCH, "launch_timeout")
    };
    let since = claim.condition(kind)?.last_transition_time.0;
    Some(Deadline {
        reason,
        timeout,
        left: timeout - now.duration_since(since),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(conditions: &[(&str, &str, &str)]) -> NodeClaim {
        let condition = |(kind, status, since): &(&str, &str, &str)| -> Value {
            json!({
                "type": kind, "status": status, "reason": "LaunchFailed", "message": "m",
                "lastTransitionTime": format!("2026-01-01T00:{since}:00Z")
            })
        };
        let conditions: Vec<_> = conditions.iter().map(condition).collect();
        serde_json::from_value(json!({
            "metadata": { "name": "w-1", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [] },
            "status": { "conditions": conditions }
        }))
        .expect("a claim")
    }

    fn left(conditions: &[(&str, &str, &str)]) -> Option<(&'static str, i64)> {
        let now = "2026-01-01T00:04:00Z".parse().expect("a time");
        let deadline = deadline(&claim(conditions), now)?;
        Some((deadline.reason, deadline.left.as_secs() / 60))
    }

    #[test]
    fn a_claim_has_five_minutes_to_launch_and_fifteen_to_register() {
        let launching = [
            ("Launched", "Unknown", "00"),
            ("Registered", "Unknown", "00"),
        ];
        assert_eq!(left(&launching), Some(("launch_timeout", 1)));
        let launched = [("Launched", "True", "03"), ("Registered", "Unknown", "00")];
        assert_eq!(left(&launched), Some(("registration_timeout", 11)));
        let registered = [("Launched", "True", "03"), ("Registered", "True", "04")];
        assert_eq!(left(&registered), None);
    }

    #[test]
    fn the_time_to_register_begins_anew_when_registration_changed() {
        let refused = [("Launched", "True", "01"), ("Registered", "False", "02")];
        assert_eq!(left(&refused), Some(("registration_timeout", 13)));
    }

    #[test]
    fn a_pool_is_told_what_kept_a_claim_from_launching() {
        let failed = failure(&claim(&[("Launched", "Unknown", "00")]));
        assert_eq!(
            (failed.reason.as_str(), failed.message.as_str()),
            ("LaunchFailed", "m")
        );
        let silent = failure(&claim(&[("Launched", "True", "00")]));
        assert_eq!(silent.reason, "RegistrationFailed");
    }
}
