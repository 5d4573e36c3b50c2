//! The scheduling loop: takes pending pods and produces bindings and refusals.
//!
//! One task owns the queue. It takes a batch of pods, locks the shared cluster state once, asks the engine about each pod
//! and assumes its answer. Bindings and refusals go to writers, so the loop never waits for the API server, and each
//! answer counts all earlier ones.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use mullion_engine::Plugin;
use tokio::{sync::mpsc, time::MissedTickBehavior};

use super::{
    config::Config,
    device_hints::{self, DeviceEvent},
    evictions::Evictions,
    queue::{Entry, STALE_CHECK, SchedulingQueue},
    requirements::{PodRequirements, ProfileRequirements},
    round::{Refused, Round, Verdict},
    storage_hints, traced,
    wake::{Event, Plugins},
    watch::{self, Input, scheduler_name},
    writer::{Nomination, Outcome, Refusal, Victim, Write, Writers},
};
use crate::{Context, informers::BY_NODE, state::SharedState};

/// The maximum number of pods decided under one lock of the shared state.
const BATCH: usize = 128;
/// The maximum number of events collected before refused pods are notified.
const MAX_PENDING_EVENTS: usize = 64;
/// How often expired back-offs are flushed.
const BACKOFF_CHECK: Duration = Duration::from_secs(1);

/// Starts the scheduler over a cluster state that other controllers may share; `seed` breaks ties between equal nodes.
///
/// # Guarantees
/// - A pod is bound at most once, and only where the engine found room for it beside everything bound or decided before.
/// - A refused pod gets a `PodScheduled` condition and an event with the reason, and is retried when that can help.
///
/// # Assumptions
/// - No other scheduler serves pods of the names of the state's profiles.
pub fn start_over(context: &Context, state: &SharedState, seed: u64) {
    start_with(context, state, seed, &Config::default());
}

/// Starts the scheduler like [`start_over`], with a configuration; the state must have been created with the same
/// profiles.
pub fn start_with(context: &Context, state: &SharedState, seed: u64, config: &Config) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    let profiles = config.profiles.iter();
    let profiles: BTreeMap<_, _> = profiles
        .map(|profile| {
            (
                profile.scheduler_name.clone(),
                ProfileRequirements::of(profile),
            )
        })
        .collect();
    watch::start(context, &inputs, profiles.keys().cloned().collect());
    // A send fails only when the process stops.
    storage_hints::watch(context, {
        let inputs = inputs.clone();
        move |event| drop(inputs.send(Input::Event(Event::Storage(event))))
    });
    device_hints::watch(context, {
        let inputs = inputs.clone();
        move |event| drop(inputs.send(Input::Event(Event::Device(event))))
    });
    let scheduler = Scheduler {
        context: context.clone(),
        state: state.clone(),
        queue: SchedulingQueue::new(config.backoff),
        writers: Writers::start(context, profiles.keys(), inputs),
        profiles,
        pending_events: Vec::new(),
        evictions: Evictions::default(),
        seed,
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(scheduler.run(receiver)).await;
    });
}

struct Scheduler {
    context: Context,
    state: SharedState,
    queue: SchedulingQueue,
    writers: Writers,
    /// What each profile adds to the requirements of its pods, by scheduler name.
    profiles: BTreeMap<String, ProfileRequirements>,
    /// Events of which refused pods have not been notified.
    pending_events: Vec<Event>,
    evictions: Evictions,
    seed: u64,
}

