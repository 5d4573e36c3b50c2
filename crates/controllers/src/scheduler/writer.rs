//! Sends the scheduler's writes to the API server: bindings, PodScheduled conditions, evictions of victims.
//!
//! A fixed number of tasks write in parallel; all writes about one pod go through the same task, so they keep
//! their order. Response bodies are not decoded, because the informers deliver the new objects.

mod request;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{Pod, PodCondition},
        resource::v1::ResourceClaim,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Client, Error, Resource, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use mullion_engine::VolumeChoices;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use self::request::{delete, patch_status, post_binding, settled};
use super::{
    devices::{self, Decided},
    queue::Entry,
    traced, volumes,
    watch::{Input, scheduler_name},
};
use crate::{Context, EventType, Recorder, pods};

/// The number of parallel writers.
const WRITERS: usize = 16;
/// The longest event message in bytes; a longer one is cut and ends in `...`.
const MAX_NOTE: usize = 1024;
/// The pause before a write that failed with a transient error is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// One unit of work for a writer.
#[derive(Debug)]
pub(super) enum Write {
    /// Binds a pod.
    Bind {
        entry: Box<Entry>,
        node: String,
        /// What has to be written about the pod's claims before the binding.
        reserved: Reserved,
    },
    /// Records why a pod was not bound, and evicts its victims.
    Refuse(Box<Refusal>),
    /// Records that a pod is not scheduled because it is being deleted.
    Skip(Arc<Pod>),
}

/// The volumes and devices that were chosen together with the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    pub(super) volumes: VolumeChoices,
    /// The devices chosen for the pod's ResourceClaims, for pods that have any; some claims may be allocated
    /// already.
    pub(super) devices: Option<Box<Decided>>,
}

impl Reserved {
    fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.devices.is_none()
    }
}

/// Why a pod was not bound, and what follows from that.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) pod: Arc<Pod>,
    /// `Unschedulable` or `SchedulerError`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) nominated: Nomination,
    pub(super) victims: Vec<Victim>,
    /// What has to be done about the pod's ResourceClaims.
    pub(super) devices: Option<ClaimRelease>,
}

/// A change of a ResourceClaim that may let the pod be scheduled later.
#[derive(Clone, Debug)]
pub(super) enum ClaimRelease {
    /// Deallocates this claim.
    Deallocate(String),
    /// Deletes this claim.
    Delete(String),
}

/// The change of `status.nominatedNodeName` of a refused pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// Leaves the field as it is.
    Keep,
    /// Sets the field to this node, where preemption makes room.
    Set(String),
    /// Removes the field, because preemption cannot make room.
    Clear,
}

/// A pod to be evicted by preemption.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
}

/// The result of a binding.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The pod is bound.
    Done,
    /// The pod is not bound; `again` tells whether a retry can succeed.
    Refused {
        again: bool,
        message: String,
        /// The choices about the pod's claims, which the loop has to take back.
        reserved: Reserved,
    },
}

/// The reason why a pod cannot be bound to its node, with kube-scheduler's message.
#[derive(Debug, thiserror::Error)]
enum PreBindError {
    /// The pod does not get its volumes.
    #[error("running PreBind plugin \"VolumeBinding\": {0}")]
    Volumes(#[from] volumes::VolumesError),
    /// The pod does not get its devices.
    #[error("running PreBind plugin \"DynamicResources\": {0}")]
    Devices(#[from] devices::DevicesError),
}

/// The queues of all writers.
#[derive(Clone, Debug)]
pub(super) struct Writers {
    queues: Arc<[mpsc::UnboundedSender<Write>]>,
}

impl Writers {
    /// Starts the writers. `names` are the scheduler names of all profiles; each pod's events are recorded under
    /// its own scheduler's name.
    pub(super) fn start<'n>(
        context: &Context,
        names: impl Iterator<Item = &'n String>,
        answers: mpsc::UnboundedSender<Input>,
    ) -> Self {
        let recorders: BTreeMap<_, _> = names
            .map(|name| (name.clone(), context.recorder(name)))
            .collect();
        let recorders = Arc::new(recorders);
        let queue = |_| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let writer = Writer {
                client: context.client.clone(),
                context: context.clone(),
                recorders: Arc::clone(&recorders),
                answers: answers.clone(),
            };
            let shutdown = context.shutdown.clone();
            context.tasks.spawn(async move {
                shutdown.run_until_cancelled(writer.drain(receiver)).await;
            });
            sender
        };
        Self {
            queues: (0..WRITERS).map(queue).collect(),
        }
    }

