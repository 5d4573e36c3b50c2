//! The filters: one file each, named after the kube-scheduler plugin it equals, `check` giving the reason to refuse.
//!
//! Order is upstream's and decides which reason a user sees: NodeUnschedulable, NodeName, TaintToleration,
//! NodeAffinity, (our OperatingSystem), NodePorts, NodeResourcesFit, VolumeRestrictions, NodeVolumeLimits, VolumeBinding,
//! VolumeZone, PodTopologySpread, InterPodAffinity. The static ones run once per class pair ([`crate::class`]), the rest
//! per node in [`crate::schedule`]; those about volumes only for pods that have some.

pub(crate) mod inter_pod_affinity;
pub(crate) mod node_affinity;
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
