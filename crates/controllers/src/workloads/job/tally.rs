//! What a Job's pods amount to: which count as succeeded or failed, which are new, and what follows for the Job. Pure.
//!
//! Invariant: a pod is counted once. While its finalizer is there it is looked at; before the finalizer goes its UID is in
//! `status.uncountedTerminatedPods`, or its index in `status.completedIndexes`; after that the numbers have it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobSpec},
    core::v1::Pod,
};
use kube::ResourceExt;

use super::{
    indexes::Indexes,
    pod::{INDEX_FAILURES, index, is_tracked},
    policy::{self, Action},
};
use crate::{pods, workloads::count};

/// UIDs of pods.
pub(super) type Uids = BTreeSet<String>;

/// The Job's pods at one moment.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Neither finished nor on their way out.
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) ready: i32,
    /// On their way out, but not finished.
    pub(super) terminating: i32,
    /// Counted or to be counted.
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    /// Of indexed Jobs: as stored, and with what has succeeded since.
    pub(super) completed_before: Indexes,
    pub(super) completed: Indexes,
    /// Of Jobs whose indexes have limits of their own.
    pub(super) failed_indexes: Option<Indexes>,
}

/// How the Job stands.
pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// Whether only pods that have really ended are replaced.
pub(super) fn replaces_failed_only(spec: &JobSpec) -> bool {
    match spec.pod_replacement_policy.as_deref() {
        Some(policy) => policy == "Failed",
        None => spec.pod_failure_policy.is_some(),
    }
}

/// Whether a pod counts as failed: it has, or it is on its way out and nobody will say how it ended.
pub(super) fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pods::is_deleting(pod) && !replaces_failed_only(spec),
    }
}

/// The UIDs that wait to be counted.
pub(super) fn uncounted(job: &Job) -> (Uids, Uids) {
    let status = job.status.as_ref();
    let pods = status.and_then(|status| status.uncounted_terminated_pods.as_ref());
    let set = |uids: Option<&Vec<String>>| uids.into_iter().flatten().cloned().collect();
    (
        set(pods.and_then(|pods| pods.succeeded.as_ref())),
        set(pods.and_then(|pods| pods.failed.as_ref())),
    )
}

/// Counts the pods; `let_go` are those whose finalizer is on its way out though the informer still shows it.
pub(super) fn tally(job: &Job, spec: &JobSpec, all: &[Arc<Pod>], let_go: &Uids) -> Tally {
    let (succeeded, failed) = uncounted(job);
    let status = job.status.as_ref();
    let uid = |pod: &Pod| pod.uid().unwrap_or_default();
    let is_open = |pod: &Arc<Pod>| is_tracked(pod) && !let_go.contains(&uid(pod));
    let new_succeeded = all.iter().filter(|pod| {
        pods::phase(pod) == "Succeeded"
            && is_open(pod)
            && !succeeded.contains(&uid(pod))
            && !failed.contains(&uid(pod))
    });
    let completions = spec.completions.unwrap_or(0);
    let in_range =
        |pod: &Arc<Pod>| !is_indexed(spec) || index(pod).is_some_and(|index| index < completions);
    let new_failed = all.iter().filter(|pod| {
        is_failed(spec, pod)
            && is_open(pod)
            && in_range(pod)
            && !failed.contains(&uid(pod))
            && !succeeded.contains(&uid(pod))
            && policy::action(job, pod) != Action::Ignore
    });
    let stored = |number: Option<i32>| number.unwrap_or(0);
    let mut tally = Tally {
        active: all
            .iter()
            .filter(|pod| pods::is_active(pod))
            .cloned()
            .collect(),
        terminating: count(all.iter().filter(|pod| pods::is_terminating(pod)).count()),
        succeeded: stored(status.and_then(|status| status.succeeded))
            + count(succeeded.len() + new_succeeded.count()),
        failed: stored(status.and_then(|status| status.failed))
            + count(failed.len() + new_failed.count()),
        ..Tally::default()
    };
    tally.ready = count(
        tally
            .active
            .iter()
            .filter(|pod| pods::is_ready(pod))
            .count(),
    );
    if is_indexed(spec) {
        let text = status.and_then(|status| status.completed_indexes.as_deref());
        tally.completed_before = Indexes::parse(text.unwrap_or_default(), completions);
        tally.completed = tally.completed_before.clone();
        for pod in all
            .iter()
            .filter(|pod| pods::phase(pod) == "Succeeded" && is_open(pod))
        {
            tally
                .completed
                .0
                .extend(index(pod).filter(|index| *index < completions));
        }
        tally.succeeded = tally.completed.count();
        if let Some(limit) = spec.backoff_limit_per_index {
            let text = status.and_then(|status| status.failed_indexes.as_deref());
            let mut lost = Indexes::parse(text.unwrap_or_default(), completions);
            for pod in all
                .iter()
                .filter(|pod| is_failed(spec, pod) && is_open(pod))
            {
                let gone = match policy::action(job, pod) {
                    Action::FailIndex => true,
                    Action::Ignore => false,
                    _ => index_failures(pod) >= limit,
                };
                if gone {
                    lost.0
                        .extend(index(pod).filter(|index| *index < completions));
                }
            }
            lost.0.retain(|index| !tally.completed.has(*index));
            tally.failed_indexes = Some(lost);
        }
    }
    tally
}

