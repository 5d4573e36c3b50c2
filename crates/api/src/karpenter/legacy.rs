//! The v1alpha5 generation: Provisioner (`karpenter.sh/v1alpha5`) and AWSNodeTemplate (`karpenter.k8s.aws/v1alpha1`), as the walkthroughs
//! of 2023 use them.
//!
//! Invariant: only a controller reads them and mirrors them as NodePool and EC2NodeClass; no other code uses them, so there is one code
//! path.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Taint,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    AmiStatus, KubeletConfiguration, MetadataOptions, Requirement, ResourceList,
    SecurityGroupStatus, SubnetStatus,
};

/// The predecessor of NodePool.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha5",
    kind = "Provisioner",
    plural = "provisioners",
    category = "karpenter",
    status = "ProvisionerStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerSpec {
    /// Annotations of every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints of every node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints a node starts with; pods need not tolerate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Labels the nodes may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requirements: Vec<Requirement>,
    /// Settings of the kubelet; in v1 part of the EC2NodeClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_configuration: Option<KubeletConfiguration>,
    /// Inline provider settings, removed upstream before v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Value>,
    /// AWSNodeTemplate with the cloud's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_ref: Option<ProviderRef>,
    /// Removes a node this long after it became empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_empty: Option<i64>,
    /// Replaces a node at this age; `None` means never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_until_expired: Option<i64>,
    /// The limits of the provisioner's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ProvisionerLimits>,
    /// 1 to 100; provisioners with greater weights are tried first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Whether nodes are consolidated; excludes `ttl_seconds_after_empty`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consolidation: Option<Consolidation>,
}

/// Reference to an AWSNodeTemplate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderRef {
    /// Kind of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Name of the referent.
    pub name: String,
    /// API version of the referent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
}

/// Wrapper of the limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProvisionerLimits {
    /// The limits.
    #[serde(default)]
    pub resources: ResourceList,
}

/// Consolidation switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consolidation {
    /// On or off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// The observed state of a provisioner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProvisionerStatus {
    /// When nodes were last added or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// Conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<LegacyCondition>,
    /// Capacity of the provisioner's nodes.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
}

/// A condition in knative's form: all but type and status are optional.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacyCondition {
    /// Condition type.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Severity, if the status is not `True`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// When the status changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// One word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// One sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl From<Condition> for LegacyCondition {
    fn from(condition: Condition) -> Self {
        Self {
            type_: condition.type_,
            status: condition.status,
            severity: None,
            last_transition_time: Some(condition.last_transition_time),
            reason: Some(condition.reason),
            message: Some(condition.message),
        }
    }
}

/// The predecessor of EC2NodeClass.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "karpenter.k8s.aws",
    version = "v1alpha1",
    kind = "AWSNodeTemplate",
    plural = "awsnodetemplates",
    category = "karpenter",
    status = "AWSNodeTemplateStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct AWSNodeTemplateSpec {
    /// Image family: `AL2`, `Bottlerocket`, `Ubuntu`, `Windows2019`, `Windows2022` or `Custom`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ami_family: Option<String>,
    /// Images by tag, with the special keys `aws-ids`, `aws::ids`, `aws::name`, `aws::owners`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ami_selector: BTreeMap<String, String>,
    /// Volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub block_device_mappings: Vec<LegacyBlockDeviceMapping>,
    /// Reserved field of the EC2 API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// One-minute metrics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detailed_monitoring: Option<bool>,
    /// Instance profile of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_profile: Option<String>,
    /// Name of a launch template made elsewhere; not supported since v1beta1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_template: Option<String>,
    /// Exposure of the instance metadata service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_options: Option<MetadataOptions>,
    /// Security groups by tag, or by `aws-ids`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub security_group_selector: BTreeMap<String, String>,
    /// Subnets by tag, or by `aws-ids`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub subnet_selector: BTreeMap<String, String>,
    /// Tags of everything launched.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// User data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Leftover of the inline form; ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// Leftover of the inline form; ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A volume; the size may be a number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacyBlockDeviceMapping {
    /// `/dev/xvda`, `/dev/sda1`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// The EBS volume; `volumeSize` may be a quantity or a number of bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ebs: Option<BTreeMap<String, Value>>,
}

/// The objects that the selectors select.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AWSNodeTemplateStatus {
    /// Subnets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnets: Vec<SubnetStatus>,
    /// Security groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroupStatus>,
    /// Images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub amis: Vec<AmiStatus>,
}
