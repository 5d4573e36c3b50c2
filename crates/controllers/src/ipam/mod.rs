//! Addresses of Windows pods: what amazon-vpc-resource-controller-k8s ("VRC") does for them, where that controller does not run.
//!
//! The decisions are made by [`mullion_engine::ip::Interface`], one per Windows node. This module brings it what happens in the
//! cluster and carries out what it says: `driver` is the loop, `book` the state of one node, `turns` the order of calls to EC2,
//! `subnet` the back-off of full subnets, `settings` the ConfigMap, `lease` whether upstream's controller is there, `calls` everything
//! that takes time, `events` the events, `record` the CNINode that a restart reads, [`metrics`] the numbers.
//!
//! Invariants: a pod gets the annotation [`mullion_api::labels::PRIVATE_IPV4`] once, guarded by its uid. An address leaves the
//! CNINode's list of warm ones before a pod gets it, so a controller that dies at any point gives no address too early.

mod book;
mod calls;
mod driver;
mod events;
mod lease;
pub mod metrics;
mod record;
mod settings;
mod subnet;
mod turns;

pub use driver::start;
pub use settings::Mode;