    pub(super) fn send(&self, write: Write) {
        // The hash of the UID selects the writer, so that the writes about one pod stay in order.
        let uid = match &write {
            Write::Bind { entry, .. } => entry.pod.metadata.uid.as_deref(),
            Write::Refuse(refusal) => refusal.pod.metadata.uid.as_deref(),
            Write::Skip(pod) => pod.metadata.uid.as_deref(),
        };
        let bytes = uid.unwrap_or_default().bytes();
        let slot = bytes.fold(0usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(usize::from(byte))
        });
        // A queue is closed only when the process stops.
        let _ = self.queues[slot % self.queues.len()].send(write);
    }
}

#[derive(Clone)]
struct Writer {
    client: Client,
    context: Context,
    recorders: Arc<BTreeMap<String, Recorder>>,
    answers: mpsc::UnboundedSender<Input>,
}

impl Writer {
    async fn drain(self, mut queue: mpsc::UnboundedReceiver<Write>) {
        while let Some(write) = queue.recv().await {
            match write {
                Write::Bind {
                    entry,
                    node,
                    reserved,
                    // Pods with volumes may wait for minutes, which must not delay the other pods of this writer.
                } if reserved.is_empty() => self.bind(entry, &node, reserved).await,
                Write::Bind {
                    entry,
                    node,
                    reserved,
                } => self.bind_with_claims(entry, node, reserved),
                Write::Refuse(refusal) => self.refuse(&refusal).await,
                Write::Skip(pod) => {
                    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
                    self.warn(
                        &pod,
                        format!("skip schedule deleting pod: {namespace}/{name}"),
                    );
                }
            }
        }
    }

    /// Binds a pod after its claims have their volumes and devices, in a task of its own so that the queue does
    /// not wait.
    fn bind_with_claims(&self, entry: Box<Entry>, node: String, mut reserved: Reserved) {
        let writer = self.clone();
        let shutdown = self.context.shutdown.clone();
        self.context.tasks.spawn(async move {
            let work = async {
                match writer.pre_bind(&entry.pod, &node, &mut reserved).await {
                    Ok(()) => writer.bind(entry, &node, reserved).await,
                    Err(error) => {
                        let outcome = Outcome::Refused {
                            again: true,
                            message: error.to_string(),
                            reserved,
                        };
                        writer.answer(entry, outcome).await;
                    }
                }
            };
            shutdown.run_until_cancelled(work).await;
        });
    }

    async fn pre_bind(
        &self,
        pod: &Pod,
        node: &str,
        reserved: &mut Reserved,
    ) -> Result<(), PreBindError> {
        if !reserved.volumes.is_empty() {
            volumes::pre_bind(&self.context, pod, node, &reserved.volumes).await?;
        }
        if let Some(decided) = &mut reserved.devices {
            // The loop must see the written claim at once, even if the binding fails later.
            let wrote = |claim: &ResourceClaim| {
                let _ = self.answers.send(Input::Wrote(Box::new(claim.clone())));
            };
            let recorder = self.recorder(pod);
            devices::pre_bind(&self.context, recorder, (pod, node), decided, wrote).await?;
        }
        Ok(())
    }

    /// Reports the result of a binding to the loop; devices reserved for a pod that was not bound are released
    /// first.
    async fn answer(&self, entry: Box<Entry>, outcome: Outcome) {
        if let Outcome::Refused { reserved, .. } = &outcome
            && let Some(decided) = &reserved.devices
        {
            devices::unreserve(&self.context, &entry.pod, decided).await;
        }
        let _ = self.answers.send(Input::Bound(entry, outcome));
    }

