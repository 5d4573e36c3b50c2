//! The Job controller: pods that end, counted one by one, until enough have succeeded or too many have failed.
//!
//! [`tally`] counts and decides, [`policy`] reads the policies, [`pod`] makes pods, [`tracking`] carries the counting out.
//! Every pod carries a finalizer until the Job's status has it, so that no result is lost or counted twice whatever
//! deletes the pod and whenever this process ends.

mod indexes;
mod pod;
mod policy;
mod tally;
mod tracking;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::SignedDuration;
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    core::Selector,
};
use serde_json::json;

use self::tally::{Tally, Uids};
use super::{
    count,
    expectations::Expectations,
    pod_control::PodControl,
    pod_watch::{PodOwner, PodWatch},
    replica_set,
};
use crate::{Change, Context, Key, Queue, api_error, informers::BY_CONTROLLER, ownership, pods};

/// Pods created or deleted per sync at most.
const BURST: usize = 500;
const WORKERS: usize = 5;
/// The only `managedBy` that is this controller's.
const CONTROLLER: &str = "kubernetes.io/job-controller";

impl PodOwner for Job {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref()?.selector.as_ref())
    }

    fn min_ready_seconds(&self) -> i32 {
        0
    }
}

/// Whether a Job is over, in which way, and since when.
pub(crate) fn finished(job: &Job) -> Option<&JobCondition> {
    tally::condition(job, "Complete").or_else(|| tally::condition(job, "Failed"))
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("job");
    let orphans = Queue::new("job-orphan-pods");
    let expectations = Arc::new(Expectations::default());
    let let_go: Arc<Mutex<Uids>> = Arc::default();
    let informers = &context.informers;
    informers.jobs.on_change({
        let (queue, expectations) = (queue.clone(), Arc::clone(&expectations));
        let (orphans, pods) = (orphans.clone(), informers.pods.clone());
        move |change| {
            let job = change.object();
            let key = Key::of(&**job);
            if change.is_deleted() {
                expectations.forget(&key);
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
        let (let_go, orphans, jobs) =
            (Arc::clone(&let_go), orphans.clone(), informers.jobs.clone());
        move |change| {
            let pod = change.object();
            if change.is_deleted() || !pod::is_tracked(pod) {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let mut let_go = let_go.lock().unwrap_or_else(PoisonError::into_inner);
                let_go.remove(uid);
            }
            watch.observe(change);
            // A pod of a Job that counts no more is let go of.
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
                orphans.add_after(Key::of(&**pod), Duration::from_secs(1));
            }
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        expectations,
        let_go,
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
    /// Pods whose finalizer is on its way out, though the informer may still show it.
    let_go: Arc<Mutex<Uids>>,
    pods: PodControl,
}

/// How a Job ends: the interim condition, then the final one, with the same reason.
struct Verdict {
    succeeded: bool,
    reason: String,
    message: String,
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(job) = self.context.informers.jobs.get_key(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let Some(spec) = &job.spec else { return Ok(()) };
        let foreign = spec
            .managed_by
            .as_deref()
            .is_some_and(|by| by != CONTROLLER);
        if foreign || tally::is_finished(&job) {
            return Ok(());
        }
        let Some(selector) = ownership::selector(spec.selector.as_ref()) else {
            return Ok(());
        };
        // Asked first: what is unseen when the pods are listed must not be acted on.
        let may_act = self.expectations.are_met(key);
        let (client, informer) = (&self.context.client, &self.context.informers.pods);
        let all = ownership::claim_from(client, &*job, &selector, informer, |_| true).await?;
        let now = self.context.clock.now();
        let let_go = self
            .let_go
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let tally = tally::tally(&job, spec, &all, &let_go);

        let mut status = job.status.clone().unwrap_or_default();
        let suspended = spec.suspend == Some(true);
        if status.start_time.is_none() && !suspended {
            status.start_time = Some(self.context.now());
            if let Some(seconds) = spec.active_deadline_seconds {
                let seconds = u64::try_from(seconds).unwrap_or(0);
                self.queue
                    .add_after(key.clone(), Duration::from_secs(seconds));
            }
        }
        let mut verdict = verdict(&job, spec, &tally, &all, now);
        let mut active = count(tally.active.len());
        let mut ready = tally.ready;
        let mut failure = None;
        if verdict.is_some() {
            failure = self.delete_all(key, &job, &tally, may_act).await;
            if failure.is_none() && may_act {
                (active, ready) = (0, 0);
            } else {
                // There may be pods that nobody has seen yet.
                verdict = None;
            }
        } else {
            let acts = may_act && job.metadata.deletion_timestamp.is_none();
            if acts {
                let managed = self.manage(key, &job, spec, &tally, &all).await;
                active = managed.0;
                failure = managed.1;
                ready = ready.min(active);
            }
            let done = match spec.completions {
                None => tally.succeeded > 0 && active == 0,
                Some(completions) => tally.succeeded >= completions && active == 0,
            };
            if done {
                verdict = Some(Verdict {
                    succeeded: true,
                    reason: "CompletionsReached".to_owned(),
                    message: "Reached expected number of succeeded pods".to_owned(),
                });
            } else if acts {
                self.tell_suspension(&job, &mut status, suspended);
            }
        }
        if let Some(left) = tally::deadline_in(&job, spec, now).filter(SignedDuration::is_positive)
        {
            let left = Duration::try_from(left).unwrap_or_default();
            self.queue.add_after(key.clone(), left);
        }
        status.active = super::nonzero(active);
        status.ready = Some(ready);
        // What was just deleted is on its way out, though the informer does not know yet.
        let deleted = (count(tally.active.len()) - active).max(0);
        status.terminating = Some(tally.terminating + deleted);
        let tracked = self
            .track(&job, spec, &tally, &all, &let_go, verdict.as_ref(), status)
            .await;
        match (failure, tracked) {
            (Some(error), _) => Err(error),
            (None, outcome) => outcome,
        }
    }

    /// Deletes the pods of a Job that is over; returns the first error.
    async fn delete_all(
        &self,
        key: &Key,
        job: &Job,
        tally: &Tally,
        may_act: bool,
    ) -> Option<kube::Error> {
        if !may_act || tally.active.is_empty() {
            return None;
        }
        self.delete(key, job, &tally.active).await
    }

    async fn delete(&self, key: &Key, job: &Job, doomed: &[Arc<Pod>]) -> Option<kube::Error> {
        self.expectations
            .expect(key, 0, doomed.iter().map(|pod| Key::of(&**pod)));
        let failed = |pod: &Pod| {
            self.expectations.deleted(key, &Key::of(pod));
        };
        self.pods.delete(job, doomed, failed).await
    }

    /// Creates or deletes pods (upstream: `manageJob`); gives how many are active then, and the first error.
    async fn manage(
        &self,
        key: &Key,
        job: &Job,
        spec: &JobSpec,
        tally: &Tally,
        all: &[Arc<Pod>],
    ) -> (i32, Option<kube::Error>) {
        let active = count(tally.active.len());
        if spec.suspend == Some(true) {
            let doomed = &tally.active[..tally.active.len().min(BURST)];
            if doomed.is_empty() {
                return (active, None);
            }
            let error = self.delete(key, job, doomed).await;
            return (active - count(doomed.len()), error);
        }
        let wanted = tally::wanted_active(spec, tally);
        let now = self.context.clock.now();
        let mut surplus = usize::try_from(active - wanted).unwrap_or(0).min(BURST);
        let mut doomed = misplaced(spec, tally);
        surplus = surplus.max(doomed.len().min(BURST));
        if surplus > 0 {
            doomed.truncate(surplus);
            let rest: Vec<_> = tally
                .active
                .iter()
                .filter(|pod| !doomed.iter().any(|own| Arc::ptr_eq(own, pod)))
                .cloned()
                .collect();
            let more = surplus - doomed.len();
            doomed.extend(replica_set::first_to_go(
                &rest,
                more,
                &Default::default(),
                now,
            ));
            let error = self.delete(key, job, &doomed).await;
            return (active - count(doomed.len()), error);
        }
        let held = match tally::replaces_failed_only(spec) {
            true => tally.terminating,
            false => 0,
        };
        let missing = usize::try_from(wanted - active - held)
            .unwrap_or(0)
            .min(BURST);
        if missing == 0 {
            return (active, None);
        }
        let per_index = spec.backoff_limit_per_index.is_some();
        let pause = match per_index {
            true => SignedDuration::ZERO,
            false => tally::backoff(spec, all, now),
        };
        if pause.is_positive() {
            let pause = Duration::try_from(pause).unwrap_or_default();
            self.queue.add_after(key.clone(), pause);
            return (active, None);
        }
        let bodies = bodies(job, spec, tally, all, missing);
        if bodies.is_empty() {
            return (active, None);
        }
        self.expectations.expect(key, bodies.len(), []);
        let failed = || {
            self.expectations.created(key);
        };
        let creations = self.pods.create(job, &bodies, failed).await;
        (active + count(creations.created), creations.error)
    }

    fn tell_suspension(&self, job: &Job, status: &mut JobStatus, suspended: bool) {
        let now = self.context.now();
        let (value, reason, message) = match suspended {
            true => ("True", "JobSuspended", "Job suspended"),
            false => ("False", "JobResumed", "Job resumed"),
        };
        if !set_condition(status, "Suspended", value, reason, message, &now) {
            return;
        }
        if suspended {
            status.start_time = None;
            self.pods.recorder.normal(job, "Suspended", message);
        } else {
            status.start_time = Some(now);
            self.pods.recorder.normal(job, "Resumed", message);
        }
    }

    /// Lets a pod go whose Job is gone or over.
    async fn free_orphan(&self, key: &Key) -> kube::Result<()> {
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
        if lives || !pod::is_tracked(&pod) {
            return Ok(());
        }
        self.let_go_of(&pod).await
    }

    /// Takes the finalizer off a pod.
    async fn let_go_of(&self, pod: &Pod) -> kube::Result<()> {
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
            // Another pod has its name by now.
            Err(error) if api_error::is_conflict(&error) || api_error::is_invalid(&error) => Ok(()),
            patched => api_error::ignore_not_found(patched).map(drop),
        }
    }
}

/// Whether a Job is the one of that UID, and not over.
fn counts(job: &Job, uid: &str) -> bool {
    job.metadata.uid.as_deref() == Some(uid) && !tally::is_finished(job)
}

/// Whether the Job is over, and why.
fn verdict(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    now: jiff::Timestamp,
) -> Option<Verdict> {
    if let Some(met) = tally::condition(job, "SuccessCriteriaMet") {
        return Some(Verdict {
            succeeded: true,
            reason: met.reason.clone().unwrap_or_default(),
            message: met.message.clone().unwrap_or_default(),
        });
    }
    if let Some((reason, message)) = tally::failure(job, spec, tally, all, now) {
        return Some(Verdict {
            succeeded: false,
            reason,
            message,
        });
    }
    let completions = spec.completions.unwrap_or(0);
    let message = policy::succeeded(job, &tally.completed, completions)?;
    Some(Verdict {
        succeeded: true,
        reason: "SuccessPolicy".to_owned(),
        message,
    })
}

/// Active pods of an indexed Job whose index is done, lost, out of range, or another active pod's.
fn misplaced(spec: &JobSpec, tally: &Tally) -> Vec<Arc<Pod>> {
    if !tally::is_indexed(spec) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let is_open = |index: i32| {
        let lost = tally.failed_indexes.as_ref();
        index < spec.completions.unwrap_or(0)
            && !tally.completed.has(index)
            && lost.is_none_or(|lost| !lost.has(index))
    };
    let mut pods = tally.active.clone();
    pods.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
    pods.retain(|pod| match pod::index(pod) {
        Some(index) => !(is_open(index) && seen.insert(index)),
        None => true,
    });
    pods
}

/// The bodies of the pods that are missing, at most `missing`.
fn bodies(
    job: &Job,
    spec: &JobSpec,
    tally: &Tally,
    all: &[Arc<Pod>],
    missing: usize,
) -> Vec<Arc<Vec<u8>>> {
    if !tally::is_indexed(spec) {
        let body = pod::body(job, None, None);
        return body.map(|body| vec![body; missing]).unwrap_or_default();
    }
    let held = tally::replaces_failed_only(spec);
    let holds = |pod: &&Arc<Pod>| pods::is_active(pod) || (held && pods::is_terminating(pod));
    let taken = all
        .iter()
        .filter(holds)
        .filter_map(|pod| pod::index(pod))
        .collect();
    let per_index = spec.backoff_limit_per_index.is_some();
    let failures = match per_index {
        true => tally::failures_by_index(job, spec, all),
        false => Default::default(),
    };
    tally::open_indexes(spec, tally, &taken, missing)
        .into_iter()
        .filter_map(|index| {
            let failures = per_index.then(|| failures.get(&index).copied().unwrap_or(0));
            pod::body(job, Some(index), failures)
        })
        .collect()
}

/// Sets a condition; whether that changed anything. One that is not there need not be set to False.
fn set_condition(
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
