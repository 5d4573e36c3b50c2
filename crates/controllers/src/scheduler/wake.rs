//! Which events can make which refused pod schedulable: kube-scheduler's queueing hints, as a table.
//!
//! A pod that was refused is tried again only when something happens that one of its rejectors cares about. The table
//! says what each plugin cares about; a hint (see [`super::hints`]) looks at the object concerned, so that a node that
//! could not take the pod anyway does not wake it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use mullion_engine::Plugin;

use super::hints::{self, NodeHint, PodHint};
use crate::state::requests::pod_requests;

/// Something that happened in the cluster.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node appeared.
    NodeAdded(Arc<Node>),
    /// A node changed, in these respects.
    NodeUpdated {
        /// Before.
        old: Arc<Node>,
        /// After.
        new: Arc<Node>,
        /// In which respects.
        changes: NodeChanges,
    },
    /// A node is gone.
    NodeDeleted(Arc<Node>),
    /// A pod was bound, or appeared bound.
    PodAdded(Arc<Pod>),
    /// The labels of a bound pod changed.
    PodLabels {
        /// Before.
        old: Arc<Pod>,
        /// After.
        new: Arc<Pod>,
    },
    /// A bound pod requests less than before.
    PodScaledDown {
        /// Before.
        old: Arc<Pod>,
        /// After.
        new: Arc<Pod>,
    },
    /// A bound pod is gone or has finished, or a binding failed.
    PodDeleted(Arc<Pod>),
    /// A waiting pod gave up the room that was held for it on a node. Pods of higher priority never counted that room as taken.
    NominationDropped(Arc<Pod>),
}

impl Event {
    /// Whether another event says nothing that this one does not: pods of one template mean the same to whoever waits.
    pub fn covers(&self, other: &Self) -> bool {
        let same = |one: &Pod, other: &Pod| {
            let spec = |pod: &Pod| {
                pod.spec
                    .as_ref()
                    .map(|spec| (spec.priority, spec.containers.len()))
            };
            one.metadata.namespace == other.metadata.namespace
                && one.metadata.labels == other.metadata.labels
                && spec(one) == spec(other)
                && hints::host_ports(one).eq(hints::host_ports(other))
        };
        match (self, other) {
            (Self::PodAdded(one), Self::PodAdded(other))
            | (Self::PodDeleted(one), Self::PodDeleted(other))
            | (Self::NominationDropped(one), Self::NominationDropped(other)) => same(one, other),
            _ => false,
        }
    }
}

/// In which respects a node changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// `status.allocatable`.
    pub allocatable: bool,
    /// Labels.
    pub labels: bool,
    /// Taints, or from cordoned to not cordoned.
    pub taints: bool,
}

impl NodeChanges {
    /// What differs between two versions of a node.
    pub fn between(old: &Node, new: &Node) -> Self {
        let allocatable = |node: &Node| {
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.clone())
        };
        let taints = |node: &Node| {
            node.spec
                .as_ref()
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default()
        };
        Self {
            allocatable: allocatable(old) != allocatable(new),
            labels: old.metadata.labels != new.metadata.labels,
            taints: taints(old) != taints(new)
                || (hints::is_cordoned(old) && !hints::is_cordoned(new)),
        }
    }

    /// Whether anything that matters differs.
    pub fn any(self) -> bool {
        self.allocatable || self.labels || self.taints
    }
}

/// A set of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plugins(u32);

impl Plugins {
    /// Adds a plugin.
    pub fn insert(&mut self, plugin: Plugin) {
        self.0 |= 1 << plugin as u32;
    }

