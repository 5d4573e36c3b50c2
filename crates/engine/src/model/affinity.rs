//! Selectors and affinities as a user writes them.
//!
//! A selector that is absent and one that is empty differ (`None` matches nothing, an empty one everything), so both
//! can be said. Compiled forms: [`crate::selector`].

use super::StringMap;

/// `spec.affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct Affinity {
    /// Which nodes by their labels.
    pub node_affinity: Option<NodeAffinity>,
    /// Near which pods.
    pub pod_affinity: Option<PodAffinity>,
    /// Away from which pods.
    pub pod_anti_affinity: Option<PodAffinity>,
}

/// `spec.affinity.nodeAffinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct NodeAffinity {
    /// Must hold. `Some` with no terms matches no node.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")
    )]
    pub required: Option<NodeSelector>,
    /// Should hold, by weight.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")
    )]
    pub preferred: Vec<PreferredSchedulingTerm>,
}

/// Terms of which one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct NodeSelector {
    /// ORed.
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements of which all must match. A term without any matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct NodeSelectorTerm {
    /// On labels.
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// On fields; `metadata.name` is the only one there is.
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
    /// Label key or field path.
    pub key: String,
    /// How to compare.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
}

/// How a requirement compares. `Gte` and `Lte` exist for node pools only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum Operator {
    /// One of the values.
    #[default]
    In,
    /// None of the values, or no such key.
    NotIn,
    /// The key is there.
    Exists,
    /// The key is not there.
    DoesNotExist,
    /// An integer above the one value.
    Gt,
    /// An integer below the one value.
    Lt,
    /// An integer at or above the one value.
    Gte,
    /// An integer at or below the one value.
    Lte,
}

/// A node preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct PreferredSchedulingTerm {
    /// 1 to 100; 0 is ignored.
    pub weight: i32,
    /// What a preferred node matches.
    pub preference: NodeSelectorTerm,
}

/// `podAffinity` or `podAntiAffinity`: the two have one shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct PodAffinity {
    /// Must hold, all of them.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")
    )]
    pub required: Vec<PodAffinityTerm>,
    /// Should hold, by weight.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")
    )]
    pub preferred: Vec<WeightedPodAffinityTerm>,
}

/// Pods in the same place, where a place is a value of `topology_key`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct PodAffinityTerm {
    /// Which pods; `None` matches none.
    pub label_selector: Option<LabelSelector>,
    /// In these namespaces; empty without a namespace selector: the pod's own.
    pub namespaces: Vec<String>,
    /// And in namespaces with these labels.
    pub namespace_selector: Option<LabelSelector>,
    /// Node label whose values are the places.
    pub topology_key: String,
}

/// A pod preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct WeightedPodAffinityTerm {
    /// 1 to 100.
    pub weight: i32,
    /// What is preferred.
    pub pod_affinity_term: PodAffinityTerm,
}

/// `metav1.LabelSelector`: labels and expressions, all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct LabelSelector {
    /// Key = value.
    pub match_labels: StringMap,
    /// Set expressions (`In`, `NotIn`, `Exists`, `DoesNotExist`).
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
    /// Label key.
    pub key: String,
    /// How to compare.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
}