impl Scheduler {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        if !self.state.synced().await {
            return;
        }
        let mut backoff = tokio::time::interval(BACKOFF_CHECK);
        backoff.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stale_at = self.context.clock.steady();
        let mut received = Vec::new();
        loop {
            if self.queue.has_work() {
                // All pending inputs are processed first, so that a batch is decided on the newest state.
                while let Ok(input) = inputs.try_recv() {
                    self.input(input);
                }
                self.schedule_batch();
                // Deciding does not wait for anything, so a long queue would starve the other tasks.
                tokio::task::yield_now().await;
            } else {
                tokio::select! {
                    count = inputs.recv_many(&mut received, 1024) => {
                        if count == 0 {
                            return;
                        }
                    }
                    // Promises can expire without any input to this loop.
                    _ = backoff.tick() => self.wake_released(),
                }
                for input in received.drain(..) {
                    self.input(input);
                }
            }
            let now = self.context.clock.steady();
            self.notify_queue(now);
            self.queue.flush_backoff(now);
            if now >= stale_at {
                self.queue.flush_stale(now);
                stale_at = now.saturating_add(STALE_CHECK).unwrap_or(Timestamp::MAX);
            }
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.context.clock.steady();
        match input {
            Input::Pending(pod) => self.queue.set(pod, now),
            Input::Settled(pod) => self.queue.remove(&pod),
            // A pod that is refused later is decided with this event already in the cluster state.
            // Most events meet an empty queue; dropping them here keeps the loop cheap in a cluster without
            // waiting pods.
            Input::Event(event) if !self.queue.cares_for(&event) => {}
            // Events about equal pods wake the same waiting pods, so one of them is enough.
            Input::Event(event) => {
                if !self
                    .pending_events
                    .iter()
                    .any(|known| known.makes_redundant(&event))
                {
                    self.pending_events.push(event);
                }
                if self.pending_events.len() >= MAX_PENDING_EVENTS {
                    self.notify_queue(now);
                }
            }
            Input::Leaving(pod) => {
                let uid = key(&pod);
                self.evictions.end(&uid);
                self.queue.left(&uid);
            }
            Input::Spared(victim) => {
                let uid = key(&victim);
                self.evictions.end(&uid);
                self.queue.spared(&uid);
            }
            Input::Evicting { pod, last } => {
                if self.is_leaving(&last) {
                    self.queue.evicted(&key(&pod))
                } else {
                    self.queue.awaits(&key(&pod), &key(&last))
                }
            }
            Input::NotEvicted(pod) => self.queue.activate(&key(&pod)),
            Input::Wrote(claim) => {
                let now = self.context.clock.now();
                self.state
                    .with(|state| state.wrote_resource_claim(&claim, now));
            }
            Input::Bound(entry, Outcome::Done) => self.queue.finish(&entry),
            Input::Bound(
                entry,
                Outcome::Refused {
                    again,
                    message,
                    reserved,
                },
            ) => {
                let namespace = entry.pod.metadata.namespace.as_deref();
                let namespace = namespace.unwrap_or_default();
                // The room is given back before the event below wakes others, or they would be refused once
                // more.
                self.state.with(|state| {
                    state.forget(&key(&entry.pod));
                    state.release_volumes(namespace, &reserved.volumes);
                    if let Some(decided) = &reserved.devices {
                        state.release_devices(namespace, &key(&entry.pod), &decided.choices);
                    }
                });
                self.input(Input::Event(Event::PodDeleted(Arc::clone(&entry.pod))));
                if reserved.devices.is_some() {
                    self.input(Input::Event(Event::Device(DeviceEvent::Freed)));
                }
                if again {
                    self.fail(*entry, message, now);
                } else {
                    self.queue.finish(&entry);
                }
            }
        }
    }

    /// Returns whether a pod is deleted or being deleted. If not, [`Input::Leaving`] reports that later.
    fn is_leaving(&self, pod: &Pod) -> bool {
        let meta = &pod.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let known = self
            .context
            .informers
            .pods
            .get(namespace.unwrap_or_default(), name.unwrap_or_default());
        known.is_none_or(|known| {
            known.metadata.uid != meta.uid || known.metadata.deletion_timestamp.is_some()
        })
    }

    /// Wakes the refused pods that the collected events may help.
    fn notify_queue(&mut self, now: Timestamp) {
        let events = std::mem::take(&mut self.pending_events);
        if !events.is_empty() {
            self.queue.notify(&events, now);
        }
    }

    /// Retries pods that lost the place which a plan had for them.
    fn wake_released(&mut self) {
        let released = self.state.with(|state| state.take_released());
        released.iter().for_each(|key| self.queue.activate(key));
    }

