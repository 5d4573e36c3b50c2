//! The volume controllers: bind claims to volumes, have missing volumes provisioned, attach volumes to nodes, and
//! reclaim volumes that are no longer used.
//!
//! [`binder`] is kube-controller-manager's PersistentVolume controller and [`matching`] its rules; [`ephemeral`]
//! creates the claims of pods' ephemeral volumes; [`attach`] attaches volumes to the nodes of their pods;
//! [`driver`] simulates the EBS CSI driver, which creates, resizes and deletes volumes and publishes how many a
//! node can attach.
//!
//! Invariant: every write carries the resource version that was read, so two concurrent decisions never give one
//! volume to two claims.

pub(crate) mod attach;
mod binder;
pub mod driver;
mod ephemeral;
pub mod matching;

use crate::Context;

/// Starts the controllers that every cluster has: binding, ephemeral volumes and attaching. A driver is started
/// separately ([`driver::start`]).
pub fn start(context: &Context) {
    binder::start(context);
    ephemeral::start(context);
    attach::start(context);
}
