//! A node as the scheduler sees it.
//!
//! Conditions are left out on purpose: the scheduler reads taints, which the node lifecycle controller derives from
//! conditions.

use super::{ResourceMap, StringMap};

/// The fields of a `v1.Node` that affect placement.
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
    /// `status.allocatable`; if it is empty, `capacity` is used.
    pub allocatable: ResourceMap,
    /// `status.images`.
    pub images: Vec<ContainerImage>,
    /// `status.declaredFeatures`.
    pub declared_features: Vec<String>,
}

/// A taint: keeps pods that do not tolerate it off the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default))]
pub struct Taint {
    /// The taint's key.
    pub key: String,
    /// The taint's value, often empty.
    pub value: String,
    /// The taint's effect.
    pub effect: TaintEffect,
}

/// The effect of a taint on pods that do not tolerate it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub enum TaintEffect {
    /// No new pods are scheduled to the node.
    #[default]
    NoSchedule,
    /// The node gets a lower score.
    PreferNoSchedule,
    /// No new pods are scheduled to the node, and running pods are evicted.
    NoExecute,
}

impl TaintEffect {
    /// All effects.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// Returns the effect's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }

    /// Returns the effect with this name in the API.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == text)
    }
}

/// A container image on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize),
    serde(rename_all = "camelCase", default)
)]
pub struct ContainerImage {
    /// All names and digests of the image.
    pub names: Vec<String>,
    /// The size in bytes.
    pub size_bytes: i64,
}

impl NodeSpec {
    /// Returns a node with a name and no other field set.
    pub fn named(name: impl Into<String>) -> Self {
        NodeSpec {
            name: name.into(),
            ..NodeSpec::default()
        }
    }
}
