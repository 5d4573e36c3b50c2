//! Connects the simulated nodes to the API: watch events and booted machines in, writes and events out.
//!
//! One task owns every [`Host`] and the one timer queue. Informer handlers and the cloud only send it messages; what
//! it decides goes to [`super::writer`]. A node beats every 10 s: it renews its lease, and writes its status when
//! something changed or five minutes have passed.
//!
//! Invariant: nothing here waits for the API server, so one slow write never delays another node; and no timer is set
//! for a moment that is not ahead, so that a round over what is due ends whatever a node asks for.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Resource;
use rustc_hash::FxBuildHasher;
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    addresses::Addresses,
    host::Host,
    images::ImageTable,
    node::{NodeFacts, Readiness},
    pace::Pace,
    pod::{Effect, PodEvent, Step},
    writer::{Write, Writers},
};
use crate::{Change, Context, EventType, Recorder, timers::Timers};

/// A kubelet renews its lease and computes its status this often.
const BEAT: SignedDuration = SignedDuration::from_secs(10);
/// An unchanged status is written this often.
const STATUS_REPORT: SignedDuration = SignedDuration::from_secs(300);
/// From the kubelet's start until the network plugin is up, at pace 1.
const NETWORK_LINUX: SignedDuration = SignedDuration::from_secs(8);
const NETWORK_WINDOWS: SignedDuration = SignedDuration::from_secs(20);
/// A pod that asks for a moment that is over is stepped again after this long.
const OVERDUE_PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// What happens to machines.
#[derive(Debug)]
pub enum Machine {
    /// Its operating system is up and its kubelet starts.
    Booted {
        /// What it knows about itself.
        facts: Box<NodeFacts>,
        /// Addresses for its pods.
        addresses: Addresses,
    },
    /// It is gone, and its kubelet with it.
    Gone {
        /// Node name.
        name: String,
    },
    /// Its kubelet stops, or starts again, talking to the API server; what runs goes on running.
    Talking {
        /// Node name.
        name: String,
        /// Whether it talks.
        talking: bool,
    },
}

/// How the kubelets behave.
#[derive(Clone, Debug)]
pub struct Options {
    /// Speed of simulated work.
    pub pace: Pace,
    /// Known images.
    pub images: Arc<ImageTable>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pace: Pace::REAL,
            images: Arc::default(),
        }
    }
}

