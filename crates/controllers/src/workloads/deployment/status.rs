//! Computes the status of a Deployment: counts, and the conditions that `kubectl rollout status` reads. Pure.
//!
//! Conditions follow kube-controller-manager's two rules. A condition whose status and reason stay the same is not
//! touched. A condition that changes moves to the end of the list, and keeps its transition time if its status is
//! the same.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::apps::v1::{
        Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetCondition,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::ResourceExt;

use super::rolling::Limits;
use crate::{
    context::whole_seconds,
    workloads::{nonzero, replica_set::REPLICA_FAILURE},
};

pub(super) const AVAILABLE: &str = "Available";
pub(super) const PROGRESSING: &str = "Progressing";

pub(super) const NEW_SET_CREATED: &str = "NewReplicaSetCreated";
pub(super) const NEW_SET_FOUND: &str = "FoundNewReplicaSet";
pub(super) const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
pub(super) const SET_CREATE_ERROR: &str = "ReplicaSetCreateError";
pub(super) const SET_UPDATED: &str = "ReplicaSetUpdated";
pub(super) const TIMED_OUT: &str = "ProgressDeadlineExceeded";
pub(super) const PAUSED: &str = "DeploymentPaused";
pub(super) const RESUMED: &str = "DeploymentResumed";

/// The value of `spec.progressDeadlineSeconds` that means no deadline.
const NO_DEADLINE: i32 = i32::MAX;

/// Returns a condition with both times set to `now`.
pub(super) fn condition(
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> DeploymentCondition {
    let now = Time(whole_seconds(now));
    DeploymentCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    }
}

/// Returns the condition of a type.
pub(super) fn find<'a>(
    status: &'a DeploymentStatus,
    kind: &str,
) -> Option<&'a DeploymentCondition> {
    status
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// Sets a condition. One with the same status and reason is left untouched; a changed one moves to the end of the
/// list, and keeps its transition time if its status is the same.
pub(super) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    if let Some(current) = find(status, &condition.type_) {
        if current.status == condition.status && current.reason == condition.reason {
            return;
        }
        if current.status == condition.status {
            condition.last_transition_time = current.last_transition_time.clone();
        }
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

/// Removes the condition of a type.
pub(super) fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
        if conditions.is_empty() {
            status.conditions = None;
        }
    }
}

/// Returns `spec.progressDeadlineSeconds`, or `None` if there is no deadline.
pub(super) fn deadline(deployment: &Deployment) -> Option<SignedDuration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != NO_DEADLINE).then(|| SignedDuration::from_secs(seconds.into()))
}

/// Computes the counts and the condition Available, and keeps the other conditions.
pub(super) fn counts(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let limits = Limits::of(deployment);
    let sum = |of: &dyn Fn(&ReplicaSet) -> Option<i32>| {
        sets.iter().filter_map(|set| of(set)).sum::<i32>()
    };
    let available = sum(&|set| set.status.as_ref()?.available_replicas);
    let asked_for = sum(&|set| set.spec.as_ref()?.replicas);
    let before = deployment.status.as_ref();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: nonzero(sum(&|set| Some(set.status.as_ref()?.replicas))),
        updated_replicas: new.and_then(|set| nonzero(set.status.as_ref()?.replicas)),
        ready_replicas: nonzero(sum(&|set| set.status.as_ref()?.ready_replicas)),
        available_replicas: nonzero(available),
        unavailable_replicas: nonzero((asked_for - available).max(0)),
        terminating_replicas: terminating(sets),
        collision_count: before.and_then(|status| status.collision_count),
        conditions: before.and_then(|status| status.conditions.clone()),
    };
    let availability = if available >= limits.fewest_available() {
        condition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
            now,
        )
    } else {
        let message = "Deployment does not have minimum availability.";
        condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            message,
            now,
        )
    };
    set(&mut status, availability);
    status
}

/// Returns the number of terminating pods, or `None` if a ReplicaSet that was already synced does not report it.
fn terminating(sets: &[&ReplicaSet]) -> Option<i32> {
    sets.iter().try_fold(0, |sum, set| {
        let status = set.status.as_ref();
        match status.and_then(|status| status.terminating_replicas) {
            Some(count) => Some(sum + count),
            // A set that was never synced cannot report terminating pods yet, and has none.
            None if status
                .and_then(|status| status.observed_generation)
                .unwrap_or_default()
                == 0 =>
            {
                Some(sum)
            }
            None => None,
        }
    })
}

