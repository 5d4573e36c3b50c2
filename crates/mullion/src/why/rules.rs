//! The rules a cluster is asked by: the scheduler's profiles, and whether `spec.os.name` counts.
//!
//! Flags win over what a running cluster publishes about itself, and that over the defaults.

use std::{path::PathBuf, sync::Arc};

use kube::Client;
use mullion_engine::{Cluster, Options, Profile};

use crate::{
    devices::Judge,
    failure::Failure,
    up::{published, scheduler_config},
};

/// What the flags say.
pub(super) struct Told {
    /// The scheduler's configuration file.
    pub(super) config: Option<PathBuf>,
    pub(super) ignore_pod_os: bool,
}

impl Told {
    /// A cluster without anything in it, with the rules that the flags tell.
    ///
    /// # Errors
    /// The file of the scheduler's configuration is not one.
    pub(super) fn alone(&self) -> Result<Cluster, Failure> {
        Ok(empty(
            !self.ignore_pod_os,
            &self.profiles()?.unwrap_or_default(),
        ))
    }

    /// The same with the rules of a running cluster, as far as the flags leave them open.
    ///
    /// # Errors
    /// The file of the scheduler's configuration is not one, or what the cluster says of it is malformed.
    pub(super) async fn of_cluster(&self, client: &Client) -> Result<Cluster, Failure> {
        let told = self.profiles()?;
        let published = published::of_cluster(client).await?;
        let pod_os_counts = published.pod_os_counts && !self.ignore_pod_os;
        Ok(empty(
            pod_os_counts,
            &told.unwrap_or(published.config.profiles),
        ))
    }

    fn profiles(&self) -> Result<Option<Vec<Profile>>, Failure> {
        let read = self.config.as_deref().map(scheduler_config::read);
        Ok(read.transpose()?.map(|(config, _)| config.profiles))
    }
}

/// A cluster without anything in it that understands expressions about devices.
pub(super) fn empty(pod_os_counts: bool, profiles: &[Profile]) -> Cluster {
    let options = Options {
        os_filter: pod_os_counts,
    };
    let mut cluster = Cluster::with_profiles(options, profiles);
    cluster.judge_devices_by(Arc::new(Judge::default()));
    cluster
}
