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
mod revision;
pub mod stateful_set;
pub mod ttl_after_finished;

pub(crate) use deployment::{Rounding, scaled};
pub use hash::{POD_TEMPLATE_HASH, template_hash};

use std::fmt::Debug;

use kube::{Api, Client, Resource, ResourceExt, api::PostParams, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};

use crate::{Context, api_error};

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

/// Writes the status of an object; one that is gone needs none.
async fn write_status<K>(client: &Client, updated: &K) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let namespace = updated.meta().namespace.as_deref().unwrap_or_default();
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let written = api
        .replace_status(&updated.name_any(), &PostParams::default(), updated)
        .await;
    api_error::ignore_not_found(written).map(drop)
}

/// `Some` unless zero: the API leaves zero counts out.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// A number of objects as the API counts them.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
