//! Label selectors and affinity as in the Kubernetes API.
//!
//! An absent selector (`None`) matches nothing and an empty one matches everything, so both can be expressed.
//! [`crate::selector`] has the compiled forms.

use super::StringMap;

/// `spec.affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Affinity {
    /// Constraints on the labels of nodes.
    pub node_affinity: Option<NodeAffinity>,
    /// Pods that should be near.
    pub pod_affinity: Option<PodAffinity>,
    /// Pods that should not be near.
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// `spec.affinity.nodeAffinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct NodeAffinity {
    /// Required terms. `Some` without terms matches no node.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")
    )]
    pub required: Option<NodeSelector>,
    /// Preferred terms with weights.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")
    )]
    pub preferred: Vec<PreferredSchedulingTerm>,
}

/// A node selector; at least one of its terms must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct NodeSelector {
    /// The terms, combined with OR.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all match. A term without requirements matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// Requirements on fields; only `metadata.name` exists.
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// One requirement on a node label or field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct NodeSelectorRequirement {
    /// The label key or field path.
    pub key: String,
    /// The comparison.
    pub operator: Operator,
    /// The values to compare with.
    pub values: Vec<String>,
}

/// The comparison of a requirement. `Gte` and `Lte` exist only in node pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Operator {
    /// The value is one of the given ones.
    #[default]
    In,
    /// The value is none of the given ones, or the key is missing.
    NotIn,
    /// The key exists.
    Exists,
    /// The key is missing.
    DoesNotExist,
    /// The value is an integer greater than the given one.
    Gt,
    /// The value is an integer less than the given one.
    Lt,
    /// The value is an integer greater than or equal to the given one.
    Gte,
    /// The value is an integer less than or equal to the given one.
    Lte,
}

/// A preferred node selector term with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct PreferredSchedulingTerm {
    /// The weight, 1 to 100; a term of weight 0 is ignored.
    pub weight: i32,
    /// The term that preferred nodes match.
    pub preference: NodeSelectorTerm,
}

/// `podAffinity` or `podAntiAffinity`, which have the same fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct PodAffinity {
    /// Required terms, all of which must hold.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")
    )]
    pub required: Vec<PodAffinityTerm>,
    /// Preferred terms with weights.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")
    )]
    pub preferred: Vec<WeightedPodAffinityTerm>,
}

/// Selects pods in the same topology domain; a domain is a value of `topology_key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct PodAffinityTerm {
    /// The selected pods; `None` selects none.
    pub label_selector: Option<LabelSelector>,
    /// The namespaces of the pods. If this is empty and there is no namespace selector, the pod's own namespace is
    /// meant.
    pub namespaces: Vec<String>,
    /// Selects further namespaces by their labels.
    pub namespace_selector: Option<LabelSelector>,
    /// The node label whose values are the domains.
    pub topology_key: String,
}

/// A preferred pod affinity term with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct WeightedPodAffinityTerm {
    /// The weight, 1 to 100.
    pub weight: i32,
    /// The preferred term.
    pub pod_affinity_term: PodAffinityTerm,
}

/// `metav1.LabelSelector`: labels and expressions that must all match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct LabelSelector {
    /// Labels with the values that they must have.
    pub match_labels: StringMap,
    /// Expressions (`In`, `NotIn`, `Exists`, `DoesNotExist`).
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// One expression of a label selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct LabelSelectorRequirement {
    /// The label key.
    pub key: String,
    /// The comparison.
    pub operator: Operator,
    /// The values to compare with.
    pub values: Vec<String>,
}
