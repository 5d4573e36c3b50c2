//! Connects the simulated nodes to the API: receives watch events and machine events, and sends writes and events.
//!
//! One task owns every [`Host`] and the timer queue. Informer handlers and the cloud send it messages; its writes go to
//! [`super::writer`]. Every 10 s a node renews its lease, and it writes its status if that has changed or five minutes have
//! passed.
//!
//! Waiting times use the steady clock, timestamps the wall clock: leases are renewed every 10 s even if the wall clock
//! jumps.
//!
//! Invariant: nothing here waits for the API server, so a slow write never delays another node; and no timer is set for a
//! time that has passed, so a round over due timers always ends.

mod inputs;
mod kubelet;
mod node_status;
mod object_reader;

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use rustc_hash::FxBuildHasher;
use tokio::sync::mpsc;

use self::{
    inputs::{Input, node_of, watch_nodes, watch_pods},
    kubelet::{Kubelet, is_ready, network_delay, next_beat},
    object_reader::ObjectReader,
};
use super::{
    addresses::Addresses,
    host::Host,
    node::{NodeFacts, Readiness},
    pace::Pace,
    pod::{Effect, Step},
    pulls::ImageSources,
    writer::{Write, Writers},
};
use crate::{Context, timers::Timers};

/// The delay of a pod's next step if the pod asked for a time that has passed.
const OVERDUE_PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// An event of a simulated machine, for its kubelet.
#[derive(Debug)]
pub enum MachineEvent {
    /// The operating system has booted and the kubelet starts.
    Booted {
        /// The facts about the node.
        facts: Box<NodeFacts>,
        /// The addresses for its pods.
        addresses: Addresses,
    },
    /// The machine is gone, and its kubelet with it.
    Gone {
        /// Node name.
        name: String,
    },
    /// The kubelet loses or regains its connection to the API server; its containers keep running.
    Connection {
        /// Node name.
        name: String,
        /// Whether it is connected.
        connected: bool,
    },
}

/// Settings of the simulated kubelets.
#[derive(Clone, Debug)]
pub struct Options {
    /// The speed of simulated work.
    pub pace: Pace,
    /// The known facts about images.
    pub images: ImageSources,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pace: Pace::REAL,
            images: ImageSources::default(),
        }
    }
}

/// Starts the kubelets of all machines that `machines` announces.
pub fn start(context: &Context, options: Options, machines: mpsc::UnboundedReceiver<MachineEvent>) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    watch_pods(context, inputs.clone());
    watch_nodes(context, inputs.clone());
    let driver = Driver {
        context: context.clone(),
        options,
        writers: Writers::start(context),
        object_reader: ObjectReader::new(context, inputs),
        nodes: HashMap::default(),
        waiting: HashMap::default(),
        timers: Timers::default(),
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown
            .run_until_cancelled(driver.run(receiver, machines))
            .await;
    });
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Timer {
    Beat(Arc<str>),
    NetworkUp(Arc<str>),
    Pod(Arc<str>, Arc<str>),
}

struct Driver {
    context: Context,
    options: Options,
    writers: Writers,
    object_reader: ObjectReader,
    nodes: HashMap<Arc<str>, Kubelet, FxBuildHasher>,
    /// Pods bound to nodes whose machines have not booted yet, by node.
    waiting: HashMap<String, Vec<Arc<Pod>>, FxBuildHasher>,
    timers: Timers<Timer>,
}

impl Driver {
    async fn run(
        mut self,
        mut inputs: mpsc::UnboundedReceiver<Input>,
        mut machines: mpsc::UnboundedReceiver<MachineEvent>,
    ) {
        let mut batch = Vec::new();
        loop {
            let sleep = self
                .timers
                .next()
                .map(|at| until(at, self.context.clock.steady()));
            tokio::select! {
                // Machines first: a pod of a node whose boot is already queued then need not be kept waiting
                // for it.
                biased;
                Some(machine) = machines.recv() => self.machine(machine),
                received = inputs.recv_many(&mut batch, 1024) => {
                    if received == 0 {
                        return;
                    }
                    for input in batch.drain(..) {
                        self.input(input);
                    }
                }
                () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => {}
            }
            let waited = self.context.clock.steady();
            let now = self.context.clock.now();
            for timer in self.timers.take_due(waited) {
                self.due(timer, now);
            }
        }
    }

