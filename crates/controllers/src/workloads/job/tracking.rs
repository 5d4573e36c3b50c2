//! Carries the counting of a Job's pods out: their UIDs into the status, their finalizers off, then the numbers up
//! (upstream: `trackJobStatusAndRemoveFinalizers`).
//!
//! Invariant: a finalizer goes only after a status that knows the pod was stored, and a number goes up only after the
//! finalizer went; so wherever this stops, the next sync goes on from there.

use std::sync::{Arc, PoisonError};

use futures::future::try_join_all;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec, JobStatus, UncountedTerminatedPods},
    core::v1::Pod,
};
use kube::{Api, ResourceExt, api::PostParams};

use super::{
    Controller, Verdict,
    pod::{index, is_tracked},
    policy::{self, Action},
    set_condition,
    tally::{Tally, Uids, is_failed, is_indexed, uncounted},
};
use crate::{pods, workloads::count};

/// Pods counted in one sync at most.
const MOST: usize = 500;

/// The pods that are counted now.
#[derive(Default)]
struct Counting {
    /// Those whose finalizer goes.
    free: Vec<Arc<Pod>>,
    succeeded: Uids,
    failed: Uids,
    /// Something the stored status does not know.
    news: bool,
    /// There is more to count.
    more: bool,
}

impl Controller {
    /// Counts, and stores the status.
    #[allow(clippy::too_many_arguments)]
    pub(super) async fn track(
        &self,
        job: &Job,
        spec: &JobSpec,
        tally: &Tally,
        all: &[Arc<Pod>],
        let_go: &Uids,
        verdict: Option<&Verdict>,
        mut status: JobStatus,
    ) -> kube::Result<()> {
        let stored = job.status.clone().unwrap_or_default();
        let mut counting = count_pods(job, spec, tally, all, let_go, verdict);
        // What lost its finalizer before this sync, and was not added up.
        let with_finalizer: Uids = all
            .iter()
            .filter(|pod| is_tracked(pod) && !let_go.contains(&uid(pod)))
            .map(|pod| uid(pod))
            .collect();
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
            let interim = match verdict.succeeded {
                true => "SuccessCriteriaMet",
                false => "FailureTarget",
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
        write_uncounted(&mut status, &counting);
        let mut latest = job.clone();
        if status != stored {
            latest = self.store(&latest, &status).await?;
        }
        self.free(&counting.free).await?;
        let freed: Uids = counting.free.iter().map(|pod| uid(pod)).collect();
        let before = status.clone();
        settle(spec, &mut status, &mut counting, |uid| freed.contains(uid));
        write_uncounted(&mut status, &counting);
        let pending =
            !counting.succeeded.is_empty() || !counting.failed.is_empty() || counting.more;
        let idle = status.terminating.unwrap_or(0) == 0 && status.ready.unwrap_or(0) == 0;
        let ends = verdict.filter(|_| !pending && idle && status.active.unwrap_or(0) == 0);
        if let Some(verdict) = ends {
            let kind = match verdict.succeeded {
                true => "Complete",
                false => "Failed",
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
            self.store(&latest, &status).await?;
        }
        match ends {
            Some(verdict) if verdict.succeeded => {
                let recorder = &self.pods.recorder;
                if spec
                    .completions
                    .is_some_and(|most| status.succeeded.unwrap_or(0) > most)
                {
                    let message = "Too many succeeded pods running after completion count reached";
                    recorder.warning(job, "TooManySucceededPods", message);
                }
                recorder.normal(job, "Completed", "Job completed");
            }
            Some(verdict) => {
                let recorder = &self.pods.recorder;
                recorder.warning(job, &verdict.reason, verdict.message.clone());
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

    /// Takes the finalizers off.
    async fn free(&self, all: &[Arc<Pod>]) -> kube::Result<()> {
        {
            let mut let_go = self.let_go.lock().unwrap_or_else(PoisonError::into_inner);
            let_go.extend(all.iter().map(|pod| uid(pod)));
        }
        let freed = try_join_all(all.iter().map(|pod| async {
            let freed = self.let_go_of(pod).await;
            if freed.is_err() {
                let mut let_go = self.let_go.lock().unwrap_or_else(PoisonError::into_inner);
                let_go.remove(&uid(pod));
            }
            freed
        }));
        freed.await.map(drop)
    }
}

fn uid(pod: &Pod) -> String {
    pod.uid().unwrap_or_default()
}

fn count_pods(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    let_go: &Uids,
    verdict: Option<&Verdict>,
) -> Counting {
    let (succeeded, failed) = uncounted(job);
    let mut counting = Counting {
        succeeded,
        failed,
        ..Counting::default()
    };
    let ends_badly = verdict.is_some_and(|verdict| !verdict.succeeded);
    let deleting = job.metadata.deletion_timestamp.is_some();
    for pod in all
        .iter()
        .filter(|pod| is_tracked(pod) && !let_go.contains(&uid(pod)))
    {
        if counting.free.len() >= MOST {
            counting.more = true;
            break;
        }
        let is_lost = is_failed(spec, pod);
        let has_succeeded = pods::phase(pod) == "Succeeded";
        let over = verdict.is_some() && pods::is_deleting(pod);
        if !(is_lost || has_succeeded || over || deleting) {
            continue;
        }
        counting.free.push(Arc::clone(pod));
        let own = uid(pod);
        if has_succeeded {
            if !is_indexed(spec)
                && !counting.failed.contains(&own)
                && counting.succeeded.insert(own)
            {
                counting.news = true;
            }
        } else if is_lost || ends_badly {
            let counts = policy::action(job, pod) != Action::Ignore || !is_lost;
            let completions = spec.completions.unwrap_or(0);
            let in_range = !is_indexed(spec) || index(pod).is_some_and(|index| index < completions);
            if counts && in_range && counting.failed.insert(own) {
                counting.news = true;
            }
        }
    }
    counting.news |= tally.completed != tally.completed_before;
    counting
}

/// Adds up the pods that have lost their finalizer.
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
