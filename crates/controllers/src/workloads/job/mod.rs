//! The Job controller: runs pods to completion and counts each, until enough have succeeded or too many have
//! failed.
//!
//! [`tally`] counts, [`verdict`] decides whether the Job is over, [`policy`] evaluates the policies, [`manage`]
//! creates and deletes the pods that [`pod`] builds, as fast as [`backoff`] allows, and [`tracking`] stores the
//! counts. Every pod has a finalizer until the Job's status includes it, so no result is lost or counted twice,
//! whoever deletes the pod and whenever this process ends.

mod backoff;
mod indexes;
mod manage;
mod pod;
mod policy;
mod status;
mod tally;
mod tracking;
mod verdict;

pub use tally::wanted_active;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobSpec},
    core::v1::Pod,
};
use kube::{ResourceExt, core::Selector};

use self::{
    backoff::{Record, Records},
    tally::{Tally, Uids},
    tracking::counts,
    verdict::Verdict,
};
use super::{
    count,
    expectations::Expectations,
    pod_control::PodControl,
    pod_watch::{PodOwner, PodWatch},
};
use crate::{Change, Context, Key, Queue, informers::BY_CONTROLLER, ownership};

const WORKERS: usize = 5;
/// The only value of `managedBy` for which this controller is responsible.
const CONTROLLER: &str = "kubernetes.io/job-controller";

impl PodOwner for Job {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref()?.selector.as_ref())
    }

    fn min_ready_seconds(&self) -> i32 {
        0
    }
}

/// Returns the condition that ended the Job (Complete or Failed); `None` if it is not over.
pub(crate) fn finished(job: &Job) -> Option<&JobCondition> {
    verdict::condition(job, "Complete").or_else(|| verdict::condition(job, "Failed"))
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("job");
    let orphans = Queue::new("job-orphan-pods");
    let expectations = Arc::new(Expectations::default());
    let finalizer_removed: Arc<Mutex<Uids>> = Arc::default();
    let records: Arc<Records> = Arc::default();
    let informers = &context.informers;
    informers.jobs.on_change({
        let (queue, expectations) = (queue.clone(), Arc::clone(&expectations));
        let (orphans, pods) = (orphans.clone(), informers.pods.clone());
        let records = Arc::clone(&records);
        move |change| {
            let job = change.object();
            let key = Key::of(&**job);
            if change.is_deleted() {
                expectations.forget(&key);
                records.forget(&key);
                let uid = job.metadata.uid.as_deref().unwrap_or_default();
                for pod in pods.by_index(BY_CONTROLLER, uid) {
                    orphans.add(Key::of(&*pod));
                }
            }
            queue.add(key);
        }
    });
    let watch = PodWatch {
        owners: informers.jobs.clone(),
        pods: informers.pods.clone(),
        expectations: Arc::clone(&expectations),
        queue: queue.clone(),
    };
    informers.pods.on_change({
        let (finalizer_removed, orphans, jobs) = (
            Arc::clone(&finalizer_removed),
            orphans.clone(),
            informers.jobs.clone(),
        );
        move |change| {
            let pod = change.object();
            if change.is_deleted() || !pod::is_tracked(pod) {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let mut finalizer_removed = finalizer_removed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                // The informer shows the pod without its finalizer now, so the entry has done its work.
                finalizer_removed.remove(uid);
            }
            watch.observe(change);
            // A pod whose Job is gone or over loses its finalizer, since nothing will count it any more.
            if pod::is_tracked(pod)
                && !matches!(change, Change::Deleted(_))
                && let Some(owner) = ownership::controller_of(&**pod)
                && owner.kind == "Job"
                && jobs.is_synced()
                && jobs
                    .get(
                        pod.metadata.namespace.as_deref().unwrap_or_default(),
                        &owner.name,
                    )
                    .is_none_or(|job| !counts(&job, &owner.uid))
            {
                // The informers of pods and Jobs are independent: the Job may appear a moment after its pod.
                orphans.add_after(Key::of(&**pod), Duration::from_secs(1));
            }
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        expectations,
        finalizer_removed,
        records,
        pods: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("job-controller"),
        },
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if context.informers.jobs.synced().await && context.informers.pods.synced().await {
            let worker = Arc::clone(&controller);
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&worker);
                async move { controller.sync(&key).await }
            });
            orphans.run(&context, 1, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.free_orphan(&key).await }
            });
        }
    });
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    expectations: Arc<Expectations>,
    /// UIDs of pods whose finalizer is being removed, although the informer may still show it.
    finalizer_removed: Arc<Mutex<Uids>>,
    /// The failures of each Job that the back-off remembers.
    records: Arc<Records>,
    pods: PodControl,
}

