//! Follows the custom resource definitions: accepts their names, serves their rows, and cleans up after deleted ones.
//!
//! Everything is written through the server's own router as `kube-apiserver`, so that it looks to watchers and in managedFields as
//! upstream's controllers do. The registry changes only here.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use axum::body::Body;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{CLEANUP_FINALIZER, resource};
use crate::{
    admission::User,
    schema::time,
    server::ApiServer,
    store::{Cursor, EventType},
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// How long a deleted definition waits for instances with finalizers before it looks again.
const RETRY: Duration = Duration::from_millis(500);

/// Runs until the server is dropped.
pub(crate) async fn run(server: Weak<ApiServer>) {
    let Some(collection) = server.upgrade().map(|server| {
        server
            .store()
            .collection("customresourcedefinitions.apiextensions.k8s.io")
    }) else {
        return;
    };
    loop {
        let revision = collection.revision();
        let known: Vec<Value> = collection
            .snapshot(None)
            .objects
            .iter()
            .map(|object| object.parse())
            .collect();
        let Ok(mut cursor) = Cursor::new(collection.clone(), revision) else {
            continue;
        };
        for definition in &known {
            let Some(server) = server.upgrade() else {
                return;
            };
            settle(&server, definition).await;
        }
        while let Ok(events) = cursor.next().await {
            for event in events {
                let Some(server) = server.upgrade() else {
                    return;
                };
                let definition = event.object.parse();
                if event.event_type == EventType::Deleted {
                    server.registry().undefine(name_of(&definition));
                } else {
                    settle(&server, &definition).await;
                }
            }
        }
    }
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

/// Brings status and rows in line with one definition.
async fn settle(server: &Arc<ApiServer>, definition: &Value) {
    if definition["metadata"].get("deletionTimestamp").is_some() {
        if has_finalizer(definition) {
            tokio::spawn(clean_up(Arc::downgrade(server), definition.clone()));
        }
        return;
    }
    let wanted = accepted_status(server, definition);
    let is_current = ["acceptedNames", "conditions"]
        .iter()
        .all(|field| wanted[*field] == definition["status"][*field]);
    if !is_current {
        let path = format!("{DEFINITIONS}/{}/status", name_of(definition));
        let patch = json!({"metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]}, "status": wanted});
        if let Err(status) = send(server, Method::PATCH, &path, &patch).await {
            tracing::debug!(definition = name_of(definition), %status, "the definition has changed meanwhile");
        }
        return;
    }
    if wanted["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
    {
        server
            .registry()
            .define(name_of(definition), resource::rows(definition));
    }
}

fn has_finalizer(definition: &Value) -> bool {
    definition["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|name| name == CLEANUP_FINALIZER)
}

/// The status a definition should have: its names are accepted unless another definition of the group has them.
fn accepted_status(server: &Arc<ApiServer>, definition: &Value) -> Value {
    let names = &definition["spec"]["names"];
    let taken = names_of_others(server, definition);
    let conflict = |field: &str| {
        let name = names[field].as_str().unwrap_or_default();
        taken
            .contains(name)
            .then(|| format!("{name:?} is already in use"))
    };
    let short = names["shortNames"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let reasons = [
        ("PluralConflict", conflict("plural")),
        ("SingularConflict", conflict("singular")),
        ("KindConflict", conflict("kind")),
        ("ListKindConflict", conflict("listKind")),
        (
            "ShortNamesConflict",
            short
                .into_iter()
                .find(|name| taken.contains(*name))
                .map(|name| format!("{name:?} is already in use")),
        ),
    ];
    let found = reasons
        .into_iter()
        .find_map(|(reason, message)| Some((reason, message?)));
    let now = time::format_seconds(&server.now());
    let condition = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let before = definition["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == kind);
        let since = before
            .filter(|before| before["status"] == status)
            .map_or_else(
                || now.clone().into(),
                |before| before["lastTransitionTime"].clone(),
            );
        json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message})
    };
    match found {
        None => json!({
            "acceptedNames": names,
            "conditions": [
                condition("NamesAccepted", true, "NoConflicts", "no conflicts found"),
                condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted"),
            ],
        }),
        Some((reason, message)) => json!({
            "acceptedNames": definition["status"]["acceptedNames"],
            "conditions": [
                condition("NamesAccepted", false, reason, &message),
                condition("Established", false, "NotAccepted", "not all names are accepted"),
            ],
        }),
    }
}

fn names_of_others(server: &Arc<ApiServer>, definition: &Value) -> BTreeSet<String> {
    let collection = server
        .store()
        .collection("customresourcedefinitions.apiextensions.k8s.io");
    let mut taken = BTreeSet::new();
    for object in collection.snapshot(None).objects.iter() {
        let other = object.parse();
        if name_of(&other) == name_of(definition)
            || other["spec"]["group"] != definition["spec"]["group"]
        {
            continue;
        }
        let names = &other["status"]["acceptedNames"];
        let single = ["plural", "singular", "kind", "listKind"]
            .into_iter()
            .filter_map(|field| names[field].as_str());
        let short = names["shortNames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        taken.extend(
            single
                .chain(short)
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        );
    }
    taken
}

/// Deletes the instances of a deleted definition, then lets it go.
async fn clean_up(server: Weak<ApiServer>, definition: Value) {
    let storage = name_of(&definition).to_owned();
    loop {
        let Some(server) = server.upgrade() else {
            return;
        };
        let instances = server.store().collection(&storage).snapshot(None);
        if instances.objects.is_empty() {
            break let_go(&server, &definition).await;
        }
        let (group, plural) = (
            &definition["spec"]["group"],
            &definition["spec"]["names"]["plural"],
        );
        let table = server.registry().table();
        let Some(row) = table.find_plural(
            group.as_str().unwrap_or_default(),
            plural.as_str().unwrap_or_default(),
        ) else {
            break let_go(&server, &definition).await;
        };
        let prefix = format!("/apis/{}", row.api_version());
        for object in instances.objects.iter() {
            let key = object.key();
            let namespace = key
                .namespace()
                .map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
            let path = format!("{prefix}{namespace}/{}/{}", row.resource.plural, key.name());
            if let Err(status) = send(&server, Method::DELETE, &path, &Value::Null).await {
                tracing::debug!(%path, %status, "an instance of a deleted definition was not deleted");
            }
        }
        let remain = !server.store().collection(&storage).is_empty();
        drop(server);
        if remain {
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn let_go(server: &Arc<ApiServer>, definition: &Value) {
    let others: Vec<&Value> = definition["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|name| *name != CLEANUP_FINALIZER)
        .collect();
    let path = format!("{DEFINITIONS}/{}", name_of(definition));
    if let Err(status) = send(
        server,
        Method::PATCH,
        &path,
        &json!({"metadata": {"finalizers": others}}),
    )
    .await
    {
        tracing::debug!(%path, %status, "a deleted definition keeps its finalizer");
    }
}

/// Sends a request to the server itself.
async fn send(
    server: &Arc<ApiServer>,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<(), StatusCode> {
    let user = User {
        name: "system:apiserver".to_owned(),
        groups: vec!["system:masters".to_owned()],
        uid: String::new(),
    };
    let body = if body.is_null() {
        Body::empty()
    } else {
        Body::from(body.to_string())
    };
    let content_type = if method == Method::PATCH {
        "application/merge-patch+json"
    } else {
        "application/json"
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::USER_AGENT, "kube-apiserver")
        .header(header::CONTENT_TYPE, content_type)
        .extension(user)
        .body(body)
        .expect("method, path and headers are well-formed");
    let Ok(response) = server.router().oneshot(request).await;
    let (parts, body) = response.into_parts();
    let _ = body.collect().await;
    if parts.status.is_success() {
        Ok(())
    } else {
        Err(parts.status)
    }
}
