//! Why a node is not the answer: closed enums with typed data.
//!
//! Reasons are small and copied freely; names in them are [`Symbol`]s of the cluster that gave them.
//! Text is made in one place: [`crate::explain`].

use crate::intern::Symbol;
use crate::model::TaintEffect;

/// The parts of kube-scheduler's default profile, and our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    /// Narrowing to the nodes a pod names, before any filter.
    PreFilter,
    /// Cordoned nodes.
    NodeUnschedulable,
    /// `spec.nodeName`.
    NodeName,
    /// Taints and tolerations.
    TaintToleration,
    /// Node selector and node affinity.
    NodeAffinity,
    /// `spec.os.name` against the node's label; ours.
    OperatingSystem,
    /// Host ports.
    NodePorts,
    /// Requests against what is free.
    NodeResourcesFit,
    /// Even use of resources.
    NodeResourcesBalancedAllocation,
    /// Topology spread constraints.
    PodTopologySpread,
    /// Affinity and anti-affinity between pods.
    InterPodAffinity,
    /// Images that are there already.
    ImageLocality,
    /// Dynamic resource allocation.
    DynamicResources,
    /// Eviction of lower priorities.
    DefaultPreemption,
}

impl Plugin {
    /// Upstream's name.
    pub fn name(self) -> &'static str {
        match self {
            Plugin::PreFilter => "PreFilter",
            Plugin::NodeUnschedulable => "NodeUnschedulable",
            Plugin::NodeName => "NodeName",
            Plugin::TaintToleration => "TaintToleration",
            Plugin::NodeAffinity => "NodeAffinity",
            Plugin::OperatingSystem => "OperatingSystem",
            Plugin::NodePorts => "NodePorts",
            Plugin::NodeResourcesFit => "NodeResourcesFit",
            Plugin::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            Plugin::PodTopologySpread => "PodTopologySpread",
            Plugin::InterPodAffinity => "InterPodAffinity",
            Plugin::ImageLocality => "ImageLocality",
            Plugin::DynamicResources => "DynamicResources",
            Plugin::DefaultPreemption => "DefaultPreemption",
        }
    }
}

/// A node label that is not as a pod demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelMismatch {
    /// The label's key.
    pub key: Symbol,
    /// The one value the pod takes.
    pub wanted: Symbol,
    /// The node's value, if it has any.
    pub found: Option<Symbol>,
}

/// One reason why a pod does not go to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The pod names other nodes.
    NotNamed,
    /// The node is cordoned.
    Unschedulable,
    /// `spec.nodeName` is another node.
    NodeName,
    /// The first taint the pod does not tolerate.
    UntoleratedTaint {
        /// Taint key.
        key: Symbol,
        /// Taint value.
        value: Symbol,
        /// NoSchedule or NoExecute.
        effect: TaintEffect,
    },
    /// Node selector or required node affinity.
    NodeAffinity {
        /// The first label that is not as the pod demands, where one demand alone decides.
        mismatch: Option<LabelMismatch>,
    },
    /// The pod is for another operating system.
    OperatingSystem {
        /// `spec.os.name`.
        wanted: Symbol,
        /// The node's `kubernetes.io/os`; none if it has no such label.
        found: Option<Symbol>,
    },
    /// A host port is taken.
    PortTaken {
        /// The first port in conflict.
        port: i32,
    },
    /// As many pods as the node may hold.
    TooManyPods {
        /// How many it may hold.
        allowed: i64,
    },
    /// Not enough of a resource is free.
    Insufficient {
        /// Which.
        resource: Symbol,
        /// What the pod asks for (milli-cores, bytes, pieces).
        requested: i64,
        /// What is free.
        free: i64,
        /// What the node offers in all.
        allocatable: i64,
    },
    /// Placing the pod here would make places too uneven.
    Spread {
        /// The constraint's topology key.
        key: Symbol,
        /// How uneven they would be.
        skew: i64,
        /// How uneven they may be.
        max_skew: i64,
    },
    /// The node has no value for a spread constraint's topology key.
    SpreadKeyMissing {
        /// That key.
        key: Symbol,
    },
    /// No pod that the pod wants to be near is there.
    Affinity,
    /// A pod that the pod wants to be away from is there.
    AntiAffinity,
    /// A pod is there that wants to be away from this one.
    ExistingAntiAffinity,
    /// Preemption: evicting pods would not change the answer.
    PreemptionNotHelpful,
    /// Preemption: nothing of lower priority is there.
    NoVictims,
}

impl Reason {
    /// Whether no eviction from that node can help (upstream's `UnschedulableAndUnresolvable`).
    pub fn is_unresolvable(self) -> bool {
        match self {
            Reason::NotNamed
            | Reason::Unschedulable
            | Reason::NodeName
            | Reason::UntoleratedTaint { .. }
            | Reason::NodeAffinity { .. }
            | Reason::OperatingSystem { .. }
            | Reason::SpreadKeyMissing { .. }
            | Reason::Affinity
            | Reason::PreemptionNotHelpful
            | Reason::NoVictims => true,
            Reason::Insufficient {
                requested,
                allocatable,
                ..
            } => requested > allocatable,
            Reason::PortTaken { .. }
            | Reason::TooManyPods { .. }
            | Reason::Spread { .. }
            | Reason::AntiAffinity
            | Reason::ExistingAntiAffinity => false,
        }
    }
}

/// The first plugin that refuses a node, and all its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which plugin.
    pub plugin: Plugin,
    /// Its first reason.
    pub reason: Reason,
    /// Its further reasons; only NodeResourcesFit has any.
    pub more: Vec<Reason>,
}

impl Refusal {
    /// A refusal with one reason.
    pub fn new(plugin: Plugin, reason: Reason) -> Self {
        Refusal {
            plugin,
            reason,
            more: Vec::new(),
        }
    }

    /// All reasons.
    pub fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        std::iter::once(self.reason).chain(self.more.iter().copied())
    }

    /// Whether no eviction can help: one reason of that kind is enough.
    pub fn is_unresolvable(&self) -> bool {
        self.reasons().any(Reason::is_unresolvable)
    }
}