    async fn bind(&self, entry: Box<Entry>, node: &str, reserved: Reserved) {
        let pod = &entry.pod;
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let began = self
            .context
            .traces
            .is_on()
            .then(|| self.context.clock.now());
        // The uid in the binding makes the API server refuse it for a new pod of the same name.
        let outcome = match post_binding(
            &self.client,
            &namespace,
            &name,
            pod.metadata.uid.as_deref(),
            node,
        )
        .await
        {
            Ok(()) => {
                if let Some(recorder) = self.recorder(pod) {
                    let message = format!("Successfully assigned {namespace}/{name} to {node}");
                    let object = pod.object_ref(&());
                    let kind = EventType::Normal;
                    recorder.record_action(object, None, kind, "Scheduled", "Binding", message);
                }
                Outcome::Done
            }
            // The pod is gone or bound by another client. The watch will show that, and a retry cannot succeed.
            Err(Error::Api(status)) if status.is_not_found() || status.is_conflict() => {
                Outcome::Refused {
                    again: false,
                    message: status.message.clone(),
                    reserved,
                }
            }
            Err(error) => Outcome::Refused {
                again: true,
                message: format!("binding rejected: {error}"),
                reserved,
            },
        };
        if let Some(began) = began {
            let error = match &outcome {
                Outcome::Done => None,
                Outcome::Refused { message, .. } => Some(message.as_str()),
            };
            traced::binding(&self.context, pod, node, began, error);
        }
        self.answer(entry, outcome).await;
    }

    async fn refuse(&self, refusal: &Refusal) {
        let pod = &refusal.pod;
        // The event is recorded even when the condition stays the same, as kube-scheduler does at every
        // refusal.
        self.warn(pod, cut(&refusal.message));
        if let Some(patch) = self.refusal_patch(refusal) {
            let collection = format!(
                "/api/v1/namespaces/{}/pods",
                pod.namespace().unwrap_or_default()
            );
            let name = pod.name_any();
            while settled(patch_status(&self.client, &collection, &name, &patch).await).is_none() {
                tokio::time::sleep(RETRY).await;
            }
        }
        match &refusal.devices {
            Some(ClaimRelease::Deallocate(claim)) => {
                let give_back = || devices::deallocate(&self.context, pod, claim);
                while settled(give_back().await).is_none() {
                    tokio::time::sleep(RETRY).await;
                }
            }
            Some(ClaimRelease::Delete(claim)) => devices::delete(&self.context, pod, claim).await,
            None => {}
        }
        // The pod may be woken only when its last victim leaves; an earlier try would choose further victims.
        let Some((last, others)) = refusal.victims.split_last() else {
            return;
        };
        for victim in others {
            self.evict(pod, victim).await;
        }
        // Sent before the eviction, so that the loop knows the last victim before the watch shows its deletion.
        let _ = self.answers.send(Input::Evicting {
            pod: Arc::clone(pod),
            last: Arc::clone(&last.pod),
        });
        if !self.evict(pod, last).await {
            let _ = self.answers.send(Input::NotEvicted(Arc::clone(pod)));
        }
    }

    /// Returns the event recorder of the pod's scheduler.
    fn recorder(&self, pod: &Pod) -> Option<&Recorder> {
        self.recorders.get(scheduler_name(pod))
    }

    fn warn(&self, pod: &Pod, note: String) {
        if let Some(recorder) = self.recorder(pod) {
            let (object, kind) = (pod.object_ref(&()), EventType::Warning);
            let (reason, action) = ("FailedScheduling", "Scheduling");
            recorder.record_action(object, None, kind, reason, action, note);
        }
    }