    fn machine(&mut self, machine: MachineEvent) {
        let now = self.context.clock.now();
        match machine {
            MachineEvent::Booted { facts, addresses } => self.boot(*facts, addresses, now),
            MachineEvent::Gone { name } => {
                self.nodes.remove(name.as_str());
            }
            MachineEvent::Connection { name, connected } => {
                self.set_connected(&name, connected, now)
            }
        }
    }

    fn boot(&mut self, facts: NodeFacts, addresses: Addresses, now: Timestamp) {
        let name: Arc<str> = facts.name.as_str().into();
        if self.nodes.contains_key(&name) {
            return;
        }
        let waited = self.context.clock.steady();
        let network_up_at = self.options.pace.after(waited, network_delay(&facts));
        let readiness = if network_up_at <= waited {
            Readiness::Ready
        } else {
            Readiness::NetworkNotReady
        };
        let facts = Arc::new(facts);
        let host = Host::new(
            NodeFacts::clone(&facts),
            addresses,
            self.options.images.clone(),
            self.options.pace,
            now,
        );
        let node = facts.node(readiness, host.images().report(now), now);
        self.writers.send(Write::Register {
            facts: Arc::clone(&facts),
            node: Box::new(node),
        });
        self.timers.set(
            Timer::NetworkUp(Arc::clone(&name)),
            (readiness != Readiness::Ready).then_some(network_up_at),
        );
        let recorder = self.context.recorder_on("kubelet", &name);
        let kubelet = Kubelet::new(host, facts, readiness, recorder, (now, waited));
        kubelet.record_start();
        self.nodes.insert(Arc::clone(&name), kubelet);
        // After a restart of the process the Node exists already, and its event came before the machine was known.
        if let Some(node) = self.context.informers.nodes.get("", &name) {
            self.input(Input::Node(node));
        }
        for pod in self.waiting.remove(&*name).unwrap_or_default() {
            self.observe_pod(&name, pod, now);
        }
    }

