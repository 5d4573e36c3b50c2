//! NodePool (`karpenter.sh/v1`): a template of nodes to be launched, and the rules for removing them.
//!
//! Invariant: defaults are those of the schema, so an object from a file, which no API server has defaulted, has the same meaning.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::apis::meta::v1::Condition};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{NillableDuration, NodeClassReference, Requirement, ResourceList};

/// Condition types of a NodePool.
pub mod condition {
    /// The spec is valid by rules that the schema cannot express.
    pub const VALIDATION_SUCCEEDED: &str = "ValidationSucceeded";
    /// The referenced node class is ready.
    pub const NODE_CLASS_READY: &str = "NodeClassReady";
    /// The last launches ended in registered nodes.
    pub const NODE_REGISTRATION_HEALTHY: &str = "NodeRegistrationHealthy";
    /// The pool may launch nodes.
    pub const READY: &str = "Ready";
}

/// A pool of nodes.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    plural = "nodepools",
    category = "karpenter",
    status = "NodePoolStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolSpec {
    /// The template of its nodes.
    pub template: NodeClaimTemplate,
    /// The rules for removing its nodes.
    #[serde(default)]
    pub disruption: Disruption,
    /// The limits of the pool's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
    /// 1 to 100; pools with greater weights are tried first. `None` counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Fixed number of nodes (static pools).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

/// Template of the NodeClaims of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeClaimTemplate {
    /// Labels and annotations of claims and nodes.
    #[serde(default)]
    pub metadata: TemplateMetadata,
    /// All other fields.
    pub spec: NodeClaimTemplateSpec,
}

/// Labels and annotations of a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateMetadata {
    /// Labels of claims and nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of claims and nodes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// [`super::NodeClaimSpec`] without resource requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Taints of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints the nodes start with; pods need not tolerate them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// The labels that nodes may have.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// Class with the cloud's settings.
    pub node_class_ref: NodeClassReference,
    /// Longest time a drain may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<NillableDuration>,
    /// Age at which a node is replaced; the schema's default is 720h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<NillableDuration>,
}

/// The rules for removing nodes of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// The time without pod events after which a node may be consolidated.
    #[serde(default = "at_once")]
    pub consolidate_after: NillableDuration,
    /// The nodes that consolidation considers.
    #[serde(default)]
    pub consolidation_policy: ConsolidationPolicy,
    /// The number of nodes that may be disrupted at a time.
    #[serde(default = "ten_percent")]
    pub budgets: Vec<Budget>,
}

impl Default for Disruption {
    fn default() -> Self {
        Self {
            consolidate_after: at_once(),
            consolidation_policy: ConsolidationPolicy::default(),
            budgets: ten_percent(),
        }
    }
}

fn at_once() -> NillableDuration {
    NillableDuration::seconds(0)
}

fn ten_percent() -> Vec<Budget> {
    vec![Budget::default()]
}

/// The nodes that consolidation considers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsolidationPolicy {
    /// Only nodes without pods.
    WhenEmpty,
    /// Empty nodes and those whose pods fit elsewhere more cheaply.
    #[default]
    WhenEmptyOrUnderutilized,
    /// Nodes whose savings justify the disruption.
    Balanced,
}

/// A limit of the number of nodes that are disrupted at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// The reasons that the budget applies to; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<DisruptionReason>,
    /// A count (`5`) or a share (`10%`, rounded up).
    #[serde(default = "Budget::default_nodes")]
    pub nodes: String,
    /// Cron expression in UTC that opens the budget's window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The duration for which the window stays open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
}

impl Budget {
    fn default_nodes() -> String {
        "10%".into()
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            reasons: Vec::new(),
            nodes: Self::default_nodes(),
            schedule: None,
            duration: None,
        }
    }
}

/// The reason for disrupting a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DisruptionReason {
    /// Its pods fit on other nodes.
    Underutilized,
    /// It has no pods.
    Empty,
    /// It no longer matches its pool.
    Drifted,
}

impl DisruptionReason {
    /// Returns the name in conditions, events and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Underutilized => "Underutilized",
            Self::Empty => "Empty",
            Self::Drifted => "Drifted",
        }
    }
}

/// The observed state of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Capacity of the pool's nodes, with their number under `nodes`.
    #[serde(default, skip_serializing_if = "ResourceList::is_empty")]
    pub resources: ResourceList,
    /// Number of the pool's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i64>,
    /// Generation of the node class for which readiness was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class_observed_generation: Option<i64>,
    /// See [`condition`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

impl NodePool {
    /// Returns the weight, with the default filled in.
    pub fn weight(&self) -> i32 {
        self.spec.weight.unwrap_or_default()
    }

    /// Returns whether the condition is `True`.
    pub fn is(&self, kind: &str) -> bool {
        self.status
            .iter()
            .flat_map(|status| &status.conditions)
            .any(|condition| condition.type_ == kind && condition.status == "True")
    }
}
