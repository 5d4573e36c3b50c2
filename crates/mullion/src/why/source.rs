//! Loads the cluster's state from a running API server or from a file of objects.
//!
//! Both give the same [`State`] and a client that can admit a pod (dry run). For a file it is the client of an API server in this process
//! that has the file's classes, so defaults, admission and refusals are those of an API server in both cases.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use http::Request;
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use mullion_apiserver::{ApiServer, Config, admission::User};
use mullion_engine::model::PodSpec;
use serde_json::{Value, json, value::RawValue};

use super::{
    kinds,
    lists::{ACCOUNT, CLASSES, DISCOVERED, FAULT, LISTS, OPTIONAL, QUOTAS, TEMPLATES, VPC_CNI},
    object,
    pod_owner::{FAILED_CREATE, PodOwner},
    rules::RuleFlags,
    state::{Keeps, List, State},
    template::{self, put},
    unused_notes,
    writes::create,
};
use crate::{
    failure::{Failure, file_error, first_line},
    input, kubeconfig, out,
};

/// The timeout of one request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The largest number of pods whose Events are loaded.
const MOST_WITH_EVENTS: usize = 20;
/// The number of lists requested at the same time.
const AT_ONCE: usize = 4;

/// A state, and a client of the API server that admits pods to it.
pub(crate) struct Source {
    pub(crate) state: State,
    pub(crate) client: Client,
    /// Whether the client's API server runs in this process and stores what it is given.
    pub(crate) offline: bool,
    /// The client of the running cluster, if there is one.
    pub(super) cluster: Option<Client>,
    /// The client of an API server in this process, for pods that the cluster's own server refuses because of a quota.
    pub(super) beside: Option<Client>,
}

impl Source {
    /// Returns a workload as it is in the cluster; `None` if it is not there.
    ///
    /// # Errors
    /// The API server does not say.
    pub(crate) async fn workload(&self, owner: &PodOwner) -> Result<Option<Value>, Failure> {
        let PodOwner {
            kind,
            namespace,
            name,
        } = owner;
        let kept = self.state.kept_object(kind, namespace, name);
        let found = match (kept, &self.cluster) {
            (Some(kept), _) => Some(kept.clone()),
            (None, Some(cluster)) => workload_of(cluster, owner).await?,
            (None, None) => None,
        };
        Ok(found.map(|mut workload| {
            // What is read of a list of objects comes without its kind.
            put(&mut workload, "kind", json!(kind));
            workload
        }))
    }
}

/// Asks a cluster for a workload.
async fn workload_of(client: &Client, owner: &PodOwner) -> Result<Option<Value>, Failure> {
    let Some((version, plural)) = template::workload_path(&owner.kind) else {
        return Ok(None);
    };
    let (home, name) = (&owner.namespace, &owner.name);
    let request = Request::get(format!("{version}/namespaces/{home}/{plural}/{name}"))
        .body(Vec::new())
        .map_err(Failure::run)?;
    match tokio::time::timeout(PATIENCE, client.request::<Value>(request)).await {
        Ok(Ok(workload)) => Ok(Some(workload)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(kube::Error::Api(status))) => Err(Failure::input(status.message)),
        Ok(Err(error)) => Err(Failure::input(root(&error)).hint(IS_IT_RUNNING)),
        Err(_) => Err(Failure::run(format!(
            "no answer within {} s",
            PATIENCE.as_secs()
        ))),
    }
}

/// The hint for a user without a cluster, for commands that need one; the next constant is for commands that can also read a file.
const CLUSTER: &str = "start one with `mullion up`, or name its kubeconfig with --kubeconfig";
const CLUSTER_OR_FILE: &str = "start one with `mullion up`, name its kubeconfig with --kubeconfig, or ask a file with --state";

/// The hint for a user whose cluster does not answer.
pub(crate) const IS_IT_RUNNING: &str =
    "is the cluster running? `mullion up` says where its kubeconfig is";

