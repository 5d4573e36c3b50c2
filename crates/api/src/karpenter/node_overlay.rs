//! NodeOverlay (`karpenter.sh/v1alpha1`): another price, or more extended resources, for machines that may be bought.
//!
//! Invariant: an overlay changes what is decided, never what a machine is: EC2's bill and the node's own resources stay as they are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{Requirement, ResourceList};

/// Condition types of a NodeOverlay.
pub mod condition {
    /// The overlay makes sense, and no other of its weight changes the same.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The overlay counts.
    pub const READY: &str = "Ready";
}

/// Which machines an overlay is about, and what it changes about them.
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
    /// Labels of the machines, and of the template of their NodePool; all must hold.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// More or less than their price an hour: `+0.5`, `-1.2`, `+10%`, `-15%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_adjustment: Option<String>,
    /// Their price an hour, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    /// Extended resources that they have beside their own.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub capacity: ResourceList,
    /// 1 to 10,000; overlays of greater weight count before others. None counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
}

/// What is known of an overlay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeOverlayStatus {
    /// See [`condition`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl NodeOverlay {
    /// Weight with the default filled in.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or_default()
    }
}
