//! The errors of the model: inputs that it refuses.
//!
//! A pod that does not fit is no error but has a [`crate::Reason`]; the errors here are about invalid
//! input.

use thiserror::Error;

use crate::quantity::Quantity;

/// An input that the model refuses. The model is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ModelError {
    /// An amount is negative.
    #[error("{owner}: {resource} is {quantity}, below zero")]
    NegativeQuantity {
        /// The object that has the amount.
        owner: String,
        /// The name of the resource.
        resource: String,
        /// The negative amount.
        quantity: Quantity,
    },
    /// A node or pod has no name.
    #[error("an object without a name")]
    NoName,
    /// `add_node` was called for a node that exists already.
    #[error("node {0} is there already")]
    DuplicateNode(String),
    /// There is no node of that name.
    #[error("node {0} is not known")]
    UnknownNode(String),
    /// `add_pod` or `bind` was called for a pod that exists already.
    #[error("pod {0} is there already")]
    DuplicatePod(String),
    /// There is no pod with that key.
    #[error("pod {0} is not known")]
    UnknownPod(String),
    /// A pod that must be bound names no node.
    #[error("pod {0} is not bound to a node")]
    NotBound(String),
}