/// Loads the state of a running cluster, which keeps what `keeps` says unabridged, and templates if the cluster has CapacityBuffers.
pub(crate) async fn live(
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    rules: &RuleFlags,
    mut keeps: Keeps,
) -> Result<Source, Failure> {
    let (client, server) = connected(kubeconfig, context, CLUSTER_OR_FILE).await?;
    let own = [VPC_CNI, DISCOVERED, ACCOUNT, FAULT];
    let mut lists: Vec<(&str, Option<List>)> = stream::iter(LISTS.into_iter().chain(own))
        .map(|(kind, path)| list(&client, &server, kind, path))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let has = |lists: &[(&str, Option<List>)], wanted: &str| {
        let mut own = lists.iter().filter(|(kind, _)| *kind == wanted);
        own.any(|(_, list)| {
            let items = list.as_ref().and_then(|list| list.items.as_ref());
            items.is_some_and(|items| !items.is_empty())
        })
    };
    keeps.templates |= has(&lists, kinds::BUFFER);
    if keeps.quotas {
        let (kind, path) = QUOTAS;
        lists.push(list(&client, &server, kind, path).await?);
        keeps.pods |= has(&lists, kinds::QUOTA);
    }
    if keeps.templates {
        for (kind, path) in TEMPLATES {
            lists.push(list(&client, &server, kind, path).await?);
        }
    }
    let (empty, settings) = rules.of_cluster(&client).await?;
    let mut state = State::new(empty).keeping(keeps);
    state.settings = settings;
    for (kind, list) in lists {
        let items = list.and_then(|list| list.items).unwrap_or_default();
        add_all(&mut state, &items, kind, "the cluster")?;
    }
    Ok(Source {
        state,
        cluster: Some(client.clone()),
        client,
        offline: false,
        beside: None,
    })
}

/// Loads the objects that the running cluster's API server needs to admit a pod into the state.
pub(super) async fn add_classes(client: &Client, state: &mut State) -> Result<(), Failure> {
    for (kind, path) in CLASSES {
        let (_, list) = list(client, "", kind, path).await?;
        let items = list.and_then(|list| list.items).unwrap_or_default();
        add_all(state, &items, kind, "the cluster")?;
    }
    Ok(())
}

/// Loads the Events of those pods that are bound and do not run, as far as the user may list them.
pub(super) async fn add_events(source: &mut Source, pods: &[PodSpec]) {
    let state = &source.state;
    let waiting = pods
        .iter()
        .filter(|pod| state.pod_facts.start_of(pod).is_some());
    let paths: Vec<String> = waiting
        .take(MOST_WITH_EVENTS)
        .map(|pod| {
            let (home, name) = (&pod.template.namespace, &pod.name);
            let selector = format!("involvedObject.kind%3DPod%2CinvolvedObject.name%3D{name}");
            format!("/api/v1/namespaces/{home}/events?fieldSelector={selector}")
        })
        .collect();
    for path in paths {
        let events = match try_list(&source.client, "", &path).await {
            Ok(list) => list.and_then(|list| list.items).unwrap_or_default(),
            Err(ListFault::Forbidden(_) | ListFault::Failed(_)) => {
                out::note("Events cannot be listed, so what they say of pods is left out");
                return;
            }
        };
        for event in events {
            // An Event that cannot be read says nothing.
            let event = serde_json::from_str(event.get()).unwrap_or_default();
            source.state.pod_facts.note_event(&event);
        }
    }
}

/// Loads the Events about pods of these workloads that could not be created, as far as the user may list them.
pub(super) async fn add_refusals(source: &mut Source, workloads: &[PodOwner]) {
    let mut homes: Vec<&str> = workloads.iter().map(|own| own.namespace.as_str()).collect();
    homes.dedup();
    for home in homes {
        let path =
            format!("/api/v1/namespaces/{home}/events?fieldSelector=reason%3D{FAILED_CREATE}");
        let Ok(events) = try_list(&source.client, "", &path).await else {
            out::note("Events cannot be listed, so what they say of workloads is left out");
            return;
        };
        for event in events.and_then(|list| list.items).unwrap_or_default() {
            // An Event that cannot be read says nothing.
            let _ = source.state.add(&event, "Event");
        }
    }
}

/// Returns a client of the cluster, and the URL of its API server.
pub(crate) async fn client(
    path: Option<PathBuf>,
    context: Option<String>,
) -> Result<(Client, String), Failure> {
    connected(path, context, CLUSTER).await
}

/// Does the same as [`client`]; `hint` is what a user without a cluster is advised to do.
async fn connected(
    path: Option<PathBuf>,
    context: Option<String>,
    hint: &str,
) -> Result<(Client, String), Failure> {
    let path = path.or_else(kubeconfig::of_running_cluster);
    let given = std::env::var("KUBECONFIG").ok();
    let named = match (&path, given.filter(|given| !given.is_empty())) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(paths)) => paths,
        (None, None) => "~/.kube/config".to_owned(),
    };
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::input(format!(
            "there is no cluster to ask: kubeconfig {named}: {}",
            root(error)
        ))
        .hint(hint)
    };
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let paths = match path {
        Some(path) => vec![path],
        None => kubeconfig::user_kubeconfigs()?,
    };
    let read = merge_kubeconfigs(&paths).map_err(|error| failed(&error))?;
    let config = kubeconfig::client_config(read, &options).await;
    let config = config.map_err(|error| failed(&error))?;
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(|error| failed(&error))?;
    Ok((client, server.trim_end_matches('/').to_owned()))
}

