//! The filters: one file each, named after the kube-scheduler plugin it equals, `check` giving the reason to refuse.
//!
//! Order is upstream's and decides which reason a user sees: NodeUnschedulable, NodeName, TaintToleration,
//! NodeAffinity, (our OperatingSystem), NodePorts, NodeResourcesFit, VolumeRestrictions, NodeVolumeLimits, VolumeBinding,
//! VolumeZone, PodTopologySpread, InterPodAffinity, DynamicResources, NodeDeclaredFeatures. The static ones run once per class pair ([`crate::class`]), the rest
//! per node; those about volumes only for pods that have some.

pub(crate) mod dynamic_resources;
pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
pub(crate) mod node_declared_features;
pub(crate) mod node_ports;
pub(crate) mod node_resources_fit;
pub(crate) mod node_unschedulable;
pub(crate) mod node_volume_limits;
pub(crate) mod operating_system;
pub(crate) mod pod_topology_spread;
pub(crate) mod taint_toleration;
pub(crate) mod volume_binding;
pub(crate) mod volume_restrictions;
pub(crate) mod volume_zone;

use crate::class::PodClassId;
use crate::cluster::{NodeId, Question, Trial};
use crate::intern::Symbol;
use crate::labels::LabelSet;
use crate::reason::{Conflict, Plugin, Reason, Refusal};
use crate::resources::Amounts;
use crate::selector::{NamedNodes, Site};

