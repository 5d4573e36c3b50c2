//! NodeClaim (`karpenter.sh/v1`): one requested node, from its launch to its removal.
//!
//! Invariant: the spec never changes after creation (the schema enforces this); conditions describe what happens to the node, in the order
//! Launched, Registered, Initialized.

use k8s_openapi::{
    api::core::v1::Taint,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{NillableDuration, Requirement, ResourceList};

/// Condition types of a NodeClaim.
pub mod condition {
    /// The instance exists.
    pub const LAUNCHED: &str = "Launched";
    /// The node joined and has the claim's labels and taints.
    pub const REGISTERED: &str = "Registered";
    /// The node is ready, without startup taints, with all its resources.
    pub const INITIALIZED: &str = "Initialized";
    /// Summary of the three above.
    pub const READY: &str = "Ready";
    /// The node may be consolidated.
    pub const CONSOLIDATABLE: &str = "Consolidatable";
    /// The node no longer matches its NodePool or class.
    pub const DRIFTED: &str = "Drifted";
    /// The node has no pods that must be drained.
    pub const DRAINED: &str = "Drained";
    /// All volumes are detached.
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    /// The instance is being terminated.
    pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
    /// The node has the resources of its instance type.
    pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
    /// The reason why the node is being disrupted.
    pub const DISRUPTION_REASON: &str = "DisruptionReason";
}

/// The requirements of a node.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    category = "karpenter",
    status = "NodeClaimStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Taints of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints that the node starts with, and that some controller removes before it is initialized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Labels the node may have.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// The resources that the node must have room for.
    #[serde(default)]
    pub resources: ResourceRequirements,
    /// Class with the cloud's settings.
    pub node_class_ref: NodeClassReference,
    /// Longest time a drain may take; PDBs are ignored after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<NillableDuration>,
    /// Age at which the node is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<NillableDuration>,
}

/// Resources a NodeClaim was computed for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceRequirements {
    /// Sum of the pods' and daemons' requests.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub requests: ResourceList,
}

/// Reference to a node class of any provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeClassReference {
    /// Kind of the class.
    pub kind: String,
    /// Name of the class.
    pub name: String,
    /// API group of the class.
    pub group: String,
}

impl NodeClassReference {
    /// Returns the label of the class's nodes and claims, whose value is the class's name.
    pub fn label(&self) -> (String, String) {
        let key = format!("{}/{}", self.group, self.kind.to_lowercase());
        (key, self.name.clone())
    }
}

/// The observed state of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// Name of the Node object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// `aws:///<zone>/<instance id>`.
    #[serde(
        rename = "providerID",
        default,
        skip_serializing_if = "String::is_empty"
    )]
    pub provider_id: String,
    /// Image the instance was started from.
    #[serde(rename = "imageID", default, skip_serializing_if = "String::is_empty")]
    pub image_id: String,
    /// Expected capacity of the node.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub capacity: ResourceList,
    /// Expected allocatable of the node.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub allocatable: ResourceList,
    /// Last time a pod was bound to or removed from the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_pod_event_time: Option<Time>,
    /// See [`condition`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl NodeClaim {
    /// Returns the condition of this type, if it was ever set.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// Returns whether the condition is `True`.
    pub fn is(&self, kind: &str) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Returns the value of a label, if it is set.
    pub fn label(&self, key: &str) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    /// Returns the name of the NodePool that created this claim.
    pub fn node_pool(&self) -> Option<&str> {
        self.label(crate::labels::NODEPOOL)
    }

    /// Returns the provider id `aws:///zone/i-...`, once the instance is launched.
    pub fn provider_id(&self) -> Option<&str> {
        let id = &self.status.as_ref()?.provider_id;
        (!id.is_empty()).then_some(id)
    }

    /// Returns the name of the node, once it is registered.
    pub fn node_name(&self) -> Option<&str> {
        let name = &self.status.as_ref()?.node_name;
        (!name.is_empty()).then_some(name)
    }
}
