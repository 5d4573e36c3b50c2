//! Counts a Job's pods: the active ones, those that succeeded or failed, and which of these are new. Pure.
//!
//! Invariant: a pod is counted once. As long as it has its finalizer, its phase decides. Before the finalizer is removed,
//! its UID is in `status.uncountedTerminatedPods` or its index in `status.completedIndexes`; afterwards the counters in the
//! status include it. The consequences for the Job are in [`super::verdict`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::Pod,
};
use kube::ResourceExt;

use super::{
    backoff::finish_time,
    indexes::Indexes,
    pod::{Failures, index, is_tracked},
    policy::{self, Action},
};
use crate::{pods, workloads::count};

/// UIDs of pods.
pub(super) type Uids = BTreeSet<String>;

/// The counts of a Job's pods at one time.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Pods that are neither finished nor being deleted.
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) ready: i32,
    /// The number of pods that are being deleted but have not finished.
    pub(super) terminating: i32,
    /// The numbers of pods that succeeded and failed, whether or not the status counts them already.
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    /// The pods that finished and are not counted in the status yet, including failures that a policy ignores.
    pub(super) new_succeeded: Vec<Arc<Pod>>,
    pub(super) new_failed: Vec<Arc<Pod>>,
    /// For indexed Jobs: the completed indexes in the status, and these with the newly succeeded ones.
    pub(super) completed_before: Indexes,
    pub(super) completed: Indexes,
    /// For Jobs with `backoffLimitPerIndex`: the failed indexes.
    pub(super) failed_indexes: Option<Indexes>,
    /// For such Jobs: the failed pod of each index that a new pod will replace. It is counted once its replacement exists.
    pub(super) replaced: BTreeMap<i32, Arc<Pod>>,
}

/// Returns whether the Job is indexed (`completionMode: Indexed`).
pub(super) fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

/// Returns whether a pod is replaced only after it has finished (`podReplacementPolicy: Failed`).
pub(super) fn replaces_failed_only(spec: &JobSpec) -> bool {
    match spec.pod_replacement_policy.as_deref() {
        Some(policy) => policy == "Failed",
        None => spec.pod_failure_policy.is_some(),
    }
}

/// Returns whether a pod counts as failed: its phase is Failed, or it is being deleted and the Job does not wait for its
/// end.
pub(super) fn is_failed(spec: &JobSpec, pod: &Pod) -> bool {
    match pods::phase(pod) {
        "Failed" => true,
        "Succeeded" => false,
        _ => pods::is_deleting(pod) && !replaces_failed_only(spec),
    }
}

/// Returns whether a pod can be counted; a pod of an indexed Job needs an index below `completions`.
pub(super) fn in_range(spec: &JobSpec, pod: &Pod) -> bool {
    let completions = spec.completions.unwrap_or(0);
    !is_indexed(spec) || index(pod).is_some_and(|index| index < completions)
}

/// Returns the UIDs in `status.uncountedTerminatedPods`: succeeded and failed.
pub(super) fn uncounted(job: &Job) -> (Uids, Uids) {
    let status = job.status.as_ref();
    let pods = status.and_then(|status| status.uncounted_terminated_pods.as_ref());
    let set = |uids: Option<&Vec<String>>| uids.into_iter().flatten().cloned().collect();
    (
        set(pods.and_then(|pods| pods.succeeded.as_ref())),
        set(pods.and_then(|pods| pods.failed.as_ref())),
    )
}

/// Counts the pods. `finalizer_removed` are pods whose finalizer has been removed although the informer still shows it.
pub(super) fn tally(
    job: &Job,
    spec: &JobSpec,
    all: &[Arc<Pod>],
    finalizer_removed: &Uids,
) -> Tally {
    let (succeeded, failed) = uncounted(job);
    let status = job.status.as_ref();
    let uid = |pod: &Pod| pod.uid().unwrap_or_default();
    let open: Vec<_> = all
        .iter()
        .filter(|pod| {
            is_tracked(pod) && !finalizer_removed.contains(&uid(pod)) && in_range(spec, pod)
        })
        .collect();
    let fresh = |wanted: &dyn Fn(&Pod) -> bool| -> Vec<Arc<Pod>> {
        let known = |pod: &Pod| succeeded.contains(&uid(pod)) || failed.contains(&uid(pod));
        let fresh = open.iter().filter(|pod| wanted(pod) && !known(pod));
        fresh.map(|pod| Arc::clone(pod)).collect()
    };
    let new_succeeded = fresh(&|pod| pods::phase(pod) == "Succeeded");
    let new_failed = fresh(&|pod| is_failed(spec, pod));
    let counts = |pod: &&Arc<Pod>| policy::action(job, pod) != Action::Ignore;
    let stored = |number: Option<i32>| number.unwrap_or(0);
    let active: Vec<_> = all
        .iter()
        .filter(|pod| pods::is_active(pod))
        .cloned()
        .collect();
    let mut tally = Tally {
        ready: count(active.iter().filter(|pod| pods::is_ready(pod)).count()),
        active,
        terminating: count(all.iter().filter(|pod| pods::is_terminating(pod)).count()),
        succeeded: stored(status.and_then(|status| status.succeeded))
            + count(succeeded.len() + new_succeeded.len()),
        failed: stored(status.and_then(|status| status.failed))
            + count(failed.len() + new_failed.iter().filter(counts).count()),
        new_succeeded,
        new_failed,
        ..Tally::default()
    };
    if is_indexed(spec) {
        count_indexes(job, spec, &open, &mut tally);
    }
    tally
}

