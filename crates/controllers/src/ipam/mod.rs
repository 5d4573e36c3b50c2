//! Addresses of Windows pods: what amazon-vpc-resource-controller-k8s ("VRC") does for them, where that controller does not run.
//!
//! The decisions are made by [`mullion_engine::ip::Interface`], one per Windows node. This module brings it what happens in the
//! cluster and carries out what it says: `driver` is the loop, `book` the state of one node, `turns` the order of calls to EC2,
//! `subnet` the back-off of full subnets, `settings` the ConfigMap, `calls` everything that takes time, `voice` the events,
//! `record` the CNINode that a restart reads, [`metrics`] the numbers.
//!
//! Invariants: a pod gets the annotation [`mullion_api::labels::PRIVATE_IPV4`] once, guarded by its uid. An address leaves the
//! CNINode's list of warm ones before a pod gets it, so a controller that dies at any point gives no address too early.

mod book;
mod calls;
mod driver;
pub mod metrics;
mod record;
mod settings;
mod subnet;
mod turns;
mod voice;

pub use driver::start;

/// Whether this controller gives Windows pods their addresses (`--ipam`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// On where no other controller can be doing it: in the embedded cluster and on nodes that run outside EKS.
    #[default]
    Auto,
    /// On.
    On,
    /// Off: somebody else gives addresses.
    Off,
}

impl Mode {
    /// Returns whether the controller acts; `is_eks` says that EKS runs the control plane, and so VRC.
    pub const fn acts(self, is_eks: bool) -> bool {
        match self {
            Mode::Auto => !is_eks,
            Mode::On => true,
            Mode::Off => false,
        }
    }
}
