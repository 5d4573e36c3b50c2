//! Stores the counts of a Job's pods: writes their UIDs to the status, removes their finalizers, then raises the
//! counters (kube-controller-manager: `trackJobStatusAndRemoveFinalizers`).
//!
//! Invariant: a finalizer is removed only after a status that lists the pod was stored, and a counter is raised
//! only after the finalizer was removed. Wherever this stops, the next sync continues from there.

use std::sync::{Arc, PoisonError};

use futures::future::join_all;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::{
    Controller, View,
    pod::{self, index, is_tracked},
    policy::{self, Action},
    status::set_condition,
    tally::{Uids, in_range, is_failed, is_indexed, uncounted},
    verdict::{Verdict, is_finished},
};
use crate::{Key, api_error, ownership, pods, workloads::count};

/// The maximum number of pods counted in one sync.
const MAX_PER_SYNC: usize = 500;

/// The pods that are counted in this sync.
#[derive(Default)]
struct Counting {
    /// Pods whose finalizer is removed.
    free: Vec<Arc<Pod>>,
    succeeded: Uids,
    failed: Uids,
    /// Whether more pods remain to be counted.
    more: bool,
}

impl Controller {
    /// Counts the pods and stores the status. `event` is recorded once the status is stored.
    pub(super) async fn track(
        &self,
        view: &View<'_>,
        verdict: Option<&Verdict>,
        mut status: JobStatus,
        event: Option<(&str, &str)>,
    ) -> kube::Result<()> {
        let View {
            job, spec, tally, ..
        } = view;
        let stored = job.status.clone().unwrap_or_default();
        let mut counting = count_pods(view, verdict);
        // Adds pods that lost their finalizer before this sync but are not in the counters yet.
        let with_finalizer: Uids = view.tracked().map(|pod| uid(pod)).collect();
        settle(spec, &mut status, &mut counting, |uid| {
            !with_finalizer.contains(uid)
        });
        if is_indexed(spec) {
            let text = tally.completed.to_string();
            status.completed_indexes = (!text.is_empty()).then_some(text);
            status.succeeded = crate::workloads::nonzero(tally.completed.count());
            status.failed_indexes = tally.failed_indexes.as_ref().map(ToString::to_string);
        }
        let now = self.context.now();
        if let Some(verdict) = verdict {
            let interim = if verdict.succeeded {
                "SuccessCriteriaMet"
            } else {
                "FailureTarget"
            };
            set_condition(
                &mut status,
                interim,
                "True",
                &verdict.reason,
                &verdict.message,
                &now,
            );
        }
        // The first store: from here on a crash loses no pod, because the status lists it by uid.
        write_uncounted(&mut status, &counting);
        let mut latest = None;
        if status != stored {
            latest = Some(self.store(job, &status).await?);
        }
        // Set only once the status is stored: a failed store repeats the sync, which would add the failures
        // twice.
        self.records.set(view.key, view.record);
        if let Some((reason, message)) = event {
            self.pods.recorder.normal(*job, reason, message);
        }
        self.free(&counting.free).await?;
        let freed: Uids = counting.free.iter().map(|pod| uid(pod)).collect();
        let before = status.clone();
        settle(spec, &mut status, &mut counting, |uid| freed.contains(uid));
        write_uncounted(&mut status, &counting);
        let pending =
            !counting.succeeded.is_empty() || !counting.failed.is_empty() || counting.more;
        let idle = status.terminating.unwrap_or(0) == 0 && status.ready.unwrap_or(0) == 0;
        // The final condition is the last write: clients may rely on its counts never to change afterwards.
        let ends = verdict.filter(|_| !pending && idle && status.active.unwrap_or(0) == 0);
        if let Some(verdict) = ends {
            let kind = if verdict.succeeded {
                "Complete"
            } else {
                "Failed"
            };
            set_condition(
                &mut status,
                kind,
                "True",
                &verdict.reason,
                &verdict.message,
                &now,
            );
            if verdict.succeeded {
                status.completion_time = Some(now);
            }
        }
        if status != before {
            // The second store builds on the version that the first one returned.
            self.store(latest.as_ref().unwrap_or(job), &status).await?;
        }
        match ends {
            Some(verdict) if verdict.succeeded => {
                let recorder = &self.pods.recorder;
                if spec
                    .completions
                    .is_some_and(|most| status.succeeded.unwrap_or(0) > most)
                {
                    let message = "Too many succeeded pods running after completion count reached";
                    recorder.warning(*job, "TooManySucceededPods", message);
                }
                recorder.normal(*job, "Completed", "Job completed");
            }
            Some(verdict) => {
                let recorder = &self.pods.recorder;
                recorder.warning(*job, &verdict.reason, verdict.message.clone());
            }
            None => {}
        }
        Ok(())
    }

    async fn store(&self, job: &Job, status: &JobStatus) -> kube::Result<Job> {
        let api: Api<Job> = Api::namespaced(
            self.context.client.clone(),
            &job.namespace().unwrap_or_default(),
        );
        let updated = Job {
            status: Some(status.clone()),
            ..job.clone()
        };
        api.replace_status(&job.name_any(), &PostParams::default(), &updated)
            .await
    }

