//! Runs one sync of one Deployment: reads its ReplicaSets, takes the next step, and reports the status.
//!
//! The steps are in this file. [`resize`] scales sets, [`revise`] finds or creates the set of the current template,
//! and [`roll_back`] restores an older template.
//!
//! Invariant: every write carries the resource version on which it was decided, so a decision based on stale data
//! fails as a conflict and is made again.

mod resize;
mod revise;
mod roll_back;

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};

use self::{resize::Place, revise::equal_but_for_hash};
use super::{
    Error, revision,
    rolling::{self, Limits, Size, Step},
    status,
};
use crate::{Context, Key, Recorder, api_error, informers::BY_CONTROLLER, pods};

pub(super) struct Rollout<'a> {
    context: &'a Context,
    recorder: &'a Recorder,
    deployment: Deployment,
    limits: Limits,
    new: Option<Arc<ReplicaSet>>,
    /// The ReplicaSets of older templates, oldest first.
    old: Vec<Arc<ReplicaSet>>,
}

/// Returns whether all old pods must be gone before new ones are created.
pub(super) fn is_recreate(deployment: &Deployment) -> bool {
    let strategy = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

impl<'a> Rollout<'a> {
    pub(super) fn new(
        context: &'a Context,
        recorder: &'a Recorder,
        deployment: Deployment,
        mut sets: Vec<Arc<ReplicaSet>>,
    ) -> Self {
        // Oldest first: if several sets have the current template, all of them see the oldest as the new one.
        sets.sort_by_cached_key(|set| age(set));
        let template = deployment.spec.as_ref().map(|spec| &spec.template);
        let position = sets.iter().position(|set| {
            let own = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
            own.zip(template)
                .is_some_and(|(own, template)| equal_but_for_hash(own, template))
        });
        let new = position.map(|position| sets.remove(position));
        let limits = Limits::of(&deployment);
        Self {
            context,
            recorder,
            deployment,
            limits,
            new,
            old: sets,
        }
    }

    /// Records in the status that the spec was observed, and does nothing else.
    pub(super) async fn observe_generation(mut self) -> Result<(), Error> {
        let mut status = self.deployment.status.clone().unwrap_or_default();
        if status.observed_generation < self.deployment.metadata.generation {
            status.observed_generation = self.deployment.metadata.generation;
            self.write_status(status).await?;
        }
        Ok(())
    }

    /// Updates the status of a Deployment that is being deleted, without scaling anything.
    pub(super) async fn report_only(mut self) -> Result<(), Error> {
        self.sync_revision(false).await?;
        self.report_counts().await
    }

    /// Records in the conditions that a rollout was paused or resumed, so that the paused time does not count
    /// towards the progress deadline.
    pub(super) async fn check_paused_condition(&mut self) -> Result<(), Error> {
        if status::deadline(&self.deployment).is_none() {
            return Ok(());
        }
        let mut new_status = self.deployment.status.clone().unwrap_or_default();
        let reason = status::find(&new_status, status::PROGRESSING)
            .and_then(|current| current.reason.as_deref());
        let paused = self.deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
        let (reason, message) = match (paused, reason) {
            // A rollout that has timed out stays so until it makes progress; pausing must not hide that.
            (_, Some(status::TIMED_OUT)) => return Ok(()),
            (true, reason) if reason != Some(status::PAUSED) => {
                (status::PAUSED, "Deployment is paused")
            }
            (false, Some(status::PAUSED)) => (status::RESUMED, "Deployment is resumed"),
            _ => return Ok(()),
        };
        let now = self.context.clock.now();
        status::set(
            &mut new_status,
            status::condition(status::PROGRESSING, "Unknown", reason, message, now),
        );
        self.write_status(new_status).await
    }

    /// Takes the next step of a rolling update. Returns when to sync again if nothing changes until then.
    pub(super) async fn roll(mut self) -> Result<Option<SignedDuration>, Error> {
        self.sync_revision(true).await?;
        let Some(new) = &self.new else {
            return Ok(None);
        };
        let old: Vec<_> = self.old.iter().map(|set| size(set)).collect();
        match rolling::step(self.limits, size(new), &old) {
            Step::New(target) => self.resize(Place::New, target).await?,
            Step::Old(resizes) => {
                for (index, target) in resizes {
                    self.resize(Place::Old(index), target).await?;
                }
            }
            Step::Wait => self.clean_up_if_complete().await?,
        }
        self.report().await
    }

    /// Takes the next step of a Recreate rollout. Returns when to sync again if nothing changes until then.
    pub(super) async fn recreate(mut self) -> Result<Option<SignedDuration>, Error> {
        self.sync_revision(false).await?;
        let mut scaled_down = false;
        for index in 0..self.old.len() {
            if replicas(&self.old[index]) > 0 {
                self.resize(Place::Old(index), 0).await?;
                scaled_down = true;
            }
        }
        if scaled_down || self.old_pods_are_left() {
            return self.report().await;
        }
        // The new set is created only now, because its creation with replicas would start pods beside old
        // ones.
        if self.new.is_none() {
            self.sync_revision(true).await?;
        }
        self.resize(Place::New, self.limits.desired).await?;
        self.clean_up_if_complete().await?;
        self.report().await
    }

    fn old_pods_are_left(&self) -> bool {
        let informer = &self.context.informers.pods;
        self.old.iter().any(|set| {
            let counted = set
                .status
                .as_ref()
                .is_some_and(|status| status.replicas > 0);
            let of_set = informer.by_index(
                BY_CONTROLLER,
                set.metadata.uid.as_deref().unwrap_or_default(),
            );
            // The status may lag behind the pods, and terminating pods are not in it, so both are asked.
            counted || of_set.iter().any(|pod| !pods::is_finished(pod))
        })
    }

    async fn clean_up_if_complete(&mut self) -> Result<(), Error> {
        let complete = self
            .deployment
            .status
            .as_ref()
            .is_some_and(|status| status::is_complete(&self.deployment, status));
        if complete {
            self.clean_up().await
        } else {
            Ok(())
        }
    }

    /// Deletes the ReplicaSets of the oldest revisions beyond the history limit.
    async fn clean_up(&mut self) -> Result<(), Error> {
        let limit = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit);
        // The largest number means unlimited.
        let Some(limit) = limit.filter(|&limit| limit != i32::MAX) else {
            return Ok(());
        };
        let mut living: Vec<_> = self
            .old
            .iter()
            .filter(|set| set.metadata.deletion_timestamp.is_none())
            .collect();
        let surplus = living
            .len()
            .saturating_sub(usize::try_from(limit).unwrap_or_default());
        living.sort_by_key(|set| (revision::revision(set), age(set)));
        for set in living.into_iter().take(surplus) {
            let status = set.status.as_ref();
            let is_empty = replicas(set) == 0 && status.is_none_or(|status| status.replicas == 0);
            // An unobserved spec may be about to create pods, which a deleted set would leave behind.
            let is_observed =
                set.metadata.generation <= status.and_then(|status| status.observed_generation);
            if is_empty && is_observed {
                let deleted = self
                    .replica_sets()
                    .delete(&set.name_any(), &DeleteParams::default())
                    .await;
                api_error::ignore_not_found(deleted)?;
            }
        }
        Ok(())
    }

    async fn report_counts(mut self) -> Result<(), Error> {
        let sets: Vec<_> = self.sets().map(|set| &**set).collect();
        let now = self.context.clock.now();
        let new_status = status::counts(&self.deployment, &sets, self.new.as_deref(), now);
        if self.deployment.status.as_ref() != Some(&new_status) {
            self.write_status(new_status).await?;
        }
        Ok(())
    }

    async fn report(mut self) -> Result<Option<SignedDuration>, Error> {
        let sets: Vec<_> = self.sets().map(|set| &**set).collect();
        let now = self.context.clock.now();
        let new_status = status::rollout(&self.deployment, &sets, self.new.as_deref(), now);
        let again = status::until_deadline(&self.deployment, &new_status, now);
        if self.deployment.status.as_ref() != Some(&new_status) {
            self.write_status(new_status).await?;
        }
        Ok(again)
    }

    fn sets(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }

    async fn write_status(&mut self, status: DeploymentStatus) -> Result<(), Error> {
        self.deployment.status = Some(status);
        let name = self.deployment.name_any();
        let written = self
            .deployments()
            .replace_status(&name, &PostParams::default(), &self.deployment)
            .await?;
        // A sync may write more than once; the next write must build on this one.
        self.deployment.metadata.resource_version = written.metadata.resource_version;
        Ok(())
    }

    async fn write_set(&self, set: &ReplicaSet) -> Result<Arc<ReplicaSet>, Error> {
        Ok(Arc::new(
            self.replica_sets()
                .replace(&set.name_any(), &PostParams::default(), set)
                .await?,
        ))
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(
            self.context.client.clone(),
            &self.deployment.namespace().unwrap_or_default(),
        )
    }

    fn replica_sets(&self) -> Api<ReplicaSet> {
        Api::namespaced(
            self.context.client.clone(),
            &self.deployment.namespace().unwrap_or_default(),
        )
    }
}

fn age(set: &ReplicaSet) -> (Option<jiff::Timestamp>, String) {
    (
        set.metadata.creation_timestamp.as_ref().map(|time| time.0),
        Key::of(set).name().to_owned(),
    )
}

fn replicas(set: &ReplicaSet) -> i32 {
    set.spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status
        .as_ref()
        .and_then(|status| status.available_replicas)
        .unwrap_or_default()
}

fn size(set: &ReplicaSet) -> Size {
    Size {
        replicas: replicas(set),
        available: available(set),
    }
}