/// How often the pod's index had failed when the pod was made.
pub(super) fn index_failures(pod: &Pod) -> i32 {
    let failures = pod.annotations().get(INDEX_FAILURES);
    failures.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// How often each index has failed, by its newest pod.
pub(super) fn failures_by_index(job: &Job, spec: &JobSpec, all: &[Arc<Pod>]) -> BTreeMap<i32, i32> {
    let mut failures = BTreeMap::new();
    for pod in all.iter().filter(|pod| is_failed(spec, pod)) {
        if let Some(index) = index(pod) {
            let counts = policy::action(job, pod) != Action::Ignore;
            let now = index_failures(pod) + i32::from(counts);
            let most = failures.entry(index).or_insert(now);
            *most = now.max(*most);
        }
    }
    failures
}

/// Why the Job is over before its completions are reached, if it is: reason and message.
pub(super) fn failure(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    now: Timestamp,
) -> Option<(String, String)> {
    let because = |reason: &str, message: &str| Some((reason.to_owned(), message.to_owned()));
    if let Some(target) = condition(job, "FailureTarget") {
        return because(
            target.reason.as_deref().unwrap_or_default(),
            target.message.as_deref().unwrap_or_default(),
        );
    }
    let told = all
        .iter()
        .filter(|pod| is_failed(spec, pod))
        .find_map(|pod| match policy::action(job, pod) {
            Action::FailJob(message) => Some(message),
            _ => None,
        });
    if let Some(message) = told {
        return because("PodFailurePolicy", &message);
    }
    let limit = spec.backoff_limit.unwrap_or(6);
    if tally.failed > limit || restarts_exceed(spec, all, limit) {
        return because(
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
        );
    }
    if deadline_in(job, spec, now).is_some_and(|left| !left.is_positive()) {
        return because(
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
        );
    }
    let lost = tally.failed_indexes.as_ref().map_or(0, Indexes::count);
    if spec.max_failed_indexes.is_some_and(|most| lost > most) {
        return because(
            "MaxFailedIndexesExceeded",
            "Job has exceeded the specified maximal number of failed indexes",
        );
    }
    if lost > 0 && lost + tally.completed.count() >= spec.completions.unwrap_or(0) {
        return because("FailedIndexes", "Job has failed indexes");
    }
    None
}

/// How long the Job may go on; `None` without a deadline.
pub(super) fn deadline_in(job: &Job, spec: &JobSpec, now: Timestamp) -> Option<SignedDuration> {
    let seconds = spec.active_deadline_seconds?;
    if spec.suspend == Some(true) {
        return None;
    }
    let start = job.status.as_ref()?.start_time.as_ref()?.0;
    Some(SignedDuration::from_secs(seconds) - now.duration_since(start))
}

/// Whether containers that are restarted in place have failed too often (upstream: `pastBackoffLimitOnFailure`).
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
        0 => restarts > 0,
        limit => restarts >= limit,
    }
}

/// The condition of a type that is True.
pub(super) fn condition<'a>(job: &'a Job, kind: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind && condition.status == "True")
}