/// A Job and its pods in the state that one sync sees.
struct View<'a> {
    key: &'a Key,
    job: &'a Job,
    spec: &'a JobSpec,
    all: &'a [Arc<Pod>],
    finalizer_removed: &'a Uids,
    tally: &'a Tally,
    /// The Job's record including the failures that are new in this view.
    record: Record,
    now: Timestamp,
}

impl View<'_> {
    /// Iterates the pods that are not counted yet.
    fn tracked(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.all.iter().filter(|pod| {
            pod::is_tracked(pod)
                && !self
                    .finalizer_removed
                    .contains(&pod.uid().unwrap_or_default())
        })
    }
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(job) = self.context.informers.jobs.get_key(key) else {
            self.expectations.forget(key);
            self.records.forget(key);
            return Ok(());
        };
        let Some(spec) = &job.spec else { return Ok(()) };
        let foreign = spec
            .managed_by
            .as_deref()
            .is_some_and(|by| by != CONTROLLER);
        if foreign {
            return Ok(());
        }
        if verdict::is_finished(&job) {
            self.records.forget(key);
            return Ok(());
        }
        let Some(selector) = ownership::selector(spec.selector.as_ref()) else {
            return Ok(());
        };
        // The expectations are read before the pods are listed: a write that the list does not show yet must not be
        // repeated.
        let may_act = self.expectations.are_met(key);
        let (client, informer) = (&self.context.client, &self.context.informers.pods);
        let all = ownership::claim_from(client, &*job, &selector, informer, |_| true).await?;
        // A copy, because the pods and this set must be of one moment for the count.
        let finalizer_removed = self
            .finalizer_removed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let tally = tally::tally(&job, spec, &all, &finalizer_removed);
        let record = self.records.of(key);
        let view = View {
            key,
            job: &job,
            spec,
            all: &all,
            finalizer_removed: &finalizer_removed,
            tally: &tally,
            record: record.with(&tally.new_succeeded, &tally.new_failed),
            now: self.context.clock.now(),
        };
        self.act(&view, may_act).await
    }

    async fn act(&self, view: &View<'_>, may_act: bool) -> kube::Result<()> {
        let View {
            key,
            job,
            spec,
            tally,
            now,
            ..
        } = *view;
        let mut status = job.status.clone().unwrap_or_default();
        let suspended = spec.suspend == Some(true);
        // The deadline counts from the start, so a suspended Job must not start its clock.
        if status.start_time.is_none() && !suspended {
            status.start_time = Some(self.context.now());
            if let Some(seconds) = spec.active_deadline_seconds {
                let seconds = u64::try_from(seconds).unwrap_or(0);
                self.queue
                    .add_after(key.clone(), Duration::from_secs(seconds));
            }
        }
        let mut verdict = verdict::verdict(job, spec, tally, view.all, now);
        let mut active = count(tally.active.len());
        let mut ready = tally.ready;
        let (mut failure, mut event) = (None, None);
        if verdict.is_some() {
            failure = self.delete_all(view, may_act).await;
            if failure.is_none() && may_act {
                (active, ready) = (0, 0);
            } else {
                // The pods are not all deleted yet, or the informer may lack some, so the Job cannot end in this
                // sync.
                verdict = None;
            }
        } else {
            let acts = may_act && job.metadata.deletion_timestamp.is_none();
            if acts {
                (active, failure) = self.manage(view).await;
                // Deleted pods may still be reported ready; the API server refuses more ready than active
                // pods.
                ready = ready.min(active);
            }
            let done = match spec.completions {
                // Without `completions` one success is enough, but the other pods may finish their work.
                None => tally.succeeded > 0 && active == 0,
                Some(completions) => tally.succeeded >= completions && active == 0,
            };
            if done {
                verdict = Some(Verdict::complete());
            } else if acts {
                event = status::set_suspended(&mut status, suspended, &self.context.now());
            }
        }
        if let Some(left) = verdict::deadline_in(job, spec, now).filter(SignedDuration::is_positive)
        {
            let left = Duration::try_from(left).unwrap_or_default();
            self.queue.add_after(key.clone(), left);
        }
        status.active = super::nonzero(active);
        status.ready = Some(ready);
        // Pods that were just deleted are terminating, although the informer does not show it yet.
        let deleted = (count(tally.active.len()) - active).max(0);
        status.terminating = Some(tally.terminating + deleted);
        let tracked = self.track(view, verdict.as_ref(), status, event).await;
        match (failure, tracked) {
            // The counts are stored even if creating or deleting pods failed, or finished pods would wait for
            // the retry.
            (Some(error), _) => Err(error),
            (None, outcome) => outcome,
        }
    }
}
