//! The node lifecycle loop: watches nodes, leases and pods, and keeps conditions, taints, labels and evictions right.
//!
//! One task; every decision comes from [`super::health`], [`super::marks`], [`super::zones`] and [`super::eviction`].
//! Writes run beside it, at most one per node at a time; a write that loses a race is simply decided again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod, PodCondition, Taint},
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use mullion_api::labels;
use mullion_cloud::{CloudProvider, instance_id};
use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, mpsc},
    time::MissedTickBehavior,
};

use super::{
    eviction::{Change as Fate, Evictions},
    health::{Ready, Signs, silenced},
    marks::{self, Evict},
    zones::{Member, Zones},
};
use crate::{Change, Context, Informer, Recorder, informers::BY_NODE, timers::Timers};

/// All nodes are looked at this often.
const ROUND: Duration = Duration::from_secs(5);
/// Writes at a time.
const WRITERS: usize = 16;
/// How often a pod's eviction is tried.
const EVICTION_TRIES: u32 = 5;

/// Starts the controller. With a cloud, nodes whose instance is gone are deleted.
///
/// # Guarantees
/// - Only the taints of the node conditions, of cordoning and of readiness are touched.
///
/// # Caveats
/// - After a restart a silent node gets its whole grace period again, and a doomed pod its whole toleration.
pub fn start(context: &Context, cloud: Option<Arc<dyn CloudProvider>>) {
    let (inputs, receiver) = mpsc::unbounded_channel();
    watch(context, &inputs);
    let driver = Driver {
        nodes: FxHashMap::default(),
        pods: FxHashMap::default(),
        evictions: Evictions::default(),
        zones: Zones::default(),
        timers: Timers::default(),
        writers: Arc::new(Semaphore::new(WRITERS)),
        node_events: context.recorder("node-controller"),
        pod_events: context.recorder("taint-eviction-controller"),
        cloud_events: context.recorder("cloud-node-lifecycle-controller"),
        context: context.clone(),
        cloud,
        inputs,
    };
    let shutdown = context.shutdown.clone();
    context.tasks.spawn(async move {
        shutdown.run_until_cancelled(driver.run(receiver)).await;
    });
}

#[derive(Debug)]
enum Input {
    Node(Arc<Node>),
    NodeGone(Arc<Node>),
    Lease(String, Option<MicroTime>),
    Pod(Arc<Pod>),
    PodGone(Arc<Pod>),
    /// A write about this node has ended.
    Written(String),
}

fn watch(context: &Context, inputs: &mpsc::UnboundedSender<Input>) {
    // A send fails only when the process stops.
    let tx = inputs.clone();
    context.informers.nodes.on_change(move |change| {
        let node = Arc::clone(change.object());
        let _ = tx.send(if change.is_deleted() {
            Input::NodeGone(node)
        } else {
            Input::Node(node)
        });
    });
    let tx = inputs.clone();
    context.informers.pods.on_change(move |change| {
        let pod = change.object();
        if node_of(pod).is_empty() {
            return;
        }
        let input = match change {
            Change::Deleted(_) => Input::PodGone(Arc::clone(pod)),
            Change::Updated { old, new }
                if node_of(old) == node_of(new) && tolerations(old) == tolerations(new) =>
            {
                return;
            }
            _ => Input::Pod(Arc::clone(pod)),
        };
        let _ = tx.send(input);
    });
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), "kube-node-lease");
    let leases = Informer::new(leases, &[], context.tasks.clone(), context.shutdown.clone());
    let tx = inputs.clone();
    leases.on_change(move |change| {
        if !change.is_deleted() {
            let lease = change.object();
            let renewal = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            let _ = tx.send(Input::Lease(lease.name_any(), renewal));
        }
    });
}

struct Watched {
    node: Arc<Node>,
    signs: Signs,
    /// Readiness when last looked at.
    ready: Ready,
    writing: bool,
    /// Something changed while it was written.
    again: bool,
    evict: Evict,
}

struct Driver {
    context: Context,
    cloud: Option<Arc<dyn CloudProvider>>,
    nodes: FxHashMap<String, Watched>,
    /// Pods whose node has an evicting taint, by uid, for their deadline.
    pods: FxHashMap<String, Arc<Pod>>,
    evictions: Evictions,
    zones: Zones,
    timers: Timers<String>,
    writers: Arc<Semaphore>,
    node_events: Recorder,
    pod_events: Recorder,
    cloud_events: Recorder,
    inputs: mpsc::UnboundedSender<Input>,
}