/// Whether the Job is over.
pub(super) fn is_finished(job: &Job) -> bool {
    condition(job, "Complete")
        .or(condition(job, "Failed"))
        .is_some()
}

/// How long no new pod is made after failures: 10 s, doubling to 10 min, since the last one.
pub(super) fn backoff(spec: &JobSpec, all: &[Arc<Pod>], now: Timestamp) -> SignedDuration {
    let ended = all
        .iter()
        .filter(|pod| pods::is_finished(pod) || is_failed(spec, pod))
        .map(|pod| (finish_time(pod).unwrap_or(now), is_failed(spec, pod)));
    let ended: Vec<_> = ended.collect();
    let last_success = ended
        .iter()
        .filter(|(_, failed)| !failed)
        .map(|(at, _)| *at)
        .max();
    let failures = ended
        .iter()
        .filter(|(at, failed)| *failed && last_success.is_none_or(|success| *at > success));
    let failures: Vec<_> = failures.map(|(at, _)| *at).collect();
    let Some(last) = failures.iter().max() else {
        return SignedDuration::ZERO;
    };
    let doublings = u32::try_from(failures.len() - 1)
        .unwrap_or(u32::MAX)
        .min(10);
    let pause = SignedDuration::from_secs((10_i64 << doublings).min(600));
    (pause - now.duration_since(*last)).max(SignedDuration::ZERO)
}

/// When the last container of a pod ended, or the pod's deletion began.
fn finish_time(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let ends = status
        .container_statuses
        .iter()
        .flatten()
        .filter_map(|status| {
            let terminated = status.state.as_ref()?.terminated.as_ref()?;
            terminated.finished_at.as_ref().map(|at| at.0)
        });
    let deletion = pod.metadata.deletion_timestamp.as_ref().map(|at| at.0);
    let ready =
        pods::condition(pod, "Ready").and_then(|condition| condition.last_transition_time.as_ref());
    ends.max().or(ready.map(|at| at.0)).or(deletion)
}

/// How many pods there should be now.
pub(super) fn wanted_active(spec: &JobSpec, tally: &Tally) -> i32 {
    let parallelism = spec.parallelism.unwrap_or(1);
    match spec.completions {
        None if tally.succeeded > 0 => count(tally.active.len()),
        None => parallelism,
        Some(completions) => {
            let lost = tally.failed_indexes.as_ref().map_or(0, Indexes::count);
            (completions - tally.succeeded - lost).clamp(0, parallelism)
        }
    }
}

