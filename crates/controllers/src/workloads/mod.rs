//! Controllers that keep pods running: Deployment, ReplicaSet, DaemonSet, StatefulSet, Job, CronJob.
//!
//! Each directory separates deciding (pure functions over objects, unit-tested) from doing (one `Controller` with the
//! client). What they share: [`pod_watch`] turns pod changes into work, [`expectations`] keeps a controller from acting
//! twice on a stale view, [`pod_control`] creates and deletes pods in bulk.

pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
mod expectations;
mod hash;
pub mod job;
mod pod_control;
mod pod_watch;
pub mod replica_set;
pub mod replication_controller;
pub mod stateful_set;
pub mod ttl_after_finished;

pub(crate) use deployment::{Rounding, scaled};
pub use hash::{POD_TEMPLATE_HASH, template_hash};

use crate::Context;

/// Starts all workload controllers.
pub fn start(context: &Context) {
    replica_set::start(context);
    deployment::start(context);
    daemon_set::start(context);
    replication_controller::start(context);
    stateful_set::start(context);
    job::start(context);
    cron_job::start(context);
    ttl_after_finished::start(context);
}

/// `Some` unless zero: the API leaves zero counts out.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// A number of objects as the API counts them.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
