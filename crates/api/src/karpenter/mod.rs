//! Karpenter's resources as Rust types: [`NodePool`] and [`NodeClaim`] (`karpenter.sh/v1`), [`NodeOverlay`] (`karpenter.sh/v1alpha1`),
//! [`EC2NodeClass`] (`karpenter.k8s.aws/v1`) and, in [`legacy`], the v1alpha5 generation.
//!
//! Invariant: these types can parse every object that the schemas in `crds/` allow; fields that a type does not have are not used. Schemas
//! are in the YAML manifests instead of derives, because they contain Karpenter's patterns and CEL rules.

mod duration;
mod ec2_node_class;
pub mod legacy;
mod node_claim;
mod node_overlay;
mod node_pool;
mod requirement;
mod resources;

pub use duration::{NillableDuration, ParseDurationError};
pub use ec2_node_class::{
    AmiSelectorTerm, AmiStatus, BlockDevice, BlockDeviceMapping, CapacityReservation,
    CapacityReservationSelectorTerm, ConnectionTracking, CpuOptions, EC2NodeClass,
    EC2NodeClassSpec, EC2NodeClassStatus, KubeletConfiguration, MetadataOptions, NetworkInterface,
    PlacementGroupSelector, SecurityGroupSelectorTerm, SecurityGroupStatus, SubnetSelectorTerm,
    SubnetStatus,
};
pub use node_claim::{
    NodeClaim, NodeClaimSpec, NodeClaimStatus, NodeClassReference, ResourceRequirements,
    condition as node_claim_condition,
};
pub use node_overlay::{
    NodeOverlay, NodeOverlaySpec, NodeOverlayStatus, condition as node_overlay_condition,
};
pub use node_pool::{
    Budget, ConsolidationPolicy, Disruption, DisruptionReason, NodeClaimTemplate,
    NodeClaimTemplateSpec, NodePool, NodePoolSpec, NodePoolStatus, TemplateMetadata,
    condition as node_pool_condition,
};
pub use requirement::{Operator, Requirement};
pub use resources::ResourceList;
