//! The initial objects of a new cluster: custom resource definitions, the provisioner's pod, storage classes, the ConfigMap that enables
//! Windows addresses, NodePools.
//!
//! All of them are created through the Kubernetes API, like a user's manifests.

use std::{collections::BTreeMap, hash::Hasher, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
    discovery::{self, ApiCapabilities, ApiResource, Scope},
};
use mullion_api::crds;
use rustc_hash::FxHasher;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use crate::{failure::Failure, input::list, out};

/// The time in which a new definition must be served.
const PATIENCE: Duration = Duration::from_secs(10);
/// The kind of the AWS account, which a cluster gets together with its definition.
const ACCOUNT: &str = "SimulatedAccount";
/// The field manager of this program's writes.
const MANAGER: &str = "mullion";
/// The interval at which a new kind is checked.
const SERVED_CHECK: Duration = Duration::from_millis(5);

/// The facts that decide which objects are created.
pub(super) struct SetupOptions {
    /// Whether there may be Windows nodes, so that addresses for Windows pods are enabled as by eksctl.
    pub(super) windows: bool,
    /// Whether the default NodePools are created.
    pub(super) pools: bool,
    /// The AWS account, and the objects that EKS creates for the roles of nodes.
    pub(super) account: Vec<serde_json::Value>,
}

/// Creates the initial objects of a new cluster.
pub(super) async fn fill(client: &Client, wanted: &SetupOptions) -> Result<(), Failure> {
    for definition in crds::crds() {
        install(client, &definition).await?;
    }
    // After the definitions, because some of these objects are of the new kinds.
    create_all(client, include_str!("karpenter.yaml")).await?;
    create_all(client, include_str!("storage.yaml")).await?;
    create_all(client, include_str!("metrics.yaml")).await?;
    create_account(client, wanted).await?;
    if wanted.windows {
        switch_windows_addresses_on(client).await?;
    }
    if wanted.pools {
        create_all(client, include_str!("default-pools.yaml")).await?;
    }
    Ok(())
}

/// Creates the ConfigMap that makes EKS assign addresses to Windows pods, as eksctl does for a cluster with Windows groups. An existing one
/// is not changed.
pub(crate) async fn switch_windows_addresses_on(client: &Client) -> Result<(), Failure> {
    let config = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "amazon-vpc-cni", "namespace": "kube-system"},
        "data": {"enable-windows-ipam": "true"},
    });
    create(client, config).await
}

async fn create_account(client: &Client, wanted: &SetupOptions) -> Result<(), Failure> {
    for manifest in &wanted.account {
        create(client, manifest.clone()).await?;
    }
    Ok(())
}

