//! The StatefulSet controller: pods with ordinals, each with its own name and claims, created and deleted in order.
//!
//! [`identity`] derives a pod's identity, [`claims`] manages its claims, [`revisions`] stores templates, and
//! [`rollout`] decides which pods are replaced. One sync visits the ordinals in order, as kube-controller-manager's
//! `updateStatefulSet` does.
//!
//! Invariant: unless the pod management policy is Parallel, a sync acts on at most one pod, and on none before all
//! pods below it are available. Names are fixed, so a lagging informer never leads to a duplicate pod, and
//! deletions carry the pod's UID.

mod claims;
mod identity;
mod revisions;
mod rollout;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::{Pod, PodTemplateSpec},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Selector,
};
use serde_json::json;

use self::{
    revisions::{RevisionStore, Revisions},
    rollout::Strategy,
};
use super::{
    expectations::Expectations,
    pod_watch::{PodOwner, PodWatch},
    revision, write_status,
};
use crate::{Context, Key, Queue, Recorder, api_error, ownership, pods};

const WORKERS: usize = 5;

impl PodOwner for StatefulSet {
    fn selector(&self) -> Option<Selector> {
        ownership::selector(self.spec.as_ref().map(|spec| &spec.selector))
    }

    fn min_ready_seconds(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds)
            .unwrap_or_default()
    }
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("statefulset");
    let informers = &context.informers;
    informers.stateful_sets.on_change({
        let queue = queue.clone();
        move |change| queue.add(Key::of(&**change.object()))
    });
    let watch = PodWatch {
        owners: informers.stateful_sets.clone(),
        pods: informers.pods.clone(),
        // Names are fixed, so nothing has to be waited for.
        expectations: Arc::new(Expectations::default()),
        queue: queue.clone(),
    };
    informers
        .pods
        .on_change(move |change| watch.observe(change));
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        recorder: context.recorder("statefulset-controller"),
        revision_store: RevisionStore::new(context),
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.stateful_sets.synced().await
            && informers.pods.synced().await
            && informers.claims.synced().await
            && controller.revision_store.synced().await
        {
            queue.run(&context, WORKERS, move |key| {
                let controller = Arc::clone(&controller);
                async move { controller.sync(&key).await }
            });
        }
    });
}

/// The reasons for which a sync ends early and is retried.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Claims(#[from] claims::ClaimsError),
}

struct Controller {
    context: Context,
    queue: Queue<Key>,
    recorder: Recorder,
    revision_store: RevisionStore,
}

/// The pods of a set in the state that one sync sees.
struct View {
    /// The wanted pods by ordinal; `None` where a pod is missing.
    replicas: Vec<Option<Arc<Pod>>>,
    /// Pods that are not wanted, highest ordinal first.
    condemned: Vec<(i32, Arc<Pod>)>,
}

/// Whether a sync continues after a step.
#[derive(PartialEq, Eq)]
enum Step {
    Continue,
    Stop,
}

