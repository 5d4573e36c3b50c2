//! Computes the status of a ReplicaSet. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::census::Tally;
use crate::{
    context::whole_seconds,
    pods,
    workloads::{count, nonzero},
};

/// The condition that reports pods which could not be created or deleted.
pub(crate) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Returns how many of the counted pods are available. `active` lists the active pods, and is needed only with
/// `minReadySeconds`.
pub(super) fn available(
    set: &ReplicaSet,
    pods: Tally,
    active: &[Arc<Pod>],
    now: Timestamp,
) -> usize {
    let spec = set.spec.as_ref();
    match spec.and_then(|spec| spec.min_ready_seconds) {
        None | Some(0) => pods.ready,
        Some(seconds) => {
            let available = |pod: &&Arc<Pod>| pods::is_available(pod, seconds, now);
            active.iter().filter(available).count()
        }
    }
}

/// Computes the status of `set` with these pods. `failure` is the message of an error in managing them.
pub(super) fn compute(
    set: &ReplicaSet,
    pods: Tally,
    available: usize,
    failure: Option<String>,
    now: Timestamp,
) -> ReplicaSetStatus {
    ReplicaSetStatus {
        replicas: count(pods.active),
        fully_labeled_replicas: nonzero(count(pods.labeled)),
        ready_replicas: nonzero(count(pods.ready)),
        available_replicas: nonzero(count(available)),
        terminating_replicas: Some(count(pods.terminating)),
        observed_generation: set.metadata.generation,
        conditions: conditions(set, pods.active, failure, now),
    }
}

fn conditions(
    set: &ReplicaSet,
    active: usize,
    failure: Option<String>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let mut conditions = set
        .status
        .as_ref()
        .and_then(|status| status.conditions.clone())
        .unwrap_or_default();
    let reported = conditions
        .iter()
        .any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        // The condition keeps its first message and time, so a failure that repeats does not write at every
        // retry.
        Some(message) if !reported => {
            let desired = set
                .spec
                .as_ref()
                .and_then(|spec| spec.replicas)
                .unwrap_or(1);
            let reason = if count(active) < desired {
                "FailedCreate"
            } else {
                "FailedDelete"
            };
            conditions.push(ReplicaSetCondition {
                type_: REPLICA_FAILURE.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(Time(whole_seconds(now))),
                reason: Some(reason.to_owned()),
                message: Some(message),
            });
        }
        // The first failure stays until managing the pods succeeds.
        Some(_) => {}
    }
    (!conditions.is_empty()).then_some(conditions)
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::api::{
        apps::v1::ReplicaSetSpec,
        core::v1::{PodCondition, PodStatus},
    };

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).expect("a valid moment")
    }

    fn set(replicas: i32, min_ready: i32) -> ReplicaSet {
        let spec = ReplicaSetSpec {
            replicas: Some(replicas),
            min_ready_seconds: Some(min_ready),
            ..ReplicaSetSpec::default()
        };
        ReplicaSet {
            spec: Some(spec),
            ..ReplicaSet::default()
        }
    }

    fn ready_for(seconds: i64) -> Arc<Pod> {
        let condition = PodCondition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            last_transition_time: Some(Time(now() - SignedDuration::from_secs(seconds))),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        };
        Arc::new(Pod {
            status: Some(status),
            ..Pod::default()
        })
    }

    #[test]
    fn pods_are_available_once_ready_for_long_enough() {
        let pods = [
            ready_for(9),
            ready_for(10),
            ready_for(11),
            Arc::new(Pod::default()),
        ];
        let set = set(4, 10);
        let tally = Tally {
            terminating: 1,
            ..Tally::of_all(&set, pods.iter().map(|pod| &**pod))
        };
        let available = available(&set, tally, &pods, now());
        let status = compute(&set, tally, available, None, now());
        assert_eq!(
            (
                status.replicas,
                status.ready_replicas,
                status.available_replicas
            ),
            (4, Some(3), Some(2))
        );
        assert_eq!(status.terminating_replicas, Some(1));
    }

    #[test]
    fn a_failure_is_reported_once_and_removed_on_success() {
        let mut set = set(3, 0);
        set.status = Some(compute(
            &set,
            Tally::default(),
            0,
            Some("first".to_owned()),
            now(),
        ));
        let later = now() + SignedDuration::from_secs(5);
        let again = compute(&set, Tally::default(), 0, Some("second".to_owned()), later);
        let condition = &again.conditions.as_ref().expect("a condition")[0];
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        assert_eq!(condition.message.as_deref(), Some("first"));
        assert_eq!(condition.last_transition_time, Some(Time(now())));
        assert_eq!(
            compute(&set, Tally::default(), 0, None, later).conditions,
            None
        );
    }

    #[test]
    fn too_many_pods_that_cannot_be_deleted_are_a_failed_deletion() {
        let pods = [ready_for(1), ready_for(1)];
        let set = set(1, 0);
        let tally = Tally::of_all(&set, pods.iter().map(|pod| &**pod));
        assert_eq!(available(&set, tally, &[], now()), 2);
        let status = compute(&set, tally, 2, Some("no".to_owned()), now());
        assert_eq!(
            status.conditions.expect("a condition")[0].reason.as_deref(),
            Some("FailedDelete")
        );
    }
}
