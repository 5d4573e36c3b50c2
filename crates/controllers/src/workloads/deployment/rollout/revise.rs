//! Finds and updates the ReplicaSet of the current template, or creates it under a name that contains the
//! template's hash.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{ResourceExt, api::PostParams};

use super::{
    super::{
        Error,
        revision::{self, REVISION},
        rolling, status,
    },
    Rollout, is_recreate, replicas,
};
use crate::{
    api_error, ownership,
    workloads::{POD_TEMPLATE_HASH, template_hash},
};

impl Rollout<'_> {
    /// Updates the new set's annotations and the Deployment's revision, and creates the set if `create` is true.
    pub(super) async fn sync_revision(&mut self, create: bool) -> Result<(), Error> {
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
        // The Deployment takes the set's revision, which a write of this sync may just have raised.
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
        // The set is created with its first size, which saves the second write of every rollout.
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

    /// Reads the set whose name was already taken. Returns it if it is this Deployment's own, which the informer
    /// does not show yet; otherwise counts a hash collision and fails.
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
        // Same owner and template: an earlier sync created it, and the informer is late.
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

    /// Sets the revision annotation of the Deployment, which is written with the next status. Returns whether it
    /// changed.
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
}

/// Builds the set for the Deployment's template, without size and annotations.
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

/// Returns whether the templates are equal apart from the hash label. The API server stores equal quantities in one
/// notation and omits empty fields, so no other difference needs to be ignored.
pub(super) fn equal_but_for_hash(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
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
        // Users never set the field, and some API servers drop it.
        metadata.creation_timestamp = None;
        metadata
    };
    metadata(a) == metadata(b)
}
