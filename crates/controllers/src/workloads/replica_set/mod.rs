//! The ReplicaSet controller: keeps as many active pods as the spec says, created from one template.
//!
//! Invariant: pods are created and deleted only when all earlier requests are visible in the informer
//! ([`Expectations`]), so a lagging informer never makes it overshoot. [`census`] counts pods as they change, so
//! that most syncs list none; [`rank`] decides which pods are deleted first, and [`status`] computes the
//! ReplicaSet's status.

mod census;
mod rank;
mod status;

pub(super) use rank::{first_to_go, least_advanced_first};
pub(crate) use status::REPLICA_FAILURE;

use std::{sync::Arc, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::api::{apps::v1::ReplicaSet, core::v1::Pod};
use kube::{ResourceExt, core::SelectorExt};
use rustc_hash::FxHashMap;

use self::census::{Census, Tally};
use super::{
    expectations::Expectations,
    pod_control::{PodControl, pod_body},
    pod_watch::PodWatch,
    write_status,
};
use crate::{Change, Context, Key, Queue, api_error, informers::BY_CONTROLLER, ownership, pods};

/// The most pods created or deleted per sync.
const BURST: usize = 500;
const WORKERS: usize = 5;

/// Starts the controller.
pub fn start(context: &Context) {
    let queue = Queue::new("replicaset");
    let expectations = Arc::new(Expectations::default());
    let census = Arc::new(Census::default());
    let informers = &context.informers;

    // The census is registered before the watch that completes expectations: when expectations are met, the
    // expected pods must already be counted.
    informers.pods.on_change({
        let census = Arc::clone(&census);
        move |change| census.observe(change)
    });

    informers.replica_sets.on_change({
        let (queue, expectations) = (queue.clone(), Arc::clone(&expectations));
        move |change| {
            let key = Key::of(&**change.object());
            if let Change::Deleted(_) = change {
                expectations.forget(&key);
            }
            queue.add(key);
        }
    });
    let watch = PodWatch {
        owners: informers.replica_sets.clone(),
        pods: informers.pods.clone(),
        expectations: Arc::clone(&expectations),
        queue: queue.clone(),
    };
    informers
        .pods
        .on_change(move |change| watch.observe(change));

    let recorder = context.recorder("replicaset-controller");
    let pods = PodControl {
        client: context.client.clone(),
        recorder,
    };
    let controller = Arc::new(Controller {
        context: context.clone(),
        queue: queue.clone(),
        expectations,
        census,
        pods,
    });
    context.tasks.spawn(async move {
        let context = controller.context.clone();
        if context.informers.replica_sets.synced().await && context.informers.pods.synced().await {
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
    census: Arc<Census>,
    pods: PodControl,
}

impl Controller {
    async fn sync(&self, key: &Key) -> kube::Result<()> {
        let Some(set) = self.context.informers.replica_sets.get_key(key) else {
            self.expectations.forget(key);
            return Ok(());
        };
        let Some(spec) = &set.spec else { return Ok(()) };
        let Some(selector) = ownership::selector(Some(&spec.selector)) else {
            return Ok(());
        };

        // Read before the pods are counted: an expectation met in between would hide a pod from the count.
        let may_act = self.expectations.are_met(key);
        let min_ready = spec.min_ready_seconds.unwrap_or_default();
        // The pods must be listed only if some are surplus or become available after `minReadySeconds`.
        let counted = self.census.tally(&set, &selector);
        let counted = counted.filter(|tally| min_ready == 0 && tally.active <= desired(&set));
        let (tally, active) = match counted {
            Some(tally) => (tally, Vec::new()),
            None => {
                // Inactive pods keep their owner, so they are not claimed.
                let (client, informer) = (&self.context.client, &self.context.informers.pods);
                let active =
                    ownership::claim_from(client, &*set, &selector, informer, pods::is_active)
                        .await?;
                let uid = set.metadata.uid.as_deref().unwrap_or_default();
                let mut inactive = self.context.informers.pods.by_index(BY_CONTROLLER, uid);
                inactive.retain(|pod| !pods::is_active(pod) && selector.matches(pod.labels()));
                let pods = active.iter().chain(&inactive).map(|pod| &**pod);
                (Tally::of_all(&set, pods), active)
            }
        };

        let failure = if may_act && set.metadata.deletion_timestamp.is_none() {
            self.manage_replicas(key, &set, tally.active, &active).await
        } else {
            None
        };

        let now = self.context.clock.now();
        let failed = failure.as_ref().map(api_error::message);
        let available = status::available(&set, tally, &active, now);
        let status = status::compute(&set, tally, available, failed, now);
        self.write_status(&set, status).await?;
        // The status, which reports the failure, is written before the error leads to a retry.
        if let Some(error) = failure {
            return Err(error);
        }
        let waits = active
            .iter()
            .filter_map(|pod| pods::available_in(pod, min_ready, now));
        if let Some(next) = waits.filter(SignedDuration::is_positive).min() {
            self.queue
                .add_after(key.clone(), Duration::try_from(next).unwrap_or_default());
        }
        Ok(())
    }

    /// Creates or deletes pods towards `spec.replicas`. `count` pods are active; `active` lists them if there are
    /// too many. Returns the first error.
    async fn manage_replicas(
        &self,
        key: &Key,
        set: &ReplicaSet,
        count: usize,
        active: &[Arc<Pod>],
    ) -> Option<kube::Error> {
        let spec = set.spec.as_ref()?;
        let desired = desired(set);
        if count < desired {
            let missing = (desired - count).min(BURST);
            let template = spec.template.as_ref()?;
            let reference = ownership::controller_reference(set);
            let body = pod_body(
                template,
                &set.name_any(),
                key.namespace(),
                reference,
                |_| {},
            );
            // Before the requests, because the watch may report the pods first.
            self.expectations.expect(key, missing, []);
            let failed = || {
                self.expectations.created(key);
            };
            let creations = self.pods.create(set, &vec![body; missing], failed).await;
            tracing::debug!(%key, created = creations.created, missing, "created pods");
            creations.error
        } else if count > desired {
            let surplus = (count - desired).min(BURST);
            let doomed = rank::first_to_go(
                active,
                surplus,
                &self.related_pods_per_node(set),
                self.context.clock.now(),
            );
            self.expectations
                .expect(key, 0, doomed.iter().map(|pod| Key::of(&**pod)));
            let failed = |pod: &Pod| {
                self.expectations.deleted(key, &Key::of(pod));
            };
            self.pods.delete(set, &doomed, failed).await
        } else {
            None
        }
    }

    /// Counts active pods per node over all ReplicaSets of the same controller: surplus pods on crowded nodes are
    /// deleted first.
    fn related_pods_per_node(&self, set: &ReplicaSet) -> FxHashMap<String, usize> {
        let informers = &self.context.informers;
        let family = match ownership::controller_of(set) {
            Some(owner) => informers.replica_sets.by_index(BY_CONTROLLER, &owner.uid),
            None => informers
                .replica_sets
                .get_key(&Key::of(set))
                .into_iter()
                .collect(),
        };
        let mut per_node = FxHashMap::default();
        for member in family {
            for pod in informers.pods.by_index(
                BY_CONTROLLER,
                member.metadata.uid.as_deref().unwrap_or_default(),
            ) {
                if pods::is_active(&pod) {
                    *per_node
                        .entry(pods::node_name(&pod).to_owned())
                        .or_default() += 1;
                }
            }
        }
        per_node
    }

    async fn write_status(
        &self,
        set: &ReplicaSet,
        status: k8s_openapi::api::apps::v1::ReplicaSetStatus,
    ) -> kube::Result<()> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = ReplicaSet {
            status: Some(status),
            ..set.clone()
        };
        write_status(&self.context.client, &updated).await
    }
}

/// Returns `spec.replicas`.
fn desired(set: &ReplicaSet) -> usize {
    let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
    usize::try_from(replicas.unwrap_or(1)).unwrap_or_default()
}
