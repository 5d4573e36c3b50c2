//! The node lifecycle loop: watches nodes, leases and pods, and updates conditions, taints and labels and evicts
//! pods.
//!
//! One task receives its inputs from [`super::watch`]. Decisions about nodes are made by [`super::health`],
//! [`super::marks`] and [`super::zones`], those about pods by [`super::evictor`]. Writes run concurrently
//! ([`super::writer`]), at most one per node at a time; after a conflict the decision is made again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Node, Pod, PodCondition, Taint},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{ResourceExt, api::Patch};
use mullion_api::labels;
use mullion_cloud::CloudProvider;
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc},
    time::MissedTickBehavior,
};

use super::{
    evictor::Evictor,
    health::{Heartbeats, Ready, silenced},
    instances::Instances,
    marks::{self, EvictionTaints},
    watch::{self, Input},
    writer::{Part, Writer},
    zones::{ZoneNode, Zones},
};
use crate::{Context, Recorder, context::whole_seconds, informers::BY_NODE, pods};

/// The interval at which all nodes are checked.
const ROUND: Duration = Duration::from_secs(5);
/// The number of concurrent writes.
const WRITERS: usize = 16;

/// Starts the controller. With a cloud, nodes whose instance is gone are deleted.
///
/// # Guarantees
/// - Only the taints for node conditions, cordoning and readiness are changed.
///
/// # Caveats
/// - After a restart a silent node gets its whole grace period again, and a pod to be evicted its whole toleration
///   time.
pub fn start(context: &Context, cloud: Option<Arc<dyn CloudProvider>>) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    watch::start(context, &inputs);
    let permits = Arc::new(Semaphore::new(WRITERS));
    let driver = Driver {
        nodes: FxHashMap::default(),
        evictor: Evictor::new(context, Arc::clone(&permits)),
        instances: cloud.map(|cloud| Instances::new(context, cloud)),
        zones: Zones::default(),
        writer: Writer::new(context, permits, inputs),
        recorder: context.recorder("node-controller"),
        context: context.clone(),
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(driver.run(receiver)).await;
    });
}

struct WatchedNode {
    node: Arc<Node>,
    heartbeats: Heartbeats,
    /// The readiness when last observed.
    ready: Ready,
    writing: bool,
    /// Whether the node changed while its taints were being written.
    changed_while_writing: bool,
    eviction_taints: EvictionTaints,
}

struct Driver {
    context: Context,
    nodes: FxHashMap<String, WatchedNode>,
    evictor: Evictor,
    instances: Option<Instances>,
    zones: Zones,
    writer: Writer,
    recorder: Recorder,
}

impl Driver {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        let mut round = tokio::time::interval(ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut received = Vec::new();
        loop {
            let waited = self.context.clock.steady();
            let sleep = self
                .evictor
                .next()
                .map(|at| Duration::try_from(at.duration_since(waited)).unwrap_or_default());
            tokio::select! {
                _ = inputs.recv_many(&mut received, 1024) => {
                    for input in received.drain(..) {
                        self.input(input);
                    }
                }
                _ = round.tick() => self.round(),
                () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => {}
            }
            self.evictor.evict_due(self.context.clock.steady());
        }
    }

    fn input(&mut self, input: Input) {
        let (now, waited) = (self.context.clock.now(), self.context.clock.steady());
        match input {
            Input::Node(node) => self.observe(node, now, waited),
            Input::NodeGone(node) => {
                let name = node.name_any();
                self.nodes.remove(&name);
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                self.recorder.normal(&*node, "RemovingNode", message);
            }
            Input::Lease(name, renewal) => {
                if let Some(watched) = self.nodes.get_mut(&name) {
                    // The steady clock: a jump of the wall clock must not make every node look silent.
                    watched.heartbeats.observe_lease(renewal.as_ref(), waited);
                }
            }
            Input::Pod(pod) => {
                if let Some(watched) = self.nodes.get(pods::node_name(&pod)) {
                    let taints = evicting_taints(&watched.node);
                    if !taints.is_empty() {
                        self.evictor.consider(&pod, &taints, waited);
                    }
                }
            }
            Input::PodGone(pod) => self.evictor.forget(&pod),
            Input::Written(name) => {
                if let Some(watched) = self.nodes.get_mut(&name) {
                    watched.writing = false;
                    if std::mem::take(&mut watched.changed_while_writing) {
                        self.update_marks(&name, now);
                    }
                }
            }
        }
    }

    /// Processes a version of a node. `now` is the time for timestamps; `waited` is the steady time, by which
    /// silence and tolerations are measured.
    fn observe(&mut self, node: Arc<Node>, now: Timestamp, waited: Timestamp) {
        let name = node.name_any();
        let before = self
            .nodes
            .get(&name)
            .map(|watched| evicting_taints(&watched.node));
        let after = evicting_taints(&node);
        match self.nodes.get_mut(&name) {
            Some(watched) => {
                watched.heartbeats.observe_node(&node, waited);
                watched.node = Arc::clone(&node);
            }
            None => {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                self.recorder.normal(&*node, "RegisteredNode", message);
                let mut heartbeats = Heartbeats::first_seen(waited);
                heartbeats.observe_node(&node, waited);
                let ready = Ready::of(&node);
                let watched = WatchedNode {
                    node: Arc::clone(&node),
                    heartbeats,
                    ready,
                    writing: false,
                    changed_while_writing: false,
                    eviction_taints: EvictionTaints::NotYet,
                };
                self.nodes.insert(name.clone(), watched);
            }
        }
        self.notice_readiness(&name, now);
        self.update_marks(&name, now);
        // Evictions depend only on the NoExecute taints, which most node updates do not change.
        if before.unwrap_or_default() != after {
            for pod in self.context.informers.pods.by_index(BY_NODE, &name) {
                self.evictor.consider(&pod, &after, waited);
            }
        }
    }

