//! The ReplicationController controller: keeps as many active pods as the spec says, with the ReplicaSet's rules
//! (kube-controller-manager: replicationcontroller-controller).
//!
//! Clusters have few ReplicationControllers, so each sync simply lists its pods instead of keeping a census.

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{
    Pod, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use kube::{ResourceExt, core::Selector};

use super::{
    count,
    expectations::Expectations,
    nonzero,
    pod_control::{PodControl, pod_body},
    pod_watch::{PodOwner, PodWatch},
    replica_set, write_status,
};
use crate::{Context, Key, Queue, api_error, ownership, pods};

/// The most pods created or deleted per sync.
const BURST: usize = 500;
const WORKERS: usize = 5;
const FAILURE: &str = "ReplicaFailure";

impl PodOwner for ReplicationController {
    fn selector(&self) -> Option<Selector> {
        let labels = self.spec.as_ref()?.selector.clone()?;
        Some(labels.into_iter().collect())
    }

    fn min_ready_seconds(&self) -> i32 {
        let spec = self.spec.as_ref();
        spec.and_then(|spec| spec.min_ready_seconds)
            .unwrap_or_default()
    }
}

/// Starts the controller.
pub fn start(context: &Context) {
    let queue: Queue<Key> = Queue::new("replicationcontroller");
    let expectations = Arc::new(Expectations::default());
    let informers = &context.informers;
    informers.replication_controllers.on_change({
        let (queue, expectations) = (queue.clone(), Arc::clone(&expectations));
        move |change| {
            let key = Key::of(&**change.object());
            if change.is_deleted() {
                expectations.forget(&key);
            }
            queue.add(key);
        }
    });
    let watch = PodWatch {
        owners: informers.replication_controllers.clone(),
        pods: informers.pods.clone(),
        expectations: Arc::clone(&expectations),
        queue: queue.clone(),
    };
    informers
        .pods
        .on_change(move |change| watch.observe(change));
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        expectations,
        pods: PodControl {
            client: context.client.clone(),
            recorder: context.recorder("replication-controller"),
        },
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        let informers = &context.informers;
        if informers.replication_controllers.synced().await && informers.pods.synced().await {
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
    expectations: Arc<Expectations>,
    pods: PodControl,
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(set) = self.context.informers.replication_controllers.get_key(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        let Some(selector) = PodOwner::selector(&*set) else {
            return Ok(());
        };
        // An empty selector would adopt every pod of the namespace.
        if selector.selects_all() {
            return Ok(());
        }
        // Read before the pods: an expectation that is met after the list was taken would allow a decision on
        // an old list. The status may be written either way.
        let may_act = self.expectations.are_met(key);
        let (client, informer) = (&self.context.client, &self.context.informers.pods);
        let active =
            ownership::claim_from(client, &*set, &selector, informer, pods::is_active).await?;
        let failure = if may_act && set.metadata.deletion_timestamp.is_none() {
            self.manage(key, &set, &active).await
        } else {
            None
        };
        self.write_status(&set, &active, failure.as_ref().map(api_error::message))
            .await?;
        if let Some(error) = failure {
            return Err(error);
        }
        let (now, least) = (
            self.context.clock.now(),
            spec.min_ready_seconds.unwrap_or(0),
        );
        let waits = active
            .iter()
            .filter_map(|pod| pods::available_in(pod, least, now));
        if let Some(next) = waits.filter(SignedDuration::is_positive).min() {
            self.queue
                .add_after(key.clone(), Duration::try_from(next).unwrap_or_default());
        }
        Ok(())
    }

    /// Creates or deletes pods towards `spec.replicas`. Returns the first error.
    async fn manage(
        &self,
        key: &Key,
        set: &ReplicationController,
        active: &[Arc<Pod>],
    ) -> Option<kube::Error> {
        let desired = desired(set);
        if active.len() < desired {
            let missing = (desired - active.len()).min(BURST);
            let template = set.spec.as_ref()?.template.as_ref()?;
            let reference = ownership::controller_reference(set);
            let body = pod_body(
                template,
                &set.name_any(),
                key.namespace(),
                reference,
                |_| {},
            );
            // Before the first request: its event may arrive before the response does.
            self.expectations.expect(key, missing, []);
            let failed = || {
                self.expectations.created(key);
            };
            return self
                .pods
                .create(set, &vec![body; missing], failed)
                .await
                .error;
        }
        if active.len() > desired {
            let surplus = (active.len() - desired).min(BURST);
            let now = self.context.clock.now();
            let doomed = replica_set::first_to_go(active, surplus, &Default::default(), now);
            self.expectations
                .expect(key, 0, doomed.iter().map(|pod| Key::of(&**pod)));
            let failed = |pod: &Pod| {
                self.expectations.deleted(key, &Key::of(pod));
            };
            return self.pods.delete(set, &doomed, failed).await;
        }
        None
    }

    async fn write_status(
        &self,
        set: &ReplicationController,
        active: &[Arc<Pod>],
        failure: Option<String>,
    ) -> kube::Result<()> {
        let status = self.status(set, active, failure);
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = ReplicationController {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.context.client, &updated).await
    }

    fn status(
        &self,
        set: &ReplicationController,
        active: &[Arc<Pod>],
        failure: Option<String>,
    ) -> ReplicationControllerStatus {
        let spec = set.spec.as_ref();
        let least = spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        let template =
            spec.and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.as_ref());
        let labelled = |pod: &Arc<Pod>| {
            let own = pod.labels();
            let mut wanted = template.into_iter().flatten();
            wanted.all(|(key, value)| own.get(key) == Some(value))
        };
        let now = self.context.clock.now();
        let number = |wanted: &dyn Fn(&Arc<Pod>) -> bool| {
            nonzero(count(active.iter().filter(|pod| wanted(pod)).count()))
        };
        let known = set
            .status
            .as_ref()
            .and_then(|status| status.conditions.clone());
        let mut conditions = known.unwrap_or_default();
        match failure {
            None => conditions.retain(|condition| condition.type_ != FAILURE),
            Some(message)
                if !conditions
                    .iter()
                    .any(|condition| condition.type_ == FAILURE) =>
            {
                let reason = if active.len() < desired(set) {
                    "FailedCreate"
                } else {
                    "FailedDelete"
                };
                conditions.push(ReplicationControllerCondition {
                    type_: FAILURE.to_owned(),
                    status: "True".to_owned(),
                    last_transition_time: Some(self.context.now()),
                    reason: Some(reason.to_owned()),
                    message: Some(message),
                });
            }
            Some(_) => {}
        }
        ReplicationControllerStatus {
            replicas: count(active.len()),
            fully_labeled_replicas: number(&labelled),
            ready_replicas: number(&|pod| pods::is_ready(pod)),
            available_replicas: number(&|pod| pods::is_available(pod, least, now)),
            observed_generation: set.metadata.generation,
            conditions: (!conditions.is_empty()).then_some(conditions),
        }
    }
}

fn desired(set: &ReplicationController) -> usize {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    usize::try_from(replicas.unwrap_or(1)).unwrap_or_default()
}
