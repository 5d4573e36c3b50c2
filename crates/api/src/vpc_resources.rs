//! CNINode (`vpcresources.k8s.aws/v1alpha1`): what a Windows node has of pod addresses.
//!
//! The kind is amazon-vpc-resource-controller-k8s's; the status fields for addresses are ours. Cluster-scoped, one per node and of its name.

use std::collections::BTreeMap;

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Keeps a CNINode until its node is gone (VRC: `NodeTerminationFinalizer`).
pub const FINALIZER: &str = "networking.k8s.aws/resource-cleanup";

/// What is asked for on behalf of a node.
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

/// What there is on the node's network interface.
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
    /// `secondary` or `prefix`: what new pods get.
    #[serde(default)]
    pub mode: String,
    /// How many pods can have an address.
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
    /// Addresses that EC2 was asked for.
    #[serde(default)]
    pub creating: usize,
    /// Addresses that EC2 is taking back.
    #[serde(default)]
    pub deleting: usize,
    /// Pods that wait for an address.
    #[serde(default)]
    pub waiting: usize,
    /// Addresses that a controller which starts anew may give out at once. An address leaves the list before a pod gets it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warm_addresses: Vec<String>,
    /// Blocks that are being given back: addresses and, with `/28`, prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub giving_back: Vec<String>,
}
