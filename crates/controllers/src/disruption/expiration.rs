//! Claims that have lived for their `expireAfter`: deleted at once, whatever budgets say (core: `nodeclaim.expiration`).

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mullion_api::karpenter::NodeClaim;

use super::POLL;
use crate::provisioner::KarpenterContext;

/// Deletes claims whose time is over. Returns when the next one's will be.
pub(super) async fn pass(karpenter: &KarpenterContext) -> kube::Result<Duration> {
    let now = karpenter.base.clock.now();
    let mut next = POLL;
    for claim in karpenter.claims.list() {
        let Some(left) = left(&claim, now) else {
            continue;
        };
        if !left.is_zero() {
            next = next.min(left.unsigned_abs());
            continue;
        }
        let name = claim.name_any();
        // No budget is asked: Karpenter 1 expires nodes forcefully, since `expireAfter` may be a rule of
        // security.
        karpenter.delete_claim(&name).await?;
        karpenter.count_disrupted(&claim, None, "expired");
        karpenter
            .log
            .reconciliation_of("nodeclaim.expiration", ("karpenter.sh", "NodeClaim"), &name)
            .info("deleting expired nodeclaim");
    }
    Ok(next)
}

/// Returns how long a claim still has: zero if its time is over, `None` if it never expires or is being deleted.
fn left(claim: &NodeClaim, now: Timestamp) -> Option<SignedDuration> {
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let life = claim.spec.expire_after.as_ref()?.duration()?;
    let life = SignedDuration::try_from(life).unwrap_or(SignedDuration::MAX);
    let born = claim.metadata.creation_timestamp.as_ref()?.0;
    let left = life.saturating_sub(now.duration_since(born));
    Some(left.max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_lives_as_long_as_it_says() {
        let claim = |after: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": [],
                    "expireAfter": after
                }
            }))
            .expect("a claim")
        };
        let left = |after: &str, now: &str| left(&claim(after), now.parse().expect("a time"));
        let hour = left("1h", "2026-01-01T00:20:00Z");
        assert_eq!(hour, Some(SignedDuration::from_mins(40)));
        assert_eq!(
            left("1h", "2026-01-01T01:00:01Z"),
            Some(SignedDuration::ZERO)
        );
        assert_eq!(left("Never", "2036-01-01T00:00:00Z"), None);
    }
}