    /// Removes the finalizers of pods.
    async fn free(&self, all: &[Arc<Pod>]) -> kube::Result<()> {
        {
            let mut finalizer_removed = self
                .finalizer_removed
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            // Entered before the requests: a sync that runs meanwhile must not count these pods again.
            finalizer_removed.extend(all.iter().map(|pod| uid(pod)));
        }
        let freed = join_all(all.iter().map(|pod| async {
            let freed = self.remove_finalizer(pod).await;
            if freed.is_err() {
                let mut finalizer_removed = self
                    .finalizer_removed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                finalizer_removed.remove(&uid(pod));
            }
            freed
        }));
        let outcome = freed.await.into_iter().collect();
        // The informer will report no more changes of pods that are already gone, so their entries are removed
        // here.
        let pods = &self.context.informers.pods;
        let mut finalizer_removed = self
            .finalizer_removed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for pod in all {
            let known = pods.get_key(&Key::of(&**pod));
            if known.is_none_or(|known| uid(&known) != uid(pod)) {
                finalizer_removed.remove(&uid(pod));
            }
        }
        outcome
    }

    /// Removes the finalizer of a pod whose Job is gone or over.
    pub(super) async fn free_orphan(&self, key: &Key) -> kube::Result<()> {
        let Some(pod) = self.context.informers.pods.get_key(key) else {
            return Ok(());
        };
        let Some(owner) = ownership::controller_of(&*pod).filter(|owner| owner.kind == "Job")
        else {
            return Ok(());
        };
        let job = self
            .context
            .informers
            .jobs
            .get(key.namespace(), &owner.name);
        let lives = job.is_some_and(|job| counts(&job, &owner.uid));
        if lives || !is_tracked(&pod) {
            return Ok(());
        }
        self.remove_finalizer(&pod).await
    }

    /// Removes the finalizer of a pod.
    pub(super) async fn remove_finalizer(&self, pod: &Pod) -> kube::Result<()> {
        let patch = json!({ "metadata": {
            "uid": pod.uid(),
            "$deleteFromPrimitiveList/finalizers": [pod::TRACKING],
        } });
        let namespace = pod.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &namespace);
        let patched = api
            .patch(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .await;
        match patched {
            // Another pod has the name by now.
            Err(error) if api_error::is_conflict(&error) || api_error::is_invalid(&error) => Ok(()),
            patched => api_error::ignore_not_found(patched).map(drop),
        }
    }
}

/// Returns whether a Job has that UID and is not over.
pub(super) fn counts(job: &Job, uid: &str) -> bool {
    job.metadata.uid.as_deref() == Some(uid) && !is_finished(job)
}

fn uid(pod: &Pod) -> String {
    pod.uid().unwrap_or_default()
}

fn count_pods(view: &View<'_>, verdict: Option<&Verdict>) -> Counting {
    let View {
        job, spec, tally, ..
    } = view;
    let (succeeded, failed) = uncounted(job);
    let mut counting = Counting {
        succeeded,
        failed,
        ..Counting::default()
    };
    let ends_badly = verdict.is_some_and(|verdict| !verdict.succeeded);
    // A Job that is over does not wait for the results of its remaining pods.
    let all_go = verdict.is_some() || job.metadata.deletion_timestamp.is_some();
    for pod in view.tracked() {
        if counting.free.len() >= MAX_PER_SYNC {
            counting.more = true;
            break;
        }
        let is_lost = is_failed(spec, pod);
        let has_succeeded = pods::phase(pod) == "Succeeded";
        let own = uid(pod);
        let waits = || {
            let index = index(pod).and_then(|index| tally.replaced.get(&index));
            index.is_some_and(|held| uid(held) == own)
        };
        if !(all_go || has_succeeded || (is_lost && !waits())) {
            continue;
        }
        counting.free.push(Arc::clone(pod));
        if has_succeeded && !counting.failed.contains(&own) {
            if !is_indexed(spec) {
                counting.succeeded.insert(own);
            }
        } else if (is_lost || ends_badly)
            && policy::action(job, pod) != Action::Ignore
            && in_range(spec, pod)
        {
            counting.failed.insert(own);
        }
    }
    counting
}

/// Adds the pods that have lost their finalizer to the counters.
fn settle(
    spec: &JobSpec,
    status: &mut JobStatus,
    counting: &mut Counting,
    is_free: impl Fn(&String) -> bool,
) {
    let take = |uids: &mut Uids, number: &mut Option<i32>| {
        let before = uids.len();
        uids.retain(|uid| !is_free(uid));
        let added = count(before - uids.len());
        if added > 0 {
            *number = Some(number.unwrap_or(0) + added);
        }
    };
    if !is_indexed(spec) {
        take(&mut counting.succeeded, &mut status.succeeded);
    }
    take(&mut counting.failed, &mut status.failed);
}

fn write_uncounted(status: &mut JobStatus, counting: &Counting) {
    let list = |uids: &Uids| (!uids.is_empty()).then(|| uids.iter().cloned().collect());
    status.uncounted_terminated_pods = Some(UncountedTerminatedPods {
        succeeded: list(&counting.succeeded),
        failed: list(&counting.failed),
    });
}
