//! CNINode (`vpcresources.k8s.aws/v1alpha1`): the pod addresses of a Windows node.
//!
//! The kind is that of amazon-vpc-resource-controller-k8s; the status fields for addresses are ours. It is cluster-scoped, with one object
//! per node, of the same name.

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Keeps a CNINode until its node is deleted (VRC: `NodeTerminationFinalizer`).
pub const FINALIZER: &str = "networking.k8s.aws/resource-cleanup";

/// The requested network features of a node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "vpcresources.k8s.aws",
    version = "v1alpha1",
    kind = "CNINode",
    plural = "cninodes",
    shortname = "cnd",
    status = "CNINodeStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CNINodeSpec {
    /// Features of the VPC CNI on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<Feature>,
    /// Tags for network interfaces.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// One feature and its setting.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Feature {
    /// `SecurityGroupsForPods` or `CustomNetworking`.
    #[serde(default)]
    pub name: String,
    /// Its setting.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// The state of the node's network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CNINodeStatus {
    /// Addresses of the node by state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<Ipv4Status>,
}

/// Addresses of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipv4Status {
    /// `secondary` or `prefix`: the kind of addresses for new pods.
    #[serde(default)]
    pub mode: String,
    /// The number of pods that can have an address.
    #[serde(default)]
    pub capacity: usize,
    /// Addresses that pods have.
    #[serde(default)]
    pub used: usize,
    /// Addresses that are ready for pods.
    #[serde(default)]
    pub warm: usize,
    /// Addresses that were released a short time ago.
    #[serde(default)]
    pub cooling: usize,
    /// Addresses that EC2 is assigning.
    #[serde(default)]
    pub creating: usize,
    /// Addresses that EC2 is releasing.
    #[serde(default)]
    pub deleting: usize,
    /// Pods that wait for an address.
    #[serde(default)]
    pub waiting: usize,
    /// Addresses that a controller may assign at once after it starts. An address is removed from the list before a pod gets it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm_addresses: Vec<String>,
    /// Blocks that are being released: addresses and, with `/28`, prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub giving_back: Vec<String>,
}
