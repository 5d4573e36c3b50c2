//! The scheduler: kube-scheduler's queue and effects around the engine's decisions.
//!
//! `driver` is the loop, [`queue`] says which pod is tried next, [`wake`] is the table of which events help which
//! refused pod, and `writer` carries decisions to the API server. What a decision is lies in the engine.

mod driver;
pub mod queue;
pub mod wake;
mod writer;

pub use driver::start;

/// The component that events and conditions name.
const COMPONENT: &str = "default-scheduler";
