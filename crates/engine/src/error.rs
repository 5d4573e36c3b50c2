//! Why the model refuses an input.
//!
//! A pod that does not fit is not an error but a [`crate::Reason`]; these are inputs that cannot be true.

use thiserror::Error;

use crate::quantity::Quantity;

/// An input the model cannot take in. The model is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// An amount below zero.
    #[error("{owner}: {resource} is {quantity}, below zero")]
    NegativeQuantity {
        /// Which object.
        owner: String,
        /// Which resource.
        resource: String,
        /// What was given.
        quantity: Quantity,
    },
    /// A node or pod without a name.
    #[error("an object without a name")]
    NoName,
    /// `add_node` of a name that is there.
    #[error("node {0} is there already")]
    DuplicateNode(String),
    /// A node that is not there.
    #[error("node {0} is not known")]
    UnknownNode(String),
    /// `add_pod` or `bind` of a pod that is there.
    #[error("pod {0} is there already")]
    DuplicatePod(String),
    /// A pod that is not there.
    #[error("pod {0} is not known")]
    UnknownPod(String),
    /// A pod that names no node.
    #[error("pod {0} is not bound to a node")]
    NotBound(String),
}
