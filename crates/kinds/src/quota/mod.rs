//! What objects use of a quota, and which objects a quota counts (`pkg/quota/v1/evaluator/core`).
//!
//! Admission counts the object of a write, the quota controller all objects of a namespace: both by these rules.

mod extended;
pub mod room;
pub mod scopes;
mod usage;

use std::collections::BTreeMap;

use mullion_kube_text::quantity::Quantity;

pub use usage::CountedKind;

/// Amounts by the name that a quota has for them.
pub type Amounts = BTreeMap<String, Quantity>;
