//! Evicts pods because of NoExecute taints: keeps their deadlines, records events, and deletes the pods.
//!
//! [`super::eviction`] makes the decisions; this module has the timers and the writes. As in
//! kube-controller-manager, its events refer to the pod without its UID.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod, PodCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, Client, Error, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::sync::Semaphore;

use super::{
    eviction::{Change as EvictionChange, Evictions},
    writer::{full_name, uid_precondition},
};
use crate::{Context, EventType, Recorder, context::whole_seconds, pods, timers::Timers};

/// How many times an eviction is tried.
const TRIES: u32 = 5;

pub(super) struct Evictor {
    context: Context,
    recorder: Recorder,
    writers: Arc<Semaphore>,
    evictions: Evictions,
    /// The pods that wait for their deadline, by UID.
    waiting: FxHashMap<String, Arc<Pod>>,
    timers: Timers<String>,
}

impl Evictor {
    pub(super) fn new(context: &Context, writers: Arc<Semaphore>) -> Self {
        Self {
            context: context.clone(),
            recorder: context.recorder("taint-eviction-controller"),
            writers,
            evictions: Evictions::default(),
            waiting: FxHashMap::default(),
            timers: Timers::default(),
        }
    }

    /// Returns the next deadline.
    pub(super) fn next(&mut self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// Considers a pod with the NoExecute taints of its node.
    pub(super) fn consider(&mut self, pod: &Arc<Pod>, taints: &[Taint], now: Timestamp) {
        let uid = pod.uid().unwrap_or_default();
        let tolerations = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.tolerations.as_deref());
        let change = self
            .evictions
            .consider(&uid, taints, tolerations.unwrap_or_default(), now);
        match change {
            EvictionChange::None => {}
            EvictionChange::Evict { was_waiting } => {
                self.stop_waiting(&uid);
                // Upstream cancels the timed eviction before it starts an immediate one, and records both.
                if was_waiting {
                    self.record(pod, "Cancelling deletion of");
                }
                self.evict(Arc::clone(pod));
            }
            EvictionChange::Wait(at) => {
                self.waiting.insert(uid.clone(), Arc::clone(pod));
                self.timers.set(uid, Some(at));
            }
            EvictionChange::Reprieved => {
                self.stop_waiting(&uid);
                self.record(pod, "Cancelling deletion of");
            }
        }
    }

    /// Forgets a deleted pod.
    pub(super) fn forget(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        self.stop_waiting(&uid);
        if self.evictions.forget(&uid) {
            self.record(pod, "Cancelling deletion of");
        }
    }

    /// Evicts the pods whose deadline has passed.
    pub(super) fn evict_due(&mut self, now: Timestamp) {
        for uid in self.timers.take_due(now) {
            if self.evictions.take_due(&uid, now)
                && let Some(pod) = self.waiting.remove(&uid)
            {
                self.evict(pod);
            }
        }
    }

    fn stop_waiting(&mut self, uid: &str) {
        self.waiting.remove(uid);
        self.timers.set(uid.to_owned(), None);
    }

    fn record(&self, pod: &Pod, what: &str) {
        let reference = ObjectReference {
            uid: None,
            ..pod.object_ref(&())
        };
        let message = format!("{what} Pod {}", full_name(pod));
        let reason = "TaintManagerEviction";
        self.recorder
            .record(reference, EventType::Normal, reason, message);
    }

    fn evict(&self, pod: Arc<Pod>) {
        // The event comes before the deletion, since it refers to a pod that may be gone a moment later.
        self.record(&pod, "Marking for deletion");
        let (client, writers, now) = (
            self.context.client.clone(),
            Arc::clone(&self.writers),
            self.context.clock.now(),
        );
        self.context.tasks.spawn(async move {
            let Ok(_permit) = writers.acquire().await else { return };
            for attempt in 1..=TRIES {
                match announce_and_delete(&client, &pod, now).await {
                    Ok(()) => return,
                    Err(Error::Api(status)) if status.is_not_found() || status.is_conflict() => return,
                    Err(error) => tracing::debug!(%error, attempt, pod = full_name(&pod), "taint eviction failed"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}

async fn announce_and_delete(client: &Client, pod: &Pod, now: Timestamp) -> Result<(), Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let (name, uid) = (pod.name_any(), pod.uid());
    let announced = pods::condition(pod, "DisruptionTarget").filter(|there| there.status == "True");
    let since = announced.and_then(|there| there.last_transition_time.clone());
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("DeletionByTaintManager".to_owned()),
        message: Some("Taint manager: deleting due to NoExecute taint".to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: Some(since.unwrap_or(Time(whole_seconds(now)))),
        last_probe_time: None,
    };
    let patch = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
    // The condition is written first: Jobs and budgets tell disruptions from failures by it.
    api.patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
        .await?;
    api.delete(&name, &uid_precondition(uid)).await.map(drop)
}