    /// Returns a status patch with the pod's `PodScheduled` condition and nominated node; `None` if neither
    /// changes.
    fn refusal_patch(&self, refusal: &Refusal) -> Option<Value> {
        // The queue may hold an older version of the pod than the informer.
        let meta = &refusal.pod.metadata;
        let latest = self
            .context
            .informers
            .pods
            .get(meta.namespace.as_deref()?, meta.name.as_deref()?)?;
        let status = latest.status.as_ref();
        let known = pods::condition(&latest, "PodScheduled");
        let same = known.is_some_and(|known| {
            known.status == "False"
                && known.reason.as_deref() == Some(refusal.reason)
                && known.message.as_deref() == Some(refusal.message.as_str())
                && known.observed_generation == latest.metadata.generation
        });
        let nominated = status.and_then(|status| status.nominated_node_name.as_deref());
        let promised = match &refusal.nominated {
            Nomination::Keep => nominated,
            Nomination::Set(node) => Some(node.as_str()),
            Nomination::Clear => None,
        };
        if same && nominated == promised {
            return None;
        }
        // The transition time belongs to the status, so a new reason or message keeps it.
        let since = known
            .filter(|known| known.status == "False")
            .and_then(|known| known.last_transition_time.clone());
        let condition = PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some(refusal.reason.to_owned()),
            message: Some(refusal.message.clone()),
            observed_generation: latest.metadata.generation,
            last_transition_time: Some(since.unwrap_or(Time(self.context.clock.now()))),
            last_probe_time: None,
        };
        let mut status = json!({ "conditions": [condition] });
        if nominated != promised {
            status["nominatedNodeName"] = json!(promised);
        }
        Some(json!({ "metadata": { "uid": meta.uid }, "status": status }))
    }

    /// Evicts a pod. Returns `false` if the pod is already gone or was replaced by another of its name.
    async fn evict(&self, preemptor: &Pod, victim: &Victim) -> bool {
        let evicted = self.delete_marked(preemptor, victim).await;
        if !evicted {
            let _ = self.answers.send(Input::Spared(Arc::clone(&victim.pod)));
        }
        let Some(recorder) = self.recorder(preemptor).filter(|_| evicted) else {
            return evicted;
        };
        let by = preemptor.uid().unwrap_or_default();
        let note = format!("Preempted by pod {by} on node {}", victim.node);
        let (object, related) = (victim.pod.object_ref(&()), Some(preemptor.object_ref(&())));
        let (kind, reason) = (EventType::Normal, "Preempted");
        recorder.record_action(object, related, kind, reason, "Preempting", note);
        true
    }

    /// Sets the condition DisruptionTarget on a pod and deletes it; returns `false` if the pod is already gone.
    async fn delete_marked(&self, preemptor: &Pod, victim: &Victim) -> bool {
        let condition = PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("PreemptionByScheduler".to_owned()),
            message: Some(format!(
                "{}: preempting to accommodate a higher priority pod",
                scheduler_name(preemptor)
            )),
            observed_generation: victim.pod.metadata.generation,
            last_transition_time: Some(Time(self.context.clock.now())),
            last_probe_time: None,
        };
        let patch = json!({ "metadata": { "uid": victim.pod.uid() }, "status": { "conditions": [condition] } });
        let name = victim.pod.name_any();
        let preconditions = Preconditions {
            uid: victim.pod.uid(),
            resource_version: None,
        };
        let params = DeleteParams {
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        let collection = format!(
            "/api/v1/namespaces/{}/pods",
            victim.pod.namespace().unwrap_or_default()
        );
        loop {
            let marked = patch_status(&self.client, &collection, &name, &patch).await;
            let deleted = match marked {
                Ok(()) => delete(&self.client, &collection, &name, &params).await,
                Err(error) => Err(error),
            };
            match settled(deleted) {
                Some(deleted) => return deleted,
                None => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

/// Cuts an event's message to the length limit, as client-go does.
fn cut(message: &str) -> String {
    if message.len() <= MAX_NOTE {
        return message.to_owned();
    }
    const SUFFIX: &str = " ...";
    let end = (0..=MAX_NOTE - SUFFIX.len())
        .rev()
        .find(|end| message.is_char_boundary(*end))
        .unwrap_or(0);
    format!("{}{SUFFIX}", &message[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_to_1024_bytes_and_says_so() {
        assert_eq!(cut("short"), "short");
        let long = cut(&"x".repeat(2_000));
        assert_eq!((long.len(), &long[1_019..]), (1_024, "x ..."));
        assert_eq!(cut(&"x".repeat(1_024)).len(), 1_024);
        assert!(cut(&"ä".repeat(1_000)).ends_with("ä ..."));
    }
}
