//! What a new cluster holds before its user comes: custom resource definitions, the provisioner's pod, storage classes, the switch for Windows addresses, NodePools.
//!
//! Everything goes through the Kubernetes API, as a user's manifests do.

use std::{hash::Hasher, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::{self, ApiCapabilities, ApiResource, Scope},
};
use mullion_api::crds;
use rustc_hash::FxHasher;
use serde_json::json;
use tokio::time::Instant;

use crate::failure::Failure;

/// How long a definition may take to be served.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether a kind is served.
const SERVED_CHECK: Duration = Duration::from_millis(5);

/// Whose existence decides what is set up.
pub(super) struct Wanted {
    /// Windows nodes may come: the switch that eksctl sets for clusters with Windows groups.
    pub(super) windows: bool,
    /// The default NodePools.
    pub(super) pools: bool,
    /// The AWS account, and what EKS puts into a cluster for the roles of its nodes.
    pub(super) account: Vec<serde_json::Value>,
}

/// Fills a new cluster.
pub(super) async fn fill(client: &Client, wanted: &Wanted) -> Result<(), Failure> {
    for definition in crds::crds() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        unless_there(api.create(&PostParams::default(), &definition).await)
            .map_err(|error| failed(&format!("CustomResourceDefinition {name}"), &error))?;
        let established = kube::runtime::wait::await_condition(
            api,
            &name,
            kube::runtime::conditions::is_crd_established(),
        );
        match tokio::time::timeout(PATIENCE, established).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                return Err(Failure::run(format!(
                    "CustomResourceDefinition {name} cannot be watched: {error}"
                )));
            }
            Err(_) => {
                return Err(Failure::run(format!(
                    "CustomResourceDefinition {name} was not established within {} s",
                    PATIENCE.as_secs()
                )));
            }
        }
    }
    create_all(client, include_str!("karpenter.yaml")).await?;
    create_all(client, include_str!("storage.yaml")).await?;
    create_all(client, include_str!("metrics.yaml")).await?;
    for manifest in &wanted.account {
        create(client, manifest.clone()).await?;
    }
    if wanted.windows {
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
            "data": {"enable-windows-ipam": "true"},
        });
        create(client, config).await?;
    }
    if wanted.pools {
        create_all(client, include_str!("default-pools.yaml")).await?;
    }
    Ok(())
}

/// A number that changes with the definitions of this program.
pub(super) fn definitions() -> u64 {
    let mut hasher = FxHasher::default();
    for definition in crds::crds() {
        let text = serde_json::to_vec(&definition.spec).expect("a definition is JSON");
        hasher.write(&text);
    }
    hasher.finish()
}

/// Gives the definitions of a cluster that another version of this program has made the schemas of this one. What the user has deleted
/// stays away, and labels and annotations stay theirs.
pub(super) async fn renew_definitions(client: &Client) -> Result<(), Failure> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in crds::crds() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let failed = |error: &kube::Error| {
            Failure::run(format!(
                "CustomResourceDefinition {name} cannot be brought up to date: {error}"
            ))
            .hint("start anew with `mullion up --fresh`, or use the version of mullion that made the cluster")
        };
        let patch = Patch::Merge(json!({"spec": definition.spec}));
        match api.patch(&name, &PatchParams::default(), &patch).await {
            Ok(_) => tracing::info!("CustomResourceDefinition {name} is up to date"),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(())
}

async fn create_all(client: &Client, manifests: &str) -> Result<(), Failure> {
    let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(manifests)
        .map_err(|error| Failure::run(format!("an embedded manifest is malformed: {error}")))?;
    for document in documents {
        create(client, document).await?;
    }
    Ok(())
}

async fn create(client: &Client, manifest: serde_json::Value) -> Result<(), Failure> {
    let object: DynamicObject = serde_json::from_value(manifest)
        .map_err(|error| Failure::run(format!("an embedded manifest is malformed: {error}")))?;
    let types = object.types.clone().unwrap_or_default();
    let what = format!(
        "{} {}",
        types.kind,
        object.metadata.name.clone().unwrap_or_default()
    );
    let kind = GroupVersionKind::try_from(&types)
        .map_err(|error| Failure::run(format!("an embedded manifest is malformed: {error}")))?;
    let (resource, capabilities) = served(client, &kind)
        .await
        .map_err(|error| failed(&what, &error))?;
    let api: Api<DynamicObject> = match (capabilities.scope, object.metadata.namespace.as_deref()) {
        (Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(client.clone(), namespace, &resource)
        }
        _ => Api::all_with(client.clone(), &resource),
    };
    unless_there(api.create(&PostParams::default(), &object).await)
        .map_err(|error| failed(&what, &error))
}

/// Returns how a kind is served. A definition says that it is established a moment before its kind is served, as kube-apiserver's may.
async fn served(
    client: &Client,
    kind: &GroupVersionKind,
) -> Result<(ApiResource, ApiCapabilities), kube::Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match discovery::pinned_kind(client, kind).await {
            Err(kube::Error::Api(status)) if status.code == 404 && Instant::now() < deadline => {
                tokio::time::sleep(SERVED_CHECK).await;
            }
            answer => return answer,
        }
    }
}

/// An earlier start may have come this far before its process died.
fn unless_there<T>(created: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(error),
    }
}

fn failed(what: &str, error: &kube::Error) -> Failure {
    Failure::run(format!("{what} cannot be created: {error}"))
}

#[cfg(test)]
mod tests {
    use mullion_apiserver::{ApiServer, Config, admission::User};

    use super::*;

    #[tokio::test]
    async fn definitions_of_another_version_become_those_of_this_one_and_deleted_ones_stay_away() {
        let server = ApiServer::new(Config::default());
        let user = User {
            name: "system:mullion".into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        let client = Client::new(server.router_as(user), "default");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let mut ours = crds::crds();
        let deleted = ours.pop().expect("there are several");
        for definition in &ours {
            let mut older = definition.clone();
            let labels = &mut older.metadata.labels;
            labels
                .get_or_insert_default()
                .insert("mine".into(), "yes".into());
            for version in &mut older.spec.versions {
                version.additional_printer_columns = None;
            }
            let created = api.create(&PostParams::default(), &older).await;
            created.expect("it can be created");
        }
        renew_definitions(&client).await.expect("they are renewed");
        for definition in ours {
            let name = definition.metadata.name.clone().expect("it has a name");
            let now = api.get(&name).await.expect("it is there");
            let columns = |definition: &CustomResourceDefinition| {
                let versions = definition.spec.versions.iter();
                versions
                    .map(|version| version.additional_printer_columns.clone())
                    .collect::<Vec<_>>()
            };
            assert_eq!(columns(&now), columns(&definition), "{name}");
            assert_eq!(now.metadata.labels.expect("kept")["mine"], "yes");
        }
        let name = deleted.metadata.name.expect("it has a name");
        assert!(api.get_opt(&name).await.expect("an answer").is_none());
    }

    #[tokio::test]
    async fn a_kind_that_is_served_a_moment_later_is_waited_for() {
        let server = ApiServer::new(Config::default());
        let user = User {
            name: "system:mullion".into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        let client = Client::new(server.router_as(user), "default");
        let account = json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount",
            "metadata": {"name": "aws"},
        });
        let definitions = crds::crds().into_iter();
        let mut own = definitions.filter(|own| own.spec.names.kind == "SimulatedAccount");
        let definition = own.next().expect("it is there");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PostParams::default();
        // Nobody waits for the definition to be established.
        let (created, made) =
            tokio::join!(create(&client, account), api.create(&params, &definition));
        made.expect("it can be created");
        created.expect("the kind is served in the end");
    }
}
