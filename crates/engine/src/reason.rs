//! Reasons why a node or a pod is refused: closed enums with typed data.
//!
//! Reasons are small and cheap to copy; names in them are [`Symbol`]s of the cluster that produced them.
//! Text is made in one place: [`crate::explain`].

use crate::devices::ClaimConflict;
use crate::intern::Symbol;
use crate::model::TaintEffect;

/// The plugins of kube-scheduler's default profile, and Mullion's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plugin {
    /// Narrows the nodes by node affinity to names, before any filter.
    PreFilter,
    /// Refuses cordoned nodes.
    NodeUnschedulable,
    /// Compares `spec.nodeName`.
    NodeName,
    /// Taints and tolerations.
    TaintToleration,
    /// Node selector and node affinity.
    NodeAffinity,
    /// Compares `spec.os.name` with the node's label; Mullion's own.
    OperatingSystem,
    /// Host ports.
    NodePorts,
    /// Compares requests with free amounts.
    NodeResourcesFit,
    /// Refuses disks and claims that cannot be shared.
    VolumeRestrictions,
    /// Limits the number of volumes attached to a node.
    NodeVolumeLimits,
    /// Checks that claims have, find or can get volumes that the node reaches.
    VolumeBinding,
    /// Compares the zones of bound volumes.
    VolumeZone,
    /// Prefers an even use of resources.
    NodeResourcesBalancedAllocation,
    /// Topology spread constraints.
    PodTopologySpread,
    /// Affinity and anti-affinity between pods.
    InterPodAffinity,
    /// Prefers nodes that have the pod's images.
    ImageLocality,
    /// Prefers nodes with shorter pull times; Mullion's own, off by default.
    PullTime,
    /// Dynamic resource allocation.
    DynamicResources,
    /// Compares the features that the node's kubelet declares.
    NodeDeclaredFeatures,
    /// Evicts pods of lower priority.
    DefaultPreemption,
}

impl Plugin {
    /// The number of plugins.
    pub(crate) const COUNT: usize = Plugin::DefaultPreemption as usize + 1;

    /// Returns the plugin's bit in a set of plugins.
    pub(crate) fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns kube-scheduler's name for the plugin.
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

/// Why a pod is refused before any node is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Conflict {
    /// Every term of its required node affinity contradicts itself.
    Affinity,
    /// A PersistentVolumeClaim does not exist.
    ClaimNotFound {
        /// Its name.
        claim: Symbol,
    },
    /// The claim of an ephemeral volume does not exist yet.
    EphemeralClaimMissing {
        /// The name it will have.
        claim: Symbol,
    },
    /// A claim has the name of an ephemeral volume's claim but another owner.
    EphemeralClaimNotOwned {
        /// The namespace of pod and claim.
        namespace: Symbol,
        /// The claim.
        claim: Symbol,
        /// The pod.
        pod: Symbol,
    },
    /// A claim's volume does not exist any more.
    ClaimLost {
        /// The claim.
        claim: Symbol,
        /// The volume it had.
        volume: Symbol,
    },
    /// A claim is being deleted.
    ClaimDeleting {
        /// The claim.
        claim: Symbol,
    },
    /// A claim with immediate binding has no volume yet.
    UnboundImmediate,
    /// A claim names a volume that does not exist.
    VolumeNotFound {
        /// The volume.
        volume: Symbol,
    },
    /// A claim names a storage class that does not exist.
    ClassNotFound {
        /// The class.
        class: Symbol,
    },
    /// A claim names neither a volume nor a storage class.
    NoVolumeNorClass,
    /// A claim with immediate binding names no volume.
    NoVolumeName,
    /// The pod's ResourceClaims cannot be used.
    Claims(ClaimConflict),
    /// The preferred node affinity is invalid, and more than one node is feasible.
    Preference {
        /// The parse errors.
        why: Symbol,
    },
}

/// A conflict and the plugin that reports it, since several plugins may find the same conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Veto {
    /// The plugin.
    pub plugin: Plugin,
    /// The conflict.
    pub conflict: Conflict,
}

impl Veto {
    /// Returns whether the scheduling attempt ends with an error: see [`Conflict::is_error`].
    pub fn is_error(self) -> bool {
        self.conflict.is_error()
    }
}

impl Conflict {
    /// Returns whether the attempt ends with an error instead of a refusal; then no pod is evicted for it.
    pub fn is_error(self) -> bool {
        matches!(
            self,
            Conflict::Claims(ClaimConflict::Failed { .. }) | Conflict::Preference { .. }
        )
    }
}

/// A node label that does not match a pod's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelMismatch {
    /// The label's key.
    pub key: Symbol,
    /// The value that the pod demands.
    pub wanted: Symbol,
    /// The node's value; `None` if it lacks the label.
    pub found: Option<Symbol>,
}