    fn set_connected(&mut self, name: &str, connected: bool, now: Timestamp) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        kubelet.connected = connected;
        if connected {
            // While the kubelet was silent the node lifecycle controller set its conditions to Unknown.
            kubelet.report_at_once();
            // Changes that came meanwhile were ignored, so each pod is observed in its latest version.
            let pods = self
                .context
                .informers
                .pods
                .by_index(crate::informers::BY_NODE, name);
            let name: Arc<str> = name.into();
            self.beat(&name, now);
            for pod in pods {
                self.observe_pod(&name, pod, now);
            }
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.context.clock.now();
        match input {
            Input::Pod(pod) => {
                let name = node_of(&pod);
                match self.nodes.get_key_value(name) {
                    Some((name, _)) => {
                        let name = Arc::clone(name);
                        self.observe_pod(&name, pod, now);
                    }
                    None => {
                        let name = name.to_owned();
                        let waiting = self.waiting.entry(name).or_default();
                        // Only the newest version of a pod is kept for the boot.
                        waiting.retain(|other| other.metadata.uid != pod.metadata.uid);
                        waiting.push(pod);
                    }
                }
            }
            Input::Echo(pod) => {
                let kubelet = self.nodes.get_mut(node_of(&pod));
                if let Some(kubelet) = kubelet.filter(|kubelet| kubelet.connected)
                    // The echo of an own write needs no step, unless another client changed annotations or
                    // readiness with it.
                    && kubelet.host.refresh_pod(Arc::clone(&pod), now)
                {
                    let name: Arc<str> = node_of(&pod).into();
                    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                    let step = kubelet.host.step(uid, now);
                    self.carry_out(&name, uid, step, now);
                }
            }
            Input::Answer {
                pod,
                purpose,
                found,
            } => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                if let Some(kubelet) = self.nodes.get_mut(node_of(&pod)) {
                    kubelet.host.answer(uid, purpose, found);
                    // A kubelet that is not connected processes the answer when it is connected again.
                    if kubelet.connected {
                        let name: Arc<str> = node_of(&pod).into();
                        let step = kubelet.host.step(uid, now);
                        self.carry_out(&name, uid, step, now);
                    }
                }
            }
            Input::PodGone(pod) => {
                let uid = pod.metadata.uid.as_deref().unwrap_or_default();
                let name = node_of(&pod);
                if let Some(waiting) = self.waiting.get_mut(name) {
                    waiting.retain(|other| other.metadata.uid.as_deref() != Some(uid));
                    if waiting.is_empty() {
                        self.waiting.remove(name);
                    }
                }
                if let Some(kubelet) = self.nodes.get_mut(name) {
                    kubelet.host.forget_pod(uid, now);
                    self.timers.set(Timer::Pod(name.into(), uid.into()), None);
                    self.step_resized(&name.into(), now);
                }
            }
            Input::Node(node) => self.observe_node(node, now),
            Input::NodeGone(name) => {
                if let Some(kubelet) = self.nodes.get_mut(name.as_str()) {
                    // The kubelet goes on without its Node object: it neither renews its lease nor reports
                    // until one exists again.
                    kubelet.node = None;
                }
            }
        }
    }

    fn observe_node(&mut self, node: Arc<Node>, now: Timestamp) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        let first = kubelet.node.is_none();
        kubelet.host.observe_node(Arc::clone(&node), now);
        kubelet.node = Some(Arc::clone(&node));
        let name: Arc<str> = name.into();
        if first {
            // After a restart of the kubelet, the node's network is still up.
            if is_ready(&node) {
                kubelet.finds_network_up();
                self.timers.set(Timer::NetworkUp(Arc::clone(&name)), None);
            }
            self.beat(&name, now);
        }
        self.step_resized(&name, now);
    }

    fn observe_pod(&mut self, name: &Arc<str>, pod: Arc<Pod>, now: Timestamp) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        if !kubelet.connected {
            return;
        }
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let step = kubelet.host.observe_pod(pod, now);
        self.carry_out(name, &uid, step, now);
    }

    fn due(&mut self, timer: Timer, now: Timestamp) {
        match timer {
            Timer::Beat(name) => self.beat(&name, now),
            Timer::NetworkUp(name) => {
                if let Some(kubelet) = self.nodes.get_mut(&name) {
                    kubelet.readiness = Readiness::Ready;
                    self.report(&name, now);
                }
            }
            Timer::Pod(name, uid) => {
                if let Some(kubelet) = self
                    .nodes
                    .get_mut(&name)
                    .filter(|kubelet| kubelet.connected)
                {
                    let step = kubelet.host.step(&uid, now);
                    self.carry_out(&name, &uid, step, now);
                }
            }
        }
    }

    fn carry_out(&mut self, name: &Arc<str>, uid: &str, step: Step, now: Timestamp) {
        let Some((kubelet, sim)) = self
            .nodes
            .get(name)
            .and_then(|kubelet| Some((kubelet, kubelet.host.sim(uid)?)))
        else {
            return;
        };
        let waited = self.context.clock.steady();
        // Pods compute in wall time, but timers use the steady clock.
        let wake = step.wake.map(|at| {
            let left = ahead(at, now, name, uid).duration_since(now);
            waited.saturating_add(left).unwrap_or(Timestamp::MAX)
        });
        let timer = Timer::Pod(Arc::clone(name), Arc::clone(sim.uid()));
        // Set even when nothing is due, because that removes the timer of the step before.
        self.timers.set(timer, wake);
        let pod = sim.pod();
        for effect in step.effects {
            match effect {
                Effect::Event(event) => kubelet.record(pod, event),
                Effect::Status { status, address } => {
                    self.writers.send(Write::Status {
                        pod: Arc::clone(pod),
                        status,
                        address,
                    });
                }
                Effect::Ask(question) => self.object_reader.look_up_for(pod, question),
                Effect::Delete => self.writers.send(Write::Delete {
                    pod: Arc::clone(pod),
                }),
            }
        }
        self.step_resized(name, now);
    }

    /// Steps the pods whose resizes were decided.
    fn step_resized(&mut self, name: &Arc<str>, now: Timestamp) {
        let kubelet = self.nodes.get_mut(name);
        let kubelet = kubelet.filter(|kubelet| kubelet.connected);
        let uids = kubelet.map(|kubelet| kubelet.host.take_resized());
        for uid in uids.unwrap_or_default() {
            if let Some(kubelet) = self.nodes.get_mut(name) {
                let step = kubelet.host.step(&uid, now);
                self.carry_out(name, &uid, step, now);
            }
        }
    }

    /// Writes the node's status if that is due.
    fn report(&mut self, name: &str, now: Timestamp) {
        let waited = self.context.clock.steady();
        let kubelet = self.nodes.get_mut(name);
        if let Some(write) = kubelet.and_then(|kubelet| kubelet.report(now, waited)) {
            self.writers.send(write);
        }
    }

    /// Runs the ten-second heartbeat of one node.
    fn beat(&mut self, name: &Arc<str>, now: Timestamp) {
        let Some(kubelet) = self.nodes.get(name) else {
            return;
        };
        let next = next_beat(name, self.context.clock.steady());
        self.timers.set(Timer::Beat(Arc::clone(name)), Some(next));
        let Some(node) = kubelet.node.as_ref().filter(|_| kubelet.connected) else {
            return;
        };
        let node_uid = node.metadata.uid.clone().unwrap_or_default();
        self.writers.send(Write::Renew {
            facts: Arc::clone(&kubelet.facts),
            node_uid,
            at: now,
        });
        self.report(name, now);
    }
}

