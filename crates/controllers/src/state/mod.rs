//! Cluster state as the scheduler and the provisioner see it.
//!
//! [`ClusterState`] turns watch events into deltas of the engine's cluster; [`SharedState`] feeds one from the informers
//! and lends it out. [`convert`] maps Kubernetes objects to the engine's model; [`requests`], [`taints`] and
//! [`node_selector`] answer small questions on the API's own types for controllers that do not place pods.

mod cluster_state;
pub mod convert;
pub mod devices;
pub mod node_selector;
pub mod requests;
mod shared;
pub mod taints;
pub mod volumes;

pub use cluster_state::{ClusterState, PlaceChange, PlannedPlace, Promise};
pub use shared::SharedState;
