//! The simulated EBS CSI driver: creates, resizes and deletes volumes ([`controller`]), attaches them
//! ([`attacher`]), and publishes how many volumes each node can attach ([`nodes`]).
//!
//! This module stands for the driver, its sidecars (external-provisioner, external-attacher, external-resizer) and
//! the kubelet's plugin manager. Invariant: everything the driver knows about a volume is in the API, so after a
//! restart it continues where it stopped.

mod attacher;
mod controller;
mod nodes;
mod topology;
mod volume;

use mullion_cloud::Speed;

use crate::Context;

/// The driver's name.
pub const DRIVER: &str = "ebs.csi.aws.com";
/// The node label in which the driver itself publishes a node's zone.
pub const DRIVER_ZONE: &str = "topology.ebs.csi.aws.com/zone";
/// The finalizer that keeps a volume until the driver has deleted the storage behind it.
const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Starts the driver; `speed` divides the simulated time to create and attach a volume.
pub fn start(context: &Context, speed: Speed) {
    nodes::start(context);
    controller::start(context, speed);
    attacher::start(context, speed);
}
