//! The reasons why an autoscaler could not do all of its work.

use super::{selector::SelectorError, target::TargetError};
use crate::{Key, api_error};

/// The reason why an autoscaler could not do all of its work.
#[derive(Debug, thiserror::Error)]
pub(super) enum AutoscalerError {
    /// The Scale of the target cannot be read.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The Scale cannot be written.
    #[error("{}", api_error::message(.0))]
    Rescale(kube::Error),
    /// The Scale has no selector.
    #[error("selector is required")]
    NoSelector,
    /// The selector cannot be parsed.
    #[error("couldn't convert selector into a corresponding internal selector object: {0}")]
    Selector(#[from] SelectorError),
    /// Two autoscalers scale the same pods.
    #[error(
        "pods by selector {selector} are controlled by more than one HPA (e.g. [{first} {second}])"
    )]
    Ambiguous {
        selector: String,
        first: Key,
        second: Key,
    },
    /// Some metrics cannot be read.
    #[error("invalid metrics ({failed} invalid out of {all}), first error is: {first}")]
    Metrics {
        failed: usize,
        all: usize,
        /// The message about the first one.
        first: String,
    },
    /// There are no metrics.
    #[error("invalid metrics (0 invalid out of 0)")]
    NoMetrics,
}
