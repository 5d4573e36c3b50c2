//! Why a node is not the answer: closed enums with typed data.
//!
//! Reasons are small and copied freely; names in them are [`Symbol`]s of the cluster that gave them.
//! Text is made in one place: [`crate::explain`].

use crate::devices::ClaimConflict;
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
    /// Disks and claims that cannot be shared.
    VolumeRestrictions,
    /// How many volumes a node can attach.
    NodeVolumeLimits,
    /// Whether claims have, find or get volumes that the node reaches.
    VolumeBinding,
    /// Zones of bound volumes.
    VolumeZone,
    /// Even use of resources.
    NodeResourcesBalancedAllocation,
    /// Topology spread constraints.
    PodTopologySpread,
    /// Affinity and anti-affinity between pods.
    InterPodAffinity,
    /// Images that are there already.
    ImageLocality,
    /// How long images would take to be pulled; ours, and off by default.
    PullTime,
    /// Dynamic resource allocation.
    DynamicResources,
    /// What the node's kubelet declares.
    NodeDeclaredFeatures,
    /// Eviction of lower priorities.
    DefaultPreemption,
}

impl Plugin {
    /// How many there are.
    pub(crate) const COUNT: usize = Plugin::DefaultPreemption as usize + 1;

    /// Its bit in a set of plugins.
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }

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
            Plugin::VolumeRestrictions => "VolumeRestrictions",
            Plugin::NodeVolumeLimits => "NodeVolumeLimits",
            Plugin::VolumeBinding => "VolumeBinding",
            Plugin::VolumeZone => "VolumeZone",
            Plugin::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            Plugin::PodTopologySpread => "PodTopologySpread",
            Plugin::InterPodAffinity => "InterPodAffinity",
            Plugin::ImageLocality => "ImageLocality",
            Plugin::PullTime => "PullTime",
            Plugin::DynamicResources => "DynamicResources",
            Plugin::NodeDeclaredFeatures => "NodeDeclaredFeatures",
            Plugin::DefaultPreemption => "DefaultPreemption",
        }
    }
}

/// Why a pod is refused before any node is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// Every term of its required node affinity contradicts itself.
    Affinity,
    /// A claim is not there.
    ClaimNotFound {
        /// Its name.
        claim: Symbol,
    },
    /// The claim of an ephemeral volume is not there yet.
    EphemeralClaimMissing {
        /// The name it will have.
        claim: Symbol,
    },
    /// A claim by the name of an ephemeral volume's was made for something else.
    EphemeralClaimNotOwned {
        /// Of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
        /// The pod.
        pod: Symbol,
    },
    /// A claim's volume is gone.
    ClaimLost {
        /// The claim.
        claim: Symbol,
        /// The volume it had.
        volume: Symbol,
    },
    /// A claim is on its way out.
    ClaimDeleting {
        /// The claim.
        claim: Symbol,
    },
    /// A claim that does not wait for its pod has no volume yet.
    UnboundImmediate,
    /// A claim names a volume that is not there.
    VolumeNotFound {
        /// The volume.
        volume: Symbol,
    },
    /// A claim names a storage class that is not there.
    ClassNotFound {
        /// The class.
        class: Symbol,
    },
    /// A claim names neither a volume nor a storage class.
    NoVolumeNorClass,
    /// A claim that does not wait for its pod names no volume.
    NoVolumeName,
    /// Something is wrong with the pod's claims of devices.
    Claims(ClaimConflict),
    /// Its preferred node affinity cannot be read, and more than one node fits.
    Preference {
        /// The mistakes.
        why: Symbol,
    },
}

/// A conflict with the plugin that tells it: several may find the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Veto {
    /// Who says so.
    pub plugin: Plugin,
    /// What.
    pub conflict: Conflict,
}

impl Veto {
    /// The attempt ends with an error: see [`Conflict::is_error`].
    pub fn is_error(self) -> bool {
        self.conflict.is_error()
    }
}

