//! Decides which events can make a refused pod schedulable: kube-scheduler's queueing hints, as a table.
//!
//! A refused pod is retried only after an event that one of its rejecting plugins registers for. The table lists the events
//! of each plugin (kube-scheduler: `EventsToRegister`); a hint (see [`super::hints`]) then examines the object, so that a
//! node that could not take the pod anyway does not wake it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Volume};
use mullion_engine::Plugin;

use super::{
    device_hints::{self, DeviceEvent},
    hints::{self, NodeHint, OwnHint, PodHint},
    requirements::{self, PodRequirements},
    storage_hints::{self, StorageEvent},
};

/// Something that happened in the cluster.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node appeared.
    NodeAdded(Arc<Node>),
    /// A node changed.
    NodeUpdated {
        /// The previous version.
        old: Arc<Node>,
        /// The new version.
        new: Arc<Node>,
        /// What changed.
        changes: NodeChanges,
    },
    /// A node was deleted.
    NodeDeleted(Arc<Node>),
    /// A pod was bound, or appeared bound.
    PodAdded(Arc<Pod>),
    /// The labels of a bound pod changed.
    PodLabels {
        /// The previous version.
        old: Arc<Pod>,
        /// The new version.
        new: Arc<Pod>,
    },
    /// A bound pod requests less than before.
    PodScaledDown {
        /// The previous version.
        old: Arc<Pod>,
        /// The new version.
        new: Arc<Pod>,
    },
    /// A bound pod was deleted or has finished, or a binding failed.
    PodDeleted(Arc<Pod>),
    /// A waiting pod lost its nominated node. Pods of higher priority never counted that room as taken.
    NominationDropped(Arc<Pod>),
    /// A storage object changed.
    Storage(StorageEvent),
    /// A ResourceClaim, DeviceClass or ResourceSlice changed.
    Device(DeviceEvent),
}

impl Event {
    /// Returns whether `other` can be dropped because this event wakes the same pods, as for two equal pods of one template.
    pub fn makes_redundant(&self, other: &Self) -> bool {
        let same = |one: &Pod, other: &Pod| {
            let spec = |pod: &Pod| pod.spec.as_ref().map(|spec| spec.priority);
            fn volumes(pod: &Pod) -> Option<&[Volume]> {
                pod.spec.as_ref()?.volumes.as_deref()
            }
            // The fields that hints read; one that reads another field of the pod has to add it here, or
            // wakes are lost.
            one.metadata.namespace == other.metadata.namespace
                && one.metadata.labels == other.metadata.labels
                && spec(one) == spec(other)
                && hints::host_ports(one).eq(hints::host_ports(other))
                && requirements::affinity(one) == requirements::affinity(other)
                && volumes(one) == volumes(other)
        };
        match (self, other) {
            (Self::PodAdded(one), Self::PodAdded(other))
            | (Self::PodDeleted(one), Self::PodDeleted(other))
            | (Self::NominationDropped(one), Self::NominationDropped(other)) => same(one, other),
            // Two nodes differ in room and labels, so an event about a node never stands for another.
            (Self::Device(one), Self::Device(other)) => one.makes_redundant(other),
            _ => false,
        }
    }

    /// Returns the plugins that register for this kind of event.
    pub fn interests(&self) -> Plugins {
        match self {
            Self::Storage(_) => storage_hints::PLUGINS.into_iter().collect(),
            Self::Device(_) => device_hints::PLUGINS.into_iter().collect(),
            _ => {
                let registrations = TABLE
                    .iter()
                    .filter(|registration| registration.registers(self));
                registrations
                    .map(|registration| registration.plugin)
                    .collect()
            }
        }
    }
}

/// The parts of a node that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChanges {
    /// `status.allocatable`.
    pub allocatable: bool,
    /// Labels.
    pub labels: bool,
    /// Taints, or the node was uncordoned.
    pub taints: bool,
    /// `status.declaredFeatures`.
    pub features: bool,
}

