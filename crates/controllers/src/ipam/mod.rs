//! Assigns the addresses of Windows pods as amazon-vpc-resource-controller-k8s ("VRC") does, in clusters where that
//! controller does not run.
//!
//! [`mullion_engine::ip::Interface`] makes the decisions, with one instance per Windows node. This module passes
//! the changes in the cluster to it and carries out its answers: `driver` is the loop, `node_state` the state of one
//! node, `call_queue` the order of calls to EC2, `subnet` the back-off of full subnets, `settings` the ConfigMap,
//! `lease` detects AWS's controller, `calls` makes the slow calls, `events` records the events, `record` is the
//! CNINode that is read after a restart, and [`metrics`] counts.
//!
//! Invariants: a pod gets the annotation [`mullion_api::labels::PRIVATE_IPV4`] once, with its UID as precondition.
//! An address is removed from the CNINode's list of warm ones before a pod gets it, so a controller that dies at
//! any point assigns no address too early.

mod call_queue;
mod calls;
mod driver;
mod events;
mod lease;
pub mod metrics;
mod node_state;
mod record;
mod settings;
mod subnet;

pub use driver::start;
pub use settings::Mode;
