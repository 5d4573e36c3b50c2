//! The scheduling loop: pending pods in, bindings and refusals out.
//!
//! One task owns the queue. It takes a batch of pods, asks the engine about each while it holds the shared cluster state
//! once, assumes what was decided, and hands bindings and refusals to writers, so that it never waits for the API server.
//! What the engine is asked next already counts what was decided before.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use mullion_engine::{
    Decision, ModelError, PodClassId, model::PodSpec, preempt::Preemption,
    profile::DEFAULT_SCHEDULER,
};
use rustc_hash::FxHashMap;
use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::{
    queue::{Backoff, Entry, STALE_CHECK, SchedulingQueue},
    wake::{Event, NodeChanges, Plugins, scaled_down},
    writer::{Outcome, Refusal, Victim, Write, Writers},
};
use crate::{
    Change, Context,
    informers::BY_NODE,
    state::{ClusterState, SharedState, convert},
};

/// Pods asked about while the shared state is held.
const BATCH: usize = 128;
/// Events collected before refused pods are told of them.
const MOST_NEWS: usize = 64;
/// Back-offs are flushed this often.
const BACKOFF_CHECK: Duration = Duration::from_secs(1);

/// Starts the scheduler over a cluster state that others may share; `seed` breaks ties between equal nodes.
///
/// # Guarantees
/// - A pod is bound at most once, and only where the engine found room for it beside everything bound or decided before.
/// - A refused pod says why in its `PodScheduled` condition and in an event, and is tried again when that can help.
///
/// # Assumptions
/// - No other scheduler serves pods of the names of the state's profiles.
pub fn start_over(context: &Context, state: &SharedState, seed: u64) {
    start_with(context, state, seed, Backoff::default());
}

/// [`start_over`], with another back-off for refused pods.
pub fn start_with(context: &Context, state: &SharedState, seed: u64, backoff: Backoff) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    let names = state.with(|state| {
        let names = state.cluster().scheduler_names();
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    });
    watch_pods(context, inputs.clone(), names);
    watch_nodes(context, inputs.clone());
    let scheduler = Scheduler {
        context: context.clone(),
        state: state.clone(),
        queue: SchedulingQueue::new(backoff),
        writers: Writers::start(context, inputs),
        news: Vec::new(),
        seed,
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(scheduler.run(receiver)).await;
    });
}

/// What reaches the loop.
#[derive(Debug)]
pub(super) enum Input {
    /// A pod that has no node appeared or changed.
    Pending(Arc<Pod>),
    /// A pod is not pending any more.
    Settled(Arc<Pod>),
    /// Something happened that may help refused pods.
    Event(Event),
    /// A binding was answered.
    Bound(Box<Entry>, Outcome),
}

fn watch_pods(context: &Context, inputs: mpsc::UnboundedSender<Input>, names: BTreeSet<String>) {
    let is_ours = move |pod: &Pod| names.contains(scheduler_name(pod));
    context.informers.pods.on_change(move |change| {
        // A send fails only when the process stops.
        let tell = |input| {
            let _ = inputs.send(input);
        };
        let pod = change.object();
        let gone = change.is_deleted() || convert::is_finished(pod);
        if is_bound(pod) {
            match change.previous() {
                Some(old) if !is_bound(old) && is_ours(pod) => {
                    tell(Input::Settled(Arc::clone(pod)))
                }
                _ => {}
            }
            if let Some(event) = bound_pod_event(change, gone) {
                tell(Input::Event(event));
            }
        } else if is_ours(pod) {
            let dying = gone || pod.metadata.deletion_timestamp.is_some();
            match change {
                _ if dying => tell(Input::Settled(Arc::clone(pod))),
                Change::Updated { old, new } if only_conditions_changed(old, new) => {}
                _ => tell(Input::Pending(Arc::clone(pod))),
            }
            if let Some(old) = dropped_nomination(change, gone) {
                tell(Input::Event(Event::NominationDropped(Arc::clone(old))));
            }
        }
    });
}