/// One reason why a node is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The node affinity names other nodes.
    NotNamed,
    /// The node is cordoned.
    Unschedulable,
    /// `spec.nodeName` is another node.
    NodeName,
    /// The pod does not tolerate this taint, the first such one.
    UntoleratedTaint {
        /// Taint key.
        key: Symbol,
        /// Taint value.
        value: Symbol,
        /// NoSchedule or NoExecute.
        effect: TaintEffect,
    },
    /// The node selector or required node affinity does not match.
    NodeAffinity {
        /// The first label that does not match, if a single demand decides.
        mismatch: Option<LabelMismatch>,
    },
    /// The node affinity that the profile adds to every pod does not match.
    EnforcedAffinity,
    /// The pod demands another operating system.
    OperatingSystem {
        /// `spec.os.name`.
        wanted: Symbol,
        /// The node's `kubernetes.io/os`; `None` if it lacks the label.
        found: Option<Symbol>,
    },
    /// A host port is taken.
    PortTaken {
        /// The first port that is taken.
        port: i32,
    },
    /// The node has its maximum number of pods.
    TooManyPods {
        /// The maximum.
        allowed: i64,
    },
    /// Not enough of a resource is free.
    Insufficient {
        /// The resource.
        resource: Symbol,
        /// The pod's request (millicores, bytes, pieces).
        requested: i64,
        /// The free amount.
        free: i64,
        /// The node's allocatable amount.
        allocatable: i64,
    },
    /// A pod on the node uses a disk that cannot be shared, or not for writing.
    DiskTaken,
    /// A pod uses a claim with ReadWriteOncePod.
    ClaimTaken {
        /// The claim.
        claim: Symbol,
    },
    /// The node cannot attach more volumes of a driver.
    VolumeLimit {
        /// The driver.
        driver: Symbol,
        /// The number attached.
        held: i64,
        /// The number that the pod adds.
        wanted: i64,
        /// The maximum.
        limit: i64,
    },
    /// A claim does not exist, so its volume cannot be counted.
    ClaimNotCounted {
        /// The claim's namespace.
        namespace: Symbol,
        /// The claim's name.
        claim: Symbol,
    },
    /// A bound volume cannot be reached from the node.
    VolumeAffinity,
    /// No volume for an unbound claim can be found or provisioned for the node.
    NoVolumeToBind,
    /// There is not enough storage capacity for a new volume.
    NoStorageLeft,
    /// A claim is bound to a volume that does not exist.
    VolumeMissing,
    /// A bound volume is in another zone or region.
    VolumeZone {
        /// The volume's label for the zone or region.
        key: Symbol,
    },
    /// The pod is refused on every node.
    Conflict(Conflict),
    /// The pod would raise the skew of a spread constraint above its maximum.
    Spread {
        /// The constraint's topology key.
        key: Symbol,
        /// The skew with the pod.
        skew: i64,
        /// The constraint's `maxSkew`.
        max_skew: i64,
        /// The domain with the fewest pods that count. Only plans look for it, for what they refuse in the end; `None` where
        /// hosts are the domains, or where there are fewer domains than `minDomains`.
        fewest: Option<Symbol>,
    },
    /// The node lacks the topology key of a spread constraint.
    SpreadKeyMissing {
        /// The topology key.
        key: Symbol,
    },
    /// Required pod affinity is not satisfied.
    Affinity,
    /// Required anti-affinity is violated by an existing pod.
    AntiAffinity,
    /// The required anti-affinity of an existing pod excludes this pod.
    ExistingAntiAffinity,
    /// No suitable devices for the pod's ResourceClaims are free.
    DevicesTaken,
    /// No suitable devices are free, and the slices of some pools contradict each other.
    DevicePoolsInvalid,
    /// The search for devices exceeds its limit.
    DevicesUndecided,
    /// The search for devices ends with an error.
    DevicesFailed,
    /// The devices allocated to the pod's ResourceClaims cannot be used from the node.
    DevicesElsewhere,
    /// An earlier attempt to place the pod left a ResourceClaim for its extended resources behind.
    ExtendedClaimLeft,
    /// The node lacks an extended resource, and no DeviceClass provides it.
    ResourceMissing {
        /// The resource.
        resource: Symbol,
    },
    /// The kubelet does not declare a feature that the pod needs.
    FeatureMissing {
        /// The first such feature.
        feature: &'static str,
    },
    /// Preemption: evicting pods would not make the node feasible.
    PreemptionNotHelpful,
    /// Preemption: the node has no pods of lower priority.
    NoVictims,
}

impl Reason {
    /// Returns whether evicting pods from the node cannot help (kube-scheduler: `UnschedulableAndUnresolvable`).
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
            // Even an empty node would be too small; otherwise evicting pods may free enough.
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

    /// Returns the reason with the amounts that differ from node to node set to 0, so that nodes can be counted by it.
    /// Whether eviction can help stays the same.
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
                // Only whether the request exceeds the node is kept of its amounts, because that decides about
                // eviction.
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
                fewest: None,
            },
            other => other,
        }
    }
}

/// The first plugin that refuses a node, and all its reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The plugin.
    pub plugin: Plugin,
    /// The first reason.
    pub reason: Reason,
    /// Further reasons; only NodeResourcesFit and VolumeBinding give several.
    pub more: Vec<Reason>,
}

impl Refusal {
    /// Returns a refusal with one reason.
    pub fn new(plugin: Plugin, reason: Reason) -> Self {
        Refusal {
            plugin,
            reason,
            more: Vec::new(),
        }
    }

    /// Returns all reasons.
    pub fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        std::iter::once(self.reason).chain(self.more.iter().copied())
    }

    /// Returns whether eviction cannot help, for which one unresolvable reason is enough.
    pub fn is_unresolvable(&self) -> bool {
        self.reasons().any(Reason::is_unresolvable)
    }

    /// Returns the refusal with its reasons [in general](Reason::in_general).
    pub fn in_general(&self) -> Self {
        Refusal {
            plugin: self.plugin,
            reason: self.reason.in_general(),
            more: self.more.iter().copied().map(Reason::in_general).collect(),
        }
    }
}

/// The number of nodes with the same refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The refusal [in general](Refusal::in_general): amounts that differ from node to node are 0.
    pub refusal: Refusal,
    /// The number of nodes.
    pub nodes: usize,
}
