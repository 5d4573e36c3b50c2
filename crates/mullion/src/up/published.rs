//! What a cluster lets its clients know about its scheduler: a ConfigMap of `kube-system`, there only where something is not the default.
//!
//! `mullion up` writes it before a pod is scheduled, [`mullion why`](crate::why) reads it to ask by the same rules.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use mullion_controllers::scheduler::config::Config;
use serde_json::json;

use super::scheduler_config;
use crate::failure::Failure;

const NAME: &str = "mullion-scheduler";
const NAMESPACE: &str = "kube-system";
/// The KubeSchedulerConfiguration as it was given.
const CONFIG: &str = "config.yaml";
/// `false` where `spec.os.name` does not count.
const POD_OS: &str = "podOsCounts";
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a cluster's scheduler decides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Published {
    /// Its KubeSchedulerConfiguration as it was given, if one was.
    config: Option<String>,
    /// Whether `spec.os.name` is a placement requirement.
    pub(crate) pod_os_counts: bool,
}

impl Default for Published {
    fn default() -> Self {
        Published {
            config: None,
            pod_os_counts: true,
        }
    }
}

impl Published {
    /// By which profiles it decides.
    ///
    /// # Errors
    /// What the cluster says of it is no configuration.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let Some(text) = &self.config else {
            return Ok(Config::default());
        };
        scheduler_config::parse(text)
            .map_err(|why| unreadable(&format!("{CONFIG}: {}", why.join("; "))))
    }
}

fn unreadable(why: &str) -> Failure {
    Failure::input(format!("ConfigMap {NAMESPACE}/{NAME}: {why}"))
        .hint("--scheduler-config FILE names the scheduler's configuration")
}

/// Publishes the text of the scheduler's configuration and whether `spec.os.name` counts; takes back what an earlier start published.
///
/// # Errors
/// The API server does not take it.
pub(super) async fn publish(
    client: &Client,
    config: Option<&str>,
    pod_os_counts: bool,
) -> Result<(), Failure> {
    let failed = |why: String| {
        Failure::run(format!(
            "ConfigMap {NAMESPACE}/{NAME} cannot be written: {why}"
        ))
    };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut data = serde_json::Map::new();
    data.extend(config.map(|text| (CONFIG.to_owned(), json!(text))));
    if !pod_os_counts {
        data.insert(POD_OS.to_owned(), json!("false"));
    }
    let publishing = async {
        if data.is_empty() {
            return match api.delete(NAME, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                deleted => deleted.map(drop),
            };
        }
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data});
        let params = PatchParams::apply("mullion").force();
        let applied = api.patch(NAME, &params, &Patch::Apply(object)).await;
        applied.map(drop)
    };
    let published = tokio::time::timeout(PATIENCE, publishing).await;
    published
        .map_err(|_| failed("no answer".to_owned()))?
        .map_err(|error| failed(error.to_string()))
}

/// How a cluster's scheduler decides; by default, where nothing is published or may be read.
///
/// # Errors
/// There is no answer.
pub(crate) async fn of_cluster(client: &Client) -> Result<Published, Failure> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let mut data = match tokio::time::timeout(PATIENCE, api.get_opt(NAME)).await {
        Ok(Ok(map)) => map.and_then(|map| map.data).unwrap_or_default(),
        // Whoever may list pods need not be allowed to read this.
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => Default::default(),
        Ok(Err(error)) => return Err(unreadable(&error.to_string())),
        Err(_) => return Err(unreadable("no answer")),
    };
    Ok(Published {
        config: data.remove(CONFIG),
        pod_os_counts: data.get(POD_OS).is_none_or(|counts| counts != "false"),
    })
}

#[cfg(test)]
mod tests {
    use mullion_apiserver::{ApiServer, admission::User};

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
        assert_eq!(read().await, Published::default());
        let text = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{schedulerName: packing}]}";
        publish(&client, Some(text), false).await.expect("taken");
        let published = read().await;
        let config = published.config().expect("a configuration");
        assert_eq!(config.profiles[0].scheduler_name, "packing");
        assert!(!published.pod_os_counts);
        for _ in 0..2 {
            publish(&client, None, true).await.expect("taken back");
            assert_eq!(read().await, Published::default());
        }
    }
}
