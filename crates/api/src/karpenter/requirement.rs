//! Requirements for the labels of a node.
//!
//! Invariant: operators are a closed enum; an unknown one is a parse error and never matches everything.

use serde::{Deserialize, Serialize};

/// The relation between a label and a requirement's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label has none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The label, as an integer, is greater than the one value.
    Gt,
    /// The label, as an integer, is less than the one value.
    Lt,
    /// The label, as an integer, is at least the one value.
    Gte,
    /// The label, as an integer, is at most the one value.
    Lte,
}

/// One requirement of a NodePool, NodeClaim or Provisioner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Relation between the label and the values.
    pub operator: Operator,
    /// Values; empty for `Exists` and `DoesNotExist`, one integer for the comparisons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Least number of distinct values that must be left after filtering (alpha in Karpenter).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_values: Option<u32>,
}

impl Requirement {
    /// Creates a requirement without `minValues`.
    pub fn new<V: Into<String>>(
        key: impl Into<String>,
        operator: Operator,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        Self {
            key: key.into(),
            operator,
            values: values.into_iter().map(Into::into).collect(),
            min_values: None,
        }
    }

    /// Creates the requirement `key In [value]`.
    pub fn is(key: impl Into<String>, value: impl Into<String>) -> Self {
        Self::new(key, Operator::In, [value.into()])
    }
}
