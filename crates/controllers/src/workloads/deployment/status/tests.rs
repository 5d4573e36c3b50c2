//! Tests the counts, conditions and deadline of a rollout at chosen moments.

use k8s_openapi::{
    api::apps::v1::{DeploymentSpec, ReplicaSetSpec, ReplicaSetStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a small number of seconds")
}

fn deployment(replicas: i32) -> Deployment {
    Deployment {
        metadata: ObjectMeta {
            name: Some("web".to_owned()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            progress_deadline_seconds: Some(600),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn replica_set(replicas: i32, pods: i32, available: i32) -> ReplicaSet {
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some("web-x".to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(replicas),
            ..ReplicaSetSpec::default()
        }),
        status: Some(ReplicaSetStatus {
            replicas: pods,
            ready_replicas: Some(available),
            available_replicas: Some(available),
            observed_generation: Some(1),
            terminating_replicas: Some(0),
            ..ReplicaSetStatus::default()
        }),
    }
}

/// Runs `rollout` for a Deployment with one new set, and stores the result.
fn advance(deployment: &mut Deployment, set: &ReplicaSet, now: Timestamp) {
    deployment.status = Some(rollout(deployment, &[set], Some(set), now));
}

fn summary(deployment: &Deployment) -> Vec<String> {
    let conditions = deployment
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions
        .map(|c| {
            format!(
                "{}={} {}",
                c.type_,
                c.status,
                c.reason.as_deref().unwrap_or_default()
            )
        })
        .collect()
}

#[test]
fn a_first_rollout_ends_with_available_before_progressing() {
    let mut web = deployment(2);
    let mut status = DeploymentStatus::default();
    set(
        &mut status,
        condition(PROGRESSING, "True", NEW_SET_CREATED, "", at(0)),
    );
    web.status = Some(status);

    advance(&mut web, &replica_set(2, 0, 0), at(1));
    assert_eq!(
        summary(&web),
        [
            "Progressing=True NewReplicaSetCreated",
            "Available=False MinimumReplicasUnavailable"
        ]
    );

    advance(&mut web, &replica_set(2, 2, 0), at(2));
    assert_eq!(
        summary(&web),
        [
            "Available=False MinimumReplicasUnavailable",
            "Progressing=True ReplicaSetUpdated"
        ]
    );

    advance(&mut web, &replica_set(2, 2, 2), at(3));
    assert_eq!(
        summary(&web),
        [
            "Available=True MinimumReplicasAvailable",
            "Progressing=True NewReplicaSetAvailable"
        ]
    );
    let status = web.status.as_ref().expect("set by advance");
    let progressing = find(status, PROGRESSING).expect("a condition");
    assert_eq!(
        progressing.message.as_deref(),
        Some("ReplicaSet \"web-x\" has successfully progressed.")
    );
    assert_eq!(
        progressing.last_transition_time,
        Some(Time(at(0))),
        "True all along"
    );
    assert_eq!(progressing.last_update_time, Some(Time(at(3))));
}

#[test]
fn progress_renews_the_deadline_and_standing_still_exceeds_it() {
    let mut web = deployment(3);
    advance(&mut web, &replica_set(3, 1, 0), at(0));
    advance(&mut web, &replica_set(3, 2, 0), at(500));
    advance(&mut web, &replica_set(3, 2, 0), at(1100));
    assert_eq!(summary(&web)[1], "Progressing=True ReplicaSetUpdated");
    let status = web.status.clone().expect("set by advance");
    assert_eq!(
        until_deadline(&web, &status, at(1100)),
        Some(SignedDuration::from_secs(1))
    );
    advance(&mut web, &replica_set(3, 2, 0), at(1101));
    assert_eq!(
        summary(&web)[1],
        "Progressing=False ProgressDeadlineExceeded"
    );
    let status = web.status.clone().expect("set by advance");
    let message = find(&status, PROGRESSING).and_then(|condition| condition.message.clone());
    assert_eq!(
        message.as_deref(),
        Some("ReplicaSet \"web-x\" has timed out progressing.")
    );
    assert_eq!(until_deadline(&web, &status, at(1101)), None);
}

#[test]
fn a_rollout_that_timed_out_recovers_when_it_moves_again() {
    let mut web = deployment(3);
    advance(&mut web, &replica_set(3, 1, 0), at(0));
    advance(&mut web, &replica_set(3, 1, 0), at(601));
    assert_eq!(
        summary(&web)[1],
        "Progressing=False ProgressDeadlineExceeded"
    );
    advance(&mut web, &replica_set(3, 2, 0), at(700));
    assert_eq!(summary(&web)[1], "Progressing=True ReplicaSetUpdated");
    let status = web.status.as_ref().expect("set by advance");
    let progressing = find(status, PROGRESSING).expect("a condition");
    assert_eq!(progressing.last_transition_time, Some(Time(at(700))));
}

#[test]
fn pods_lost_after_completion_do_not_start_the_deadline_again() {
    let mut web = deployment(3);
    advance(&mut web, &replica_set(3, 3, 3), at(0));
    advance(&mut web, &replica_set(3, 3, 1), at(10_000));
    assert_eq!(
        summary(&web),
        [
            "Progressing=True NewReplicaSetAvailable",
            "Available=False MinimumReplicasUnavailable"
        ]
    );
}

#[test]
fn a_deployment_without_deadline_has_no_progressing_condition() {
    let mut web = deployment(2);
    advance(&mut web, &replica_set(2, 1, 0), at(0));
    web.spec
        .as_mut()
        .expect("set above")
        .progress_deadline_seconds = Some(NO_DEADLINE);
    advance(&mut web, &replica_set(2, 2, 0), at(1));
    assert_eq!(
        summary(&web),
        ["Available=False MinimumReplicasUnavailable"]
    );
}

#[test]
fn a_failing_replica_set_is_reported_and_forgiven() {
    let mut web = deployment(2);
    let mut failing = replica_set(2, 0, 0);
    failing.status.as_mut().expect("set above").conditions = Some(vec![ReplicaSetCondition {
        type_: REPLICA_FAILURE.to_owned(),
        status: "True".to_owned(),
        reason: Some("FailedCreate".to_owned()),
        message: Some("no".to_owned()),
        last_transition_time: Some(Time(at(5))),
    }]);
    advance(&mut web, &failing, at(6));
    assert_eq!(summary(&web)[1], "ReplicaFailure=True FailedCreate");
    advance(&mut web, &replica_set(2, 0, 0), at(7));
    assert_eq!(
        summary(&web),
        ["Available=False MinimumReplicasUnavailable"]
    );
}

#[test]
fn counts_sum_over_all_sets_and_compare_specs_with_available_pods() {
    let web = deployment(5);
    let (new, old) = (replica_set(3, 2, 1), replica_set(4, 4, 4));
    let status = counts(&web, &[&old, &new], Some(&new), at(0));
    assert_eq!(status.replicas, Some(6));
    assert_eq!(status.updated_replicas, Some(2));
    assert_eq!(status.available_replicas, Some(5));
    assert_eq!(status.unavailable_replicas, Some(2));
    assert_eq!(status.terminating_replicas, Some(0));
}

#[test]
fn terminating_pods_are_unknown_while_a_synced_set_does_not_report_them() {
    let web = deployment(1);
    let mut silent = replica_set(1, 1, 1);
    silent
        .status
        .as_mut()
        .expect("set above")
        .terminating_replicas = None;
    assert_eq!(
        counts(&web, &[&silent], None, at(0)).terminating_replicas,
        None
    );
    silent.status = None;
    assert_eq!(
        counts(&web, &[&silent], None, at(0)).terminating_replicas,
        Some(0)
    );
}