/// Returns the time at which a pod wants its next step, or a later one if that has passed: otherwise the pod would keep all
/// others from their turn.
fn ahead(at: Timestamp, now: Timestamp, node: &str, pod: &str) -> Timestamp {
    if at > now {
        return at;
    }
    tracing::error!(%at, %now, node, pod, "a pod asks to be stepped at a moment that is over");
    now.saturating_add(OVERDUE_PAUSE).unwrap_or(Timestamp::MAX)
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(at.duration_since(now)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_never_set_for_a_moment_that_is_not_ahead() {
        let now = Timestamp::from_second(100).expect("within range");
        let nanosecond = SignedDuration::from_nanos(1);
        for at in [Timestamp::MIN, now - nanosecond, now] {
            assert_eq!(ahead(at, now, "n", "u"), now + OVERDUE_PAUSE);
        }
        assert_eq!(ahead(now + nanosecond, now, "n", "u"), now + nanosecond);
        for ms in 0..20_000 {
            let now = now + SignedDuration::from_millis(ms) + nanosecond;
            assert!(next_beat("ip-10-0-1-9", now) > now);
        }
    }

    #[test]
    fn nodes_beat_every_ten_seconds_in_ten_groups() {
        let now = Timestamp::from_millisecond(100_321).expect("within range");
        let mut groups = std::collections::BTreeMap::new();
        for number in 0..500 {
            let (net, host) = (number / 200, number % 200);
            let name = format!("ip-10-0-{net}-{host}.us-west-2.compute.internal");
            let first = next_beat(&name, now);
            assert!(first.duration_since(now) <= SignedDuration::from_secs(10));
            assert_eq!(
                next_beat(&name, first),
                first + SignedDuration::from_secs(10)
            );
            *groups.entry(first).or_insert(0) += 1;
        }
        assert_eq!(groups.len(), 10);
        assert!(
            groups.values().all(|nodes| (25..100).contains(nodes)),
            "{groups:?}"
        );
    }
}
