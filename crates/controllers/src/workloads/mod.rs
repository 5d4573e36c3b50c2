//! The workload controllers: ReplicaSet, Deployment, DaemonSet, ReplicationController, StatefulSet, Job, CronJob,
//! and the deletion of finished Jobs.
//!
//! Each directory separates decisions (pure functions over objects, with unit tests) from effects (one `Controller`
//! with the client). They share [`pod_watch`], which turns pod changes into work, [`expectations`], which keeps a
//! controller from acting twice on stale data, and [`pod_control`], which creates and deletes pods in bulk.

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

/// Writes the status of an object. A deleted object is not an error.
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

/// Returns `None` for zero, because the API omits zero counts.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// Converts a number of objects to the API's integer type.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
