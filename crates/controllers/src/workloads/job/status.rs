//! Sets the conditions of a Job. Pure.

use k8s_openapi::{
    api::batch::v1::{JobCondition, JobStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

/// Sets the condition Suspended and the start time. Returns reason and message of the event if the condition changed.
pub(super) fn set_suspended(
    status: &mut JobStatus,
    suspended: bool,
    now: &Time,
) -> Option<(&'static str, &'static str)> {
    let (value, reason, event, message) = if suspended {
        ("True", "JobSuspended", "Suspended", "Job suspended")
    } else {
        ("False", "JobResumed", "Resumed", "Job resumed")
    };
    if !set_condition(status, "Suspended", value, reason, message, now) {
        return None;
    }
    // Resuming starts the clock of `activeDeadlineSeconds` anew, as kube-controller-manager does.
    status.start_time = (!suspended).then(|| now.clone());
    Some((event, message))
}

/// Sets a condition. Returns whether anything changed; a missing condition is not added only to be False.
pub(super) fn set_condition(
    status: &mut JobStatus,
    kind: &str,
    value: &str,
    reason: &str,
    message: &str,
    now: &Time,
) -> bool {
    let conditions = status.conditions.get_or_insert_default();
    let wanted = JobCondition {
        type_: kind.to_owned(),
        status: value.to_owned(),
        last_probe_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == kind)
    {
        Some(known)
            if known.status == value
                && known.reason == wanted.reason
                && known.message == wanted.message =>
        {
            false
        }
        Some(known) => {
            *known = wanted;
            true
        }
        None if value == "True" => {
            conditions.push(wanted);
            true
        }
        None => {
            if conditions.is_empty() {
                status.conditions = None;
            }
            false
        }
    }
}
