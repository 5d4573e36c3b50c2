//! What a ReplicaSet reports about its pods. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::{
    context::whole_seconds,
    pods,
    workloads::{count, nonzero},
};

/// The condition that tells about pods which could not be created or deleted.
pub(crate) const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The status of `set` with these pods; `failure` is why managing them failed just now.
pub(super) fn compute(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<String>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = set.spec.as_ref();
    let min_ready = spec
        .and_then(|spec| spec.min_ready_seconds)
        .unwrap_or_default();
    let template = spec.and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
    let (mut labeled, mut ready, mut available) = (0, 0, 0);
    for pod in active {
        let has = |key: &String, value: &String| {
            pod.metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.get(key) == Some(value))
        };
        labeled += i32::from(
            template
                .into_iter()
                .flatten()
                .all(|(key, value)| has(key, value)),
        );
        ready += i32::from(pods::is_ready(pod));
        available += i32::from(pods::is_available(pod, min_ready, now));
    }
    ReplicaSetStatus {
        replicas: count(active.len()),
        fully_labeled_replicas: nonzero(labeled),
        ready_replicas: nonzero(ready),
        available_replicas: nonzero(available),
        terminating_replicas: Some(count(terminating)),
        observed_generation: set.metadata.generation,
        conditions: conditions(set, active.len(), failure, now),
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
        let status = compute(&set(4, 10), &pods, 1, None, now());
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
        set.status = Some(compute(&set, &[], 0, Some("first".to_owned()), now()));
        let later = now() + SignedDuration::from_secs(5);
        let again = compute(&set, &[], 0, Some("second".to_owned()), later);
        let condition = &again.conditions.as_ref().expect("a condition")[0];
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        assert_eq!(condition.message.as_deref(), Some("first"));
        assert_eq!(condition.last_transition_time, Some(Time(now())));
        assert_eq!(compute(&set, &[], 0, None, later).conditions, None);
    }

    #[test]
    fn too_many_pods_that_cannot_be_deleted_are_a_failed_deletion() {
        let pods = [ready_for(1), ready_for(1)];
        let status = compute(&set(1, 0), &pods, 0, Some("no".to_owned()), now());
        assert_eq!(
            status.conditions.expect("a condition")[0].reason.as_deref(),
            Some("FailedDelete")
        );
    }
}