impl NodeChanges {
    /// Returns the parts that differ between two versions of a node.
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
            // Cordoning a node helps no pod, so only the other direction counts.
            taints: taints(old) != taints(new)
                || (hints::is_cordoned(old) && !hints::is_cordoned(new)),
            features: hints::features(old) != hints::features(new),
        }
    }

    /// Returns whether any of the parts changed.
    pub fn any(self) -> bool {
        self.allocatable || self.labels || self.taints || self.features
    }

    fn intersects(self, other: Self) -> bool {
        (self.allocatable && other.allocatable)
            || (self.labels && other.labels)
            || (self.taints && other.taints)
            || (self.features && other.features)
    }
}

/// A set of plugins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Plugins(u32);

impl Plugins {
    /// Adds a plugin.
    pub fn insert(&mut self, plugin: Plugin) {
        self.0 |= 1 << plugin as u32;
    }

    /// Returns whether the set contains a plugin.
    pub fn contains(self, plugin: Plugin) -> bool {
        self.0 & (1 << plugin as u32) != 0
    }

    /// Returns whether the sets have a plugin in common.
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set is empty.
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

/// The events that one plugin registers for, and its hints.
struct Registration {
    plugin: Plugin,
    /// The parts of a node whose change matters; a new node always matters.
    node: NodeChanges,
    node_hint: NodeHint,
    node_deleted: Option<fn(&PodRequirements, &Node) -> bool>,
    pods: PodChanges,
    pod_hint: PodHint,
    own_hint: OwnHint,
}

/// The changes of other pods that matter.
#[derive(Clone, Copy)]
struct PodChanges {
    added: bool,
    labels: bool,
    scaled_down: bool,
    deleted: bool,
}

const NO_CHANGE: NodeChanges = NodeChanges {
    allocatable: false,
    labels: false,
    taints: false,
    features: false,
};
const LABELS: NodeChanges = NodeChanges {
    labels: true,
    ..NO_CHANGE
};
const TAINTS: NodeChanges = NodeChanges {
    taints: true,
    ..NO_CHANGE
};
const NO_POD: PodChanges = PodChanges {
    added: false,
    labels: false,
    scaled_down: false,
    deleted: false,
};
const NEIGHBOURS: PodChanges = PodChanges {
    added: true,
    labels: true,
    scaled_down: false,
    deleted: true,
};

const NEW_NODES_ONLY: Registration = Registration {
    plugin: Plugin::NodeName,
    node: NO_CHANGE,
    node_hint: hints::any_node,
    node_deleted: None,
    pods: NO_POD,
    pod_hint: |_, _, _| false,
    own_hint: |_, _, _| false,
};

const TABLE: [Registration; 16] = [
    // The pre-filter narrows the nodes by node affinity to node names.
    Registration {
        plugin: Plugin::PreFilter,
        node: LABELS,
        node_hint: hints::affinity_now_fits,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodeUnschedulable,
        node: TAINTS,
        node_hint: hints::now_uncordoned,
        own_hint: hints::cordon_now_tolerated,
        ..NEW_NODES_ONLY
    },
    NEW_NODES_ONLY,
    Registration {
        plugin: Plugin::TaintToleration,
        node: TAINTS,
        node_hint: hints::taints_now_tolerated,
        own_hint: hints::tolerations_added,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodeAffinity,
        node: LABELS,
        node_hint: hints::affinity_now_fits,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::OperatingSystem,
        node: LABELS,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodePorts,
        pods: PodChanges {
            deleted: true,
            ..NO_POD
        },
        pod_hint: hints::ports_freed,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodeResourcesFit,
        node: NodeChanges {
            allocatable: true,
            ..NO_CHANGE
        },
        node_hint: hints::fits_when_empty,
        pods: PodChanges {
            scaled_down: true,
            deleted: true,
            ..NO_POD
        },
        pod_hint: hints::resources_freed,
        own_hint: hints::scaled_down,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::VolumeRestrictions,
        pods: PodChanges {
            deleted: true,
            ..NO_POD
        },
        pod_hint: |pod, _, event| storage_hints::volume_freed(pod, event),
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodeVolumeLimits,
        pods: PodChanges {
            deleted: true,
            ..NO_POD
        },
        pod_hint: |pod, _, event| storage_hints::place_freed(pod, event),
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::VolumeBinding,
        node: LABELS,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::VolumeZone,
        node: LABELS,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::PodTopologySpread,
        node: NodeChanges {
            labels: true,
            taints: true,
            ..NO_CHANGE
        },
        node_hint: hints::domains_changed,
        node_deleted: Some(hints::has_spread_keys),
        pods: NEIGHBOURS,
        pod_hint: hints::spread_changed,
        own_hint: hints::own_spread_changed,
    },
    Registration {
        plugin: Plugin::InterPodAffinity,
        node: LABELS,
        node_hint: hints::neighbourhood_changed,
        pods: NEIGHBOURS,
        pod_hint: hints::neighbours_changed,
        own_hint: hints::labels_changed,
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::DynamicResources,
        node: NodeChanges {
            labels: true,
            allocatable: true,
            ..NO_CHANGE
        },
        own_hint: |old, new, _| device_hints::claims_made(old, new),
        ..NEW_NODES_ONLY
    },
    Registration {
        plugin: Plugin::NodeDeclaredFeatures,
        node: NodeChanges {
            features: true,
            ..NO_CHANGE
        },
        node_hint: hints::features_changed,
        ..NEW_NODES_ONLY
    },
];

impl Registration {
    fn registers(&self, event: &Event) -> bool {
        match event {
            Event::NodeAdded(_) => true,
            Event::NodeUpdated { changes, .. } => self.node.intersects(*changes),
            Event::NodeDeleted(_) => self.node_deleted.is_some(),
            Event::PodAdded(_) => self.pods.added,
            Event::PodLabels { .. } => self.pods.labels,
            Event::PodScaledDown { .. } => self.pods.scaled_down,
            Event::PodDeleted(_) | Event::NominationDropped(_) => self.pods.deleted,
            Event::Storage(_) | Event::Device(_) => false,
        }
    }
}

/// Returns whether `event` may help a pod that `rejectors` refused. A pod that no plugin refused waits only for its
/// back-off.
pub fn wakes(pod: &Pod, rejectors: Plugins, requirements: &PodRequirements, event: &Event) -> bool {
    match event {
        Event::Storage(event) => return storage_hints::wakes(pod, rejectors, event),
        Event::Device(event) => return device_hints::wakes(pod, rejectors, event),
        _ => {}
    }
    TABLE
        .iter()
        .filter(|registration| {
            rejectors.contains(registration.plugin) && registration.registers(event)
        })
        .any(|registration| match event {
            Event::NodeAdded(node) => (registration.node_hint)(pod, requirements, None, node),
            Event::NodeUpdated { old, new, .. } => {
                (registration.node_hint)(pod, requirements, Some(old), new)
            }
            Event::NodeDeleted(node) => registration
                .node_deleted
                .is_some_and(|hint| hint(requirements, node)),
            Event::PodAdded(_)
            | Event::PodLabels { .. }
            | Event::PodScaledDown { .. }
            | Event::PodDeleted(_)
            | Event::NominationDropped(_) => (registration.pod_hint)(pod, requirements, event),
            Event::Storage(_) | Event::Device(_) => false,
        })
}

/// Returns whether a change of the waiting pod itself may help it. `requirements` are those of the new version.
pub fn own_change_wakes(
    old: &Pod,
    new: &Pod,
    rejectors: Plugins,
    requirements: &PodRequirements,
) -> bool {
    let mut registrations = TABLE
        .iter()
        .filter(|registration| rejectors.contains(registration.plugin));
    registrations.any(|registration| (registration.own_hint)(old, new, requirements))
}

#[cfg(test)]
mod tests;
