//! A node as the scheduler sees it.
//!
//! Conditions are absent on purpose: placement looks at taints, which the node lifecycle controller derives from them.

use super::{ResourceMap, StringMap};

/// What of a `v1.Node` matters to placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(from = "super::wire::Node")
)]
pub struct NodeSpec {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: StringMap,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`: the node is cordoned.
    pub unschedulable: bool,
    /// `status.capacity`.
    pub capacity: ResourceMap,
    /// `status.allocatable`; where it is empty, `capacity` counts.
    pub allocatable: ResourceMap,
    /// `status.images`.
    pub images: Vec<ContainerImage>,
    /// `status.declaredFeatures`.
    pub declared_features: Vec<String>,
}

/// A mark that keeps pods away unless they tolerate it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct Taint {
    /// Key.
    pub key: String,
    /// Value, often empty.
    pub value: String,
    /// How strongly.
    pub effect: TaintEffect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum TaintEffect {
    /// Keeps new pods away.
    #[default]
    NoSchedule,
    /// Makes the node less wanted.
    PreferNoSchedule,
    /// Keeps new pods away and evicts those that run.
    NoExecute,
}

impl TaintEffect {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// The effect that is written so.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == text)
    }
}

/// An image the node holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct ContainerImage {
    /// Every name and digest it is known by.
    pub names: Vec<String>,
    /// Its size.
    pub size_bytes: i64,
}

impl NodeSpec {
    /// A node with a name and nothing else; fill in the rest.
    pub fn named(name: impl Into<String>) -> Self {
        NodeSpec {
            name: name.into(),
            ..NodeSpec::default()
        }
    }
}