fn watch_nodes(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.nodes.on_change(move |change| {
        let event = match change {
            Change::Added(node) => Event::NodeAdded(Arc::clone(node)),
            Change::Updated { old, new } => match node_event(old, new) {
                Some(event) => event,
                None => return,
            },
            Change::Deleted(node) => Event::NodeDeleted(Arc::clone(node)),
        };
        let _ = inputs.send(Input::Event(event));
    });
}

fn node_event(old: &Arc<Node>, new: &Arc<Node>) -> Option<Event> {
    let changes = NodeChanges::between(old, new);
    changes.any().then(|| Event::NodeUpdated {
        old: Arc::clone(old),
        new: Arc::clone(new),
        changes,
    })
}

/// What a change of a bound pod means to refused ones.
fn bound_pod_event(change: &Change<'_, Pod>, gone: bool) -> Option<Event> {
    match change {
        Change::Added(pod) => (!gone).then(|| Event::PodAdded(Arc::clone(pod))),
        Change::Deleted(pod) => {
            (!convert::is_finished(pod)).then(|| Event::PodDeleted(Arc::clone(pod)))
        }
        Change::Updated { old, .. } if convert::is_finished(old) => None,
        Change::Updated { old, .. } if gone => Some(Event::PodDeleted(Arc::clone(old))),
        Change::Updated { old, new } if !is_bound(old) => Some(Event::PodAdded(Arc::clone(new))),
        Change::Updated { old, new } => {
            let (old, new) = (Arc::clone(old), Arc::clone(new));
            if old.metadata.labels != new.metadata.labels {
                return Some(Event::PodLabels { old, new });
            }
            let specs = old.spec.as_ref().zip(new.spec.as_ref());
            let smaller = specs.is_some_and(|(old, new)| scaled_down(old, new));
            smaller.then_some(Event::PodScaledDown { old, new })
        }
    }
}

/// The last version in which a waiting pod still held room on the node it was nominated for.
fn dropped_nomination<'a>(change: &Change<'a, Pod>, gone: bool) -> Option<&'a Arc<Pod>> {
    let nominated = |pod: &Pod| {
        let status = pod.status.as_ref();
        status
            .and_then(|status| status.nominated_node_name.clone())
            .filter(|node| !node.is_empty())
    };
    let (old, kept) = match change {
        Change::Added(_) => return None,
        Change::Deleted(pod) => (*pod, None),
        Change::Updated { old, new } => (*old, nominated(new).filter(|_| !gone)),
    };
    let held = nominated(old);
    (held.is_some() && held != kept).then_some(old)
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .is_some_and(|node| !node.is_empty())
}

/// The scheduler a pod is for.
fn scheduler_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.scheduler_name.as_deref());
    name.filter(|name| !name.is_empty())
        .unwrap_or(DEFAULT_SCHEDULER)
}

/// Whether an update of a pending pod is only the echo of its own refusal.
fn only_conditions_changed(old: &Pod, new: &Pod) -> bool {
    old.spec == new.spec && old.metadata.labels == new.metadata.labels
}

struct Scheduler {
    context: Context,
    state: SharedState,
    queue: SchedulingQueue,
    writers: Writers,
    /// Events that refused pods have not been told of.
    news: Vec<Event>,
    seed: u64,
}

/// What was decided about one pod of a batch.
enum Verdict {
    Bind {
        node: String,
    },
    Refuse {
        message: String,
        rejectors: Plugins,
        nominated: Option<String>,
        victims: Vec<String>,
    },
    Fail {
        message: String,
    },
}

impl Verdict {
    fn refuse(message: String, rejectors: Plugins) -> Self {
        Self::Refuse {
            message,
            rejectors,
            nominated: None,
            victims: Vec::new(),
        }
    }
}

