//! Volumes: claims find volumes or get them made, volumes are attached to nodes, and go when nobody needs them.
//!
//! [`binder`] is kube-controller-manager's PersistentVolume controller and [`matching`] its rules; [`ephemeral`] makes
//! the claims of pods' ephemeral volumes; [`attach`] attaches volumes to the nodes of their pods; [`driver`] simulates
//! the EBS CSI driver, which makes, resizes and deletes volumes and tells what nodes can attach.
//!
//! Invariant: all of it is done by writes that carry the version that was read, so two deciders never give one volume
//! to two claims.

pub(crate) mod attach;
mod binder;
pub mod driver;
mod ephemeral;
pub mod matching;

use crate::Context;

/// Starts what every cluster has: binding, ephemeral volumes and attaching. A driver comes apart ([`driver::start`]).
pub fn start(context: &Context) {
    binder::start(context);
    ephemeral::start(context);
    attach::start(context);
}
