//! SimulatedAccount (`cloud.mullion.dev/v1alpha1`): the parts of an AWS account that EKS's requirements for Windows are about.
//!
//! The object `aws` of an embedded cluster stands for the account: its spec has what a user would change in the AWS console, and its status
//! has the state of the simulated EC2. Facts of a real account have the same types.

use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// Name of the only object in an embedded cluster.
pub const NAME: &str = "aws";
/// Id of the simulated account, which AWS's documentation uses for examples.
pub const ID: &str = "111122223333";
/// The policy that allows EKS's controllers to give nodes network interfaces and addresses.
pub const CONTROLLER_POLICY: &str = "AmazonEKSVPCResourceController";
/// Type of the access entry of a role of Windows nodes.
pub const EC2_WINDOWS: &str = "EC2_WINDOWS";
/// Type of the access entry of a role of Linux nodes.
pub const EC2_LINUX: &str = "EC2_LINUX";

/// The settings of the account.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "cloud.mullion.dev",
    version = "v1alpha1",
    kind = "SimulatedAccount",
    plural = "simulatedaccounts",
    status = "SimulatedAccountStatus",
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedAccountSpec {
    /// The cluster (eks:DescribeCluster).
    pub cluster: EksCluster,
    /// IAM roles by name.
    pub roles: BTreeMap<String, Role>,
    /// IAM instance profiles by name; nodes have the role of their profile.
    pub instance_profiles: BTreeMap<String, InstanceProfile>,
    /// Access entries of the cluster, by the name of the role that they are for.
    pub access_entries: BTreeMap<String, AccessEntry>,
    /// Fargate profiles by name.
    pub fargate_profiles: BTreeMap<String, FargateProfile>,
    /// AMIs for EKS's Windows nodes, by id.
    pub images: BTreeMap<String, Image>,
    /// The account's tags of AMIs, by image id (ec2:CreateTags).
    pub image_tags: BTreeMap<String, BTreeMap<String, String>>,
    /// The account's own SSM parameters that hold ids of AMIs, by name (ssm:PutParameter).
    pub parameters: BTreeMap<String, String>,
    /// Capacity reservations by id, such as `cr-0123456789abcdef0`.
    pub capacity_reservations: BTreeMap<String, CapacityReservation>,
    /// Placement groups by name.
    pub placement_groups: BTreeMap<String, PlacementGroup>,
    /// AWS actions that are refused, such as `iam:ListAttachedRolePolicies`.
    pub denied: Vec<String>,
}

/// A cluster as EKS describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EksCluster {
    /// Name.
    pub name: String,
    /// Kubernetes version, `1.36`.
    pub version: String,
    /// EKS's platform version, `eks.4`.
    pub platform_version: String,
    /// Name of the cluster's IAM role.
    pub role: String,
    /// `ipv4` or `ipv6`.
    pub ip_family: String,
    /// `CONFIG_MAP`, `API_AND_CONFIG_MAP` or `API`.
    pub authentication_mode: String,
    /// Whether EKS Auto Mode buys nodes.
    pub auto_mode: bool,
}

/// An IAM role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Role {
    /// Names of the policies that are attached.
    pub policies: Vec<String>,
}

/// An IAM instance profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceProfile {
    /// Name of its role.
    pub role: String,
}

/// An access entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AccessEntry {
    /// `STANDARD`, `EC2_LINUX`, `EC2_WINDOWS`, `FARGATE_LINUX` and more.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A Fargate profile: pods that one of its selectors selects run on Fargate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FargateProfile {
    /// The pods that run on Fargate.
    pub selectors: Vec<FargateSelector>,
}

/// A selector of a Fargate profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FargateSelector {
    /// Namespace.
    pub namespace: String,
    /// Labels that a pod must have.
    pub labels: BTreeMap<String, String>,
}

/// An AMI.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Image {
    /// The series of images that it belongs to; its images follow each other.
    pub line: String,
    /// Day of its release, `2025-03-14`.
    pub released: String,
    /// Whether AWS has withdrawn it, so that no instance can be launched from it.
    pub withdrawn: bool,
}

/// A capacity reservation (ec2:CreateCapacityReservation).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CapacityReservation {
    /// Type of its machines.
    pub instance_type: String,
    /// Availability zone of its machines.
    pub availability_zone: String,
    /// Number of its machines.
    pub total_instance_count: u32,
    /// `default` or `capacity-block`; empty means `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reservation_type: String,
    /// `open` or `targeted`; empty means `open`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instance_match_criteria: String,
    /// The time at which it ends, `2026-01-01T00:00:00Z`; empty means never.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub end_date: String,
    /// Whether its owner may interrupt instances.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interruptible: bool,
    /// Account that owns it; empty means this one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner_id: String,
    /// Tags.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
}

/// A placement group (ec2:CreatePlacementGroup).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementGroup {
    /// `cluster`, `partition` or `spread`.
    pub strategy: String,
    /// How many partitions a group with that strategy has.
    #[serde(skip_serializing_if = "is_zero")]
    pub partition_count: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What has become of a capacity reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservationFacts {
    /// `active`, `expired`, or `failed` if EC2 refuses such a reservation.
    pub state: String,
    /// Machines without an instance.
    pub available_instance_count: u32,
    /// The reason why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The state of the simulated EC2.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimulatedAccountStatus {
    /// Subnets by id.
    pub subnets: BTreeMap<String, SubnetFacts>,
    /// Instances of Windows nodes by id.
    pub instances: BTreeMap<String, InstanceFacts>,
    /// Capacity reservations by id.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity_reservations: BTreeMap<String, ReservationFacts>,
    /// Names of the instance profiles of Linux nodes; a large cluster has too many of those nodes to list them.
    pub linux_profiles: BTreeSet<String>,
}

/// A subnet and its free addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubnetFacts {
    /// Availability zone.
    pub zone: String,
    /// CIDR block.
    pub cidr: String,
    /// Free addresses.
    pub free_addresses: usize,
    /// Aligned /28 blocks without used addresses.
    pub free_prefixes: usize,
}

/// An instance and its primary network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InstanceFacts {
    /// Id of its AMI.
    pub image: String,
    /// Name of its instance profile.
    pub instance_profile: String,
    /// Id of the subnet.
    pub subnet: String,
    /// Single addresses of its interface besides the primary one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// /28 blocks of its interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
}

/// Returns the ARN of a role of the simulated account.
pub fn role_arn(role: &str) -> String {
    format!("arn:aws:iam::{ID}:role/{role}")
}

/// Returns the name of the role of an ARN.
pub fn role_name(arn: &str) -> &str {
    arn.rsplit('/').next().unwrap_or(arn)
}
