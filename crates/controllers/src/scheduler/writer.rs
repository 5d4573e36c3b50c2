//! What the scheduler sends to the API server: bindings, refusals, evictions.
//!
//! A fixed number of writers work in parallel; writes about one pod go through one of them and keep their order.
//! Responses are not decoded: the informers bring the outcome.

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
    volumes,
    watch::{Input, scheduler_name},
};
use crate::{Context, EventType, Recorder, pods};

/// Number of writers.
const WRITERS: usize = 16;
/// Longest event message; what is cut is replaced by `...`.
const MAX_NOTE: usize = 1024;
/// Pause before a write that failed for a passing reason is repeated.
const RETRY: Duration = Duration::from_millis(500);

/// One write.
#[derive(Debug)]
pub(super) enum Write {
    /// Binds a pod.
    Bind {
        entry: Box<Entry>,
        node: String,
        /// What is done about the pod's claims before.
        reserved: Reserved,
    },
    /// Says why a pod was not bound.
    Refuse(Box<Refusal>),
    /// Says that a pod is not tried because it is being deleted.
    Skip(Arc<Pod>),
}

/// What was decided about a pod's claims with its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved {
    pub(super) volumes: VolumeChoices,
    /// Of pods that claim devices, which some of their claims may have already.
    pub(super) devices: Option<Box<Decided>>,
}

impl Reserved {
    fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.devices.is_none()
    }
}

/// Why a pod was not bound, and what is done about it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) pod: Arc<Pod>,
    /// `Unschedulable` or `SchedulerError`.
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) nominated: Nomination,
    pub(super) victims: Vec<Victim>,
    /// What is done about the pod's claims of devices.
    pub(super) devices: Option<Relief>,
}

/// What may help a pod that goes nowhere because of its claims.
#[derive(Clone, Debug)]
pub(super) enum Relief {
    /// The devices of this claim are given back.
    Deallocate(String),
    /// This claim is deleted.
    Delete(String),
}

/// What becomes of the node that a refused pod is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nomination {
    /// What it was.
    Keep,
    /// This one: room is made there.
    Set(String),
    /// None: no room can be made.
    Clear,
}

/// A pod that makes room.
#[derive(Debug)]
pub(super) struct Victim {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
}

/// How a binding ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The pod is bound.
    Done,
    /// It is not; `again` says whether trying again can help.
    Refused {
        again: bool,
        message: String,
        /// What was decided about the pod's claims, to be taken back.
        reserved: Reserved,
    },
}

/// The writers.
#[derive(Clone, Debug)]
pub(super) struct Writers {
    queues: Arc<[mpsc::UnboundedSender<Write>]>,
}

impl Writers {
    /// Writers whose events name the scheduler of the pod they are about, which is one of `names`.
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

    /// Binds a pod once its claims have their volumes and devices; nobody else waits for that.
    fn bind_with_claims(&self, entry: Box<Entry>, node: String, mut reserved: Reserved) {
        let writer = self.clone();
        let shutdown = self.context.shutdown.clone();
        self.context.tasks.spawn(async move {
            let work = async {
                match writer.pre_bind(&entry.pod, &node, &mut reserved).await {
                    Ok(()) => writer.bind(entry, &node, reserved).await,
                    Err(message) => {
                        let outcome = Outcome::Refused {
                            again: true,
                            message,
                            reserved,
                        };
                        writer.answer(entry, outcome).await;
                    }
                }
            };
            shutdown.run_until_cancelled(work).await;
        });
    }

    async fn pre_bind(&self, pod: &Pod, node: &str, reserved: &mut Reserved) -> Result<(), String> {
        if !reserved.volumes.is_empty() {
            volumes::pre_bind(&self.context, pod, node, &reserved.volumes).await?;
        }
        match &mut reserved.devices {
            Some(decided) => {
                // The loop counts on what is written from now on, whatever becomes of the binding.
                let wrote = |claim: &ResourceClaim| {
                    let _ = self.answers.send(Input::Wrote(Box::new(claim.clone())));
                };
                let recorder = self.recorder(pod);
                devices::pre_bind(&self.context, recorder, (pod, node), decided, wrote).await
            }
            None => Ok(()),
        }
    }

    /// Tells the loop how a binding ended; what was reserved for a pod that is not bound is given back.
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
            // Gone, or bound by somebody else: the watch will say so, and trying again cannot help.
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
        self.answer(entry, outcome).await;
    }

    async fn refuse(&self, refusal: &Refusal) {
        let pod = &refusal.pod;
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
            Some(Relief::Deallocate(claim)) => {
                let give_back = || devices::deallocate(&self.context, pod, claim);
                while settled(give_back().await).is_none() {
                    tokio::time::sleep(RETRY).await;
                }
            }
            Some(Relief::Delete(claim)) => devices::delete(&self.context, pod, claim).await,
            None => {}
        }
        let Some((last, others)) = refusal.victims.split_last() else {
            return;
        };
        for victim in others {
            self.evict(pod, victim).await;
        }
        // Told before, so that the loop knows it when it sees the last one go.
        let _ = self.answers.send(Input::Evicting {
            pod: Arc::clone(pod),
            last: Arc::clone(&last.pod),
        });
        if !self.evict(pod, last).await {
            let _ = self.answers.send(Input::NotEvicted(Arc::clone(pod)));
        }
    }

    /// Who records events about a pod: its scheduler.
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

    /// The pod's `PodScheduled` condition and nominated node, if either is new.
    fn refusal_patch(&self, refusal: &Refusal) -> Option<Value> {
        // The queue may hold an older picture of the pod than the informer.
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

    /// Evicts a pod. False: there was nothing to evict, for it is gone already, or another pod by now.
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

    /// Marks a pod as disrupted and deletes it, if it is still there.
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

/// Cuts an event's message as client-go does.
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