impl Controller {
    async fn sync(&self, key: &Key) -> Result<(), Error> {
        let Some(set) = self.context.informers.stateful_sets.get_key(key) else {
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        let Some(selector) = ownership::selector(Some(&spec.selector)) else {
            return Ok(());
        };
        let pods = self.claim_pods(&set, &selector).await?;
        let revisions = match self.revision_store.update(&set, &selector).await {
            Err(error) if api_error::is_namespace_terminating(&error) => return Ok(()),
            outcome => outcome?,
        };
        let outcome = match set.metadata.deletion_timestamp {
            Some(_) => Ok(()),
            None => self.walk(&set, &revisions, &pods).await,
        };
        let (current, update) = (revisions.current.name_any(), revisions.update.name_any());
        let now = self.context.clock.now();
        let mut status = rollout::status(&set, &pods, &current, &update, revisions.collisions, now);
        rollout::complete(&set, &mut status);
        let unavailable = status.available_replicas != Some(identity::replicas(&set));
        self.write_status(&set, status).await?;
        self.revision_store
            .clean_up(&set, &revisions, &pods)
            .await?;
        let wait = u64::try_from(set.min_ready_seconds()).unwrap_or(0);
        // No event reports that a ready pod has become available.
        if wait > 0 && unavailable {
            self.queue.add_after(key.clone(), Duration::from_secs(wait));
        }
        outcome
    }

    async fn claim_pods(
        &self,
        set: &StatefulSet,
        selector: &Selector,
    ) -> kube::Result<Vec<Arc<Pod>>> {
        let name = set.name_any();
        // An orphan that is not named like one of the set's pods does not belong to it.
        let eligible = |pod: &Pod| {
            ownership::controller_of(pod).is_some()
                || identity::ordinal(&name, &pod.name_any()).is_some()
        };
        let (client, informer) = (&self.context.client, &self.context.informers.pods);
        ownership::claim_from(client, set, selector, informer, eligible).await
    }

    /// Moves the pods towards the set's spec.
    async fn walk(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        pods_now: &[Arc<Pod>],
    ) -> Result<(), Error> {
        let strategy = Strategy::of(set);
        let view = view(set, pods_now);
        let first = identity::first_ordinal(set);
        for (ordinal, replica) in (first..).zip(&view.replicas) {
            let step = self
                .sync_ordinal(set, revisions, strategy, ordinal, replica.as_ref())
                .await?;
            // In order: nothing above this ordinal may be touched before it is available.
            if step == Step::Stop && !strategy.parallel {
                return Ok(());
            }
        }
        for (ordinal, pod) in &view.condemned {
            claims::retain(&self.context, set, pod, *ordinal).await?;
        }
        if self.condemn(set, strategy, &view).await? == Step::Stop {
            return Ok(());
        }
        // The update replaces pods only when all of them exist; a missing one has to come back first.
        let existing: Option<Vec<_>> = view.replicas.into_iter().collect();
        // Pods that were just created are considered in the next sync.
        let Some(existing) = existing.filter(|_| !strategy.on_delete) else {
            return Ok(());
        };
        let (update, now) = (revisions.update.name_any(), self.context.clock.now());
        if let Some(pod) = rollout::outdated(&existing, &update, strategy, now) {
            self.delete(set, pod).await?;
        }
        Ok(())
    }

    /// Takes the next step for one ordinal: creates a missing pod, deletes a finished one, or updates labels and claims.
    async fn sync_ordinal(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        strategy: Strategy,
        ordinal: i32,
        replica: Option<&Arc<Pod>>,
    ) -> Result<Step, Error> {
        let Some(pod) = replica else {
            if claims::is_stale(&self.context, set, ordinal) {
                return Ok(Step::Stop);
            }
            self.create(set, revisions, strategy, ordinal).await?;
            return Ok(Step::Stop);
        };
        if pods::is_finished(pod) {
            if !pods::is_deleting(pod) {
                self.delete(set, pod).await?;
            }
            return Ok(Step::Stop);
        }
        // A claim that was deleted after the pod was created would keep a pending pod from ever starting.
        if pods::phase(pod) == "Pending" && !pods::is_deleting(pod) {
            let name = pod.name_any();
            claims::create_missing(&self.context, &self.recorder, set, &name, ordinal).await?;
        }
        let now = self.context.clock.now();
        let unavailable =
            pods::is_deleting(pod) || !rollout::is_available(pod, strategy.min_ready_seconds, now);
        if unavailable && !strategy.parallel {
            return Ok(Step::Stop);
        }
        if !identity::is_identified(set, pod, ordinal) {
            self.identify(set, pod, ordinal).await?;
        }
        claims::retain(&self.context, set, pod, ordinal).await?;
        Ok(Step::Continue)
    }

    /// Deletes pods that are not wanted: one at a time with the highest ordinal first, or all at once with
    /// Parallel.
    async fn condemn(
        &self,
        set: &StatefulSet,
        strategy: Strategy,
        view: &View,
    ) -> Result<Step, Error> {
        let now = self.context.clock.now();
        let unavailable = |pod: &Pod| {
            pods::is_deleting(pod) || !rollout::is_available(pod, strategy.min_ready_seconds, now)
        };
        let wanted = view.replicas.iter().flatten();
        let mut all = wanted.chain(view.condemned.iter().rev().map(|(_, pod)| pod));
        // The first unhealthy pod may be deleted as it is: waiting for its recovery could block the set forever.
        let first_unhealthy = all.find(|pod| unavailable(pod));
        for (_, pod) in &view.condemned {
            if pods::is_deleting(pod) {
                if strategy.parallel {
                    continue;
                } else {
                    return Ok(Step::Stop);
                }
            }
            let is_first = first_unhealthy.is_some_and(|first| Arc::ptr_eq(first, pod));
            if !strategy.parallel && unavailable(pod) && !is_first {
                return Ok(Step::Stop);
            }
            self.delete(set, pod).await?;
            if !strategy.parallel {
                return Ok(Step::Stop);
            }
        }
        Ok(Step::Continue)
    }

    async fn create(
        &self,
        set: &StatefulSet,
        revisions: &Revisions,
        strategy: Strategy,
        ordinal: i32,
    ) -> Result<(), Error> {
        let offset = ordinal - identity::first_ordinal(set);
        let rolling = set
            .spec
            .as_ref()
            .and_then(|spec| spec.update_strategy.as_ref()?.rolling_update.as_ref());
        let current_replicas = set
            .status
            .as_ref()
            .and_then(|status| status.current_replicas);
        // Pods below the partition, or not reached by the update yet, are created again from the old revision.
        // A pod that dies during a rollout must come back in the revision that its ordinal has at this
        // moment.
        let keeps_old = !strategy.on_delete
            && match rolling {
                Some(_) => offset < strategy.partition,
                None => offset < current_replicas.unwrap_or(0),
            };
        let revision = if keeps_old {
            &revisions.current
        } else {
            &revisions.update
        };
        let template = revision::template_of(revision);
        let template: PodTemplateSpec = template.unwrap_or_else(|| {
            let spec = set.spec.as_ref();
            spec.map(|spec| spec.template.clone()).unwrap_or_default()
        });
        let pod = identity::new_pod(set, &template, ordinal, &revision.name_any());
        let name = pod.name_any();
        let created = async {
            claims::create_missing(&self.context, &self.recorder, set, &name, ordinal).await?;
            let api: Api<Pod> = self.pods(set);
            Ok(api.create(&PostParams::default(), &pod).await?)
        };
        match created.await {
            Ok(made) => {
                self.record_pod_event(set, "create", &name, None);
                claims::retain(&self.context, set, &made, ordinal).await?;
                Ok(())
            }
            // The informer does not show the pod yet. The retry will see it.
            Err(Error::Api(error)) if api_error::is_already_exists(&error) => Err(error.into()),
            Err(Error::Api(error)) if api_error::is_namespace_terminating(&error) => Ok(()),
            Err(error) => {
                let why = match &error {
                    Error::Api(error) => api_error::message(error),
                    Error::Claims(error) => error.to_string(),
                };
                self.record_pod_event(set, "create", &name, Some(why));
                Err(error)
            }
        }
    }

    async fn identify(&self, set: &StatefulSet, pod: &Pod, ordinal: i32) -> Result<(), Error> {
        let mut identified = Pod {
            metadata: Default::default(),
            ..Pod::default()
        };
        identity::identify(set, &mut identified, ordinal);
        let patch = json!({ "metadata": { "uid": pod.uid(), "labels": identified.labels() } });
        let name = pod.name_any();
        let patched = self
            .pods(set)
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        let why = patched.as_ref().err().map(api_error::message);
        self.record_pod_event(set, "update", &name, why);
        api_error::ignore_not_found(patched)?;
        Ok(())
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<(), Error> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: pod.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let name = pod.name_any();
        let deleted = self.pods(set).delete(&name, &params).await;
        match deleted {
            Ok(_) => {
                self.record_pod_event(set, "delete", &name, None);
                Ok(())
            }
            // The pod is already gone, and another one may have its name.
            Err(error) if api_error::is_not_found(&error) || api_error::is_conflict(&error) => {
                Ok(())
            }
            Err(error) => {
                self.record_pod_event(set, "delete", &name, Some(api_error::message(&error)));
                Err(error.into())
            }
        }
    }

    fn record_pod_event(&self, set: &StatefulSet, verb: &str, pod: &str, error: Option<String>) {
        let title = match verb {
            "create" => "Create",
            "update" => "Update",
            _ => "Delete",
        };
        let set_name = set.name_any();
        match error {
            None => self.recorder.normal(
                set,
                &format!("Successful{title}"),
                format!("{verb} Pod {pod} in StatefulSet {set_name} successful"),
            ),
            Some(why) => self.recorder.warning(
                set,
                &format!("Failed{title}"),
                format!("{verb} Pod {pod} in StatefulSet {set_name} failed error: {why}"),
            ),
        }
    }

    fn pods(&self, set: &StatefulSet) -> Api<Pod> {
        Api::namespaced(
            self.context.client.clone(),
            &set.namespace().unwrap_or_default(),
        )
    }

    async fn write_status(&self, set: &StatefulSet, status: StatefulSetStatus) -> kube::Result<()> {
        let mut known = set.status.clone();
        if let Some(known) = &mut known {
            // The API server omits zero counts, and no other client writes conditions.
            known.conditions = None;
            for count in [
                &mut known.ready_replicas,
                &mut known.available_replicas,
                &mut known.current_replicas,
                &mut known.updated_replicas,
                &mut known.collision_count,
            ] {
                count.get_or_insert(0);
            }
        }
        if known.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = StatefulSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.context.client, &updated).await
    }
}

fn view(set: &StatefulSet, pods_now: &[Arc<Pod>]) -> View {
    let name = set.name_any();
    let first = identity::first_ordinal(set);
    let wanted = usize::try_from(identity::replicas(set)).unwrap_or(0);
    let mut view = View {
        replicas: vec![None; wanted],
        condemned: Vec::new(),
    };
    for pod in pods_now {
        let Some(ordinal) = identity::ordinal(&name, &pod.name_any()) else {
            continue;
        };
        let index = usize::try_from(ordinal - first).ok();
        match index.and_then(|index| view.replicas.get_mut(index)) {
            Some(slot) => *slot = Some(Arc::clone(pod)),
            None => view.condemned.push((ordinal, Arc::clone(pod))),
        }
    }
    view.condemned.sort_by_key(|(ordinal, _)| -ordinal);
    view
}