    /// Whether a plugin is in the set.
    pub fn contains(self, plugin: Plugin) -> bool {
        self.0 & (1 << plugin as u32) != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Plugin> for Plugins {
    fn from_iter<I: IntoIterator<Item = Plugin>>(plugins: I) -> Self {
        let mut set = Self::default();
        plugins.into_iter().for_each(|plugin| set.insert(plugin));
        set
    }
}

/// What one plugin cares about.
struct Cares {
    plugin: Plugin,
    /// Respects in which a node's change matters; its appearance always does.
    node: NodeChanges,
    hint: NodeHint,
    node_deleted: fn(&PodSpec, &Node) -> bool,
    pod: PodHint,
}

const NOTHING: NodeChanges = NodeChanges {
    allocatable: false,
    labels: false,
    taints: false,
};
const LABELS: NodeChanges = NodeChanges {
    labels: true,
    ..NOTHING
};
const TAINTS: NodeChanges = NodeChanges {
    taints: true,
    ..NOTHING
};
const ALLOCATABLE: NodeChanges = NodeChanges {
    allocatable: true,
    ..NOTHING
};

const NODES_ONLY: Cares = Cares {
    plugin: Plugin::NodeName,
    node: NOTHING,
    hint: hints::any_node,
    node_deleted: |_, _| false,
    pod: |_, _| false,
};

const TABLE: [Cares; 10] = [
    Cares {
        plugin: Plugin::PreFilter,
        node: LABELS,
        hint: hints::affinity_now_fits,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::NodeUnschedulable,
        node: TAINTS,
        hint: hints::not_cordoned,
        ..NODES_ONLY
    },
    NODES_ONLY,
    Cares {
        plugin: Plugin::TaintToleration,
        node: TAINTS,
        hint: hints::taints_now_tolerated,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::NodeAffinity,
        node: LABELS,
        hint: hints::affinity_now_fits,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::OperatingSystem,
        node: LABELS,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::NodePorts,
        pod: hints::ports_freed,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::NodeResourcesFit,
        node: ALLOCATABLE,
        hint: hints::fits_when_empty,
        pod: hints::resources_freed,
        ..NODES_ONLY
    },
    Cares {
        plugin: Plugin::PodTopologySpread,
        node: NodeChanges {
            labels: true,
            taints: true,
            allocatable: false,
        },
        hint: hints::domains_changed,
        node_deleted: hints::has_spread_keys,
        pod: hints::spread_changed,
    },
    Cares {
        plugin: Plugin::InterPodAffinity,
        node: LABELS,
        pod: hints::neighbours_changed,
        ..NODES_ONLY
    },
];

/// Whether `event` may help a pod that `rejectors` refused. A pod that no plugin refused waits for its back-off only.
pub fn wakes(pod: &Pod, rejectors: Plugins, event: &Event) -> bool {
    let Some(spec) = &pod.spec else { return false };
    TABLE
        .iter()
        .filter(|cares| rejectors.contains(cares.plugin))
        .any(|cares| match event {
            Event::NodeAdded(node) => (cares.hint)(spec, None, node),
            Event::NodeUpdated { old, new, changes } => {
                let matters = (cares.node.allocatable && changes.allocatable)
                    || (cares.node.labels && changes.labels)
                    || (cares.node.taints && changes.taints);
                matters && (cares.hint)(spec, Some(old), new)
            }
            Event::NodeDeleted(node) => (cares.node_deleted)(spec, node),
            Event::PodAdded(_)
            | Event::PodLabels { .. }
            | Event::PodScaledDown { .. }
            | Event::PodDeleted(_)
            | Event::NominationDropped(_) => (cares.pod)(pod, event),
        })
}

/// Whether a change of the waiting pod itself may help it.
pub fn own_change_wakes(old: &Pod, new: &Pod, rejectors: Plugins) -> bool {
    let (Some(before), Some(after)) = (&old.spec, &new.spec) else {
        return false;
    };
    let count = |spec: &PodSpec| spec.tolerations.as_ref().map_or(0, Vec::len);
    let tolerations = count(before) != count(after)
        && (rejectors.contains(Plugin::TaintToleration)
            || rejectors.contains(Plugin::NodeUnschedulable));
    let labels = old.metadata.labels != new.metadata.labels
        && (rejectors.contains(Plugin::PodTopologySpread)
            || rejectors.contains(Plugin::InterPodAffinity));
    let smaller = rejectors.contains(Plugin::NodeResourcesFit) && scaled_down(before, after);
    let affinity = (before.affinity != after.affinity
        || before.node_selector != after.node_selector)
        && (rejectors.contains(Plugin::NodeAffinity) || rejectors.contains(Plugin::PreFilter));
    let spread = rejectors.contains(Plugin::PodTopologySpread)
        && before.tolerations != after.tolerations
        && hints::honours_taints(after);
    tolerations || labels || smaller || affinity || spread
}

/// Whether any request became smaller.
pub fn scaled_down(before: &PodSpec, after: &PodSpec) -> bool {
    if before.containers == after.containers && before.resources == after.resources {
        return false;
    }
    let after = pod_requests(after);
    pod_requests(before)
        .iter()
        .any(|(name, amount)| after.get(name).copied().unwrap_or(0) < *amount)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": {
                "nodeSelector": { "os": "windows" },
                "tolerations": [{ "key": "os", "operator": "Exists" }],
                "containers": [{ "name": "c", "resources": { "requests": { "cpu": "2" } } }],
            },
        }))
        .expect("a pod")
    }

    fn node(os: &str, taint: &str, cpu: &str, cordoned: bool) -> Arc<Node> {
        let node = json!({
            "metadata": { "name": "n", "labels": { "os": os } },
            "spec": { "unschedulable": cordoned, "taints": [{ "key": taint, "effect": "NoSchedule" }] },
            "status": { "allocatable": { "cpu": cpu, "pods": "10" } },
        });
        Arc::new(serde_json::from_value(node).expect("a node"))
    }

    fn update(old: Arc<Node>, new: Arc<Node>) -> Event {
        let changes = NodeChanges::between(&old, &new);
        Event::NodeUpdated { old, new, changes }
    }

    fn bound(spec: serde_json::Value) -> Arc<Pod> {
        let mut spec = spec;
        spec["nodeName"] = json!("n");
        if spec["containers"].is_null() {
            spec["containers"] =
                json!([{ "name": "c", "resources": { "requests": { "cpu": "1" } } }]);
        }
        Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": "b" }, "spec": spec }))
                .expect("a pod"),
        )
    }

    fn shrunk() -> Event {
        let new = json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": "500m" } } }] });
        Event::PodScaledDown {
            old: bound(json!({})),
            new: bound(new),
        }
    }

    #[test]
    fn a_pod_is_woken_only_by_what_one_of_its_rejectors_cares_about() {
        let good = || node("windows", "os", "4", false);
        let cases = [
            (
                Plugin::NodeResourcesFit,
                Event::PodDeleted(bound(json!({}))),
                true,
            ),
            (Plugin::NodeResourcesFit, shrunk(), true),
            (
                Plugin::NodeResourcesFit,
                Event::PodAdded(bound(json!({}))),
                false,
            ),
            (Plugin::NodeResourcesFit, Event::NodeAdded(good()), true),
            (
                Plugin::NodeResourcesFit,
                Event::NodeAdded(node("windows", "os", "1", false)),
                false,
            ),
            (
                Plugin::NodeResourcesFit,
                update(node("windows", "os", "3", false), good()),
                true,
            ),
            (
                Plugin::NodeResourcesFit,
                update(good(), node("windows", "os", "3", false)),
                false,
            ),
            (
                Plugin::NodeResourcesFit,
                update(node("linux", "os", "4", false), good()),
                false,
            ),
            (
                Plugin::TaintToleration,
                Event::NodeAdded(node("windows", "gpu", "4", false)),
                false,
            ),
            (
                Plugin::TaintToleration,
                update(node("windows", "gpu", "4", false), good()),
                true,
            ),
            (
                Plugin::TaintToleration,
                Event::PodDeleted(bound(json!({}))),
                false,
            ),
            (
                Plugin::NodeAffinity,
                update(node("linux", "os", "4", false), good()),
                true,
            ),
            (
                Plugin::NodeAffinity,
                Event::NodeAdded(node("linux", "os", "4", false)),
                false,
            ),
            (
                Plugin::NodeUnschedulable,
                update(node("windows", "os", "4", true), good()),
                true,
            ),
            (
                Plugin::NodeUnschedulable,
                update(good(), node("windows", "os", "4", true)),
                false,
            ),
            (Plugin::PodTopologySpread, Event::NodeDeleted(good()), false),
            (
                Plugin::NodePorts,
                Event::PodDeleted(bound(json!({}))),
                false,
            ),
        ];
        for (plugin, event, expected) in cases {
            assert_eq!(
                wakes(&pod(), Plugins::from_iter([plugin]), &event),
                expected,
                "{plugin:?} {event:?}"
            );
        }
        assert!(
            !wakes(
                &pod(),
                Plugins::default(),
                &Event::PodDeleted(bound(json!({})))
            ),
            "nothing refused it"
        );
    }

    #[test]
    fn changes_of_the_pod_itself_wake_it_where_they_can_help() {
        let (old, mut tolerating, mut smaller) = (pod(), pod(), pod());
        let spec = tolerating.spec.as_mut().expect("a spec");
        spec.tolerations
            .as_mut()
            .expect("tolerations")
            .push(Default::default());
        let spec = smaller.spec.as_mut().expect("a spec");
        spec.containers[0].resources = None;
        let wakes = |new: &Pod, plugin| own_change_wakes(&old, new, Plugins::from_iter([plugin]));
        assert!(wakes(&tolerating, Plugin::TaintToleration));
        assert!(!wakes(&tolerating, Plugin::NodeResourcesFit));
        assert!(wakes(&smaller, Plugin::NodeResourcesFit));
        assert!(!wakes(&old, Plugin::NodeResourcesFit));
    }
}