/// Creates a custom resource definition and waits until its kind is served.
pub(crate) async fn install(
    client: &Client,
    definition: &CustomResourceDefinition,
) -> Result<(), Failure> {
    let name = definition.metadata.name.clone().unwrap_or_default();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    unless_there(api.create(&PostParams::default(), definition).await)
        .map_err(|error| failed(&format!("CustomResourceDefinition {name}"), &error))?;
    let kind = ApiResource::erase::<CustomResourceDefinition>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let established = kube::runtime::wait::await_condition(api, &name, is_established);
    match tokio::time::timeout(PATIENCE, established).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Failure::run(format!(
            "CustomResourceDefinition {name} cannot be watched: {error}"
        ))),
        Err(_) => Err(Failure::run(format!(
            "CustomResourceDefinition {name} was not established within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

/// Returns whether the kind of a custom resource definition is served.
fn is_established(definition: Option<&DynamicObject>) -> bool {
    let conditions = definition.map(|found| &found.data["status"]["conditions"]);
    let mut conditions = conditions.into_iter().flat_map(list);
    conditions.any(|own| own["type"] == "Established" && own["status"] == "True")
}

/// Creates a custom resource definition and waits until this version of its kind can be used.
pub(crate) async fn serve(
    client: &Client,
    definition: &CustomResourceDefinition,
    version: &str,
) -> Result<(), Failure> {
    install(client, definition).await?;
    let kind = GroupVersionKind::gvk(&definition.spec.group, version, &definition.spec.names.kind);
    let served = served(client, &kind).await;
    let what = format!("{} of version {version}", kind.kind);
    served.map(drop).map_err(|error| failed(&what, &error))
}

/// Custom resource definitions by name, each with a hash of its content.
pub(crate) type Definitions = BTreeMap<String, u64>;

/// Returns the definitions of this program.
pub(super) fn definitions() -> Definitions {
    let number = |definition: CustomResourceDefinition| {
        let mut hasher = FxHasher::default();
        let text = serde_json::to_vec(&definition.spec).expect("a definition is JSON");
        hasher.write(&text);
        (
            definition.metadata.name.unwrap_or_default(),
            hasher.finish(),
        )
    };
    crds::crds().into_iter().map(number).collect()
}

/// Updates the definitions of a cluster that another version of this program created, and creates those that it lacks. `had` are the
/// definitions that the cluster was given; returns those that it has been given now.
///
/// Definitions that the user has deleted are not created again, and their labels and annotations are not changed. A definition that another
/// client has changed is left alone, with a note.
pub(super) async fn renew_definitions(
    client: &Client,
    wanted: &SetupOptions,
    had: Definitions,
) -> Result<Definitions, Failure> {
    let mut has = had;
    let ours = definitions();
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in crds::crds() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let number = ours[&name];
        // Nothing has changed since, so what the user did with it is left alone.
        if has.get(&name) == Some(&number) {
            continue;
        }
        let failed = |error: kube::Error| {
            Failure::run(format!(
                "CustomResourceDefinition {name} cannot be brought up to date: {error}"
            ))
            .hint("start anew with `mullion up --fresh`, or use the version of mullion that made the cluster")
        };
        let now = api.get_opt(&name).await.map_err(failed)?;
        match now.as_ref().map(changed_by) {
            Some(Some(manager)) => {
                out::note(&format!(
                    "CustomResourceDefinition {name} is that of another version of mullion; {manager} has changed it, so that it stays as it is"
                ));
                continue;
            }
            Some(None) => {
                let patch = Patch::Merge(json!({"spec": definition.spec}));
                let patched = api.patch(&name, &PatchParams::default(), &patch).await;
                patched.map_err(failed)?;
                tracing::info!("CustomResourceDefinition {name} is up to date");
            }
            // The definition existed before, so the user has deleted it; it is not created again.
            None if has.contains_key(&name) => {}
            None => {
                install(client, &definition).await?;
                if definition.spec.names.kind == ACCOUNT {
                    create_account(client, wanted).await?;
                }
                tracing::info!("CustomResourceDefinition {name} is new in this version");
            }
        }
        has.insert(name, number);
    }
    Ok(has)
}

/// Returns another client that has written a part of a definition's spec.
fn changed_by(definition: &CustomResourceDefinition) -> Option<&str> {
    let managers = definition.metadata.managed_fields.iter().flatten();
    let mut others = managers.filter(|own| {
        let fields = own.fields_v1.as_ref();
        own.manager.as_deref() != Some(MANAGER)
            && fields.is_some_and(|fields| fields.0.get("f:spec").is_some())
    });
    others.next()?.manager.as_deref()
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
    let object = DynamicObject::deserialize(&manifest)
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

/// Waits until a kind is served, and returns its resource. As in kube-apiserver, a definition may be established a moment before its kind
/// is served.
async fn served(
    client: &Client,
    kind: &GroupVersionKind,
) -> Result<(ApiResource, ApiCapabilities), kube::Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match discovery::pinned_kind(client, kind).await {
            // The API server does not know the group yet, or knows it only with other kinds.
            Err(error) if is_unserved(&error) && Instant::now() < deadline => {
                tokio::time::sleep(SERVED_CHECK).await;
            }
            answer => return answer,
        }
    }
}

fn is_unserved(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 404,
        kube::Error::Discovery(_) => true,
        _ => false,
    }
}

