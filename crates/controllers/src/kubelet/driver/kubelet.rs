//! One kubelet from the driver's point of view: its node, and what it has reported to the API server.
//!
//! Invariant: a node's status is written only when it differs from the state that the kubelet knows, or when the
//! last report is five minutes old.

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

/// The interval at which a kubelet renews its lease and computes its status.
const BEAT: SignedDuration = SignedDuration::from_secs(10);
/// The distance between groups of nodes. The nodes of a group beat at the same moment of every round: writing
/// together costs the API server and its watches less than half of what as many separate writes do.
const GROUP: SignedDuration = SignedDuration::from_secs(1);
/// The interval at which an unchanged status is written.
const STATUS_REPORT: SignedDuration = SignedDuration::from_secs(300);
/// The time from the kubelet's start until the network plugin is up, at pace 1.
const NETWORK_LINUX: SignedDuration = SignedDuration::from_secs(8);
const NETWORK_WINDOWS: SignedDuration = SignedDuration::from_secs(20);

/// A node, and what its kubelet has reported to the API server.
pub(super) struct Kubelet {
    pub(super) host: Host,
    pub(super) facts: Arc<NodeFacts>,
    pub(super) node: Option<Arc<Node>>,
    pub(super) connected: bool,
    pub(super) readiness: Readiness,
    recorder: Recorder,
    /// The steady time of the last report.
    reported_at: Timestamp,
    reported_images: usize,
    reported: Readiness,
    reported_paging: bool,
    /// The version of the node whose status was last compared with the actual state.
    compared: Option<Arc<Node>>,
}

/// Returns how long a node's network plugin takes to come up, at pace 1.
pub(super) fn network_delay(facts: &NodeFacts) -> SignedDuration {
    if facts.is_windows() {
        NETWORK_WINDOWS
    } else {
        NETWORK_LINUX
    }
}

impl Kubelet {
    /// Creates the kubelet of a machine that has booted, which registers now. `now` is the wall time, `waited` the
    /// steady time.
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
            connected: true,
            readiness,
            recorder,
            reported_at: waited,
            reported: readiness,
            reported_paging: false,
            compared: None,
        }
    }

    /// Marks the network as up, as a previous kubelet on this node left it.
    pub(super) fn finds_network_up(&mut self) {
        (self.readiness, self.reported) = (Readiness::Ready, Readiness::Ready);
    }

    /// Makes the next report due at once.
    pub(super) fn report_at_once(&mut self) {
        self.reported_at = Timestamp::MIN;
    }

    /// Returns the write of the node's status if the stored status differs from the actual one, whoever changed it,
    /// or if the last report is too old. A version of the node that was already compared is not compared again.
    /// `waited` is the steady time, which measures the report's age.
    pub(super) fn report(&mut self, now: Timestamp, waited: Timestamp) -> Option<Write> {
        let node = self.node.clone().filter(|_| self.connected)?;
        let images = self.host.images().count(now);
        let is_paging = self.host.look_at_memory();
        let turned = self.readiness != self.reported || is_paging != self.reported_paging;
        let old = waited.duration_since(self.reported_at) >= STATUS_REPORT;
        let compared = self.compared.as_ref();
        // Compared by address: an equal version is the same allocation, and a comparison of the content costs
        // the most.
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
        // Every write includes the conditions, so that their heartbeats are renewed.
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

    /// Records the events of a kubelet's start.
    pub(super) fn record_start(&self) {
        self.record_node("Starting", "Starting kubelet.".to_owned());
        for turn in [
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
        ] {
            self.record_turn(turn);
        }
        // Windows has no cgroups with which to enforce it.
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

    /// Records an event about the node. The kubelet uses the node's name as UID too, because it may not know the
    /// real one.
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

/// Returns the kubelet's event reason for the present status of a condition.
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

/// Returns whether a node's condition Ready is True.
pub(super) fn is_ready(node: &Node) -> bool {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns when the node's next round is. Nodes are spread over the groups, so that a thousand nodes do not beat at
/// once.
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
