//! The simulated EBS CSI driver: makes, resizes and deletes volumes ([`controller`]), attaches them ([`attacher`]), and
//! says of every node what it can attach ([`nodes`]).
//!
//! It plays the driver with its sidecars (external-provisioner, -attacher, -resizer) and the kubelet's plugin manager.
//! Invariant: everything it knows of a volume is in the API, so that it goes on after a restart where it was.

mod attacher;
mod controller;
mod nodes;
mod topology;
mod volume;

use mullion_cloud::Speed;

use crate::Context;

/// The driver's name.
pub const DRIVER: &str = "ebs.csi.aws.com";
/// The node label by which the driver itself says where a node is.
pub const DRIVER_ZONE: &str = "topology.ebs.csi.aws.com/zone";
/// The finalizer that keeps a volume until the driver has deleted what is behind it.
const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Starts the driver; `speed` divides what making and attaching a volume takes.
pub fn start(context: &Context, speed: Speed) {
    nodes::start(context);
    controller::start(context, speed);
    attacher::start(context, speed);
}
