//! Scales ReplicaSets: one by one during a rollout, and in proportion when the Deployment itself is scaled.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt;

use super::{
    super::{
        Error, revision,
        scaling::{self, Share},
    },
    Rollout, age, available, is_recreate, replicas,
};

/// The position of a ReplicaSet in a rollout.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    New,
    /// The index among the old sets, oldest first.
    Old(usize),
}

impl Rollout<'_> {
    /// Returns whether an active set was sized for another number of replicas than the Deployment has now.
    pub(in super::super) fn is_being_scaled(&self) -> bool {
        self.sets().any(|set| {
            let sized_for = revision::number(set, revision::DESIRED_REPLICAS);
            replicas(set) > 0 && sized_for.is_some_and(|desired| desired != self.limits.desired)
        })
    }

    /// Syncs a Deployment that is paused or was scaled: scales the sets, but rolls out no new template.
    pub(in super::super) async fn scale_only(mut self) -> Result<(), Error> {
        self.sync_revision(false).await?;
        self.scale().await?;
        let spec = self.deployment.spec.as_ref();
        if spec.and_then(|spec| spec.paused) == Some(true)
            && revision::rollback_to(&self.deployment).is_none()
        {
            self.clean_up().await?;
        }
        self.report_counts().await
    }

    async fn scale(&mut self) -> Result<(), Error> {
        let mut active: Vec<_> = (0..self.old.len()).map(Place::Old).collect();
        active.extend(self.new.is_some().then_some(Place::New));
        active.retain(|&place| self.at(place).is_some_and(|set| replicas(set) > 0));
        let latest = match self.new {
            Some(_) => Some(Place::New),
            None => self.old.len().checked_sub(1).map(Place::Old),
        };
        match (&active[..], latest) {
            ([], None) => {}
            // With one active set there is nothing to divide. Without any, the latest gets all.
            (&[only], _) | ([], Some(only)) => self.resize(only, self.limits.desired).await?,
            // The rollout is complete, so what is left of old sets is only surplus.
            _ if self.new_is_saturated() => {
                for index in (0..self.old.len()).rev() {
                    self.resize(Place::Old(index), 0).await?;
                }
            }
            // Recreate never has two active sets on purpose, so there are no proportions to keep.
            _ if is_recreate(&self.deployment) => {}
            _ => self.share_out(&active).await?,
        }
        Ok(())
    }

    /// Scales all active sets in proportion, and annotates each with the size it was scaled for.
    async fn share_out(&mut self, active: &[Place]) -> Result<(), Error> {
        let sets = active.iter().filter_map(|&place| self.at(place));
        let shares: Vec<_> = sets.map(|set| share(set)).collect();
        let status = self.deployment.status.as_ref();
        let pods = status
            .and_then(|status| status.replicas)
            .unwrap_or_default();
        for (index, size) in scaling::proportional(self.limits, pods, &shares) {
            self.resize_and_note(active[index], size).await?;
        }
        Ok(())
    }

    /// Returns whether the new set has all its pods available, and was scaled for the current spec.
    fn new_is_saturated(&self) -> bool {
        self.new.as_ref().is_some_and(|set| {
            replicas(set) == self.limits.desired
                && revision::number(set, revision::DESIRED_REPLICAS) == Some(self.limits.desired)
                && available(set) == self.limits.desired
        })
    }

    /// Scales a set. A set that already has the size is left alone, whatever its annotations are.
    pub(super) async fn resize(&mut self, place: Place, target: i32) -> Result<(), Error> {
        match self.at(place) {
            Some(set) if replicas(set) != target => self.resize_and_note(place, target).await,
            _ => Ok(()),
        }
    }

    /// Writes a set's size and the annotations with the sizes it was scaled for, if either changes.
    async fn resize_and_note(&mut self, place: Place, target: i32) -> Result<(), Error> {
        let Some(set) = self.at(place) else {
            return Ok(());
        };
        let from = replicas(set);
        let mut resized = ReplicaSet::clone(set);
        resized.spec.get_or_insert_default().replicas = Some(target);
        if !revision::annotate_sizes(&mut resized, self.limits) && from == target {
            return Ok(());
        }
        let written = self.write_set(&resized).await?;
        if from != target {
            let direction = if from < target { "up" } else { "down" };
            let message = format!(
                "Scaled {direction} replica set {} from {from} to {target}",
                written.name_any()
            );
            self.recorder
                .normal(&self.deployment, "ScalingReplicaSet", message);
        }
        match place {
            Place::New => self.new = Some(written),
            Place::Old(index) => self.old[index] = written,
        }
        Ok(())
    }

    fn at(&self, place: Place) -> Option<&Arc<ReplicaSet>> {
        match place {
            Place::New => self.new.as_ref(),
            Place::Old(index) => self.old.get(index),
        }
    }
}

fn share(set: &ReplicaSet) -> Share {
    Share {
        replicas: replicas(set),
        most_before: revision::number(set, revision::MAX_REPLICAS),
        age: age(set),
    }
}