fn count_indexes(job: &Job, spec: &JobSpec, open: &[&Arc<Pod>], tally: &mut Tally) {
    let completions = spec.completions.unwrap_or(0);
    let status = job.status.as_ref();
    let text = status.and_then(|status| status.completed_indexes.as_deref());
    tally.completed_before = Indexes::parse(text.unwrap_or_default(), completions);
    tally.completed = tally.completed_before.clone();
    let done = open.iter().filter(|pod| pods::phase(pod) == "Succeeded");
    let done = done.filter_map(|pod| index(pod));
    tally.completed.0.extend(done);
    // Several pods may succeed for one index; the Job counts indexes.
    tally.succeeded = tally.completed.count();
    let Some(limit) = spec.backoff_limit_per_index else {
        return;
    };
    let text = status.and_then(|status| status.failed_indexes.as_deref());
    let mut lost = Indexes::parse(text.unwrap_or_default(), completions);
    let failed = open.iter().filter(|pod| is_failed(spec, pod));
    let fatal = failed.filter(|pod| match policy::action(job, pod) {
        Action::FailIndex => true,
        Action::Ignore => false,
        _ => Failures::before(pod).counted >= limit,
    });
    lost.0.extend(fatal.filter_map(|pod| index(pod)));
    tally.replaced = replaced(spec, open, tally, &lost);
    tally.failed_indexes = Some(lost);
}

/// Returns the newest failed pod of every index that will be retried and has no active pod (kube-controller-manager:
/// `getPodsWithDelayedDeletionPerIndex`).
fn replaced(
    spec: &JobSpec,
    open: &[&Arc<Pod>],
    tally: &Tally,
    lost: &Indexes,
) -> BTreeMap<i32, Arc<Pod>> {
    let active: BTreeSet<_> = tally.active.iter().filter_map(|pod| index(pod)).collect();
    let mut newest = BTreeMap::<i32, Arc<Pod>>::new();
    for pod in open.iter().filter(|pod| is_failed(spec, pod)) {
        let Some(index) = index(pod) else { continue };
        // An index with an active pod has its replacement already, so the failed one can be counted.
        if tally.completed.has(index) || lost.has(index) || active.contains(&index) {
            continue;
        }
        let is_newer = |known: &Arc<Pod>| {
            Failures::before(known).all() <= Failures::before(pod).all()
                && finish_time(known) <= finish_time(pod)
        };
        if newest.get(&index).is_none_or(is_newer) {
            newest.insert(index, Arc::clone(pod));
        }
    }
    newest
}

/// Returns how many pods of a Job should be active now (kube-controller-manager: the job controller's `manageJob`): `succeeded` is the number
/// of pods that have succeeded, `active` of those that are active.
pub fn wanted_active(
    parallelism: i64,
    completions: Option<i64>,
    succeeded: i64,
    active: i64,
) -> i64 {
    match completions {
        // Without `completions`, a first success means that the work is done: no new pods are created.
        None if succeeded > 0 => active,
        None => parallelism,
        Some(completions) => completions
            .saturating_sub(succeeded)
            .min(parallelism)
            .max(0),
    }
}

/// Returns how many pods of a counted Job should be active now.
pub(super) fn wanted_of(spec: &JobSpec, tally: &Tally) -> i32 {
    let parallelism = spec.parallelism.unwrap_or(1).into();
    let active = count(tally.active.len()).into();
    let completions = spec.completions.map(i64::from);
    let wanted = wanted_active(parallelism, completions, tally.succeeded.into(), active);
    // None of the numbers above is beyond an `i32`.
    i32::try_from(wanted).unwrap_or(i32::MAX)
}

/// Returns the lowest indexes without a pod, at most `most`.
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
        let finalizer_removed = ["a".to_owned(), "b".to_owned()].into();
        let all = tally(&done, spec, &pods, &finalizer_removed);
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
    fn no_more_pods_are_wanted_than_are_missing() {
        let wanted = |spec: Value, status: Value, pods: &[Arc<Pod>]| {
            let job = job(spec, status);
            wanted_of(job.spec.as_ref().expect("a spec"), &counted(&job, pods))
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
