//! NodeClaim (`karpenter.sh/v1`): one node that was asked for, from order to removal.
//!
//! Invariant: the spec never changes after creation (the schema says so); everything that happens
//! to the node is told by conditions, in the order Launched, Registered, Initialized.

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
    /// The node joined and carries what the claim asked for.
    pub const REGISTERED: &str = "Registered";
    /// The node is ready, without startup taints, with all its resources.
    pub const INITIALIZED: &str = "Initialized";
    /// Summary of the three above.
    pub const READY: &str = "Ready";
    /// The node may be consolidated.
    pub const CONSOLIDATABLE: &str = "Consolidatable";
    /// The node no longer equals what its NodePool or class asks for.
    pub const DRIFTED: &str = "Drifted";
    /// The node is empty of pods that need draining.
    pub const DRAINED: &str = "Drained";
    /// All volumes are detached.
    pub const VOLUMES_DETACHED: &str = "VolumesDetached";
    /// The instance is being terminated.
    pub const INSTANCE_TERMINATING: &str = "InstanceTerminating";
    /// The node is what its instance type promised.
    pub const CONSISTENT_STATE_FOUND: &str = "ConsistentStateFound";
    /// Why the node is being disrupted.
    pub const DISRUPTION_REASON: &str = "DisruptionReason";
}

/// What a node must be.
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
    /// Taints the node starts with and that somebody removes before it is initialized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// Labels the node may have.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// What the node must have room for.
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
    /// The label that nodes and claims of the class carry, with the class's name as its value.
    pub fn label(&self) -> (String, String) {
        let key = format!("{}/{}", self.group, self.kind.to_lowercase());
        (key, self.name.clone())
    }
}

/// What is known of the node.
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
    /// The condition of this type, if it was ever set.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// Whether the condition is `True`.
    pub fn is(&self, kind: &str) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Value of a label, if set.
    pub fn label(&self, key: &str) -> Option<&str> {
        let labels = self.metadata.labels.as_ref()?;
        labels.get(key).map(String::as_str)
    }

    /// Name of the NodePool that ordered this claim.
    pub fn node_pool(&self) -> Option<&str> {
        self.label(crate::labels::NODEPOOL)
    }

    /// `aws:///zone/i-...`, once launched.
    pub fn provider_id(&self) -> Option<&str> {
        let id = &self.status.as_ref()?.provider_id;
        (!id.is_empty()).then_some(id)
    }

    /// Name of the node, once registered.
    pub fn node_name(&self) -> Option<&str> {
        let name = &self.status.as_ref()?.node_name;
        (!name.is_empty()).then_some(name)
    }
}