    fn schedule_batch(&mut self) {
        let (entries, deleted): (Vec<_>, Vec<_>) = self
            .queue
            .pop(BATCH)
            .into_iter()
            .partition(|entry| entry.pod.metadata.deletion_timestamp.is_none());
        // kube-scheduler skips pods that are being deleted, since their binding would be refused.
        for entry in deleted {
            self.queue.finish(&entry);
            self.writers.send(Write::Skip(entry.pod));
        }
        // Each pod gets its own seed, so that ties between equal nodes are broken differently.
        let seed = self.seed;
        self.seed = self.seed.wrapping_add(entries.len() as u64);
        let (context, evictions) = (&self.context, &mut self.evictions);
        let verdicts: Vec<_> = self.state.with(|state| {
            let mut round = Round {
                state,
                refused: Refused::default(),
                evictions,
            };
            let asked = entries.iter().zip(seed..);
            asked
                .map(|(entry, seed)| {
                    let began = context.traces.is_on().then(|| context.clock.now());
                    let verdict = round.decide(&entry.pod, seed);
                    if let Some(began) = began {
                        traced::attempt(context, &entry.pod, began, &verdict);
                    }
                    verdict
                })
                .collect()
        });
        let now = self.context.clock.steady();
        for (entry, verdict) in entries.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Bind { node, reserved } => self.writers.send(Write::Bind {
                    entry: Box::new(entry),
                    node,
                    reserved,
                }),
                Verdict::Hold => {
                    let rejectors = [Plugin::DynamicResources].into_iter().collect();
                    let requirements = self.requirements(&entry.pod, rejectors);
                    self.queue.held(entry, rejectors, requirements, now);
                }
                Verdict::Fail { message } => self.fail(entry, message, now),
                Verdict::Refuse {
                    message,
                    rejectors,
                    nominated,
                    victims,
                    awaited,
                    devices,
                } => {
                    let victims = match &nominated {
                        Nomination::Set(node) => self.victims(node, &victims),
                        _ => Vec::new(),
                    };
                    let refusal = Refusal {
                        pod: Arc::clone(&entry.pod),
                        reason: "Unschedulable",
                        message,
                        nominated,
                        victims,
                        devices,
                    };
                    let requirements = self.requirements(&entry.pod, rejectors);
                    let evicting = !refusal.victims.is_empty() || awaited.is_some();
                    // The queue has the pod before the writer can report its victims.
                    self.queue
                        .refused(entry, rejectors, requirements, evicting, now);
                    if let Some(victim) = awaited {
                        self.queue.awaits(&key(&refusal.pod), &victim);
                    }
                    self.writers.send(Write::Refuse(Box::new(refusal)));
                }
            }
        }
    }

    /// Compiles what a pod waits for after `rejectors` refused it.
    fn requirements(&self, pod: &Pod, rejectors: Plugins) -> PodRequirements {
        let profile = self.profiles.get(scheduler_name(pod));
        let profile = profile.map(|profile| profile.for_pod(pod, &self.context.informers));
        let mut requirements = PodRequirements::of(pod, rejectors, profile.unwrap_or_default());
        requirements.device_class_resources =
            device_hints::device_class_resources(pod, &self.context.informers.device_classes);
        requirements
    }

    fn fail(&mut self, entry: Entry, message: String, now: Timestamp) {
        let pod = Arc::clone(&entry.pod);
        self.queue.failed(entry, now);
        let refusal = Refusal {
            pod,
            reason: "SchedulerError",
            message,
            nominated: Nomination::Clear,
            victims: Vec::new(),
            devices: None,
        };
        self.writers.send(Write::Refuse(Box::new(refusal)));
    }

    fn victims(&self, node: &str, keys: &[String]) -> Vec<Victim> {
        if keys.is_empty() {
            return Vec::new();
        }
        let pods = &self.context.informers.pods;
        let doomed = pods.find_by_index(BY_NODE, node, keys.len(), |pod| {
            let meta = &pod.metadata;
            // A victim that is being deleted already needs no eviction.
            meta.deletion_timestamp.is_none()
                && meta.uid.as_ref().is_some_and(|uid| keys.contains(uid))
        });
        let doomed = doomed.into_iter().map(|pod| Victim {
            pod,
            node: node.to_owned(),
        });
        doomed.collect()
    }
}

fn key(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}
