//! The filters: one file per kube-scheduler plugin, named after it. Each has a `check` that returns the reason for a refusal.
//!
//! The profile defines the order ([`crate::profile::Rules::order`]), which decides which reason a user sees. The default order: NodeUnschedulable,
//! NodeName, TaintToleration, NodeAffinity, OperatingSystem (Mullion's own), NodePorts, NodeResourcesFit, VolumeRestrictions, NodeVolumeLimits,
//! VolumeBinding, VolumeZone, PodTopologySpread, InterPodAffinity, DynamicResources, NodeDeclaredFeatures. Static filters run once per pair of pod
//! class and node class ([`crate::class`]), the others per node; those about volumes run only for pods with volumes.

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
use crate::reason::{Conflict, Plugin, Reason, Refusal, Veto};
use crate::resources::Amounts;
use crate::selector::{NamedNodes, Site};

impl Question<'_> {
    /// Returns why the pod is refused before any node is examined.
    pub(crate) fn conflict(&self) -> Option<Veto> {
        let of_names = self.class.shape.named_nodes == NamedNodes::Conflict;
        let of_names = of_names.then_some((Plugin::NodeAffinity, Conflict::Affinity));
        self.first_veto(of_names.into_iter().chain(self.conflicts()))
    }

    fn first_veto(&self, conflicts: impl Iterator<Item = (Plugin, Conflict)>) -> Option<Veto> {
        // PreFilter ends at the first plugin that refuses, so the profile's order decides which conflict is reported.
        let vetoes = conflicts.filter_map(|(plugin, conflict)| {
            let at = self.rules.pre_filters_at(plugin)?;
            Some((at, Veto { plugin, conflict }))
        });
        let first = vetoes.min_by_key(|(at, _)| *at);
        first.map(|(_, veto)| veto)
    }

    /// Returns what is wrong with the pod's volumes and ResourceClaims, with the plugin that finds it.
    fn conflicts(&self) -> impl Iterator<Item = (Plugin, Conflict)> {
        let of_volumes = self.volumes.into_iter().flat_map(|plan| &plan.conflicts);
        let of_devices = self.devices.and_then(|plan| plan.conflict);
        let of_devices = of_devices.map(|own| (Plugin::DynamicResources, Conflict::Claims(own)));
        of_volumes.copied().chain(of_devices)
    }

    /// Returns the refusal that every node gets if the pod's volumes or claims have a conflict.
    fn check_claims(&self) -> Option<Refusal> {
        let veto = self.first_veto(self.conflicts())?;
        Some(Refusal::new(veto.plugin, Reason::Conflict(veto.conflict)))
    }

    /// Returns the refusal of the first filter that refuses a node.
    pub(crate) fn check(&self, id: NodeId) -> Option<Refusal> {
        // In an ordinary attempt conflicts ended it before; this is for questions about single nodes.
        if let Some(refusal) = self.check_claims() {
            return Some(refusal);
        }
        match self.rules.order() {
            // Default order: static verdicts are cached, so they come as one block, which is also upstream's order.
            None => self.check_static(id).or_else(|| self.check_load(id)),
            Some(order) => self
                .check_name(id)
                .or_else(|| order.iter().find_map(|&plugin| self.ask(plugin, id))),
        }
    }

    /// Runs the filters that depend only on the node, not on other pods.
    pub(crate) fn check_static(&self, id: NodeId) -> Option<Refusal> {
        if let Some(refusal) = self.check_name(id) {
            return Some(refusal);
        }
        if self.passes_static(id) {
            return None;
        }
        let (plugin, reason) = self.verdict(id).refusal?;
        Some(Refusal::new(plugin, reason))
    }

    /// Refuses a node that the pod's affinity to node names excludes.
    fn check_name(&self, id: NodeId) -> Option<Refusal> {
        // PreFilter restricts the nodes before any filter runs, so this comes first whatever the profile's order.
        let NamedNodes::Only(named) = &self.class.shape.named_nodes else {
            return None;
        };
        let is_named = named.contains(&self.cluster.at(id).fixed.name);
        (!is_named).then(|| Refusal::new(Plugin::PreFilter, Reason::NotNamed))
    }

    /// Runs the filters about free ports and resources.
    pub(crate) fn check_room(&self, id: NodeId) -> Option<Refusal> {
        self.ask(Plugin::NodePorts, id)
            .or_else(|| self.ask(Plugin::NodeResourcesFit, id))
    }

    fn check_resources(&self, allocatable: &Amounts, used: &Amounts) -> Option<Refusal> {
        if !self.rules.filters(Plugin::NodeResourcesFit) {
            return None;
        }
        let extended = self.devices.map(|plan| &plan.extended);
        node_resources_fit::check(&self.class.shape, allocatable, used, extended)
    }

    /// Returns whether other pods matter to this one only by their resources and pod slots, and filters run in default
    /// order.
    pub(crate) fn is_about_room_only(&self) -> bool {
        self.class.shape.host_ports.is_empty()
            && self.devices.is_none()
            && self.rules.order().is_none()
            && self.view.is_filtered_by_room_only(self.class)
    }

    /// Returns the refusal of a node as if pods of these classes were on it too. The pod must be one that [is about room
    /// only](Question::is_about_room_only).
    pub(crate) fn check_with_nominated(&self, id: NodeId, pods: &[PodClassId]) -> Option<Refusal> {
        self.check_static(id).or_else(|| {
            let node = self.cluster.at(id);
            let mut used = node.used.clone();
            // Nominated pods count as if they ran there already, but only their room: others do not matter to this
            // pod.
            for pod in pods {
                used.add(&self.cluster.class(*pod).shape.requests.real);
                used.pods += 1;
            }
            self.check_resources(&node.fixed.allocatable, &used)
        })
    }

    /// Returns a node's refusal because of room held there for nominated pods other than `key`, if it differs from the
    /// refusal without that room; for a pod that [is about room only](Question::is_about_room_only).
    pub(crate) fn held_otherwise(&self, id: NodeId, key: &str) -> Option<Refusal> {
        let held = self.cluster.held_on(id, self.class.priority, key);
        if held.is_empty() {
            return None;
        }
        // Compared in general (without amounts), because that is what the counts of a message are kept by.
        let refusal = self.check_with_nominated(id, &held)?.in_general();
        let alone = self.check(id).map(|refusal| refusal.in_general());
        (alone.as_ref() != Some(&refusal)).then_some(refusal)
    }

    /// Runs the filters that depend on placed pods.
    pub(crate) fn check_load(&self, id: NodeId) -> Option<Refusal> {
        self.check_room(id)
            .or_else(|| self.check_volumes(id))
            .or_else(|| self.check_topology(id))
            .or_else(|| self.ask(Plugin::DynamicResources, id))
            .or_else(|| self.ask(Plugin::NodeDeclaredFeatures, id))
    }

    /// Runs the filters about volumes.
    pub(crate) fn check_volumes(&self, id: NodeId) -> Option<Refusal> {
        // Pods without volumes skip four plugins, as kube-scheduler's PreFilter lets it skip them.
        self.volumes?;
        self.ask(Plugin::VolumeRestrictions, id)
            .or_else(|| self.ask(Plugin::NodeVolumeLimits, id))
            .or_else(|| self.ask(Plugin::VolumeBinding, id))
            .or_else(|| self.ask(Plugin::VolumeZone, id))
    }

    /// Checks whether the pod's volumes can be reached from a node with these labels.
    pub(crate) fn check_reach(&self, name: Symbol, labels: &LabelSet) -> Option<Refusal> {
        self.reach(Plugin::VolumeBinding, name, labels)
            .or_else(|| self.reach(Plugin::VolumeZone, name, labels))
    }

    fn reach(&self, plugin: Plugin, name: Symbol, labels: &LabelSet) -> Option<Refusal> {
        let plan = self.volumes.filter(|_| self.rules.filters(plugin))?;
        if plugin == Plugin::VolumeZone {
            return volume_zone::check(plan, labels).map(|reason| Refusal::new(plugin, reason));
        }
        let names = self.cluster.names();
        let site = Site {
            name,
            labels,
            names,
        };
        volume_binding::check(plan, site, self.cluster.storage().csi_node(name))
    }

    /// Runs the filters about topology and other pods.
    pub(crate) fn check_topology(&self, id: NodeId) -> Option<Refusal> {
        self.ask(Plugin::PodTopologySpread, id)
            .or_else(|| self.ask(Plugin::InterPodAffinity, id))
    }

    /// Runs one filter on a node, if it is enabled.
    #[inline]
    fn ask(&self, plugin: Plugin, id: NodeId) -> Option<Refusal> {
        // Only a profile with an order of its own can enable a plugin as a filter and not as a pre-filter.
        if self.rules.order().is_some()
            && let Some(refusal) = self.not_asked_before(plugin)
        {
            return Some(refusal);
        }
        let node = self.cluster.at(id);
        let fixed = &node.fixed;
        let reason = match plugin {
            Plugin::NodeResourcesFit => {
                return self.check_resources(&fixed.allocatable, &node.used);
            }
            Plugin::VolumeBinding | Plugin::VolumeZone => {
                return self.reach(plugin, fixed.name, &fixed.labels);
            }
            // Mullion's own filter is in no profile, so an option turns it on and not the next arm.
            Plugin::OperatingSystem => self.ask_static(plugin, id),
            off if !self.rules.filters(off) => None,
            Plugin::NodePorts => node_ports::check(&self.class.shape, &node.ports),
            Plugin::VolumeRestrictions => volume_restrictions::check(self, self.volumes?, node),
            Plugin::NodeVolumeLimits => node_volume_limits::check(self, self.volumes?, node),
            Plugin::PodTopologySpread => pod_topology_spread::check(self.view, node),
            Plugin::InterPodAffinity => {
                // In a trial, kube-scheduler does not ask a plugin again whose PreFilter said Skip, whoever comes
                // (see `Trial`).
                if self.cluster.trial().is_some_and(Trial::skips_affinity) {
                    return None;
                }
                inter_pod_affinity::check(self.class, self.view, node)
            }
            Plugin::DynamicResources => dynamic_resources::check(self, self.devices?, id),
            Plugin::NodeDeclaredFeatures => {
                let declared = self.cluster.node_class(id).features;
                node_declared_features::check(self.class.features, declared)
            }
            of_the_node => self.ask_static(of_the_node, id),
        };
        reason.map(|reason| Refusal::new(plugin, reason))
    }

    /// Returns the conflict of a filter whose plugin is not enabled as a pre-filter. As a pre-filter it would have refused all nodes at once.
    fn not_asked_before(&self, plugin: Plugin) -> Option<Refusal> {
        if !self.rules.filters(plugin) || self.rules.pre_filters_at(plugin).is_some() {
            return None;
        }
        let mut conflicts = self.conflicts();
        let (_, conflict) = conflicts.find(|(own, _)| *own == plugin)?;
        Some(Refusal::new(plugin, Reason::Conflict(conflict)))
    }
}
