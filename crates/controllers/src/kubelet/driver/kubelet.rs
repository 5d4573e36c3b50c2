//! One kubelet as the driver knows it: its machine, and what it has told the API server about it.
//!
//! Invariant: a node's status is written when it is not what its kubelet knows, or when the last report is five minutes old, and at no other
//! time.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, ObjectReference, Pod};
use kube::Resource;
use serde_json::json;

use super::node_status;
use crate::{
    EventType, Recorder,
    kubelet::{
        host::Host,
        node::{NodeFacts, Readiness},
        pod::PodEvent,
        writer::Write,
    },
};

/// A kubelet renews its lease and computes its status this often.
const BEAT: SignedDuration = SignedDuration::from_secs(10);
/// Nodes beat in groups, at the same moment of every round, this far apart: what a group writes goes through the API server and its watches
/// together, which costs less than half of what as many lone writes do.
const GROUP: SignedDuration = SignedDuration::from_secs(1);
/// An unchanged status is written this often.
const STATUS_REPORT: SignedDuration = SignedDuration::from_secs(300);
/// From the kubelet's start until the network plugin is up, at pace 1.
const NETWORK_LINUX: SignedDuration = SignedDuration::from_secs(8);
const NETWORK_WINDOWS: SignedDuration = SignedDuration::from_secs(20);

/// A node and what its kubelet has told the API server.
pub(super) struct Kubelet {
    pub(super) host: Host,
    pub(super) facts: Arc<NodeFacts>,
    pub(super) node: Option<Arc<Node>>,
    pub(super) talking: bool,
    pub(super) readiness: Readiness,
    recorder: Recorder,
    /// In steady time.
    reported_at: Timestamp,
    reported_images: usize,
    reported: Readiness,
    reported_paging: bool,
    /// The node whose status was last held against what is so.
    compared: Option<Arc<Node>>,
}

/// How long the network plugin of a node needs, at pace 1.
pub(super) fn network_delay(facts: &NodeFacts) -> SignedDuration {
    if facts.is_windows() {
        NETWORK_WINDOWS
    } else {
        NETWORK_LINUX
    }
}

impl Kubelet {
    /// The kubelet of a machine that has booted, registering now; `now` is the wall time and the steady time.
    pub(super) fn new(
        host: Host,
        facts: Arc<NodeFacts>,
        readiness: Readiness,
        recorder: Recorder,
        (now, waited): (Timestamp, Timestamp),
    ) -> Self {
        Self {
            reported_images: host.images().count(now),
            host,
            facts,
            node: None,
            talking: true,
            readiness,
            recorder,
            reported_at: waited,
            reported: readiness,
            reported_paging: false,
            compared: None,
        }
    }

    /// The network is as a kubelet before this one left it.
    pub(super) fn finds_network_up(&mut self) {
        (self.readiness, self.reported) = (Readiness::Ready, Readiness::Ready);
    }

    /// The next report is due at once.
    pub(super) fn report_at_once(&mut self) {
        self.reported_at = Timestamp::MIN;
    }

    /// The write of the node's status, if something in it changed, whoever changed it, or it is old. Nothing is compared while the node
    /// is the one that was compared before. The report's age is measured by `waited`, the steady time.
    pub(super) fn report(&mut self, now: Timestamp, waited: Timestamp) -> Option<Write> {
        let node = self.node.clone().filter(|_| self.talking)?;
        let images = self.host.images().count(now);
        let is_paging = self.host.look_at_memory();
        let turned = self.readiness != self.reported || is_paging != self.reported_paging;
        let old = waited.duration_since(self.reported_at) >= STATUS_REPORT;
        let compared = self.compared.as_ref();
        let compared = compared.is_some_and(|compared| Arc::ptr_eq(compared, &node));
        if compared && !turned && !old && images == self.reported_images {
            return None;
        }
        let stored = node.status.clone().unwrap_or_default();
        let mut wanted = self.facts.status(
            self.readiness,
            self.host.images().report(now),
            stored.conditions.as_deref(),
            now,
        );
        if is_paging {
            NodeFacts::press_memory(&mut wanted, stored.conditions.as_deref(), now);
        }
        self.compared = Some(node);
        self.reported_paging = is_paging;
        (self.reported, self.reported_images) = (self.readiness, images);
        let mut status = node_status::difference(&stored, &wanted);
        if status.is_empty() && !old {
            return None;
        }
        for condition in node_status::turns(&stored, &wanted) {
            self.record_turn(turn(condition));
        }
        // Whatever is written, the heartbeats go with it.
        status.insert("conditions".to_owned(), json!(wanted.conditions));
        self.reported_at = waited;
        Some(Write::NodeStatus {
            name: self.facts.name.clone(),
            status: status.into(),
        })
    }

    /// Records an event on a pod.
    pub(super) fn record(&self, pod: &Pod, event: PodEvent) {
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

    /// Records what a kubelet says when it starts.
    pub(super) fn record_start(&self) {
        self.record_node("Starting", "Starting kubelet.".to_owned());
        for turn in [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
        ] {
            self.record_turn(turn);
        }
        // Windows has no cgroups to enforce it with.
        if !self.facts.is_windows() {
            self.record_node(
                "NodeAllocatableEnforced",
                "Updated Node Allocatable limit across pods".to_owned(),
            );
        }
        if self.readiness == Readiness::Ready {
            self.record_turn("NodeReady");
        }
    }

    fn record_turn(&self, reason: &str) {
        let name = &self.facts.name;
        self.record_node(reason, format!("Node {name} status is now: {reason}"));
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

/// The kubelet's word for what a condition says now.
fn turn(condition: &NodeCondition) -> &'static str {
    match (&*condition.type_, &*condition.status) {
        ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
        ("MemoryPressure", _) => "NodeHasSufficientMemory",
        ("DiskPressure", _) => "NodeHasNoDiskPressure",
        ("PIDPressure", _) => "NodeHasSufficientPID",
        (_, "True") => "NodeReady",
        _ => "NodeNotReady",
    }
}

/// Whether a node says that it is ready.
pub(super) fn is_ready(node: &Node) -> bool {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The next round of the node. Nodes are spread over the groups, so that a thousand nodes do not beat at once.
pub(super) fn next_beat(name: &str, now: Timestamp) -> Timestamp {
    let (beat_ms, group_ms) = (BEAT.as_millis() as i64, GROUP.as_millis() as i64);
    let hash = name
        .bytes()
        .fold(0i64, |hash, byte| (hash * 31 + i64::from(byte)) % beat_ms);
    let phase = hash - hash % group_ms;
    let passed = (now.as_millisecond() - phase).rem_euclid(beat_ms);
    now.saturating_add(SignedDuration::from_millis(beat_ms - passed))
        .unwrap_or(Timestamp::MAX)
}