impl Conflict {
    /// The pod could not be tried: the attempt ends with an error instead of a refusal, and nothing is evicted for it.
    pub fn is_error(self) -> bool {
        matches!(
            self,
            Conflict::Claims(ClaimConflict::Failed { .. }) | Conflict::Preference { .. }
        )
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
    /// The node affinity that the profile adds to every pod's.
    EnforcedAffinity,
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
    /// A pod on the node uses a disk that cannot be shared, or not for writing.
    DiskTaken,
    /// A pod somewhere uses a claim that is for one pod.
    ClaimTaken {
        /// The claim.
        claim: Symbol,
    },
    /// The node can attach no more volumes of a driver.
    VolumeLimit {
        /// The driver.
        driver: Symbol,
        /// How many are attached.
        held: i64,
        /// How many the pod adds.
        wanted: i64,
        /// How many there may be.
        limit: i64,
    },
    /// A claim is not there, so its volume cannot be counted.
    ClaimNotCounted {
        /// Its namespace.
        namespace: Symbol,
        /// Its name.
        claim: Symbol,
    },
    /// A bound volume cannot be reached from the node.
    VolumeAffinity,
    /// No volume for a claim that waits can be reached from the node, or be made for it.
    NoVolumeToBind,
    /// There is no room for a new volume.
    NoStorageLeft,
    /// A claim is bound to a volume that is not there.
    VolumeMissing,
    /// A bound volume is in another zone or region.
    VolumeZone {
        /// The volume's label.
        key: Symbol,
    },
    /// The pod is refused whatever the node.
    Conflict(Conflict),
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
    /// No devices for the pod's claims are free.
    DevicesTaken,
    /// None are, and the slices of some pools contradict each other.
    DevicePoolsInvalid,
    /// It takes too long to find out whether some are.
    DevicesUndecided,
    /// Looking for them ends with an error.
    DevicesFailed,
    /// The devices that the pod's claims have cannot be used from the node.
    DevicesElsewhere,
    /// An attempt to place the pod has left a claim for its extended resources behind.
    ExtendedClaimLeft,
    /// The node lacks an extended resource that no DeviceClass stands for.
    ResourceMissing {
        /// The resource.
        resource: Symbol,
    },
    /// The kubelet does not declare what the pod needs.
    FeatureMissing {
        /// The first such feature.
        feature: &'static str,
    },
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
            | Reason::EnforcedAffinity
            | Reason::OperatingSystem { .. }
            | Reason::ClaimNotCounted { .. }
            | Reason::VolumeAffinity
            | Reason::NoVolumeToBind
            | Reason::NoStorageLeft
            | Reason::VolumeMissing
            | Reason::VolumeZone { .. }
            | Reason::Conflict(_)
            | Reason::SpreadKeyMissing { .. }
            | Reason::Affinity
            | Reason::DevicesTaken
            | Reason::DevicePoolsInvalid
            | Reason::DevicesUndecided
            | Reason::DevicesFailed
            | Reason::DevicesElsewhere
            | Reason::ExtendedClaimLeft
            | Reason::ResourceMissing { .. }
            | Reason::FeatureMissing { .. }
            | Reason::PreemptionNotHelpful
            | Reason::NoVictims => true,
            Reason::Insufficient {
                requested,
                allocatable,
                ..
            } => requested > allocatable,
            Reason::PortTaken { .. }
            | Reason::TooManyPods { .. }
            | Reason::DiskTaken
            | Reason::ClaimTaken { .. }
            | Reason::VolumeLimit { .. }
            | Reason::Spread { .. }
            | Reason::AntiAffinity
            | Reason::ExistingAntiAffinity => false,
        }
    }

    /// The same reason without what differs from node to node, so that nodes can be counted by it. Whether eviction
    /// can help is kept.
    pub fn in_general(self) -> Self {
        match self {
            Reason::NodeAffinity { .. } => Reason::NodeAffinity { mismatch: None },
            Reason::TooManyPods { .. } => Reason::TooManyPods { allowed: 0 },
            Reason::Insufficient {
                resource,
                requested,
                ..
            } => Reason::Insufficient {
                resource,
                requested,
                free: 0,
                allocatable: if self.is_unresolvable() { 0 } else { requested },
            },
            Reason::VolumeLimit { driver, wanted, .. } => Reason::VolumeLimit {
                driver,
                held: 0,
                wanted,
                limit: 0,
            },
            Reason::Spread { key, max_skew, .. } => Reason::Spread {
                key,
                skew: 0,
                max_skew,
            },
            other => other,
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
    /// Its further reasons; only NodeResourcesFit and VolumeBinding have any.
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

    /// The same refusal with its reasons [in general](Reason::in_general).
    pub fn in_general(&self) -> Self {
        Refusal {
            plugin: self.plugin,
            reason: self.reason.in_general(),
            more: self.more.iter().copied().map(Reason::in_general).collect(),
        }
    }
}

/// How many nodes refuse a pod in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// How, [in general](Refusal::in_general): amounts that differ from node to node are 0.
    pub refusal: Refusal,
    /// How many nodes.
    pub nodes: usize,
}
