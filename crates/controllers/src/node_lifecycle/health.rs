//! Decides whether a node's kubelet is alive (kube-controller-manager: `monitorNodeHealth`). The caller passes the
//! time.
//!
//! A sign of life is a new heartbeat in the Ready condition or a renewed lease. Its time is taken from the
//! controller's own clock, never from the node's, so that a node with a wrong clock is not considered dead.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};

/// How long a node may show no sign of life before its conditions become Unknown.
pub const GRACE: SignedDuration = SignedDuration::from_secs(50);
/// The same for a node that has never reported its readiness.
pub const STARTUP_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// The conditions that become Unknown when the kubelet is silent.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The readiness of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// The node accepts pods.
    True,
    /// The kubelet reports that the node is not ready.
    False,
    /// The kubelet reports nothing.
    Unknown,
}

impl Ready {
    /// Returns the readiness in the node's Ready condition; a missing condition counts as unknown.
    pub fn of(node: &Node) -> Self {
        match condition(node, "Ready").map(|condition| condition.status.as_str()) {
            Some("True") => Self::True,
            Some("False") => Self::False,
            _ => Self::Unknown,
        }
    }
}

/// The signs of life of one node.
#[derive(Clone, Debug)]
pub struct Heartbeats {
    heartbeat: Option<Time>,
    renewal: Option<MicroTime>,
    last_sign: Timestamp,
}

impl Heartbeats {
    /// Creates the signs of a node that is seen for the first time.
    pub fn first_seen(now: Timestamp) -> Self {
        Self {
            heartbeat: None,
            renewal: None,
            last_sign: now,
        }
    }

    /// Checks for a new heartbeat.
    pub fn observe_node(&mut self, node: &Node, now: Timestamp) {
        // The controller's own writes to a silent node's condition keep the old heartbeat.
        let heartbeat =
            condition(node, "Ready").and_then(|condition| condition.last_heartbeat_time.clone());
        if heartbeat.is_some() && heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.last_sign = now;
        }
    }

    /// Checks for a renewed lease.
    pub fn observe_lease(&mut self, renewal: Option<&MicroTime>, now: Timestamp) {
        if let Some(renewal) = renewal
            // Any different time counts, not only a later one: the kubelet's clock may have been set back.
            && self.renewal.as_ref() != Some(renewal)
        {
            self.renewal = Some(renewal.clone());
            self.last_sign = now;
        }
    }

    /// Returns whether the node has been silent for too long.
    pub fn is_silent(&self, node: &Node, now: Timestamp) -> bool {
        let grace = if condition(node, "Ready").is_some() {
            GRACE
        } else {
            STARTUP_GRACE
        };
        now.duration_since(self.last_sign) > grace
    }
}

/// Returns the conditions to write to a silent node, or `None` if they are Unknown already.
pub fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let silence = |name: &&str| match condition(node, name) {
        Some(known) if known.status == "Unknown" => None,
        Some(known) => Some(NodeCondition {
            status: "Unknown".to_owned(),
            reason: Some("NodeStatusUnknown".to_owned()),
            message: Some("Kubelet stopped posting node status.".to_owned()),
            last_transition_time: Some(Time(now)),
            ..known.clone()
        }),
        None => Some(NodeCondition {
            type_: (*name).to_owned(),
            status: "Unknown".to_owned(),
            reason: Some("NodeStatusNeverUpdated".to_owned()),
            message: Some("Kubelet never posted node status.".to_owned()),
            // Upstream's fake heartbeat for a kubelet that never reported: the node's creation.
            last_heartbeat_time: node.metadata.creation_timestamp.clone(),
            last_transition_time: Some(Time(now)),
        }),
    };
    let conditions: Vec<_> = KUBELET_CONDITIONS.iter().filter_map(silence).collect();
    (!conditions.is_empty()).then_some(conditions)
}

/// Returns a node's condition by name.
pub fn condition<'a>(node: &'a Node, name: &str) -> Option<&'a NodeCondition> {
    node.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    fn node(heartbeat: Option<i64>) -> Node {
        let ready = heartbeat.map(|second| {
            json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": at(second).to_string(), "reason": "KubeletReady" })
        });
        let node = json!({ "metadata": { "name": "n" }, "status": { "conditions": ready.into_iter().collect::<Vec<_>>() } });
        serde_json::from_value(node).expect("a node")
    }

    #[test]
    fn a_node_is_silent_fifty_seconds_after_its_last_sign_of_life() {
        let mut signs = Heartbeats::first_seen(at(0));
        signs.observe_node(&node(Some(0)), at(5));
        assert!(!signs.is_silent(&node(Some(0)), at(55)));
        assert!(signs.is_silent(&node(Some(0)), at(56)));
        signs.observe_lease(Some(&MicroTime(at(1))), at(56));
        assert!(
            !signs.is_silent(&node(Some(0)), at(100)),
            "the lease was renewed"
        );
        signs.observe_lease(Some(&MicroTime(at(1))), at(100));
        signs.observe_node(&node(Some(0)), at(100));
        assert!(
            signs.is_silent(&node(Some(0)), at(107)),
            "the same lease and heartbeat again are no sign of life"
        );
    }

    #[test]
    fn a_node_that_never_reported_gets_a_minute() {
        let signs = Heartbeats::first_seen(at(0));
        assert!(!signs.is_silent(&node(None), at(60)));
        assert!(signs.is_silent(&node(None), at(61)));
    }

    #[test]
    fn silence_makes_what_was_known_unknown_and_adds_what_never_was() {
        let conditions = silenced(&node(Some(0)), at(99)).expect("it was not silent");
        let statuses: Vec<_> = conditions
            .iter()
            .map(|c| {
                (
                    c.type_.as_str(),
                    c.status.as_str(),
                    c.reason.as_deref().unwrap_or_default(),
                )
            })
            .collect();
        assert_eq!(
            statuses,
            [
                ("Ready", "Unknown", "NodeStatusUnknown"),
                ("MemoryPressure", "Unknown", "NodeStatusNeverUpdated"),
                ("DiskPressure", "Unknown", "NodeStatusNeverUpdated"),
                ("PIDPressure", "Unknown", "NodeStatusNeverUpdated"),
            ]
        );
        assert_eq!(
            conditions[0].message.as_deref(),
            Some("Kubelet stopped posting node status.")
        );
        assert_eq!(conditions[0].last_heartbeat_time, Some(Time(at(0))));
        let mut silent = node(None);
        silent.status.as_mut().expect("a status").conditions = Some(conditions);
        assert_eq!(silenced(&silent, at(200)), None);
    }
}