/// Starts the kubelets of all machines that `machines` will tell of.
pub fn start(context: &Context, options: Options, machines: mpsc::UnboundedReceiver<Machine>) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    watch_pods(context, inputs.clone());
    watch_nodes(context, inputs.clone());
    let driver = Driver {
        context: context.clone(),
        options,
        writers: Writers::start(context),
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

#[derive(Debug)]
enum Input {
    Pod(Arc<Pod>),
    /// The kubelet's own write came back.
    Echo(Arc<Pod>),
    PodGone(Arc<Pod>),
    Node(Arc<Node>),
    NodeGone(String),
}

fn watch_pods(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.pods.on_change(move |change| {
        let pod = change.object();
        if node_of(pod).is_empty() {
            return;
        }
        let input = match change {
            Change::Deleted(_) => Input::PodGone(Arc::clone(pod)),
            Change::Updated { old, new } if !concerns_kubelet(old, new) => {
                Input::Echo(Arc::clone(pod))
            }
            Change::Added(_) | Change::Updated { .. } => Input::Pod(Arc::clone(pod)),
        };
        // Closed only when the process stops.
        let _ = inputs.send(input);
    });
}

fn watch_nodes(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.nodes.on_change(move |change| {
        let input = match change {
            Change::Deleted(node) => {
                Input::NodeGone(node.metadata.name.clone().unwrap_or_default())
            }
            Change::Added(node) | Change::Updated { new: node, .. } => {
                Input::Node(Arc::clone(node))
            }
        };
        let _ = inputs.send(input);
    });
}

/// Whether an update is more than the echo of the kubelet's own status write.
fn concerns_kubelet(old: &Pod, new: &Pod) -> bool {
    let gated = new.spec.as_ref().is_some_and(|spec| {
        spec.readiness_gates
            .as_ref()
            .is_some_and(|gates| !gates.is_empty())
    });
    gated
        || old.metadata.generation != new.metadata.generation
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.generation.is_none()
        || node_of(old) != node_of(new)
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
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
    nodes: HashMap<Arc<str>, Kubelet, FxBuildHasher>,
    /// Pods bound to nodes whose machines have not booted, by node.
    waiting: HashMap<String, Vec<Arc<Pod>>, FxBuildHasher>,
    timers: Timers<Timer>,
}

/// A node and what its kubelet has told the API server.
struct Kubelet {
    host: Host,
    facts: Arc<NodeFacts>,
    recorder: Recorder,
    node: Option<Arc<Node>>,
    talking: bool,
    readiness: Readiness,
    reported_at: Timestamp,
    reported_images: usize,
    reported: Readiness,
}

impl Driver {
    async fn run(
        mut self,
        mut inputs: mpsc::UnboundedReceiver<Input>,
        mut machines: mpsc::UnboundedReceiver<Machine>,
    ) {
        let mut batch = Vec::new();
        loop {
            let sleep = self
                .timers
                .next()
                .map(|at| until(at, self.context.clock.now()));
            tokio::select! {
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
            let now = self.context.clock.now();
            while let Some(timer) = self.timers.pop_due(now) {
                self.due(timer, now);
            }
        }
    }

    fn machine(&mut self, machine: Machine) {
        let now = self.context.clock.now();
        match machine {
            Machine::Booted { facts, addresses } => self.boot(*facts, addresses, now),
            Machine::Gone { name } => {
                self.nodes.remove(name.as_str());
            }
            Machine::Talking { name, talking } => self.talk(&name, talking, now),
        }
    }

    fn boot(&mut self, facts: NodeFacts, addresses: Addresses, now: Timestamp) {
        let name: Arc<str> = facts.name.as_str().into();
        if self.nodes.contains_key(&name) {
            return;
        }
        let network = if facts.is_windows() {
            NETWORK_WINDOWS
        } else {
            NETWORK_LINUX
        };
        let network_up_at = self.options.pace.after(now, network);
        let readiness = if network_up_at <= now {
            Readiness::Ready
        } else {
            Readiness::NetworkNotReady
        };
        let facts = Arc::new(facts);
        let host = Host::new(
            NodeFacts::clone(&facts),
            addresses,
            Arc::clone(&self.options.images),
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
        let kubelet = Kubelet {
            recorder: self.context.recorder_on("kubelet", &name),
            reported_images: host.images().count(now),
            host,
            facts,
            node: None,
            talking: true,
            readiness,
            reported_at: now,
            reported: readiness,
        };
        kubelet.record_start();
        self.nodes.insert(Arc::clone(&name), kubelet);
        if let Some(node) = self.context.informers.nodes.get("", &name) {
            self.input(Input::Node(node));
        }
        for pod in self.waiting.remove(&*name).unwrap_or_default() {
            self.observe_pod(&name, pod, now);
        }
    }

    fn talk(&mut self, name: &str, talking: bool, now: Timestamp) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        kubelet.talking = talking;
        if talking {
            kubelet.reported_at = Timestamp::MIN;
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
                        waiting.retain(|other| other.metadata.uid != pod.metadata.uid);
                        waiting.push(pod);
                    }
                }
            }
            Input::Echo(pod) => {
                let name: Arc<str> = node_of(&pod).into();
                let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
                let kubelet = self.nodes.get_mut(&name).filter(|kubelet| kubelet.talking);
                if let Some(kubelet) = kubelet
                    && kubelet.host.refresh_pod(pod)
                {
                    let step = kubelet.host.step(&uid, now);
                    self.carry_out(&name, &uid, step, now);
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
                }
            }
            Input::Node(node) => self.observe_node(node, now),
            Input::NodeGone(name) => {
                if let Some(kubelet) = self.nodes.get_mut(name.as_str()) {
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
        kubelet.host.observe_node(Arc::clone(&node));
        kubelet.node = Some(Arc::clone(&node));
        if first {
            let name: Arc<str> = name.into();
            // A kubelet that was restarted finds its network as it left it.
            if is_ready(&node) {
                (kubelet.readiness, kubelet.reported) = (Readiness::Ready, Readiness::Ready);
                self.timers.set(Timer::NetworkUp(Arc::clone(&name)), None);
            }
            self.beat(&name, now);
        }
    }

    fn observe_pod(&mut self, name: &Arc<str>, pod: Arc<Pod>, now: Timestamp) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        if !kubelet.talking {
            return;
        }
        let uid: Arc<str> = pod.metadata.uid.as_deref().unwrap_or_default().into();
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
                if let Some(kubelet) = self.nodes.get_mut(&name).filter(|kubelet| kubelet.talking) {
                    let step = kubelet.host.step(&uid, now);
                    self.carry_out(&name, &uid, step, now);
                }
            }
        }
    }

    fn carry_out(&mut self, name: &Arc<str>, uid: &Arc<str>, step: Step, now: Timestamp) {
        let wake = step.wake.map(|at| ahead(at, now, name, uid));
        self.timers
            .set(Timer::Pod(Arc::clone(name), Arc::clone(uid)), wake);
        let Some(kubelet) = self.nodes.get(name) else {
            return;
        };
        let Some(pod) = kubelet.host.pod(uid) else {
            return;
        };
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
                Effect::Delete => self.writers.send(Write::Delete {
                    pod: Arc::clone(pod),
                }),
            }
        }
    }

    /// The ten-second round of one node.
    fn beat(&mut self, name: &Arc<str>, now: Timestamp) {
        let Some(kubelet) = self.nodes.get(name) else {
            return;
        };
        self.timers
            .set(Timer::Beat(Arc::clone(name)), Some(next_beat(name, now)));
        let Some(node) = kubelet.node.as_ref().filter(|_| kubelet.talking) else {
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

    /// Writes the node's status if something in it changed or it is old.
    fn report(&mut self, name: &Arc<str>, now: Timestamp) {
        let Some(kubelet) = self.nodes.get_mut(name) else {
            return;
        };
        let Some(node) = kubelet.node.clone().filter(|_| kubelet.talking) else {
            return;
        };
        let images = kubelet.host.images().count(now);
        let turned = kubelet.readiness != kubelet.reported;
        let old = now.duration_since(kubelet.reported_at) >= STATUS_REPORT;
        if !turned && !old && images == kubelet.reported_images {
            return;
        }
        let before = node
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        let mut status =
            json!({ "conditions": kubelet.facts.conditions(kubelet.readiness, before, now) });
        if images != kubelet.reported_images {
            status["images"] = json!(kubelet.host.images().report(now));
        }
        self.writers.send(Write::NodeStatus {
            name: name.to_string(),
            status,
        });
        if turned && kubelet.readiness == Readiness::Ready {
            kubelet.record_node("NodeReady", format!("Node {name} status is now: NodeReady"));
        }
        (
            kubelet.reported_at,
            kubelet.reported_images,
            kubelet.reported,
        ) = (now, images, kubelet.readiness);
    }
}

impl Kubelet {
    fn record(&self, pod: &Pod, event: PodEvent) {
        let mut object = pod.object_ref(&());
        object.field_path = event.field_path;
        let kind = if event.warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        self.recorder
            .record(object, kind, &event.reason, event.message);
    }

    fn record_start(&self) {
        let name = &self.facts.name;
        self.record_node("Starting", "Starting kubelet.".to_owned());
        for reason in [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
        ] {
            self.record_node(reason, format!("Node {name} status is now: {reason}"));
        }
        self.record_node(
            "NodeAllocatableEnforced",
            "Updated Node Allocatable limit across pods".to_owned(),
        );
        if self.readiness == Readiness::Ready {
            self.record_node("NodeReady", format!("Node {name} status is now: NodeReady"));
        }
    }

    /// An event about the node. The kubelet names its node as uid too, because it may not know the real one.
    fn record_node(&self, reason: &str, message: String) {
        let node = ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(self.facts.name.clone()),
            uid: Some(self.facts.name.clone()),
            ..ObjectReference::default()
        };
        self.recorder
            .record(node, EventType::Normal, reason, message);
    }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The next round of the node, each node at a moment of its own, so that a thousand nodes do not beat at once.
fn next_beat(name: &str, now: Timestamp) -> Timestamp {
    let beat_ms = BEAT.as_millis() as i64;
    let phase = name
        .bytes()
        .fold(0i64, |hash, byte| (hash * 31 + i64::from(byte)) % beat_ms);
    let passed = (now.as_millisecond() - phase).rem_euclid(beat_ms);
    now.saturating_add(SignedDuration::from_millis(beat_ms - passed))
        .unwrap_or(Timestamp::MAX)
}

/// The moment a pod asks to be stepped at, unless it is over: no pod may keep the others from their turn.
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
}
