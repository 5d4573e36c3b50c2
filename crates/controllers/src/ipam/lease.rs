//! Detects whether AWS's VPC resource controller is active: it holds a Lease and renews it.
//!
//! Invariant: as in client-go's leader election, the times inside the Lease are ignored, because they come from another
//! machine's clock. A Lease with a holder counts as held from when a change of it was last seen, for the duration that it
//! states.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};

use super::settings::NAMESPACE;

/// The lease of the controller that EKS runs in its control plane (VRC: `LeaderElectionKey`).
pub(super) const NAME: &str = "cp-vpc-resource-controller";
/// The duration of a Lease that states none: VRC's own. client-go would treat such a Lease as free.
const USUAL: Duration = Duration::from_secs(30);

/// The last observed state of the Lease.
#[derive(Debug, Default)]
pub(super) struct LeaseState {
    /// The Lease's spec, and when it was first seen with this content; `None` while it has no holder.
    observed: Option<(LeaseSpec, Timestamp)>,
    held: bool,
}

impl LeaseState {
    /// Returns whether the Lease was held when it was last read.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Updates the state from the Lease at `now`. Returns whether `is_held` changed, and when the Lease expires.
    pub(super) fn update(
        &mut self,
        lease: Option<&Lease>,
        now: Timestamp,
    ) -> (bool, Option<Timestamp>) {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        // A holder that stops cleanly clears its name from the Lease; from then on nobody assigns addresses.
        let spec = spec.filter(|spec| holder(spec).is_some());
        if self.observed.as_ref().map(|(observed, _)| observed) != spec {
            self.observed = spec.map(|spec| (spec.clone(), now));
        }
        let ends = self.observed.as_ref().map(|(spec, since)| {
            let end = since.saturating_add(duration(spec));
            end.unwrap_or(Timestamp::MAX)
        });
        let held = ends.is_some_and(|end| now < end);
        let has_changed = std::mem::replace(&mut self.held, held) != held;
        if has_changed {
            self.log();
        }
        (has_changed, ends.filter(|_| held))
    }

    fn log(&self) {
        const LEASE: &str = "kube-system/cp-vpc-resource-controller";
        match &self.observed {
            Some((spec, _)) if self.held => tracing::info!(
                lease = LEASE,
                holder = holder(spec),
                "addresses of Windows pods: left to the holder of the Lease"
            ),
            Some((spec, _)) => tracing::info!(
                lease = LEASE,
                holder = holder(spec),
                "addresses of Windows pods: the Lease was not renewed for {} s, so its holder does not count any more",
                duration(spec).as_secs()
            ),
            None => tracing::info!(
                lease = LEASE,
                "addresses of Windows pods: nobody holds the Lease any more"
            ),
        }
    }
}

/// Returns whether a Lease is that of AWS's controller.
pub(super) fn is_of_aws_controller(lease: &Lease) -> bool {
    let meta = &lease.metadata;
    meta.name.as_deref() == Some(NAME) && meta.namespace.as_deref() == Some(NAMESPACE)
}

fn holder(spec: &LeaseSpec) -> Option<&str> {
    let holder = spec.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

fn duration(spec: &LeaseSpec) -> Duration {
    let seconds = spec.lease_duration_seconds.map(u64::try_from);
    match seconds {
        Some(Ok(seconds)) => Duration::from_secs(seconds),
        // A negative duration has passed already.
        Some(Err(_)) => Duration::ZERO,
        None => USUAL,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(spec: serde_json::Value) -> Lease {
        serde_json::from_value(json!({"spec": spec})).expect("a lease")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).expect("a moment")
    }

    #[test]
    fn a_lease_is_held_from_its_last_change_for_as_long_as_it_says_whatever_times_stand_in_it() {
        let mut state = LeaseState::default();
        let by = |renewed: &str| {
            lease(json!({"holderIdentity": "a", "leaseDurationSeconds": 10, "renewTime": renewed}))
        };
        let (old, new) = (
            by("2019-01-01T00:00:00.000000Z"),
            by("2019-01-01T00:00:05.000000Z"),
        );
        assert_eq!(state.update(None, at(0)), (false, None));
        assert_eq!(state.update(Some(&old), at(100)), (true, Some(at(110))));
        assert_eq!(state.update(Some(&old), at(109)), (false, Some(at(110))));
        assert_eq!(state.update(Some(&new), at(109)), (false, Some(at(119))));
        assert_eq!(state.update(Some(&new), at(119)), (true, None));
        assert!(!state.is_held());
        assert_eq!(state.update(Some(&new), at(200)), (false, None));
        assert_eq!(state.update(Some(&old), at(201)), (true, Some(at(211))));
        assert_eq!(state.update(None, at(202)), (true, None));
    }

    #[test]
    fn a_lease_without_a_holder_is_free_and_one_without_a_duration_counts_for_upstreams() {
        let mut state = LeaseState::default();
        let free = lease(json!({"holderIdentity": "", "leaseDurationSeconds": 10}));
        assert_eq!(state.update(Some(&free), at(0)), (false, None));
        let endless = lease(json!({"holderIdentity": "a"}));
        assert_eq!(state.update(Some(&endless), at(0)), (true, Some(at(30))));
    }
}
