//! Decides whether a Job is over, and why. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobSpec},
    core::v1::Pod,
};

use super::{
    indexes::Indexes,
    policy::{self, Action},
    tally::{Tally, is_failed},
};
use crate::pods;

/// The end of a Job: reason and message of the interim and the final condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) succeeded: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Verdict {
    fn failed(reason: &str, message: &str) -> Option<Self> {
        Some(Self {
            succeeded: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
        })
    }

    fn succeeded(reason: &str, message: &str) -> Self {
        Self {
            succeeded: true,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    /// Returns the verdict for a Job whose completions are all reached.
    pub(super) fn complete() -> Self {
        Self::succeeded(
            "CompletionsReached",
            "Reached expected number of succeeded pods",
        )
    }

    fn of_condition(condition: &JobCondition, succeeded: bool) -> Self {
        Self {
            succeeded,
            reason: condition.reason.clone().unwrap_or_default(),
            message: condition.message.clone().unwrap_or_default(),
        }
    }
}

/// Returns how the Job ends before all its completions are reached, or `None` if it goes on.
pub(super) fn verdict(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Verdict> {
    if let Some(met) = condition(job, "SuccessCriteriaMet") {
        return Some(Verdict::of_condition(met, true));
    }
    if let Some(failed) = failure(job, spec, tally, all, now) {
        return Some(failed);
    }
    let completions = spec.completions.unwrap_or(0);
    let message = policy::succeeded(job, &tally.completed, completions)?;
    Some(Verdict::succeeded("SuccessPolicy", &message))
}

/// Returns why the Job has failed, or `None` if it has not.
fn failure(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    now: Timestamp,
) -> Option<Verdict> {
    // A decision that was stored stays, even if the pods that led to it are gone by now.
    if let Some(target) = condition(job, "FailureTarget") {
        return Some(Verdict::of_condition(target, false));
    }
    // The pod failure policy is evaluated before the limits, as the user's more specific rule.
    let failure =
        all.iter()
            .filter(|pod| is_failed(spec, pod))
            .find_map(|pod| match policy::action(job, pod) {
                Action::FailJob(message) => Some(message),
                _ => None,
            });
    if let Some(message) = failure {
        return Verdict::failed("PodFailurePolicy", &message);
    }
    let limit = spec.backoff_limit.unwrap_or(6);
    if tally.failed > limit || restarts_exceed(spec, all, limit) {
        return Verdict::failed(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        );
    }
    if deadline_in(job, spec, now).is_some_and(|left| !left.is_positive()) {
        return Verdict::failed(
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
        );
    }
    let lost = tally.failed_indexes.as_ref().map_or(0, Indexes::count);
    if spec.max_failed_indexes.is_some_and(|most| lost > most) {
        return Verdict::failed(
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        );
    }
    // Every index has either succeeded or failed.
    if lost > 0 && lost + tally.completed.count() >= spec.completions.unwrap_or(0) {
        return Verdict::failed("FailedIndexes", "Job has failed indexes");
    }
    None
}

/// Returns how long the Job may still run; `None` without a deadline.
pub(super) fn deadline_in(job: &Job, spec: &JobSpec, now: Timestamp) -> Option<SignedDuration> {
    let seconds = spec.active_deadline_seconds?;
    if spec.suspend == Some(true) {
        return None;
    }
    let start = job.status.as_ref()?.start_time.as_ref()?.0;
    Some(SignedDuration::from_secs(seconds) - now.duration_since(start))
}

/// Returns whether containers that are restarted in place have failed too often (kube-controller-manager:
/// `pastBackoffLimitOnFailure`).
fn restarts_exceed(spec: &JobSpec, all: &[Arc<Pod>], limit: i32) -> bool {
    let template = spec.template.spec.as_ref();
    if template.and_then(|spec| spec.restart_policy.as_deref()) != Some("OnFailure") {
        return false;
    }
    let alive = all
        .iter()
        .filter(|pod| matches!(pods::phase(pod), "Running" | "Pending"));
    let restarts: i32 = alive
        .flat_map(|pod| {
            let status = pod.status.iter();
            status.flat_map(|status| {
                let init = status.init_container_statuses.iter().flatten();
                status.container_statuses.iter().flatten().chain(init)
            })
        })
        .map(|status| status.restart_count)
        .sum();
    match limit {
        // With limit 0 the first restart is too many; otherwise reaching the limit is enough.
        0 => restarts > 0,
        limit => restarts >= limit,
    }
}

/// Returns the condition of a type if its status is True.
pub(super) fn condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Returns whether the Job is over.
pub(super) fn is_finished(job: &Job) -> bool {
    condition(job, "Complete")
        .or(condition(job, "Failed"))
        .is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::tally::{Uids, tally},
        *,
    };

    fn job(spec: Value, status: Value) -> Job {
        let mut spec = spec;
        spec["template"] = json!({ "spec": { "containers": [], "restartPolicy": "Never" } });
        serde_json::from_value(
            json!({ "metadata": { "name": "j" }, "spec": spec, "status": status }),
        )
        .expect("a Job")
    }

    #[test]
    fn too_many_failures_end_the_job_and_an_old_verdict_stands() {
        let limited = job(json!({ "backoffLimit": 0 }), json!({}));
        let failed = json!({
            "metadata": { "name": "a", "uid": "a", "finalizers": [super::super::pod::TRACKING] },
            "status": { "phase": "Failed" },
        });
        let pods = [Arc::new(serde_json::from_value(failed).expect("a pod"))];
        let why = |job: &Job, pods: &[Arc<Pod>]| {
            let now = "2026-01-01T00:00:30Z".parse().expect("a time");
            let reason = failure(
                job,
                job.spec.as_ref().expect("a spec"),
                &tally(job, job.spec.as_ref().expect("a spec"), pods, &Uids::new()),
                pods,
                now,
            );
            reason.map(|verdict| verdict.reason)
        };
        assert_eq!(
            why(&limited, &pods).as_deref(),
            Some("BackoffLimitExceeded")
        );
        assert_eq!(why(&limited, &[]), None);
        let told = json!({ "conditions": [{ "type": "FailureTarget", "status": "True", "reason": "Because" }] });
        assert_eq!(why(&job(json!({}), told), &[]).as_deref(), Some("Because"));
        let late = job(
            json!({ "activeDeadlineSeconds": 30 }),
            json!({ "startTime": "2026-01-01T00:00:00Z" }),
        );
        assert_eq!(why(&late, &[]).as_deref(), Some("DeadlineExceeded"));
    }
}