/// Ignores the error that an object exists, because an earlier start may have created it before its process died.
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

    fn client_as(user: &str) -> (std::sync::Arc<ApiServer>, Client) {
        let server = ApiServer::new(Config::default());
        let client = client_of(&server, user);
        (server, client)
    }

    fn client_of(server: &std::sync::Arc<ApiServer>, user: &str) -> Client {
        let user = User {
            name: user.into(),
            groups: vec!["system:masters".into()],
            ..User::default()
        };
        Client::new(server.router_as(user), "default")
    }

    fn columns(definition: &CustomResourceDefinition) -> Vec<usize> {
        let versions = definition.spec.versions.iter();
        let counts = versions.map(|own| own.additional_printer_columns.iter().flatten().count());
        counts.collect()
    }

    #[tokio::test]
    async fn definitions_of_another_version_become_those_of_this_one_unless_the_user_changed_them()
    {
        let (server, client) = client_as("system:mullion");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let users: Api<CustomResourceDefinition> = Api::all(client_of(&server, "me"));
        let mut ours = crds::crds();
        let mut take = |kind| {
            let at = ours.iter().position(|own| own.spec.names.kind == kind);
            let at = at.expect("it is there");
            ours.remove(at)
        };
        let (deleted, new) = (take("CNINode"), take("SimulatedAccount"));
        let mut had = Definitions::new();
        let name_of = |own: &CustomResourceDefinition| own.metadata.name.clone().expect("a name");
        had.insert(name_of(&deleted), 1);
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
            had.insert(name_of(definition), 1);
        }
        let changed = "nodepools.karpenter.sh".to_owned();
        let params = PatchParams::default();
        let own = Patch::Merge(json!({"spec": {"names": {"shortNames": ["np"]}}}));
        users
            .patch(&changed, &params, &own)
            .await
            .expect("it is changed");
        let label = Patch::Merge(json!({"metadata": {"labels": {"also": "mine"}}}));
        let labelled = users.patch("nodeclaims.karpenter.sh", &params, &label);
        labelled.await.expect("it is changed");

        let account = json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount", "metadata": {"name": "aws"},
        });
        let wanted = SetupOptions {
            windows: false,
            pools: false,
            account: vec![account],
        };
        let has = renew_definitions(&client, &wanted, had).await;
        let has = has.expect("they are renewed");
        for definition in ours.iter().chain([&new]) {
            let name = name_of(definition);
            let now = api.get(&name).await.expect("it is there");
            let expected = if name == changed {
                vec![0; definition.spec.versions.len()]
            } else {
                columns(definition)
            };
            assert_eq!(columns(&now), expected, "{name}");
            let is_new = definition == &new;
            let labels = now.metadata.labels.unwrap_or_default();
            assert_eq!(labels.contains_key("mine"), !is_new, "{name}");
            let number = definitions()[&name];
            assert_eq!(has[&name] == number, name != changed, "{name}");
        }
        let gone = api.get_opt(&name_of(&deleted)).await;
        assert!(gone.expect("an answer").is_none());
        let accounts = ApiResource::erase::<mullion_api::account::SimulatedAccount>(&());
        let accounts: Api<DynamicObject> = Api::all_with(client, &accounts);
        accounts.get("aws").await.expect("the account is there");
    }

    #[tokio::test]
    async fn a_kind_that_is_served_a_moment_later_is_waited_for() {
        let (_server, client) = client_as("system:mullion");
        let account = json!({
            "apiVersion": "cloud.mullion.dev/v1alpha1", "kind": "SimulatedAccount",
            "metadata": {"name": "aws"},
        });
        let definitions = crds::crds().into_iter();
        let mut own = definitions.filter(|own| own.spec.names.kind == "SimulatedAccount");
        let definition = own.next().expect("it is there");
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PostParams::default();
        // The object is created without waiting until the definition is established.
        let (created, made) =
            tokio::join!(create(&client, account), api.create(&params, &definition));
        made.expect("it can be created");
        created.expect("the kind is served in the end");
    }
}
