//! The acting half of Mullion: reconcile loops over the Kubernetes API, and the cluster state they share.
//!
//! Everything here speaks to the API through one [`kube::Client`] and never knows whether that client ends in the
//! embedded API server or in a real cluster. Every loop is level-triggered: what it does depends on what it observes,
//! never on which event woke it, so that a restart at any point ends in the same state.
//!
//! Start at [`context`] (what a controller is given), [`informer`] (what it sees) and [`queue`] (what it works on);
//! [`workloads`] shows all three in use.

// An `expect` says which invariant holds; tests may do without.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod admission;
pub mod api_error;
pub mod autoscaler;
pub mod buffers;
pub mod cluster_role_aggregation;
pub mod context;
mod discarded_response;
pub mod discovery;
pub mod disruption;
pub mod events;
pub mod gc;
pub mod image_gate;
pub mod informer;
pub mod informers;
mod interruption;
pub mod ipam;
pub mod kubelet;
pub mod leader;
pub mod legacy;
pub mod metrics;
pub mod namespace;
pub mod node_lifecycle;
pub mod nodeclaim;
pub mod nodepool;
pub mod overlays;
pub mod ownership;
pub mod pdb;
pub mod podgc;
pub mod pods;
pub mod provisioner;
pub mod queue;
pub mod quota;
mod reservations;
pub mod resource_claims;
pub mod scheduler;
pub mod service;
pub mod serviceaccount;
pub mod state;
mod static_pools;
mod timers;
pub mod traces;
pub mod volume_protection;
pub mod volumes;
pub mod workloads;
mod zonal_shift;

pub use context::Context;
pub use events::{EventType, Recorder};
pub use informer::{Change, Informer, Key};
pub use informers::Informers;
pub use mullion_cloud::Clock;
pub use queue::Queue;