impl Scheduler {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        if !self.state.synced().await {
            return;
        }
        let mut backoff = tokio::time::interval(BACKOFF_CHECK);
        backoff.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stale_at = self.context.clock.now();
        let mut received = Vec::new();
        loop {
            if self.queue.has_work() {
                while let Ok(input) = inputs.try_recv() {
                    self.input(input);
                }
                self.schedule_batch();
                tokio::task::yield_now().await;
            } else {
                tokio::select! {
                    count = inputs.recv_many(&mut received, 1024) => {
                        if count == 0 {
                            return;
                        }
                    }
                    _ = backoff.tick() => self.state.catch_up(),
                }
                for input in received.drain(..) {
                    self.input(input);
                }
            }
            let now = self.context.clock.now();
            self.tell_news(now);
            self.queue.flush_backoff(now);
            if now >= stale_at {
                self.queue.flush_stale(now);
                stale_at = now.saturating_add(STALE_CHECK).unwrap_or(Timestamp::MAX);
            }
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.context.clock.now();
        match input {
            Input::Pending(pod) => self.queue.set(pod, now),
            Input::Settled(pod) => self.queue.remove(&pod),
            // Who is refused later is asked about with the event already counted.
            Input::Event(_) if !self.queue.has_unschedulable() => {}
            // A thousand pods of one template say no more than one.
            Input::Event(event) => {
                if !self.news.iter().any(|known| known.covers(&event)) {
                    self.news.push(event);
                }
                if self.news.len() >= MOST_NEWS {
                    self.tell_news(now);
                }
            }
            Input::Bound(entry, Outcome::Done) => self.queue.placed(&entry),
            Input::Bound(entry, Outcome::Refused { again, message }) => {
                self.state.with(|state| state.forget(&key(&entry.pod)));
                self.input(Input::Event(Event::PodDeleted(Arc::clone(&entry.pod))));
                if again {
                    self.fail(*entry, message, now);
                } else {
                    self.queue.placed(&entry);
                }
            }
        }
    }

    /// Wakes the refused pods that the news may help.
    fn tell_news(&mut self, now: Timestamp) {
        let news = std::mem::take(&mut self.news);
        if !news.is_empty() {
            self.queue.notify(&news, now);
        }
    }

    fn schedule_batch(&mut self) {
        let entries = self.queue.pop(BATCH);
        let seed = self.seed;
        self.seed = self.seed.wrapping_add(entries.len() as u64);
        let verdicts: Vec<_> = self.state.with(|state| {
            let mut refused = Refused::default();
            let asked = entries.iter().zip(seed..);
            asked
                .map(|(entry, seed)| decide(state, &mut refused, &entry.pod, seed))
                .collect()
        });
        let now = self.context.clock.now();
        for (entry, verdict) in entries.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Bind { node } => self.writers.send(Write::Bind {
                    entry: Box::new(entry),
                    node,
                }),
                Verdict::Fail { message } => self.fail(entry, message, now),
                Verdict::Refuse {
                    message,
                    rejectors,
                    nominated,
                    victims,
                } => {
                    let victims = self.victims(nominated.as_deref(), &victims);
                    let refusal = Refusal {
                        pod: Arc::clone(&entry.pod),
                        reason: "Unschedulable",
                        message,
                        nominated,
                        victims,
                    };
                    self.queue.refused(entry, rejectors, now);
                    self.writers.send(Write::Refuse(Box::new(refusal)));
                }
            }
        }
    }

    fn fail(&mut self, entry: Entry, message: String, now: Timestamp) {
        let pod = Arc::clone(&entry.pod);
        self.queue.failed(entry, now);
        let refusal = Refusal {
            pod,
            reason: "SchedulerError",
            message,
            nominated: None,
            victims: Vec::new(),
        };
        self.writers.send(Write::Refuse(Box::new(refusal)));
    }

    fn victims(&self, node: Option<&str>, keys: &[String]) -> Vec<Victim> {
        let Some(node) = node.filter(|_| !keys.is_empty()) else {
            return Vec::new();
        };
        let pods = self.context.informers.pods.by_index(BY_NODE, node);
        let doomed = pods.into_iter().filter(|pod| {
            pod.metadata
                .uid
                .as_ref()
                .is_some_and(|uid| keys.contains(uid))
        });
        // One that is on its way out already needs no second push.
        let doomed = doomed.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        doomed
            .map(|pod| Victim {
                pod,
                node: node.to_owned(),
            })
            .collect()
    }
}