impl Driver {
    async fn run(mut self, mut inputs: mpsc::UnboundedReceiver<Input>) {
        let mut round = tokio::time::interval(ROUND);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut received = Vec::new();
        loop {
            let now = self.context.clock.now();
            let sleep = self
                .timers
                .next()
                .map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
            tokio::select! {
                _ = inputs.recv_many(&mut received, 1024) => {
                    for input in received.drain(..) {
                        self.input(input);
                    }
                }
                _ = round.tick() => self.round(),
                () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => {}
            }
            let now = self.context.clock.now();
            while let Some(uid) = self.timers.pop_due(now) {
                if self.evictions.take_due(&uid, now)
                    && let Some(pod) = self.pods.remove(&uid)
                {
                    self.evict(pod);
                }
            }
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.context.clock.now();
        match input {
            Input::Node(node) => self.observe(node, now),
            Input::NodeGone(node) => {
                let name = node.name_any();
                self.nodes.remove(&name);
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                self.node_events.normal(&*node, "RemovingNode", message);
            }
            Input::Lease(name, renewal) => {
                if let Some(watched) = self.nodes.get_mut(&name) {
                    watched.signs.observe_lease(renewal.as_ref(), now);
                }
            }
            Input::Pod(pod) => {
                if let Some(watched) = self.nodes.get(node_of(&pod)) {
                    let taints = evicting_taints(&watched.node);
                    self.consider(&pod, &taints, now);
                }
            }
            Input::PodGone(pod) => {
                let uid = pod.uid().unwrap_or_default();
                self.evictions.forget(&uid);
                self.pods.remove(&uid);
                self.timers.set(uid, None);
            }
            Input::Written(name) => {
                if let Some(watched) = self.nodes.get_mut(&name) {
                    watched.writing = false;
                    if std::mem::take(&mut watched.again) {
                        self.mend(&name, now);
                    }
                }
            }
        }
    }

    fn observe(&mut self, node: Arc<Node>, now: Timestamp) {
        let name = node.name_any();
        let before = self
            .nodes
            .get(&name)
            .map(|watched| evicting_taints(&watched.node));
        let after = evicting_taints(&node);
        match self.nodes.get_mut(&name) {
            Some(watched) => {
                watched.signs.observe_node(&node, now);
                watched.node = Arc::clone(&node);
            }
            None => {
                let message = format!("Node {name} event: Registered Node {name} in Controller");
                self.node_events.normal(&*node, "RegisteredNode", message);
                let mut signs = Signs::first_seen(now);
                signs.observe_node(&node, now);
                let ready = Ready::of(&node);
                let watched = Watched {
                    node: Arc::clone(&node),
                    signs,
                    ready,
                    writing: false,
                    again: false,
                    evict: Evict::NotYet,
                };
                self.nodes.insert(name.clone(), watched);
            }
        }
        self.notice_readiness(&name, now);
        self.mend(&name, now);
        if before.unwrap_or_default() != after {
            for pod in self.context.informers.pods.by_index(BY_NODE, &name) {
                self.consider(&pod, &after, now);
            }
        }
    }

    /// Tells the world when a node stops being ready.
    fn notice_readiness(&mut self, name: &str, now: Timestamp) {
        let Some(watched) = self.nodes.get_mut(name) else {
            return;
        };
        let (before, after) = (watched.ready, Ready::of(&watched.node));
        watched.ready = after;
        if before != Ready::True || after == Ready::True {
            return;
        }
        let node = Arc::clone(&watched.node);
        self.node_events.normal(
            &*node,
            "NodeNotReady",
            format!("Node {name} status is now: NodeNotReady"),
        );
        for pod in self.context.informers.pods.by_index(BY_NODE, name) {
            if let Some(patch) = not_ready_patch(&pod, now) {
                self.node_events
                    .warning(&*pod, "NodeNotReady", "Node is not ready");
                self.write_pod(pod, patch);
            }
        }
    }

    /// Brings a node's taints and labels to what they should be.
    fn mend(&mut self, name: &str, now: Timestamp) {
        let Some(watched) = self.nodes.get_mut(name) else {
            return;
        };
        if watched.writing {
            watched.again = true;
            return;
        }
        let node = &watched.node;
        let mut patch = json!({});
        if let Some(taints) = marks::wanted_taints(node, watched.evict, now) {
            // Taints are one list: a write based on an older one would undo somebody else's.
            patch["metadata"] = json!({ "resourceVersion": node.metadata.resource_version });
            patch["spec"] = json!({ "taints": taints });
        }
        if let Some(labels) = marks::missing_labels(node) {
            patch["metadata"]["labels"] = json!(labels);
        }
        if patch.as_object().is_some_and(|patch| !patch.is_empty()) {
            watched.writing = true;
            self.write_node(name.to_owned(), Patch::Merge(patch), false);
        }
    }

    /// The five-second round: silence, zones, the cloud.
    fn round(&mut self) {
        let now = self.context.clock.now();
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in &names {
            let Some(watched) = self.nodes.get_mut(name) else {
                continue;
            };
            if !watched.writing
                && watched.signs.is_silent(&watched.node, now)
                && let Some(conditions) = silenced(&watched.node, now)
            {
                watched.writing = true;
                watched.again = true;
                let patch = Patch::Strategic(json!({ "status": { "conditions": conditions } }));
                self.write_node(name.clone(), patch, true);
            }
        }
        let verdicts = self.verdicts(now);
        for (name, verdict) in &verdicts {
            let Some(watched) = self.nodes.get_mut(name) else {
                continue;
            };
            // Once a node's turn has come it stays so, until it is ready again or all zones are down.
            if watched.evict != Evict::Now || *verdict == Evict::Never {
                watched.evict = *verdict;
            }
        }
        for (name, watched) in &mut self.nodes {
            if !verdicts.contains_key(name) {
                watched.evict = Evict::NotYet;
            }
        }
        for name in names {
            self.mend(&name, now);
            self.look_for_instance(&name);
        }
    }

    fn verdicts(&mut self, now: Timestamp) -> BTreeMap<String, Evict> {
        let members: Vec<_> = self
            .nodes
            .iter()
            .map(|(name, watched)| Member {
                name,
                zone: zone_of(&watched.node),
                ready: Ready::of(&watched.node) == Ready::True,
                awaits_eviction: marks::awaits_eviction(&watched.node),
            })
            .collect();
        self.zones.round(&members, now)
    }

    /// Deletes the node if it is not ready and its instance is gone.
    fn look_for_instance(&self, name: &str) {
        let (Some(cloud), Some(watched)) = (&self.cloud, self.nodes.get(name)) else {
            return;
        };
        if Ready::of(&watched.node) == Ready::True
            || watched.node.metadata.deletion_timestamp.is_some()
        {
            return;
        }
        let provider_id = watched
            .node
            .spec
            .as_ref()
            .and_then(|spec| spec.provider_id.as_deref());
        let Some(id) = provider_id.and_then(instance_id) else {
            return;
        };
        let (cloud, client, node) = (
            Arc::clone(cloud),
            self.context.client.clone(),
            Arc::clone(&watched.node),
        );
        let recorder = self.cloud_events.clone();
        self.context.tasks.spawn(async move {
            if !cloud.get(id).await.is_err_and(|error| error.is_not_found()) {
                return;
            }
            let name = node.name_any();
            let message = format!("Deleting node {name} because it does not exist in the cloud provider");
            recorder.normal(&*node, "DeletingNode", message);
            let nodes: Api<Node> = Api::all(client);
            if let Err(error) = nodes.delete(&name, &uid_precondition(node.uid())).await {
                tracing::debug!(%error, node = name, "deleting a node without instance failed, the next round repeats it");
            }
        });
    }

    /// Looks at a pod beside the evicting taints of its node.
    fn consider(&mut self, pod: &Arc<Pod>, taints: &[Taint], now: Timestamp) {
        if pod.metadata.deletion_timestamp.is_some() {
            return;
        }
        let uid = pod.uid().unwrap_or_default();
        match self.evictions.consider(&uid, taints, tolerations(pod), now) {
            Fate::None => {}
            Fate::Evict => {
                self.pods.remove(&uid);
                self.timers.set(uid, None);
                self.evict(Arc::clone(pod));
            }
            Fate::Wait(at) => {
                self.pods.insert(uid.clone(), Arc::clone(pod));
                self.timers.set(uid, Some(at));
            }
            Fate::Reprieved => {
                self.pods.remove(&uid);
                self.timers.set(uid, None);
                let message = format!("Cancelling deletion of Pod {}", full_name(pod));
                self.pod_events
                    .normal(&**pod, "TaintManagerEviction", message);
            }
        }
    }

    fn evict(&self, pod: Arc<Pod>) {
        self.pod_events.normal(
            &*pod,
            "TaintManagerEviction",
            format!("Marking for deletion Pod {}", full_name(&pod)),
        );
        let (client, writers, now) = (
            self.context.client.clone(),
            Arc::clone(&self.writers),
            self.context.clock.now(),
        );
        self.context.tasks.spawn(async move {
            let Ok(_permit) = writers.acquire().await else { return };
            for attempt in 1..=EVICTION_TRIES {
                match delete_for_taint(&client, &pod, now).await {
                    Ok(()) => return,
                    Err(Error::Api(status)) if status.is_not_found() || status.is_conflict() => return,
                    Err(error) => tracing::debug!(%error, attempt, pod = full_name(&pod), "taint eviction failed"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    fn write_pod(&self, pod: Arc<Pod>, patch: Value) {
        let (client, writers) = (self.context.client.clone(), Arc::clone(&self.writers));
        self.context.tasks.spawn(async move {
            let Ok(_permit) = writers.acquire().await else {
                return;
            };
            let pods: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
            let result = pods
                .patch_status(
                    &pod.name_any(),
                    &PatchParams::default(),
                    &Patch::Strategic(patch),
                )
                .await;
            if let Err(error) = result {
                tracing::debug!(%error, pod = full_name(&pod), "marking a pod not ready failed");
            }
        });
    }

    fn write_node(&self, name: String, patch: Patch<Value>, status: bool) {
        let (client, writers, inputs) = (
            self.context.client.clone(),
            Arc::clone(&self.writers),
            self.inputs.clone(),
        );
        self.context.tasks.spawn(async move {
            let permit = writers.acquire().await;
            let (nodes, params) = (Api::<Node>::all(client), PatchParams::default());
            let result = if status {
                nodes.patch_status(&name, &params, &patch).await
            } else {
                nodes.patch(&name, &params, &patch).await
            };
            // On a conflict the watch brings the newer node, and it is decided again.
            if let Err(error) = result {
                tracing::debug!(%error, node = name, "node update failed");
            }
            drop(permit);
            let _ = inputs.send(Input::Written(name));
        });
    }
}

async fn delete_for_taint(client: &Client, pod: &Pod, now: Timestamp) -> Result<(), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let condition = PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("DeletionByTaintManager".to_owned()),
        message: Some("Taint manager: deleting due to NoExecute taint".to_owned()),
        observed_generation: pod.metadata.generation,
        last_transition_time: Some(Time(now)),
        last_probe_time: None,
    };
    let patch =
        json!({ "metadata": { "uid": pod.uid() }, "status": { "conditions": [condition] } });
    pods.patch_status(
        &pod.name_any(),
        &PatchParams::default(),
        &Patch::Strategic(patch),
    )
    .await?;
    pods.delete(&pod.name_any(), &uid_precondition(pod.uid()))
        .await
        .map(drop)
}

fn uid_precondition(uid: Option<String>) -> DeleteParams {
    let preconditions = Preconditions {
        uid,
        resource_version: None,
    };
    DeleteParams {
        preconditions: Some(preconditions),
        ..DeleteParams::default()
    }
}

/// Makes a ready pod's Ready condition False.
fn not_ready_patch(pod: &Pod, now: Timestamp) -> Option<Value> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions
        .iter()
        .find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    let condition = PodCondition {
        status: "False".to_owned(),
        last_transition_time: Some(Time(now)),
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

fn tolerations(pod: &Pod) -> &[k8s_openapi::api::core::v1::Toleration] {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.tolerations.as_deref())
        .unwrap_or_default()
}

fn node_of(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
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

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}
