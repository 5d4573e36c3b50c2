//! The settings of scheduler and provisioner that a cluster publishes for clients: two ConfigMaps in `kube-system`, which exist only for
//! settings that are not the default.
//!
//! `mullion up` writes them before a pod is scheduled. [`mullion why`](crate::why) and [`mullion plan`](crate::plan) read them to apply the
//! same rules.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_controllers::{provisioner::Settings, scheduler::config::Config};
use serde_json::json;

use super::{scheduler_config, settings};
use crate::failure::Failure;

const NAME: &str = "mullion-scheduler";
/// The ConfigMap with Karpenter's settings that plans use; the keys are the names of Karpenter's environment variables.
const PROVISIONER: &str = "mullion-provisioner";
const NAMESPACE: &str = "kube-system";
/// The key for the KubeSchedulerConfiguration as the user gave it.
const CONFIG: &str = "config.yaml";
/// The key whose value is `false` if `spec.os.name` is not a placement requirement.
const POD_OS: &str = "podOsCounts";
/// The time that a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The published settings of a cluster's scheduler and provisioner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PublishedSettings {
    /// The KubeSchedulerConfiguration as the user gave it, if any.
    config: Option<String>,
    /// Whether `spec.os.name` is a placement requirement.
    pub(crate) pod_os_counts: bool,
    /// The provisioner's settings that plans use.
    pub(crate) settings: Settings,
}

impl Default for PublishedSettings {
    fn default() -> Self {
        PublishedSettings {
            config: None,
            pod_os_counts: true,
            settings: Settings::default(),
        }
    }
}

impl PublishedSettings {
    /// Returns the scheduler's configuration.
    ///
    /// # Errors
    /// The published text is not a configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let Some(text) = &self.config else {
            return Ok(Config::default());
        };
        scheduler_config::parse(text)
            .map_err(|why| unreadable(&format!("{CONFIG}: {}", why.join("; "))))
    }
}

/// Publishes the provisioner's settings, and removes those of an earlier start.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn publish_settings(client: &Client, own: &Settings) -> Result<(), Failure> {
    let texts = settings::texts(own).into_iter();
    let data = texts.map(|(variable, text)| (variable.to_owned(), json!(text)));
    write(client, PROVISIONER, data.collect()).await
}

fn unreadable(why: &str) -> Failure {
    Failure::input(format!("ConfigMap {NAMESPACE}/{NAME}: {why}"))
        .hint("--scheduler-config FILE names the scheduler's configuration")
}

/// Publishes the scheduler's configuration and whether `spec.os.name` counts, and removes those of an earlier start.
///
/// # Errors
/// The API server refuses the write.
pub(super) async fn publish(
    client: &Client,
    config: Option<&str>,
    pod_os_counts: bool,
) -> Result<(), Failure> {
    let mut data = serde_json::Map::new();
    data.extend(config.map(|text| (CONFIG.to_owned(), json!(text))));
    if !pod_os_counts {
        data.insert(POD_OS.to_owned(), json!("false"));
    }
    write(client, NAME, data).await
}

/// Writes a ConfigMap, or deletes it if it would be empty.
async fn write(
    client: &Client,
    name: &str,
    data: serde_json::Map<String, serde_json::Value>,
) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::run(format!(
            "ConfigMap {NAMESPACE}/{name} cannot be written: {why}"
        ))
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let publishing = async {
        if data.is_empty() {
            return match api.delete(name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                deleted => deleted.map(drop),
            };
        }
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
        // The values are those of the running process, so they replace whatever a user wrote there.
        let params = PatchParams::apply("mullion").force();
        let applied = api.patch(name, &params, &Patch::Apply(object)).await;
        applied.map(drop)
    };
    let published = tokio::time::timeout(PATIENCE, publishing).await;
    published
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))
}

/// Returns the settings of a cluster's scheduler and provisioner: the defaults if none are published or may be read.
///
/// # Errors
/// There is no response, or the published settings are invalid.
pub(crate) async fn of_cluster(client: &Client) -> Result<PublishedSettings, Failure> {
    let mut data = data_of(client, NAME).await?;
    let settings = settings::read(&data_of(client, PROVISIONER).await?);
    let settings = settings
        .map_err(|why| Failure::input(format!("ConfigMap {NAMESPACE}/{PROVISIONER}: {why}")))?;
    Ok(PublishedSettings {
        settings,
        config: data.remove(CONFIG),
        pod_os_counts: data.get(POD_OS).is_none_or(|counts| counts != "false"),
    })
}

async fn data_of(client: &Client, name: &str) -> Result<BTreeMap<String, String>, Failure> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let failed = |why: &str| Failure::input(format!("ConfigMap {NAMESPACE}/{name}: {why}"));
    match tokio::time::timeout(PATIENCE, api.get_opt(name)).await {
        Ok(Ok(map)) => Ok(map.and_then(|map| map.data).unwrap_or_default()),
        // A user who may list pods need not have the permission to read this ConfigMap.
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Ok(BTreeMap::new()),
        Ok(Err(error)) => Err(failed(&error.to_string())),
        Err(_) => Err(failed("no answer")),
    }
}

#[cfg(test)]
mod tests {
    use mullion_apiserver::{ApiServer, admission::User};
    use mullion_engine::provision::{MinValuesPolicy, PreferencePolicy};

    use super::*;

    async fn client() -> Client {
        let user = User {
            name: "system:mullion".into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        let server = ApiServer::new(mullion_apiserver::Config::default());
        Client::new(server.router_as(user), "default")
    }

    #[tokio::test]
    async fn what_is_not_the_default_is_known_to_clients_until_it_is_the_default_again() {
        let client = client().await;
        let read = || async { of_cluster(&client).await.expect("an answer") };
        assert_eq!(read().await, PublishedSettings::default());
        let text = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{schedulerName: packing}]}";
        publish(&client, Some(text), false).await.expect("taken");
        let published = read().await;
        let config = published.config().expect("a configuration");
        assert_eq!(config.profiles[0].scheduler_name, "packing");
        assert!(!published.pod_os_counts);
        for _ in 0..2 {
            publish(&client, None, true).await.expect("taken back");
            assert_eq!(read().await, PublishedSettings::default());
        }
        let own = Settings {
            preferences: PreferencePolicy::Ignore,
            min_values: MinValuesPolicy::BestEffort,
            ..Settings::default()
        };
        publish_settings(&client, &own).await.expect("taken");
        assert_eq!(read().await.settings, own);
        publish_settings(&client, &Settings::default())
            .await
            .expect("taken back");
        assert_eq!(read().await, PublishedSettings::default());
    }
}
