//! The Deployment controller: rolls a template out over ReplicaSets, one per revision.
//!
//! The decisions are pure functions: [`rolling`] (how far sets may move), [`scaling`] (shares during a rollout),
//! [`status`] (counts and conditions), [`revision`] (annotations). This module orders the steps of one sync;
//! [`rollout`] carries them out. Nothing is remembered between syncs: the sets and their annotations are the state.

mod revision;
mod rolling;
mod rollout;
mod scaling;
mod status;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::Pod,
};
use kube::{Resource, ResourceExt, core::SelectorExt};

use crate::{Change, Context, Informers, Key, Queue, Recorder, ownership};
pub(crate) use rolling::{Rounding, scaled};
use rollout::Rollout;

const WORKERS: usize = 5;

/// The reasons for which a sync ends early and is retried.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("ReplicaSet {0} exists with another template")]
    HashCollision(String),
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("deployment");
    let informers = &context.informers;

    informers.deployments.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    informers.replica_sets.on_change({
        let (queue, informers) = (queue.clone(), Arc::clone(informers));
        move |change| replica_set_changed(&informers, &queue, change)
    });
    informers.pods.on_change({
        let (queue, informers) = (queue.clone(), Arc::clone(informers));
        move |change| pod_changed(&informers, &queue, change)
    });

    let recorder = context.recorder("deployment-controller");
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        recorder,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.deployments.synced().await
            && informers.replica_sets.synced().await
            && informers.pods.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

fn replica_set_changed(informers: &Informers, queue: &Queue<Key>, change: &Change<'_, ReplicaSet>) {
    let set = change.object();
    let before = change
        .previous()
        .and_then(|old| deployment_of(informers, old));
    match deployment_of(informers, set) {
        Some(deployment) => {
            let key = Key::of(&*deployment);
            // A set that changed its owner concerns both Deployments: one lost it.
            if let Some(before) = before.filter(|before| Key::of(&**before) != key) {
                queue.add(Key::of(&*before));
            }
            queue.add(key);
        }
        None => {
            before
                .into_iter()
                .for_each(|before| queue.add(Key::of(&*before)));
            if ownership::controller_of(&**set).is_none() && !change.is_deleted() {
                enqueue_matching(informers, queue, set);
            }
        }
    }
}

/// Wakes the Deployment of a deleted pod if its strategy is Recreate, which waits for the last old pod to be gone.
fn pod_changed(informers: &Informers, queue: &Queue<Key>, change: &Change<'_, Pod>) {
    let Change::Deleted(pod) = change else { return };
    let Some(reference) =
        ownership::controller_of(&***pod).filter(|reference| reference.kind == "ReplicaSet")
    else {
        return;
    };
    let set = informers.replica_sets.get(
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        &reference.name,
    );
    if let Some(deployment) = set.and_then(|set| deployment_of(informers, &set))
        && rollout::is_recreate(&deployment)
    {
        queue.add(Key::of(&*deployment));
    }
}

fn deployment_of(informers: &Informers, set: &ReplicaSet) -> Option<Arc<Deployment>> {
    let reference = ownership::controller_of(set)
        .filter(|reference| reference.kind == Deployment::kind(&()))?;
    let deployment = informers
        .deployments
        .get(set.metadata.namespace.as_deref()?, &reference.name)?;
    (deployment.metadata.uid.as_ref() == Some(&reference.uid)).then_some(deployment)
}

/// Wakes every Deployment that might adopt `set`.
fn enqueue_matching(informers: &Informers, queue: &Queue<Key>, set: &ReplicaSet) {
    for deployment in informers
        .deployments
        .in_namespace(set.metadata.namespace.as_deref().unwrap_or_default())
    {
        let selector = ownership::selector(deployment.spec.as_ref().map(|spec| &spec.selector));
        if selector
            .is_some_and(|selector| !selector.selects_all() && selector.matches(set.labels()))
        {
            queue.add(Key::of(&*deployment));
        }
    }
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    recorder: Recorder,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let Some(deployment) = self.context.informers.deployments.get_key(key) else {
            return Ok(());
        };
        let Some(spec) = &deployment.spec else {
            return Ok(());
        };
        let Some(selector) = ownership::selector(Some(&spec.selector)) else {
            return Ok(());
        };
        if selector.selects_all() {
            let message =
                "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.warning(&*deployment, "SelectingAll", message);
            return self
                .rollout(&deployment, Vec::new())
                .observe_generation()
                .await;
        }

        let (client, informer) = (&self.context.client, &self.context.informers.replica_sets);
        let sets =
            ownership::claim_from(client, &*deployment, &selector, informer, |_| true).await?;

        let mut rollout = self.rollout(&deployment, sets);
        if deployment.metadata.deletion_timestamp.is_some() {
            return rollout.report_only().await;
        }
        // Before the early returns below, since pausing and resuming must show in either case.
        rollout.check_paused_condition().await?;
        if spec.paused == Some(true) {
            return rollout.scale_only().await;
        }
        if let Some(asked) = revision::rollback_to(&deployment) {
            return rollout.roll_back(asked).await;
        }
        // Scaling comes before the rollout, so that all sets keep their proportions.
        if rollout.is_being_scaled() {
            return rollout.scale_only().await;
        }
        let requeue = if rollout::is_recreate(&deployment) {
            rollout.recreate().await?
        } else {
            rollout.roll().await?
        };
        if let Some(after) = requeue {
            self.queue
                .add_after(key.clone(), Duration::try_from(after).unwrap_or_default());
        }
        Ok(())
    }

    fn rollout(&self, deployment: &Deployment, sets: Vec<Arc<ReplicaSet>>) -> Rollout<'_> {
        Rollout::new(&self.context, &self.recorder, deployment.clone(), sets)
    }
}