/// The lowest indexes without a pod, at most `most` of them.
pub(super) fn open_indexes(
    spec: &JobSpec,
    tally: &Tally,
    taken: &BTreeSet<i32>,
    most: usize,
) -> Vec<i32> {
    let lost = tally.failed_indexes.as_ref();
    (0..spec.completions.unwrap_or(0))
        .filter(|index| {
            !tally.completed.has(*index)
                && !taken.contains(index)
                && lost.is_none_or(|lost| !lost.has(*index))
        })
        .take(most)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value, status: Value) -> Job {
        let mut spec = spec;
        spec["template"] = json!({ "spec": { "containers": [], "restartPolicy": "Never" } });
        serde_json::from_value(
            json!({ "metadata": { "name": "j" }, "spec": spec, "status": status }),
        )
        .expect("a Job")
    }

    fn pod(uid: &str, phase: &str, ended: &str, index: Option<i32>) -> Arc<Pod> {
        let annotations = index.map(|index| json!({ super::super::pod::INDEX: index.to_string() }));
        let pod = json!({
            "metadata": { "name": uid, "uid": uid, "finalizers": [super::super::pod::TRACKING], "annotations": annotations },
            "status": { "phase": phase, "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": { "exitCode": 1, "finishedAt": ended } },
            }] },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    const T0: &str = "2026-01-01T00:00:00Z";
    const T1: &str = "2026-01-01T00:00:30Z";

    fn counted(job: &Job, all: &[Arc<Pod>]) -> Tally {
        tally(job, job.spec.as_ref().expect("a spec"), all, &Uids::new())
    }

    #[test]
    fn a_pod_is_counted_once_however_far_its_counting_is() {
        let fresh = job(json!({ "completions": 3 }), json!({}));
        let pods = [
            pod("a", "Succeeded", T0, None),
            pod("b", "Failed", T0, None),
            pod("c", "Running", T0, None),
        ];
        let all = counted(&fresh, &pods);
        assert_eq!((all.succeeded, all.failed, all.active.len()), (1, 1, 1));
        let flushed = job(
            json!({ "completions": 3 }),
            json!({ "uncountedTerminatedPods": { "succeeded": ["a"], "failed": ["b"] } }),
        );
        let all = counted(&flushed, &pods);
        assert_eq!((all.succeeded, all.failed), (1, 1));
        let done = job(
            json!({ "completions": 3 }),
            json!({ "succeeded": 1, "failed": 1 }),
        );
        let spec = done.spec.as_ref().expect("a spec");
        let let_go = ["a".to_owned(), "b".to_owned()].into();
        let all = tally(&done, spec, &pods, &let_go);
        assert_eq!((all.succeeded, all.failed), (1, 1));
    }

    #[test]
    fn an_index_succeeds_once() {
        let indexed = job(
            json!({ "completions": 3, "completionMode": "Indexed" }),
            json!({ "completedIndexes": "0" }),
        );
        let pods = [
            pod("a", "Succeeded", T0, Some(0)),
            pod("b", "Succeeded", T0, Some(2)),
            pod("c", "Succeeded", T0, Some(7)),
        ];
        let all = counted(&indexed, &pods);
        assert_eq!(
            (all.completed.to_string().as_str(), all.succeeded),
            ("0,2", 2)
        );
        let spec = indexed.spec.as_ref().expect("a spec");
        assert_eq!(open_indexes(spec, &all, &BTreeSet::new(), 5), [1]);
    }

    #[test]
    fn too_many_failures_end_the_job_and_an_old_verdict_stands() {
        let limited = job(json!({ "backoffLimit": 0 }), json!({}));
        let pods = [pod("a", "Failed", T0, None)];
        let why = |job: &Job, pods: &[Arc<Pod>]| {
            let now = T1.parse().expect("a time");
            let reason = failure(
                job,
                job.spec.as_ref().expect("a spec"),
                &counted(job, pods),
                pods,
                now,
            );
            reason.map(|(reason, _)| reason)
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
            json!({ "startTime": T0 }),
        );
        assert_eq!(why(&late, &[]).as_deref(), Some("DeadlineExceeded"));
    }

    #[test]
    fn each_failure_after_the_last_success_doubles_the_pause() {
        let plain = job(json!({}), json!({}));
        let spec = plain.spec.as_ref().expect("a spec");
        let now = T1.parse().expect("a time");
        let pause = |pods: &[Arc<Pod>]| backoff(spec, pods, now).as_secs();
        assert_eq!(pause(&[]), 0);
        assert_eq!(pause(&[pod("a", "Failed", T1, None)]), 10);
        assert_eq!(pause(&[pod("a", "Failed", T0, None)]), 0);
        let more = [
            pod("a", "Failed", T0, None),
            pod("b", "Failed", T0, None),
            pod("c", "Failed", T1, None),
        ];
        assert_eq!(pause(&more), 40);
        let healed = [
            pod("a", "Failed", T0, None),
            pod("b", "Succeeded", T1, None),
        ];
        assert_eq!(pause(&healed), 0);
    }

    #[test]
    fn no_more_pods_are_wanted_than_are_missing() {
        let wanted = |spec: Value, status: Value, pods: &[Arc<Pod>]| {
            let job = job(spec, status);
            wanted_active(job.spec.as_ref().expect("a spec"), &counted(&job, pods))
        };
        assert_eq!(
            wanted(
                json!({ "completions": 5, "parallelism": 2 }),
                json!({ "succeeded": 4 }),
                &[]
            ),
            1
        );
        assert_eq!(
            wanted(
                json!({ "completions": 5, "parallelism": 2 }),
                json!({}),
                &[]
            ),
            2
        );
        assert_eq!(wanted(json!({ "parallelism": 3 }), json!({}), &[]), 3);
        let pods = [pod("a", "Running", T0, None)];
        assert_eq!(
            wanted(
                json!({ "parallelism": 3 }),
                json!({ "succeeded": 1 }),
                &pods
            ),
            1
        );
    }
}