/// Pod classes that were refused since the cluster last changed: their other pods get the same answer unasked.
type Refused = FxHashMap<PodClassId, (String, Plugins)>;

/// Asks the engine about one pod and assumes what it answers.
fn decide(state: &mut ClusterState, refused: &mut Refused, pod: &Pod, seed: u64) -> Verdict {
    match ask(state, refused, &convert::pod(pod), seed) {
        Ok(verdict) => verdict,
        Err(error) => Verdict::Fail {
            message: error.to_string(),
        },
    }
}

fn ask(
    state: &mut ClusterState,
    refused: &mut Refused,
    spec: &PodSpec,
    seed: u64,
) -> Result<Verdict, ModelError> {
    let class = state.cluster_mut().pod_class(&spec.template)?;
    if spec.nominated_node_name.is_none()
        && let Some((message, rejectors)) = refused.get(&class)
    {
        return Ok(Verdict::refuse(message.clone(), *rejectors));
    }
    let refusal = match state.cluster_mut().schedule_pod(spec, seed)? {
        Decision::Node(id) => {
            let node = state.cluster().node_name(id).to_owned();
            state.assume(spec, &node)?;
            refused.clear();
            return Ok(Verdict::Bind { node });
        }
        Decision::Unschedulable(refusal) => refusal,
    };
    let rejectors: Plugins = refusal.plugins().into_iter().collect();
    let cluster = state.cluster_mut();
    let preemption = cluster.preempt(class, &spec.key(), &refusal, seed);
    let message = cluster.message_with_preemption(&refusal, &preemption);
    match preemption {
        Preemption::Evict { chosen, .. } => {
            let node = cluster.node_name(chosen.node).to_owned();
            // The room is held from now on, not only when the API server has been told.
            cluster.nominate(spec, &node)?;
            refused.clear();
            Ok(Verdict::Refuse {
                message,
                rejectors,
                nominated: Some(node),
                victims: chosen.victims,
            })
        }
        waiting if waiting.waits_for_victims() => Ok(Verdict::Refuse {
            message,
            rejectors,
            nominated: spec.nominated_node_name.clone(),
            victims: Vec::new(),
        }),
        _ => {
            refused.insert(class, (message.clone(), rejectors));
            Ok(Verdict::refuse(message, rejectors))
        }
    }
}

fn key(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nominated(node: Option<&str>) -> Arc<Pod> {
        let pod = json!({ "metadata": { "name": "a" }, "status": { "nominatedNodeName": node } });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn room_held_for_a_waiting_pod_is_dropped_when_it_goes_or_is_held_elsewhere() {
        let (here, there, nowhere) = (
            nominated(Some("n1")),
            nominated(Some("n2")),
            nominated(None),
        );
        let dropped = |old: &Arc<Pod>, new: &Arc<Pod>| {
            dropped_nomination(&Change::Updated { old, new }, false).is_some()
        };
        assert!(dropped(&here, &there) && dropped(&here, &nowhere));
        assert!(!dropped(&here, &here) && !dropped(&nowhere, &here));
        assert!(dropped_nomination(&Change::Deleted(&here), true).is_some());
        assert!(dropped_nomination(&Change::Deleted(&nowhere), true).is_none());
        assert!(dropped_nomination(&Change::Added(&here), false).is_none());
    }
}