/// Computes the whole status during a rollout.
pub(super) fn rollout(
    deployment: &Deployment,
    sets: &[&ReplicaSet],
    new: Option<&ReplicaSet>,
    now: Timestamp,
) -> DeploymentStatus {
    let before = deployment.status.clone().unwrap_or_default();
    let mut status = counts(deployment, sets, new, now);
    let current = find(&before, PROGRESSING);
    // A complete rollout stays complete when pods fail later: the progress deadline is about rollouts only.
    let settled = status.replicas == status.updated_replicas
        && current.is_some_and(|current| current.reason.as_deref() == Some(NEW_SET_AVAILABLE));
    match deadline(deployment) {
        None => remove(&mut status, PROGRESSING),
        Some(_) if settled => {}
        Some(deadline) => {
            let subject = match new {
                Some(set) => format!("ReplicaSet \"{}\"", set.name_any()),
                None => format!("Deployment \"{}\"", deployment.name_any()),
            };
            if is_complete(deployment, &status) {
                let message = format!("{subject} has successfully progressed.");
                set(
                    &mut status,
                    condition(PROGRESSING, "True", NEW_SET_AVAILABLE, &message, now),
                );
            } else if has_progressed(&before, &status) {
                let message = format!("{subject} is progressing.");
                let mut renewed = condition(PROGRESSING, "True", SET_UPDATED, &message, now);
                if let Some(current) = current.filter(|current| current.status == "True") {
                    renewed.last_transition_time = current.last_transition_time.clone();
                }
                // The condition is replaced even if only its update time changes, because the deadline counts from
                // that time.
                remove(&mut status, PROGRESSING);
                set(&mut status, renewed);
            } else if has_timed_out(&status, deadline, now) {
                let message = format!("{subject} has timed out progressing.");
                set(
                    &mut status,
                    condition(PROGRESSING, "False", TIMED_OUT, &message, now),
                );
            }
        }
    }
    match replica_failure(sets, new) {
        Some(failure) => set(&mut status, failure),
        None => remove(&mut status, REPLICA_FAILURE),
    }
    status
}

/// Returns whether every pod has the new template and is available.
pub(super) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let desired = Limits::of(deployment).desired;
    [
        status.updated_replicas,
        status.replicas,
        status.available_replicas,
    ]
    .iter()
    .all(|count| count.unwrap_or_default() == desired)
        && status.observed_generation >= deployment.metadata.generation
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old = |status: &DeploymentStatus| {
        status.replicas.unwrap_or_default() - status.updated_replicas.unwrap_or_default()
    };
    let grew = |of: fn(&DeploymentStatus) -> Option<i32>| {
        of(after).unwrap_or_default() > of(before).unwrap_or_default()
    };
    grew(|status| status.updated_replicas)
        || old(after) < old(before)
        || grew(|status| status.ready_replicas)
        || grew(|status| status.available_replicas)
}

fn has_timed_out(status: &DeploymentStatus, deadline: SignedDuration, now: Timestamp) -> bool {
    let Some(current) = find(status, PROGRESSING) else {
        return false;
    };
    match current.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        // Once timed out, only progress or a new spec changes the condition.
        Some(TIMED_OUT) => true,
        _ => current
            .last_update_time
            .as_ref()
            .is_some_and(|since| now.duration_since(since.0) > deadline),
    }
}

/// Returns the time until a rollout that makes no progress must be synced again.
pub(super) fn until_deadline(
    deployment: &Deployment,
    status: &DeploymentStatus,
    now: Timestamp,
) -> Option<SignedDuration> {
    let deadline = deadline(deployment)?;
    let current = find(status, PROGRESSING)?;
    if is_complete(deployment, status) || current.reason.as_deref() == Some(TIMED_OUT) {
        return None;
    }
    let waited = now.duration_since(current.last_update_time.as_ref()?.0);
    // One second is added because timestamps are whole seconds.
    Some((deadline - waited).max(SignedDuration::ZERO) + SignedDuration::from_secs(1))
}

fn replica_failure(sets: &[&ReplicaSet], new: Option<&ReplicaSet>) -> Option<DeploymentCondition> {
    let failure = |set: &ReplicaSet| -> Option<ReplicaSetCondition> {
        let mut conditions = set.status.as_ref()?.conditions.iter().flatten();
        conditions
            .find(|condition| condition.type_ == REPLICA_FAILURE)
            .cloned()
    };
    let failed = new
        .and_then(failure)
        .or_else(|| sets.iter().find_map(|set| failure(set)))?;
    Some(DeploymentCondition {
        type_: failed.type_,
        status: failed.status,
        last_update_time: failed.last_transition_time.clone(),
        last_transition_time: failed.last_transition_time,
        reason: failed.reason,
        message: failed.message,
    })
}

#[cfg(test)]
mod tests;