/// Merges kubeconfigs as kubectl does: the first of equal entries counts, and missing files are skipped unless all are missing.
fn merge_kubeconfigs(paths: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut there: Vec<_> = paths.iter().filter(|path| path.exists()).collect();
    if there.is_empty() {
        // Then the error names the missing file.
        there = paths.iter().collect();
    }
    let merge = |all: Kubeconfig, path: &PathBuf| {
        let mut next = Kubeconfig::read_from(path)?;
        // kubectl writes an empty name where there is no current context.
        next.current_context = next.current_context.filter(|name| !name.is_empty());
        all.merge(next)
    };
    there.into_iter().try_fold(Kubeconfig::default(), merge)
}

/// Returns the innermost cause of an error, which says what went wrong; the outer ones only say where it was noticed.
pub(crate) fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    match inner.downcast_ref() {
        Some(error) => file_error(error),
        // The error of a kubeconfig that is not YAML includes lines of the file; only the first line says what is wrong.
        None => first_line(inner).replace(": error: ", ": "),
    }
}

/// Why a list could not be loaded.
#[derive(Debug)]
pub(crate) enum ListFault {
    /// The user lacks the permission to list the kind.
    Forbidden(Failure),
    /// The server gave no answer, or none that can be read.
    Failed(Failure),
}

impl ListFault {
    /// Returns the fault as the error that ends the command.
    fn failure(self) -> Failure {
        match self {
            ListFault::Forbidden(failure) | ListFault::Failed(failure) => failure,
        }
    }
}

/// Loads a list. Returns `None` if the server does not know the kind, or if the user lacks the permission and the kind is optional.
pub(crate) async fn list(
    client: &Client,
    server: &str,
    kind: &'static str,
    path: &str,
) -> Result<(&'static str, Option<List>), Failure> {
    match try_list(client, server, path).await {
        Err(ListFault::Forbidden(failure)) => {
            match OPTIONAL.into_iter().find(|(own, _)| *own == kind) {
                Some((_, why)) => out::note(why),
                None if [ACCOUNT.0, FAULT.0].contains(&kind) => {}
                None => return Err(failure),
            }
            Ok((kind, None))
        }
        list => Ok((kind, list.map_err(ListFault::failure)?)),
    }
}

/// Loads a list. Returns `None` if the server does not know the kind.
///
/// # Errors
/// [`ListFault::Forbidden`] if the user lacks the permission, so that the caller can do without the list.
pub(crate) async fn try_list(
    client: &Client,
    server: &str,
    path: &str,
) -> Result<Option<List>, ListFault> {
    let failure = |why: String| {
        Failure::input(format!("{server}{path} cannot be listed: {why}")).hint(IS_IT_RUNNING)
    };
    let failed = |why: String| ListFault::Failed(failure(why));
    let request = Request::get(path)
        .body(Vec::new())
        .map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(PATIENCE, client.request_text(request)).await {
        Ok(Ok(text)) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| failed(error.to_string())),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
            Err(ListFault::Forbidden(failure(status.message)))
        }
        Ok(Err(error)) => Err(failed(root(&error))),
        Err(_) => Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

/// Adds all objects of a file to a state: a List as printed by `kubectl get -o json`, in JSON or YAML; `-` is stdin.
pub(crate) async fn file(path: &Path, mut state: State) -> Result<Source, Failure> {
    let text = input::text_of(path)?;
    let named = input::named(path);
    let refuse = |why: &dyn std::fmt::Display| {
        Failure::input(format!("{named}: {why}"))
            .hint("it must be a list of objects: kubectl get nodes,pods,nodepools,nodeclaims,ec2nodeclasses -A -o json > state.json; docs/why.md says which kinds count")
    };
    let documents: Vec<Box<RawValue>> = if text.trim_start().starts_with('{') {
        vec![serde_json::from_str(&text).map_err(|error| refuse(&error))?]
    } else {
        let values: Vec<Value> =
            serde_saphyr::from_multiple(&text).map_err(|error| refuse(&first_line(&error)))?;
        if let Some(other) = values.iter().find(|own| !own.is_object() && !own.is_null()) {
            return Err(refuse(&format!("it is {}", input::shape(other))));
        }
        let values = values.into_iter().filter(|value| !value.is_null());
        let raw = values.map(|value| RawValue::from_string(value.to_string()));
        raw.collect::<Result<_, _>>()
            .map_err(|error| refuse(&error))?
    };
    if documents.is_empty() {
        return Err(refuse(&"it is empty"));
    }
    // Known before the first object is read, since buffers may come after the workloads that they name.
    state.keeps.templates |= text.contains(kinds::BUFFER);
    // Likewise quotas and the pods that they count.
    state.keeps.pods |= state.keeps.quotas && text.contains(kinds::QUOTA);
    for document in documents {
        let list: List = serde_json::from_str(document.get()).map_err(|error| refuse(&error))?;
        match list.items {
            Some(items) => {
                let usual = list.kind.strip_suffix("List").unwrap_or_default();
                add_all(&mut state, &items, usual, &named)?;
            }
            None if list.kind.is_empty() => {
                return Err(refuse(&"it has neither items nor a kind"));
            }
            None => add(&mut state, &document, "", &named)?,
        }
    }
    unused_notes::note(&state, &named);
    with_local_server(state).await
}