    /// Marks the pods of a node as not ready if the node was ready and has become silent. A kubelet that is not
    /// silent reports its pods' readiness itself.
    fn notice_readiness(&mut self, name: &str, now: Timestamp) {
        let Some(watched) = self.nodes.get_mut(name) else {
            return;
        };
        let (before, after) = (watched.ready, Ready::of(&watched.node));
        watched.ready = after;
        if before != Ready::True || after != Ready::Unknown {
            return;
        }
        let node = Arc::clone(&watched.node);
        let message = format!("Node {name} status is now: NodeNotReady");
        self.recorder.normal(&*node, "NodeNotReady", message);
        for pod in self.context.informers.pods.by_index(BY_NODE, name) {
            if let Some(patch) = not_ready_patch(&pod, now) {
                self.recorder
                    .warning(&*pod, "NodeNotReady", "Node is not ready");
                self.writer.pod_status(pod, patch);
            }
        }
    }

    /// Writes a node's taints and labels if they are not as they should be.
    fn update_marks(&mut self, name: &str, now: Timestamp) {
        let Some(watched) = self.nodes.get_mut(name) else {
            return;
        };
        if watched.writing {
            watched.changed_while_writing = true;
            return;
        }
        let node = &watched.node;
        let mut patch = json!({});
        if let Some(taints) = marks::wanted_taints(node, watched.eviction_taints, now) {
            // Taints are one list, so a write based on an older list would undo other clients' changes.
            patch["metadata"] = json!({ "resourceVersion": node.metadata.resource_version });
            patch["spec"] = json!({ "taints": taints });
        }
        if let Some(labels) = marks::missing_labels(node) {
            patch["metadata"]["labels"] = json!(labels);
        }
        if patch.as_object().is_some_and(|patch| !patch.is_empty()) {
            watched.writing = true;
            self.writer
                .node(name.to_owned(), Patch::Merge(patch), Part::Whole);
        }
    }

    /// Runs the five-second round: silent nodes, zones, and instances.
    fn round(&mut self) {
        let (now, waited) = (self.context.clock.now(), self.context.clock.steady());
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in &names {
            let Some(watched) = self.nodes.get_mut(name) else {
                continue;
            };
            if !watched.writing
                && watched.heartbeats.is_silent(&watched.node, waited)
                && let Some(conditions) = silenced(&watched.node, now)
            {
                watched.writing = true;
                watched.changed_while_writing = true;
                let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
                self.writer.node(name.clone(), patch, Part::Status);
            }
        }
        // Silent nodes are noticed first, but count as not ready only when their write comes back as a
        // change.
        let verdicts = self.verdicts(waited);
        for (name, verdict) in &verdicts {
            let Some(watched) = self.nodes.get_mut(name) else {
                continue;
            };
            // Once a node's pods may be evicted, that stays so until it is ready again or all zones are down.
            if watched.eviction_taints != EvictionTaints::Now || *verdict == EvictionTaints::Never {
                watched.eviction_taints = *verdict;
            }
        }
        for (name, watched) in &mut self.nodes {
            if !verdicts.contains_key(name) {
                watched.eviction_taints = EvictionTaints::NotYet;
            }
        }
        for name in names {
            self.update_marks(&name, now);
            if let (Some(instances), Some(watched)) = (&self.instances, self.nodes.get(&name)) {
                instances.look_for(&watched.node);
            }
        }
    }

    fn verdicts(&mut self, waited: Timestamp) -> BTreeMap<String, EvictionTaints> {
        let members: Vec<_> = self
            .nodes
            .iter()
            .map(|(name, watched)| ZoneNode {
                name,
                zone: zone_of(&watched.node),
                ready: Ready::of(&watched.node) == Ready::True,
                awaits_eviction: marks::awaits_eviction(&watched.node),
            })
            .collect();
        self.zones.round(&members, waited)
    }
}

/// Returns the patch that sets the condition Ready of a ready pod to False.
fn not_ready_patch(pod: &Pod, now: Timestamp) -> Option<Value> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    let condition = PodCondition {
        status: "False".to_owned(),
        last_transition_time: Some(Time(whole_seconds(now))),
        ..ready.clone()
    };
    Some(
        json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } }),
    )
}

fn evicting_taints(node: &Node) -> Vec<Taint> {
    marks::taints(node)
        .iter()
        .filter(|taint| taint.effect == "NoExecute")
        .cloned()
        .collect()
}

fn zone_of(node: &Node) -> String {
    let label = |key: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .cloned()
            .unwrap_or_default()
    };
    format!("{}:{}", label(labels::REGION), label(labels::ZONE))
}