impl Question<'_> {
    /// Why the pod is refused before any node is looked at.
    pub(crate) fn conflict(&self) -> Option<Conflict> {
        if self.class.shape.named_nodes == NamedNodes::Conflict {
            return Some(Conflict::Affinity);
        }
        self.check_claims().map(|(_, conflict)| conflict)
    }

    /// The conflict of the pod's claims, with the plugin that finds it.
    fn check_claims(&self) -> Option<(Plugin, Conflict)> {
        let of_volumes = self.volumes.into_iter().flat_map(|plan| &plan.conflicts);
        let of_devices = self.devices.and_then(|plan| plan.conflict);
        let of_devices = of_devices.map(|own| (Plugin::DynamicResources, Conflict::Claims(own)));
        let mut conflicts = of_volumes.copied().chain(of_devices);
        conflicts.find(|(plugin, _)| self.rules.filters(*plugin))
    }

    /// The first filter that refuses a node.
    pub(crate) fn check(&self, id: NodeId) -> Option<Refusal> {
        if let Some((plugin, conflict)) = self.check_claims() {
            return Some(Refusal::new(plugin, Reason::Conflict(conflict)));
        }
        self.check_static(id).or_else(|| self.check_load(id))
    }

    /// The filters that look at the node itself, whatever is placed.
    pub(crate) fn check_static(&self, id: NodeId) -> Option<Refusal> {
        if let NamedNodes::Only(named) = &self.class.shape.named_nodes
            && !named.contains(&self.cluster.at(id).fixed.name)
        {
            return Some(Refusal::new(Plugin::PreFilter, Reason::NotNamed));
        }
        if self.passes_static(id) {
            return None;
        }
        let (plugin, reason) = self.verdict(id).refusal?;
        Some(Refusal::new(plugin, reason))
    }

    /// The filters about what a node has left.
    pub(crate) fn check_room(&self, id: NodeId) -> Option<Refusal> {
        let node = self.cluster.at(id);
        let shape = &self.class.shape;
        if self.rules.filters(Plugin::NodePorts)
            && let Some(reason) = node_ports::check(shape, &node.ports)
        {
            return Some(Refusal::new(Plugin::NodePorts, reason));
        }
        self.check_resources(&node.fixed.allocatable, &node.used)
    }

    fn check_resources(&self, allocatable: &Amounts, used: &Amounts) -> Option<Refusal> {
        if !self.rules.filters(Plugin::NodeResourcesFit) {
            return None;
        }
        let standing = self.devices.map(|plan| &plan.extended);
        node_resources_fit::check(&self.class.shape, allocatable, used, standing)
    }

    /// Whether other pods matter to this one by the resources and the slots they take only.
    pub(crate) fn is_about_room_only(&self) -> bool {
        self.class.shape.host_ports.is_empty()
            && self.devices.is_none()
            && self.view.is_filtered_by_room_only(self.class)
    }

    /// [`Question::check`] as if pods of these classes were on the node too, for a pod that
    /// [is about room only](Question::is_about_room_only).
    pub(crate) fn check_beside(&self, id: NodeId, pods: &[PodClassId]) -> Option<Refusal> {
        self.check_static(id).or_else(|| {
            let node = self.cluster.at(id);
            let mut used = node.used.clone();
            for pod in pods {
                used.add(&self.cluster.class(*pod).shape.requests.real);
                used.pods += 1;
            }
            self.check_resources(&node.fixed.allocatable, &used)
        })
    }

    /// What a node says because of room held there for others than the pod of this key, if it would say something else
    /// without; for a pod that [is about room only](Question::is_about_room_only).
    pub(crate) fn held_otherwise(&self, id: NodeId, key: &str) -> Option<Refusal> {
        let held = self.cluster.held_on(id, self.class.priority, key);
        if held.is_empty() {
            return None;
        }
        let beside = self.check_beside(id, &held)?.in_general();
        let alone = self.check(id).map(|refusal| refusal.in_general());
        (alone.as_ref() != Some(&beside)).then_some(beside)
    }

    /// The filters that depend on what is placed already.
    pub(crate) fn check_load(&self, id: NodeId) -> Option<Refusal> {
        self.check_room(id)
            .or_else(|| self.check_volumes(id))
            .or_else(|| self.check_topology(id))
            .or_else(|| self.check_devices(id))
            .or_else(|| self.check_features(id))
    }

    /// The filter about devices.
    fn check_devices(&self, id: NodeId) -> Option<Refusal> {
        let plan = self.devices?;
        self.on(Plugin::DynamicResources, || {
            dynamic_resources::check(self, plan, id)
        })
    }

    /// The filter about what the node's kubelet can do.
    fn check_features(&self, id: NodeId) -> Option<Refusal> {
        let declared = self.cluster.node_class(id).features;
        self.on(Plugin::NodeDeclaredFeatures, || {
            node_declared_features::check(self.class.features, declared)
        })
    }

    /// The filters about volumes.
    pub(crate) fn check_volumes(&self, id: NodeId) -> Option<Refusal> {
        let plan = self.volumes?;
        let node = self.cluster.at(id);
        let labels = &node.fixed.labels;
        self.on(Plugin::VolumeRestrictions, || {
            volume_restrictions::check(self, plan, node)
        })
        .or_else(|| {
            self.on(Plugin::NodeVolumeLimits, || {
                node_volume_limits::check(self, plan, node)
            })
        })
        .or_else(|| self.check_reach(node.fixed.name, labels))
    }

    /// Whether the pod's volumes are reachable from a node of these labels.
    pub(crate) fn check_reach(&self, name: Symbol, labels: &LabelSet) -> Option<Refusal> {
        let plan = self.volumes?;
        let names = self.cluster.names();
        let site = Site {
            name,
            labels,
            names,
        };
        let binds = self.rules.filters(Plugin::VolumeBinding);
        let refusal = binds.then(|| volume_binding::check(plan, site));
        refusal
            .flatten()
            .or_else(|| self.on(Plugin::VolumeZone, || volume_zone::check(plan, labels)))
    }

    /// The filters about places and other pods.
    pub(crate) fn check_topology(&self, id: NodeId) -> Option<Refusal> {
        let node = self.cluster.at(id);
        pod_topology_spread::check(self.view, node)
            .map(|reason| Refusal::new(Plugin::PodTopologySpread, reason))
            .or_else(|| {
                if self.cluster.trial().is_some_and(Trial::skips_affinity) {
                    return None;
                }
                self.on(Plugin::InterPodAffinity, || {
                    inter_pod_affinity::check(self.class, self.view, node)
                })
            })
    }

    /// What a filter says, if it is on.
    fn on(&self, plugin: Plugin, check: impl FnOnce() -> Option<Reason>) -> Option<Refusal> {
        let reason = self.rules.filters(plugin).then(check)??;
        Some(Refusal::new(plugin, reason))
    }
}
