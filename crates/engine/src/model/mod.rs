//! What callers tell the engine: nodes, pods and the objects that matter to placing them.
//!
//! Plain owned values with Kubernetes' field names. With the feature `serde` each reads itself from the object's
//! JSON; fields that do not matter to scheduling are ignored. The engine compiles them once per pod class
//! ([`crate::Cluster`]) and never looks at text again.

mod affinity;
mod device;
#[cfg(feature = "serde")]
mod device_wire;
mod held;
mod node;
mod object;
mod pod;
mod volume;
#[cfg(feature = "serde")]
mod volume_wire;
#[cfg(feature = "serde")]
mod wire;

use std::collections::BTreeMap;

pub use crate::quantity::{Quantity, QuantityError};

pub use affinity::{
    Affinity, LabelSelector, LabelSelectorRequirement, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Operator, PodAffinity, PodAffinityTerm,
    PreferredSchedulingTerm, WeightedPodAffinityTerm,
};
pub use device::{
    AllocatedDevice, ClaimAllocation, CounterSet, DeviceAttribute, DeviceCapacity, DeviceChoices,
    DeviceClassSpec, DeviceConstraint, DeviceJudge, DeviceNodes, DeviceRequest, DeviceSpec,
    DeviceTaint, DeviceToleration, ExactRequest, ExtendedClaim, ExtendedUse, PodClaim, PodClaims,
    RequestPolicy, ResourceClaimSpec, ResourceSliceSpec, SubRequest, ValidRange,
};
pub use held::{RESIZE_PENDING, hold, hold_as_whole};
pub use node::{ContainerImage, NodeSpec, Taint, TaintEffect};
pub use object::{NamespaceSpec, PdbSpec, ServiceSpec, WorkloadSpec};
pub use pod::{
    Container, ContainerPort, InclusionPolicy, OwnerRef, PodSpec, PodTemplate, PreemptionPolicy,
    Resources, RestartPolicy, RestartRule, Toleration, TolerationOperator,
    TopologySpreadConstraint, WhenUnsatisfiable,
};
pub use volume::{
    AccessMode, ClaimRef, CsiDriverSpec, CsiNodeSpec, CsiStorageCapacitySpec, Disk,
    PersistentVolumeClaimSpec, PersistentVolumeSpec, PodVolume, StorageClassSpec,
    TopologyRequirement, VolumeAttachmentSpec, VolumeSource,
};

/// Labels, annotations or a node selector.
pub type StringMap = BTreeMap<String, String>;

/// Amounts by resource name, as in `requests` or `allocatable`.
pub type ResourceMap = BTreeMap<String, Quantity>;

/// Labels the engine itself knows.
pub mod label {
    /// The node's own name as a label; unique per node, so it is kept out of node classes.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// Operating system of the node.
    pub const OS: &str = "kubernetes.io/os";
    /// Processor architecture of the node.
    pub const ARCH: &str = "kubernetes.io/arch";
    /// Zone of the node.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// Region of the node.
    pub const REGION: &str = "topology.kubernetes.io/region";
    /// What the zone was called before 1.17.
    pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    /// What the region was called before 1.17.
    pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
    /// Instance type of the node.
    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    /// Windows build of the node, for example `10.0.20348`.
    pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
    /// Spot, on-demand or reserved.
    pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
    /// The capacity reservation that the node runs in.
    pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
    /// The partition of its placement group that the node is in.
    pub const PLACEMENT_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
    /// The pool a node was bought for.
    pub const NODE_POOL: &str = "karpenter.sh/nodepool";
}
