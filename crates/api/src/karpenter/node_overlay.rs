//! NodeOverlay (`karpenter.sh/v1alpha1`): another price, or additional extended resources, for offered machines.
//!
//! Invariant: an overlay changes decisions, but not machines: EC2's bill and the node's own resources stay the same.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{Requirement, ResourceList};

/// Condition types of a NodeOverlay.
pub mod condition {
    /// The overlay is valid, and no other one of the same weight changes the same.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The overlay is applied.
    pub const READY: &str = "Ready";
}

/// The machines that an overlay applies to, and the changes that it makes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "karpenter.sh",
    version = "v1alpha1",
    kind = "NodeOverlay",
    plural = "nodeoverlays",
    shortname = "overlays",
    category = "karpenter",
    status = "NodeOverlayStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverlaySpec {
    /// Labels of the machines, or of the template of their NodePool; all must match.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// A change of their price per hour: `+0.5`, `-1.2`, `+10%`, `-15%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_adjustment: Option<String>,
    /// Their price per hour, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Additional extended resources.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub capacity: ResourceList,
    /// 1 to 10,000; overlays with greater weights take precedence. `None` counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

/// The observed state of an overlay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverlayStatus {
    /// See [`condition`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl NodeOverlay {
    /// Returns the weight, with the default filled in.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or_default()
    }
}
