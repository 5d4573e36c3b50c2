//! The CronJob controller: creates a Job each time the schedule is due (kube-controller-manager: cronjob-controller
//! v2).
//!
//! [`schedule`] computes the due times. A Job's name is derived from the CronJob and the due time, so no due time
//! gets two Jobs, whatever is interrupted in between.

mod schedule;

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, CronJobStatus, Job},
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, PostParams},
};

use self::schedule::{Due, NeverDue, Plan};
use super::{job::finished, write_status};
use crate::{
    Context, Informer, Key, Queue, Recorder, api_error, informers::BY_CONTROLLER, ownership,
};

const WORKERS: usize = 5;
/// The next sync is planned a little after the due time, because clocks differ.
const CLOCK_SKEW: Duration = Duration::from_millis(100);
/// The annotation of a Job with the time at which it was due, in the CronJob's time zone.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// Starts the controller.
pub fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("cronjob");
    let cron_jobs: Informer<CronJob> = Informer::new(
        Api::all(context.client.clone()),
        &[],
        context.tasks.clone(),
        context.shutdown.clone(),
    );
    cron_jobs.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    context.informers.jobs.on_change({
        let queue = queue.clone();
        move |change| {
            let job = change.object();
            if let Some(owner) = ownership::controller_of(&**job)
                && owner.kind == "CronJob"
            {
                let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
                queue.add(Key::new(namespace, &owner.name));
            }
        }
    });
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        recorder: context.recorder("cronjob-controller"),
        cron_jobs,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if controller.cron_jobs.synced().await && context.informers.jobs.synced().await {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    recorder: Recorder,
    cron_jobs: Informer<CronJob>,
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(cron) = self.cron_jobs.get_key(key) else {
            return Ok(());
        };
        let uid = cron.metadata.uid.as_deref().unwrap_or_default();
        let jobs = self.context.informers.jobs.by_index(BY_CONTROLLER, uid);
        // A Job of an earlier sync may already be in the informer while the status that lists it is not.
        let cron = match self.reread(&cron, &jobs).await? {
            Some(newer) => Arc::new(newer),
            None => cron,
        };
        let mut status = cron.status.clone().unwrap_or_default();
        self.clean_up(&cron, &jobs, &mut status).await?;
        self.note_finished(&cron, &jobs, &mut status).await?;
        // An error is returned only after the status is written, because the Jobs removed from it stay
        // removed.
        let outcome = self.start_if_due(key, &cron, &jobs, &mut status).await;
        // The API omits an empty list, so an empty one here would differ from the stored status for ever.
        if status.active.as_ref().is_some_and(Vec::is_empty) {
            status.active = None;
        }
        self.write_status(&cron, status).await?;
        outcome
    }

    /// Reads the CronJob from the API server if there are running Jobs that the informer's copy does not list as
    /// active. Returns it if it lists one of them. A running Job that neither copy lists is reported as an event.
    async fn reread(&self, cron: &CronJob, jobs: &[Arc<Job>]) -> kube::Result<Option<CronJob>> {
        let status = cron.status.clone().unwrap_or_default();
        let unknown = |job: &&Arc<Job>| finished(job).is_none() && !is_active(&status, job);
        let unknown: Vec<_> = jobs.iter().filter(unknown).collect();
        if unknown.is_empty() {
            return Ok(None);
        }
        let namespace = cron.namespace().unwrap_or_default();
        let api: Api<CronJob> = Api::namespaced(self.context.client.clone(), &namespace);
        let live = api.get_opt(&cron.name_any()).await?;
        let live = live.filter(|live| live.metadata.uid == cron.metadata.uid);
        let knows = |job: &Job| {
            let status = live.as_ref().and_then(|live| live.status.as_ref());
            status.is_some_and(|status| is_active(status, job))
        };
        for job in unknown.iter().filter(|job| !knows(job)) {
            let message = format!(
                "Saw a job that the controller did not create or forgot: {}",
                job.name_any()
            );
            self.recorder.warning(cron, "UnexpectedJob", message);
        }
        let newer = unknown.iter().any(|job| knows(job));
        Ok(live.filter(|_| newer))
    }

    /// Removes finished and missing Jobs from `status.active`.
    async fn note_finished(
        &self,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> kube::Result<()> {
        for job in jobs {
            if let Some(end) = finished(job)
                && is_active(status, job)
            {
                forget(status, job.metadata.uid.as_deref());
                let message = format!(
                    "Saw completed job: {}, condition: {}",
                    job.name_any(),
                    end.type_
                );
                self.recorder.normal(cron, "SawCompletedJob", message);
            }
            let completed = job
                .status
                .as_ref()
                .and_then(|status| status.completion_time.clone());
            if finished(job).is_some_and(|end| end.type_ == "Complete")
                && completed > status.last_successful_time
            {
                status.last_successful_time = completed;
            }
        }
        let known: Vec<_> = status.active.iter().flatten().cloned().collect();
        for reference in known {
            let name = reference.name.clone().unwrap_or_default();
            if jobs.iter().any(|job| job.metadata.uid == reference.uid) {
                continue;
            }
            // The informer may not have a Job yet that was just created.
            let live = self.jobs(cron).get_opt(&name).await?;
            if live.is_none_or(|live| live.metadata.uid != reference.uid) {
                forget(status, reference.uid.as_deref());
                let message = format!("Active job went missing: {name}");
                self.recorder.normal(cron, "MissingJob", message);
            }
        }
        Ok(())
    }

    async fn start_if_due(
        &self,
        key: &Key,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> kube::Result<()> {
        if cron.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let plan = match schedule::zone(cron) {
            // An unknown time zone is reported even for a suspended CronJob.
            Ok(_) if cron.spec.suspend == Some(true) => return Ok(()),
            Ok(zone) => Plan::of(cron, zone),
            Err(unknown) => Err(unknown),
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err((reason, message)) => {
                self.recorder.warning(cron, reason, message);
                return Ok(());
            }
        };
        let last = |status: &CronJobStatus| status.last_schedule_time.as_ref().map(|at| at.0);
        let now = self.context.clock.now();
        let due = match plan.due(cron, last(status), now) {
            Ok(due) => due,
            Err(NeverDue) => {
                let message = format!(
                    "invalid schedule: {} : time difference between two schedules is less than 1 second",
                    cron.spec.schedule
                );
                self.recorder.warning(cron, "InvalidSchedule", message);
                return Ok(());
            }
        };
        let outcome = match due {
            Some(due) => self.start(cron, jobs, &plan, due, status).await,
            None => Ok(()),
        };
        // Creating the Job took time; the next due time must be computed from now, or it might lie in the
        // past.
        let now = self.context.clock.now();
        if let Some(next) = plan.upcoming(cron, last(status), now) {
            let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
            self.queue.add_after(key.clone(), wait + CLOCK_SKEW);
        }
        outcome
    }

    /// Starts the Job for a due time unless the CronJob or its concurrency policy forbids it.
    async fn start(
        &self,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        plan: &Plan,
        due: Due,
        status: &mut CronJobStatus,
    ) -> kube::Result<()> {
        let spec = &cron.spec;
        let now = self.context.clock.now();
        if due.many_missed {
            let message = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.recorder.warning(cron, "TooManyMissedTimes", message);
        }
        let late = spec
            .starting_deadline_seconds
            .is_some_and(|seconds| now.duration_since(due.at) > SignedDuration::from_secs(seconds));
        if late {
            let at = due.at.to_zoned(TimeZone::UTC);
            let at = at.strftime("%a, %d %b %Y %H:%M:%S %z");
            let message = format!("Missed scheduled time to start a job: {at}");
            self.recorder.warning(cron, "MissSchedule", message);
            return Ok(());
        }
        let served = status
            .last_schedule_time
            .as_ref()
            .is_some_and(|last| last.0 == due.at);
        let name = job_name(cron, due.at);
        let mut running = status.active.iter().flatten();
        // The name contains the due time, so a Job of this name was started for it.
        if served || running.any(|job| job.name.as_deref() == Some(&name)) {
            return Ok(());
        }
        match spec.concurrency_policy.as_deref() {
            Some("Forbid")
                if status
                    .active
                    .as_ref()
                    .is_some_and(|active| !active.is_empty()) =>
            {
                let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.recorder.normal(cron, "JobAlreadyActive", message);
                return Ok(());
            }
            Some("Replace") => {
                let running: Vec<_> = jobs.iter().filter(|job| is_active(status, job)).collect();
                for job in running {
                    self.delete(cron, job, status).await?;
                }
            }
            _ => {}
        }
        // `Replace` deletes the running Jobs before the new one is created, so they do not overlap by intent.
        let job = new_job(cron, plan, &name, due.at);
        match self.jobs(cron).create(&PostParams::default(), &job).await {
            Ok(made) => {
                self.recorder
                    .normal(cron, "SuccessfulCreate", format!("Created job {name}"));
                status.active.get_or_insert_default().push(reference(&made));
                status.last_schedule_time = Some(Time(due.at));
                Ok(())
            }
            Err(error) if api_error::is_namespace_terminating(&error) => Ok(()),
            Err(error) if api_error::is_already_exists(&error) => {
                let existing = self.jobs(cron).get_opt(&name).await?;
                let own = existing.filter(|job| {
                    ownership::is_controlled_by(
                        job,
                        cron.metadata.uid.as_deref().unwrap_or_default(),
                    )
                });
                // The Job was created before a restart, or for another due time in the same minute, and the status
                // does not list it.
                if let Some(own) = own.filter(|own| !is_active(status, own)) {
                    status.active.get_or_insert_default().push(reference(&own));
                    status.last_schedule_time = Some(Time(due.at));
                }
                Ok(())
            }
            Err(error) => {
                let message = format!("Error creating job: {}", api_error::message(&error));
                self.recorder.warning(cron, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Deletes the oldest Jobs beyond the history limits.
    async fn clean_up(
        &self,
        cron: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> kube::Result<()> {
        let spec = &cron.spec;
        let limits = [
            ("Complete", spec.successful_jobs_history_limit),
            ("Failed", spec.failed_jobs_history_limit),
        ];
        for (kind, limit) in limits {
            let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else {
                continue;
            };
            let of_kind = |job: &&Arc<Job>| finished(job).is_some_and(|end| end.type_ == kind);
            let mut ended: Vec<_> = jobs.iter().filter(of_kind).collect();
            ended.sort_by_key(|job| {
                let started = job
                    .status
                    .as_ref()
                    .and_then(|status| status.start_time.clone());
                // Jobs started in the same second are ordered by name, so the same ones are deleted at every
                // sync.
                (started, job.name_any())
            });
            for job in ended.iter().take(ended.len().saturating_sub(limit)) {
                if job.metadata.deletion_timestamp.is_none() {
                    self.delete(cron, job, status).await?;
                }
            }
        }
        Ok(())
    }

    /// Deletes a Job and removes it from `status.active`.
    async fn delete(
        &self,
        cron: &CronJob,
        job: &Job,
        status: &mut CronJobStatus,
    ) -> kube::Result<()> {
        let name = job.name_any();
        let deleted = self
            .jobs(cron)
            .delete(&name, &DeleteParams::background())
            .await;
        match api_error::ignore_not_found(deleted) {
            Ok(_) => {
                forget(status, job.metadata.uid.as_deref());
                self.recorder
                    .normal(cron, "SuccessfulDelete", format!("Deleted job {name}"));
                Ok(())
            }
            Err(error) => {
                let message = format!("Deleted job: {}", api_error::message(&error));
                self.recorder.warning(cron, "FailedDelete", message);
                Err(error)
            }
        }
    }

    async fn write_status(&self, cron: &CronJob, status: CronJobStatus) -> kube::Result<()> {
        if cron.status.clone().unwrap_or_default() == status {
            return Ok(());
        }
        let updated = CronJob {
            status: Some(status),
            ..cron.clone()
        };
        write_status(&self.context.client, &updated).await
    }

    fn jobs(&self, cron: &CronJob) -> Api<Job> {
        Api::namespaced(
            self.context.client.clone(),
            &cron.namespace().unwrap_or_default(),
        )
    }
}

fn is_active(status: &CronJobStatus, job: &Job) -> bool {
    let mut active = status.active.iter().flatten();
    active.any(|known| known.uid == job.metadata.uid)
}

fn forget(status: &mut CronJobStatus, uid: Option<&str>) {
    if let Some(active) = &mut status.active {
        active.retain(|known| known.uid.as_deref() != uid);
    }
}

fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.name_any(), at.as_second() / 60)
}

fn reference(job: &Job) -> ObjectReference {
    ObjectReference {
        resource_version: job.resource_version(),
        ..job.object_ref(&())
    }
}

fn new_job(cron: &CronJob, plan: &Plan, name: &str, at: Timestamp) -> Job {
    let template = cron.spec.job_template.clone();
    let from = template.metadata.unwrap_or_default();
    let local = at.to_zoned(plan.zone.clone());
    let stamp = if local.offset().is_zero() {
        at.to_string()
    } else {
        local.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    };
    let mut annotations = from.annotations.unwrap_or_default();
    annotations.insert(SCHEDULED.to_owned(), stamp);
    Job {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: cron.namespace(),
            labels: from.labels,
            annotations: Some(annotations),
            // kube-controller-manager sets it as well; the API server replaces it.
            creation_timestamp: Some(Time(at)),
            owner_references: Some(vec![ownership::controller_reference(cron)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
