//! Determines the rules that apply to a question: the scheduler's profiles, whether `spec.os.name` counts, and Karpenter's settings.
//!
//! Flags override what a running cluster publishes about itself, and that overrides the defaults.

use std::{path::PathBuf, sync::Arc};

use kube::Client;
use mullion_controllers::provisioner::Settings;
use mullion_engine::{Cluster, Options, Profile};

use crate::{
    devices::CelEvaluator,
    failure::Failure,
    up::{published, scheduler_config},
};

/// The values of the flags.
pub(crate) struct RuleFlags {
    /// The path of the scheduler's configuration file.
    pub(crate) config: Option<PathBuf>,
    pub(crate) ignore_pod_os: bool,
}

impl RuleFlags {
    /// Returns an empty cluster with the rules that the flags give.
    ///
    /// # Errors
    /// The scheduler's configuration file is invalid.
    pub(crate) fn empty_cluster(&self) -> Result<Cluster, Failure> {
        Ok(empty(
            !self.ignore_pod_os,
            &self.profiles()?.unwrap_or_default(),
        ))
    }

    /// Returns an empty cluster with the rules of a running cluster, unless a flag overrides them, and the settings of its provisioner.
    ///
    /// # Errors
    /// The scheduler's configuration file is invalid; or there is none, and the cluster's is.
    pub(super) async fn of_cluster(&self, client: &Client) -> Result<(Cluster, Settings), Failure> {
        let configured = self.profiles()?;
        let published = published::of_cluster(client).await?;
        let pod_os_counts = published.pod_os_counts && !self.ignore_pod_os;
        let profiles = match configured {
            Some(profiles) => profiles,
            None => published.config()?.profiles,
        };
        Ok((empty(pod_os_counts, &profiles), published.settings))
    }

    fn profiles(&self) -> Result<Option<Vec<Profile>>, Failure> {
        let read = self.config.as_deref().map(scheduler_config::read);
        Ok(read.transpose()?.map(|(config, _)| config.profiles))
    }
}

/// Returns an empty cluster that can evaluate CEL expressions about devices.
pub(super) fn empty(pod_os_counts: bool, profiles: &[Profile]) -> Cluster {
    let options = Options {
        os_filter: pod_os_counts,
    };
    let mut cluster = Cluster::with_profiles(options, profiles);
    cluster.judge_devices_by(Arc::new(CelEvaluator::default()));
    cluster
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use mullion_apiserver::{ApiServer, Config, admission::User};
    use serde_json::json;

    use super::*;
    use crate::why::writes::create;

    #[tokio::test]
    async fn what_a_cluster_says_of_its_scheduler_is_read_only_where_no_file_is_given() {
        let user = User {
            name: "system:mullion".into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        let client = Client::new(ApiServer::new(Config::default()).router_as(user), "default");
        let map = json!({"metadata": {"name": "mullion-scheduler"}, "data": {"config.yaml": "profiles: 7"}});
        let path = "/api/v1/namespaces/kube-system/configmaps";
        create(&client, path, &map, false).await.expect("taken");
        let mut flags = RuleFlags {
            config: None,
            ignore_pod_os: false,
        };
        let refused = flags.of_cluster(&client).await;
        let refused = refused.map(drop).expect_err("malformed");
        assert!(
            refused
                .to_string()
                .contains("ConfigMap kube-system/mullion-scheduler: config.yaml: ")
        );
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let text = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{schedulerName: packing}]}";
        file.write_all(text.as_bytes()).expect("written");
        flags.config = Some(file.path().to_owned());
        let (cluster, _) = flags.of_cluster(&client).await.expect("rules");
        assert_eq!(cluster.scheduler_names().collect::<Vec<_>>(), ["packing"]);
    }
}