/// Returns the state with a client of an API server in this process that admits pods to it.
pub(crate) async fn with_local_server(state: State) -> Result<Source, Failure> {
    let client = offline(&state).await?;
    Ok(Source {
        state,
        client,
        offline: true,
        cluster: None,
        beside: None,
    })
}

fn add_all(
    state: &mut State,
    items: &[Box<RawValue>],
    usual: &str,
    named: &str,
) -> Result<(), Failure> {
    for (index, item) in items.iter().enumerate() {
        add(state, item, usual, &format!("{named}: items[{index}]"))?;
    }
    Ok(())
}

/// Adds one object to the state; `place` is its place in the input, for error messages.
fn add(state: &mut State, object: &RawValue, usual: &str, place: &str) -> Result<(), Failure> {
    state.add(object, usual).map_err(|error| {
        let why = object::fault(&error);
        Failure::input(match object::title(object, usual).as_str() {
            "" => format!("{place}: {why}"),
            title => format!("{place} ({title}): {why}"),
        })
    })
}

/// Starts an API server in this process that has no objects but its own.
pub(super) fn local_server() -> Client {
    let server = ApiServer::new(Config::default());
    let user = User {
        name: "system:mullion".into(),
        groups: vec!["system:masters".into(), "system:authenticated".into()],
        ..User::default()
    };
    Client::new(server.router_as(user), "default")
}

/// Starts an API server in this process that has the classes of the state.
pub(super) async fn offline(state: &State) -> Result<Client, Failure> {
    let client = local_server();
    for (kind, path) in CLASSES {
        for mut object in state.kept::<Value>(kind).map_err(Failure::input)? {
            let home = object["metadata"]["namespace"].as_str().map(str::to_owned);
            if let Some(meta) = object["metadata"].as_object_mut() {
                // The fields that an API server sets, for example the uid, may not be given at creation.
                meta.retain(|key, _| matches!(key.as_str(), "name" | "labels" | "annotations"));
            }
            let path = match home {
                None => path.to_owned(),
                Some(home) => {
                    make_home(&client, &home, "default").await?;
                    path.replacen("/v1/", &format!("/v1/namespaces/{home}/"), 1)
                }
            };
            // The server has the built-in priority classes already, so it may answer that an object exists.
            create(&client, &path, &object, true).await?;
        }
    }
    Ok(client)
}

/// Creates a namespace with a service account for pods, unless they exist.
pub(super) async fn make_home(
    client: &Client,
    namespace: &str,
    account: &str,
) -> Result<(), Failure> {
    let object = json!({ "metadata": { "name": namespace } });
    create(client, "/api/v1/namespaces", &object, true).await?;
    let object = json!({ "metadata": { "name": account } });
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    create(client, &path, &object, true).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfigs_that_are_missing_are_passed_over_unless_all_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: String| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path
        };
        let entry =
            |server: &str| format!("clusters: [{{name: a, cluster: {{server: '{server}'}}}}]\n");
        let missing = directory.path().join("missing");
        let first = write("first", entry("https://first") + "current-context: ''");
        let second = write("second", entry("https://second") + "current-context: b");
        let read = merge_kubeconfigs(&[missing.clone(), first, second]).expect("two are there");
        let cluster = read.clusters[0].cluster.as_ref().expect("a cluster");
        assert_eq!(cluster.server.as_deref(), Some("https://first"));
        assert_eq!(read.clusters.len(), 1);
        assert_eq!(read.current_context.as_deref(), Some("b"));
        let none = merge_kubeconfigs(&[missing]).expect_err("none is there");
        assert_eq!(root(&none), "there is no such file");
    }
}
