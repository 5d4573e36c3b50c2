//! The input types of the engine: nodes, pods and the other objects that affect placement.
//!
//! The types are plain owned values with Kubernetes' field names. With the feature `serde` each deserializes
//! from the object's JSON; fields that do not affect scheduling are ignored. The engine compiles a pod's
//! template once per class ([`crate::Cluster`]) and reads no strings afterwards.

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
pub use held::{RESIZE_PENDING, hold, hold_pod_level};
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

/// Labels that the engine itself uses.
pub mod label {
    /// The node's name as a label. It is unique to each node, so it is not part of node classes.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// The node's operating system.
    pub const OS: &str = "kubernetes.io/os";
    /// The node's processor architecture.
    pub const ARCH: &str = "kubernetes.io/arch";
    /// The node's zone.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// The node's region.
    pub const REGION: &str = "topology.kubernetes.io/region";
    /// The label for the zone before Kubernetes 1.17.
    pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
    /// The label for the region before Kubernetes 1.17.
    pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
    /// The node's instance type.
    pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
    /// The node's Windows build, for example `10.0.20348`.
    pub const WINDOWS_BUILD: &str = "node.kubernetes.io/windows-build";
    /// The node's capacity type: spot, on-demand or reserved.
    pub const CAPACITY_TYPE: &str = "karpenter.sh/capacity-type";
    /// The capacity reservation that the node runs in.
    pub const RESERVATION_ID: &str = "karpenter.k8s.aws/capacity-reservation-id";
    /// The node's partition in its placement group.
    pub const PLACEMENT_PARTITION: &str = "karpenter.k8s.aws/placement-group-partition";
    /// The node pool that the node was bought for.
    pub const NODE_POOL: &str = "karpenter.sh/nodepool";
}
