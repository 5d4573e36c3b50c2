//! Sizes of ReplicaSets: written one by one, and shared out when the Deployment itself is scaled.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt;

use super::{
    super::{
        Error,
        revision::{self, ROLLBACK_TO},
        scaling::{self, Share},
    },
    Rollout, age, available, is_recreate, replicas,
};

impl Rollout<'_> {
    /// Whether an active set was sized for another number of replicas.
    pub(in super::super) fn is_being_scaled(&self) -> bool {
        self.sets().any(|set| {
            let sized_for = revision::number(set, revision::DESIRED_REPLICAS);
            replicas(set) > 0 && sized_for.is_some_and(|desired| desired != self.limits.desired)
        })
    }

    /// For paused Deployments and those whose size changed: no new template is rolled out.
    pub(in super::super) async fn scale_only(mut self) -> Result<(), Error> {
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

    pub(super) async fn resize_new(&mut self, target: i32) -> Result<(), Error> {
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

    pub(super) async fn resize_old(&mut self, index: usize, target: i32) -> Result<(), Error> {
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
}

fn share(set: &ReplicaSet) -> Share {
    Share {
        replicas: replicas(set),
        most_before: revision::number(set, revision::MAX_REPLICAS),
        age: age(set),
    }
}
