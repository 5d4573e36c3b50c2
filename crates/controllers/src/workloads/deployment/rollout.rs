//! One sync of one Deployment: reads its ReplicaSets, takes the next step, reports.
//!
//! Invariant: every write carries the version it was decided on, so a decision on a stale view fails as a conflict and
//! is made again.

use std::{collections::BTreeMap, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};

use super::{
    Error,
    revision::{self, REVISION, ROLLBACK_TO},
    rolling::{self, Limits, Size, Step},
    scaling::{self, Share},
    status,
};
use crate::{
    Context, Key, Recorder, api_error,
    informers::BY_CONTROLLER,
    ownership, pods,
    workloads::{POD_TEMPLATE_HASH, template_hash},
};

pub(super) struct Rollout<'a> {
    context: &'a Context,
    recorder: &'a Recorder,
    deployment: Deployment,
    limits: Limits,
    new: Option<Arc<ReplicaSet>>,
    /// Oldest first.
    old: Vec<Arc<ReplicaSet>>,
}

/// Whether all old pods must be gone before new ones come.
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
        sets.sort_by(|a, b| age(a).cmp(&age(b)));
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

    /// Notes that the spec was seen, and nothing else.
    pub(super) async fn observe_generation(mut self) -> Result<(), Error> {
        let mut status = self.deployment.status.clone().unwrap_or_default();
        if status.observed_generation < self.deployment.metadata.generation {
            status.observed_generation = self.deployment.metadata.generation;
            self.write_status(status).await?;
        }
        Ok(())
    }

    /// For a Deployment that is being deleted.
    pub(super) async fn report_only(mut self) -> Result<(), Error> {
        self.sync_revision(false).await?;
        self.report_counts().await
    }

    /// Says that a rollout was paused or resumed, so that the time in between does not count.
    pub(super) async fn check_paused_condition(&mut self) -> Result<(), Error> {
        if status::deadline(&self.deployment).is_none() {
            return Ok(());
        }
        let mut new_status = self.deployment.status.clone().unwrap_or_default();
        let reason = status::find(&new_status, status::PROGRESSING)
            .and_then(|current| current.reason.as_deref());
        let paused = self.deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
        let (reason, message) = match (paused, reason) {
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

    /// Whether an active set was sized for another number of replicas.
    pub(super) fn is_being_scaled(&self) -> bool {
        self.sets().any(|set| {
            let sized_for = revision::number(set, revision::DESIRED_REPLICAS);
            replicas(set) > 0 && sized_for.is_some_and(|desired| desired != self.limits.desired)
        })
    }

    /// For paused Deployments and those whose size changed: no new template is rolled out.
    pub(super) async fn scale_only(mut self) -> Result<(), Error> {
        self.sync_revision(false).await?;
        self.scale().await?;
        let spec = self.deployment.spec.as_ref();
        if spec.and_then(|spec| spec.paused) == Some(true)
            && !self.deployment.annotations().contains_key(ROLLBACK_TO)
        {
            self.clean_up().await?;
        }
        self.report_counts().await
    }

    /// The next step of a rolling update. Returns when to look again if nothing changes until then.
    pub(super) async fn roll(mut self) -> Result<Option<SignedDuration>, Error> {
        self.sync_revision(true).await?;
        let Some(new) = &self.new else {
            return Ok(None);
        };
        let old: Vec<_> = self.old.iter().map(|set| size(set)).collect();
        match rolling::step(self.limits, size(new), &old) {
            Step::New(target) => self.resize_new(target).await?,
            Step::Old(resizes) => {
                for (index, target) in resizes {
                    self.resize_old(index, target).await?;
                }
            }
            Step::Wait => self.clean_up_if_complete().await?,
        }
        self.report().await
    }

    /// The next step of a Recreate rollout. Returns when to look again if nothing changes until then.
    pub(super) async fn recreate(mut self) -> Result<Option<SignedDuration>, Error> {
        self.sync_revision(false).await?;
        let mut scaled_down = false;
        for index in 0..self.old.len() {
            if replicas(&self.old[index]) > 0 {
                self.resize_old(index, 0).await?;
                scaled_down = true;
            }
        }
        if scaled_down || self.old_pods_are_left() {
            return self.report().await;
        }
        if self.new.is_none() {
            self.sync_revision(true).await?;
        }
        self.resize_new(self.limits.desired).await?;
        self.clean_up_if_complete().await?;
        self.report().await
    }

    /// Follows the rollback annotation: takes the template of the revision asked for.
    pub(super) async fn roll_back(mut self) -> Result<(), Error> {
        self.sync_revision(true).await?;
        let asked = self
            .deployment
            .annotations()
            .get(ROLLBACK_TO)
            .and_then(|text| text.parse::<i64>().ok());
        let target = match asked.unwrap_or_default() {
            0 => revision::last_revision(self.sets().map(|set| &**set)),
            revision => revision,
        };
        let found = self
            .sets()
            .find(|set| target != 0 && revision::revision(set) == target)
            .cloned();
        let mut rolled_back = self.deployment.clone();
        match found {
            None if asked.unwrap_or_default() == 0 => {
                let message = "Unable to find last revision.";
                self.recorder
                    .warning(&self.deployment, "RollbackRevisionNotFound", message);
            }
            None => {
                let message = "Unable to find the revision to rollback to.";
                self.recorder
                    .warning(&self.deployment, "RollbackRevisionNotFound", message);
            }
            Some(set) => {
                let own = set
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.template.clone())
                    .unwrap_or_default();
                let spec = rolled_back.spec.get_or_insert_default();
                if equal_but_for_hash(&own, &spec.template) {
                    let message = format!(
                        "The rollback revision contains the same template as current deployment \"{}\"",
                        self.deployment.name_any()
                    );
                    self.recorder
                        .warning(&self.deployment, "RollbackTemplateUnchanged", message);
                } else {
                    spec.template = without_hash(own);
                    *rolled_back.annotations_mut() =
                        revision::annotations_after_rollback(&self.deployment, &set);
                    let message = format!(
                        "Rolled back deployment \"{}\" to revision {target}",
                        self.deployment.name_any()
                    );
                    self.recorder
                        .normal(&self.deployment, "RollbackDone", message);
                }
            }
        }
        rolled_back.annotations_mut().remove(ROLLBACK_TO);
        self.deployments()
            .replace(
                &self.deployment.name_any(),
                &PostParams::default(),
                &rolled_back,
            )
            .await?;
        Ok(())
    }

    /// Brings the new set's annotations and the Deployment's revision in line, creating the set if asked to.
    async fn sync_revision(&mut self, create: bool) -> Result<(), Error> {
        let revision = self
            .old
            .iter()
            .map(|set| revision::revision(set))
            .max()
            .unwrap_or_default()
            + 1;
        match self.new.clone() {
            Some(existing) => self.adjust_new_set(&existing, revision).await,
            None if create => self.create_new_set(revision).await,
            None => Ok(()),
        }
    }

    async fn adjust_new_set(
        &mut self,
        existing: &Arc<ReplicaSet>,
        revision: i64,
    ) -> Result<(), Error> {
        let mut adjusted = ReplicaSet::clone(existing);
        let annotated = revision::annotate_new_set(&self.deployment, &mut adjusted, revision);
        let min_ready = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.min_ready_seconds);
        let own = adjusted.spec.get_or_insert_default();
        if annotated || own.min_ready_seconds.unwrap_or_default() != min_ready.unwrap_or_default() {
            own.min_ready_seconds = min_ready;
            self.new = Some(self.write_set(&adjusted).await?);
            return Ok(());
        }
        let mut new_status = self.deployment.status.clone().unwrap_or_default();
        let mut changed = self.note_revision(existing.annotations().get(REVISION).cloned());
        if status::deadline(&self.deployment).is_some()
            && status::find(&new_status, status::PROGRESSING).is_none()
        {
            let message = format!("Found new replica set \"{}\"", existing.name_any());
            let found = status::condition(
                status::PROGRESSING,
                "True",
                status::NEW_SET_FOUND,
                &message,
                self.context.clock.now(),
            );
            status::set(&mut new_status, found);
            changed = true;
        }
        if changed {
            self.write_status(new_status).await?;
        }
        Ok(())
    }

    async fn create_new_set(&mut self, revision: i64) -> Result<(), Error> {
        let collisions = self
            .deployment
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        let mut set = new_set(&self.deployment, collisions);
        let total = self.old.iter().map(|set| replicas(set)).sum();
        let size = if is_recreate(&self.deployment) {
            self.limits.desired
        } else {
            rolling::new_size(self.limits, 0, total)
        };
        set.spec.get_or_insert_default().replicas = Some(size);
        revision::annotate_new_set(&self.deployment, &mut set, revision);
        revision::annotate_sizes(&mut set, self.limits);

        let name = set.name_any();
        let mut is_ours_already = false;
        let created = match self
            .replica_sets()
            .create(&PostParams::default(), &set)
            .await
        {
            Ok(created) => created,
            Err(error) if api_error::is_already_exists(&error) => {
                is_ours_already = true;
                self.existing_twin(&set).await?
            }
            Err(error) if api_error::is_namespace_terminating(&error) => return Ok(()),
            Err(error) => return Err(self.creation_failed(&name, error).await),
        };
        if !is_ours_already && size > 0 {
            let message = format!("Scaled up replica set {name} from 0 to {size}");
            self.recorder
                .normal(&self.deployment, "ScalingReplicaSet", message);
        }
        self.new = Some(Arc::new(created));

        let mut new_status = self.deployment.status.clone().unwrap_or_default();
        let mut changed = self.note_revision(Some(revision.to_string()));
        if !is_ours_already && status::deadline(&self.deployment).is_some() {
            let message = format!("Created new replica set \"{name}\"");
            let now = self.context.clock.now();
            let created = status::condition(
                status::PROGRESSING,
                "True",
                status::NEW_SET_CREATED,
                &message,
                now,
            );
            status::set(&mut new_status, created);
            changed = true;
        }
        if changed {
            self.write_status(new_status).await?;
        }
        Ok(())
    }

    /// The set whose name we wanted: ours after all (the informer lags), or a hash collision to be counted.
    async fn existing_twin(&mut self, wanted: &ReplicaSet) -> Result<ReplicaSet, Error> {
        let name = wanted.name_any();
        let existing = self.replica_sets().get(&name).await?;
        let template = |set: &ReplicaSet| {
            set.spec
                .as_ref()
                .and_then(|spec| spec.template.clone())
                .unwrap_or_default()
        };
        let is_ours = ownership::is_controlled_by(
            &existing,
            self.deployment.metadata.uid.as_deref().unwrap_or_default(),
        );
        if is_ours && equal_but_for_hash(&template(&existing), &template(wanted)) {
            return Ok(existing);
        }
        let mut new_status = self.deployment.status.clone().unwrap_or_default();
        new_status.collision_count = Some(new_status.collision_count.unwrap_or_default() + 1);
        self.write_status(new_status).await?;
        Err(Error::HashCollision(name))
    }

    async fn creation_failed(&mut self, name: &str, error: kube::Error) -> Error {
        let message = format!(
            "Failed to create new replica set \"{name}\": {}",
            api_error::message(&error)
        );
        if status::deadline(&self.deployment).is_some() {
            let now = self.context.clock.now();
            let mut new_status = self.deployment.status.clone().unwrap_or_default();
            let failed = status::condition(
                status::PROGRESSING,
                "False",
                status::SET_CREATE_ERROR,
                &message,
                now,
            );
            status::set(&mut new_status, failed);
            if let Err(error) = self.write_status(new_status).await {
                tracing::debug!(%error, "could not report that a ReplicaSet was not created");
            }
        }
        self.recorder
            .warning(&self.deployment, status::SET_CREATE_ERROR, message);
        Error::Api(error)
    }

    async fn scale(&mut self) -> Result<(), Error> {
        let active: Vec<_> = (0..self.old.len())
            .filter(|&index| replicas(&self.old[index]) > 0)
            .collect();
        let new_replicas = self.new.as_ref().map_or(0, |set| replicas(set));
        match (new_replicas > 0, &active[..]) {
            (_, []) if self.new.is_some() => {
                return self.resize_new_noted(self.limits.desired).await;
            }
            (false, []) if self.old.is_empty() => return Ok(()),
            (false, []) => {
                return self
                    .resize_old(self.old.len() - 1, self.limits.desired)
                    .await;
            }
            (false, &[only]) => return self.resize_old(only, self.limits.desired).await,
            _ => {}
        }
        if self.new_is_saturated() {
            for index in active {
                self.resize_old(index, 0).await?;
            }
        } else if !is_recreate(&self.deployment) {
            let indexes: Vec<_> = active
                .into_iter()
                .map(Some)
                .chain((new_replicas > 0).then_some(None))
                .collect();
            let set_at = |index: Option<usize>| match index {
                Some(index) => Some(&self.old[index]),
                None => self.new.as_ref(),
            };
            let shares: Vec<_> = indexes
                .iter()
                .filter_map(|&index| set_at(index))
                .map(|set| share(set))
                .collect();
            let status_replicas = self
                .deployment
                .status
                .as_ref()
                .and_then(|status| status.replicas);
            let sizes =
                scaling::proportional(self.limits, status_replicas.unwrap_or_default(), &shares);
            for (index, size) in indexes.into_iter().zip(sizes) {
                match index {
                    Some(index) => self.resize_old(index, size).await?,
                    None => self.resize_new_noted(size).await?,
                }
            }
        }
        Ok(())
    }

    /// The new set is all there, as sized for the present spec.
    fn new_is_saturated(&self) -> bool {
        self.new.as_ref().is_some_and(|set| {
            replicas(set) == self.limits.desired
                && revision::number(set, revision::DESIRED_REPLICAS) == Some(self.limits.desired)
                && available(set) == self.limits.desired
        })
    }

    async fn resize_new(&mut self, target: i32) -> Result<(), Error> {
        match &self.new {
            Some(new) if replicas(new) != target => self.resize_new_noted(target).await,
            _ => Ok(()),
        }
    }

    async fn resize_new_noted(&mut self, target: i32) -> Result<(), Error> {
        if let Some(new) = &self.new {
            self.new = Some(self.resize(new, target).await?);
        }
        Ok(())
    }

    async fn resize_old(&mut self, index: usize, target: i32) -> Result<(), Error> {
        self.old[index] = self.resize(&self.old[index], target).await?;
        Ok(())
    }

    /// Writes a set's size and what it was sized for, if either changes.
    async fn resize(&self, set: &Arc<ReplicaSet>, target: i32) -> Result<Arc<ReplicaSet>, Error> {
        let from = replicas(set);
        if from == target && revision::sizes_are_noted(set, self.limits) {
            return Ok(Arc::clone(set));
        }
        let mut resized = ReplicaSet::clone(set);
        resized.spec.get_or_insert_default().replicas = Some(target);
        revision::annotate_sizes(&mut resized, self.limits);
        let written = self.write_set(&resized).await?;
        if from != target {
            let direction = if from < target { "up" } else { "down" };
            let message = format!(
                "Scaled {direction} replica set {} from {from} to {target}",
                set.name_any()
            );
            self.recorder
                .normal(&self.deployment, "ScalingReplicaSet", message);
        }
        Ok(written)
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

    /// Deletes the oldest revisions beyond the history limit.
    async fn clean_up(&mut self) -> Result<(), Error> {
        let limit = self
            .deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit);
        // Unlimited is spelled as the largest number.
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

    /// Puts the revision on the Deployment (written with the next status). Returns whether that is new.
    fn note_revision(&mut self, revision: Option<String>) -> bool {
        let Some(revision) = revision else {
            return false;
        };
        if self.deployment.annotations().get(REVISION) == Some(&revision) {
            return false;
        }
        self.deployment
            .annotations_mut()
            .insert(REVISION.to_owned(), revision);
        true
    }

    async fn write_status(&mut self, status: DeploymentStatus) -> Result<(), Error> {
        self.deployment.status = Some(status);
        let name = self.deployment.name_any();
        let written = self
            .deployments()
            .replace_status(&name, &PostParams::default(), &self.deployment)
            .await?;
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

/// The set for the Deployment's template, without size and annotations.
fn new_set(deployment: &Deployment, collisions: Option<i32>) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let mut template = spec.template;
    let hash = template_hash(&template, collisions);
    let labels: &mut BTreeMap<_, _> = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(POD_TEMPLATE_HASH.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector
        .match_labels
        .get_or_insert_default()
        .insert(POD_TEMPLATE_HASH.to_owned(), hash.clone());
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{}-{hash}", deployment.name_any())),
            namespace: deployment.namespace(),
            owner_references: Some(vec![ownership::controller_reference(deployment)]),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(0),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    }
}

fn without_hash(mut template: PodTemplateSpec) -> PodTemplateSpec {
    if let Some(labels) = template
        .metadata
        .as_mut()
        .and_then(|metadata| metadata.labels.as_mut())
    {
        labels.remove(POD_TEMPLATE_HASH);
    }
    template
}

fn equal_but_for_hash(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    if a.spec != b.spec {
        return false;
    }
    let metadata = |template: &PodTemplateSpec| {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata
            .labels
            .get_or_insert_default()
            .remove(POD_TEMPLATE_HASH);
        metadata.annotations.get_or_insert_default();
        // Never set by people, and not kept by every server.
        metadata.creation_timestamp = None;
        metadata
    };
    metadata(a) == metadata(b)
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

fn share(set: &ReplicaSet) -> Share {
    Share {
        replicas: replicas(set),
        most_before: revision::number(set, revision::MAX_REPLICAS),
        age: age(set),
    }
}
