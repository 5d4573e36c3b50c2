//! The back-off before a Job replaces a failed pod: 10 s, doubling up to 10 min. Pure except for [`Records`], which
//! remembers failures of pods that may already be gone.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rustc_hash::FxHashMap;

use super::pod::Failures;
use crate::{Key, pods};

const SHORTEST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(600);

/// The failures of a Job's pods since the last success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    failures: i32,
    last_failure: Option<Timestamp>,
}

impl Record {
    /// Returns the record with the pods that have finished since, including failures that a policy ignores. The
    /// caller passes each pod only once.
    #[must_use]
    pub(super) fn with(self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Self {
        let last_success = succeeded.iter().map(|pod| finish_time(pod)).max();
        let ends = failed.iter().map(|pod| finish_time(pod));
        let since = ends.filter(|at| last_success.is_none_or(|success| *at > success));
        let since: Vec<_> = since.collect();
        // A success ends the series of failures, so only those after it count.
        let before = match last_success {
            Some(_) => Self::default(),
            None => self,
        };
        Self {
            failures: before
                .failures
                .saturating_add(i32::try_from(since.len()).unwrap_or(i32::MAX)),
            last_failure: since.into_iter().max().or(before.last_failure),
        }
    }

    /// Returns how long no new pod is created.
    pub(super) fn pause(self, now: Timestamp) -> Duration {
        let last = self.last_failure;
        last.map_or(Duration::ZERO, |last| pause(self.failures, last, now))
    }
}

/// Returns how long the index of the failed `pod` gets no new pod.
pub(super) fn index_pause(pod: &Pod, now: Timestamp) -> Duration {
    let failures = Failures::before(pod).all().saturating_add(1);
    pause(failures, finish_time(pod), now)
}

fn pause(failures: i32, last: Timestamp, now: Timestamp) -> Duration {
    let Ok(doublings) = u32::try_from(failures - 1) else {
        return Duration::ZERO;
    };
    // Ten doublings are far beyond the longest wait; more could overflow.
    let whole = (SHORTEST * (1 << doublings.min(10))).min(LONGEST);
    Duration::try_from(whole - now.duration_since(last)).unwrap_or_default()
}

/// Returns when a finished pod ended (kube-controller-manager: `getFinishedTime`): when its last container ended, else
/// when it became unready, else when its deletion was requested, else when it was created.
pub(super) fn finish_time(pod: &Pod) -> Timestamp {
    let unready = pods::condition(pod, "Ready")
        .filter(|ready| ready.status == "False")
        .and_then(|ready| ready.last_transition_time.as_ref())
        .map(|at| at.0);
    let metadata = &pod.metadata;
    let asked_for = metadata.deletion_timestamp.as_ref().and_then(|at| {
        let grace = metadata.deletion_grace_period_seconds.unwrap_or(0);
        at.0.checked_sub(SignedDuration::from_secs(grace)).ok()
    });
    containers_ended(pod)
        .or(unready)
        .or(asked_for)
        .or(metadata.creation_timestamp.as_ref().map(|at| at.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns when the last container ended; `None` while a container or sidecar runs.
fn containers_ended(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let init = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<_> = init
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .map(|container| container.name.as_str())
        .collect();
    let init = status.init_container_statuses.iter().flatten();
    let sidecars = init.filter(|status| sidecars.contains(&status.name.as_str()));
    let mut last = None;
    for status in status.container_statuses.iter().flatten().chain(sidecars) {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        last = last.max(Some(terminated.finished_at.as_ref()?.0));
    }
    last
}

/// The records of all Jobs, kept in memory only, as in kube-controller-manager.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<FxHashMap<Key, Record>>);

impl Records {
    pub(super) fn of(&self, job: &Key) -> Record {
        self.all().get(job).copied().unwrap_or_default()
    }

    pub(super) fn set(&self, job: &Key, record: Record) {
        if record == Record::default() {
            self.forget(job);
        } else {
            self.all().insert(job.clone(), record);
        }
    }

    pub(super) fn forget(&self, job: &Key) {
        self.all().remove(job);
    }

    fn all(&self) -> MutexGuard<'_, FxHashMap<Key, Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const T0: &str = "2026-01-01T00:00:00Z";
    const T1: &str = "2026-01-01T00:00:30Z";

    fn pod(metadata: Value, status: Value) -> Arc<Pod> {
        let mut metadata = metadata;
        metadata["name"] = "p".into();
        let pod = json!({ "metadata": metadata, "status": status });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn ended(at: &str) -> Arc<Pod> {
        pod(
            json!({}),
            json!({ "containerStatuses": [container(Some(at))] }),
        )
    }

    fn container(ended: Option<&str>) -> Value {
        let state = match ended {
            Some(at) => json!({ "terminated": { "exitCode": 1, "finishedAt": at } }),
            None => json!({ "running": {} }),
        };
        json!({ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state })
    }

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn each_failure_after_the_last_success_doubles_the_pause() {
        let none = Record::default();
        let pause = |record: Record| record.pause(at(T1)).as_secs();
        assert_eq!(pause(none), 0);
        assert_eq!(pause(none.with(&[], &[ended(T1)])), 10);
        assert_eq!(pause(none.with(&[], &[ended(T0)])), 0);
        let thrice = none.with(&[], &[ended(T0), ended(T0), ended(T1)]);
        assert_eq!(pause(thrice), 40);
        assert_eq!(pause(thrice.with(&[], &[])), 40, "nothing new was seen");
        assert_eq!(pause(thrice.with(&[], &[ended(T1)])), 80);
        assert_eq!(pause(thrice.with(&[ended(T1)], &[])), 0);
        assert_eq!(
            pause(thrice.with(&[ended(T0)], &[ended(T0), ended(T1)])),
            10
        );
        let often = Record {
            failures: 99,
            ..thrice
        };
        assert_eq!(pause(often), 600);
    }

    #[test]
    fn a_pod_ended_with_its_last_container_or_ceased_to_be_ready_or_was_deleted() {
        let since =
            |ready: &str| json!([{ "type": "Ready", "status": ready, "lastTransitionTime": T1 }]);
        let two = |last: Option<&str>| json!([container(Some(T0)), container(last)]);
        let made = json!({ "creationTimestamp": "2025-01-01T00:00:00Z" });
        let mut deleted = made.clone();
        deleted["deletionTimestamp"] = "2026-01-01T00:01:00Z".into();
        deleted["deletionGracePeriodSeconds"] = 30.into();
        let end = |metadata: &Value, status: Value| {
            finish_time(&pod(metadata.clone(), status)).to_string()
        };
        assert_eq!(
            end(&made, json!({ "containerStatuses": two(Some(T1)) })),
            T1
        );
        let runs = json!({ "containerStatuses": two(None), "conditions": since("True") });
        assert_eq!(end(&deleted, runs.clone()), T1, "when it was asked to go");
        assert_eq!(end(&made, runs), "2025-01-01T00:00:00Z");
        let stops = json!({ "containerStatuses": two(None), "conditions": since("False") });
        assert_eq!(end(&made, stops), T1);
    }

    #[test]
    fn an_index_waits_by_all_its_failures() {
        let failed = json!({ "annotations": {
            "batch.kubernetes.io/job-index-failure-count": "1",
            "batch.kubernetes.io/job-index-ignored-failure-count": "1",
        } });
        let statuses = json!({ "containerStatuses": [container(Some(T0))] });
        assert_eq!(index_pause(&pod(failed, statuses), at(T1)).as_secs(), 10);
    }
}
