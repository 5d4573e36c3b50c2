//! Watches the custom resource definitions: accepts their names, registers the rows of their versions, and cleans up after deleted ones.
//!
//! Every write goes through the server's own router as the user `kube-apiserver`, so watch events and managedFields look as if the
//! controllers of apiextensions-apiserver had written them. Only this module changes the registry.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Weak},
    time::Duration,
};

use http::Method;
use indexmap::IndexSet;
use mullion_schema::time;
use mullion_store::{Cursor, EventType};
use serde_json::{Value, json};

use crate::{
    crd::{
        CLEANUP_FINALIZER,
        kind::{Approval, is_established},
        resource,
    },
    own::send,
    state::ApiServer,
};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The interval at which a deleted definition is checked again while instances with finalizers remain.
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
        // Taken before the snapshot: a change in between is then handled twice, and never missed.
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
        let mut waiting = RefusedDefinitions::default();
        for definition in &known {
            // Only for the time of one definition, so that this loop does not keep the server alive.
            let Some(server) = server.upgrade() else {
                return;
            };
            settle(&server, definition).await;
            waiting.note(definition);
        }
        while let Ok(events) = cursor.next().await {
            for event in events {
                let Some(server) = server.upgrade() else {
                    return;
                };
                let definition = event.object.parse();
                if event.event_type == EventType::Deleted {
                    server.registry().undefine(name_of(&definition));
                    waiting.0.remove(name_of(&definition));
                } else {
                    settle(&server, &definition).await;
                    waiting.note(&definition);
                }
                // The update or deletion may have released a name that another definition waits for.
                waiting.reconsider(&server, &definition).await;
            }
        }
    }
}

/// The definitions with refused names, and the group of each.
#[derive(Default)]
struct RefusedDefinitions(BTreeMap<String, String>);

impl RefusedDefinitions {
    fn note(&mut self, definition: &Value) {
        let conditions = definition["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_refused = |condition: &Value| {
            condition["type"] == "NamesAccepted" && condition["status"] == "False"
        };
        // A definition that is being deleted is not given names any more.
        let stays = definition["metadata"].get("deletionTimestamp").is_none();
        let name = name_of(definition);
        if stays && conditions.any(is_refused) {
            let group = definition["spec"]["group"].as_str().unwrap_or_default();
            self.0.insert(name.to_owned(), group.to_owned());
        } else {
            self.0.remove(name);
        }
    }

    /// Reconciles the other definitions of a group after one definition of the group has changed or gone.
    async fn reconsider(&self, server: &Arc<ApiServer>, changed: &Value) {
        let group = changed["spec"]["group"].as_str().unwrap_or_default();
        let is_other = |name: &str| name != name_of(changed);
        let others = self
            .0
            .iter()
            .filter(|(name, of)| is_other(name) && *of == group);
        let others: Vec<&String> = others.map(|(name, _)| name).collect();
        if others.is_empty() {
            return;
        }
        let collection = server
            .store()
            .collection("customresourcedefinitions.apiextensions.k8s.io");
        for object in collection.snapshot(None).objects.iter() {
            if others.iter().any(|name| *name == object.key().name()) {
                settle(server, &object.parse()).await;
            }
        }
    }
}

/// Registers the rows of definitions that were established before a restart, without waiting for [`run`].
pub(crate) fn serve_established(server: &ApiServer) {
    let collection = server
        .store()
        .collection("customresourcedefinitions.apiextensions.k8s.io");
    for object in collection.snapshot(None).objects {
        let definition = object.parse();
        if is_established(&definition) {
            server
                .registry()
                .define(name_of(&definition), resource::rows(&definition));
        }
    }
}

fn name_of(definition: &Value) -> &str {
    definition["metadata"]["name"].as_str().unwrap_or_default()
}

/// Reconciles one definition: writes its status if that has changed, else registers its rows. For a deleted one, it starts the cleanup.
async fn settle(server: &Arc<ApiServer>, definition: &Value) {
    if definition["metadata"].get("deletionTimestamp").is_some() {
        if is_established(definition) {
            // The rows of a terminating definition refuse new instances.
            server
                .registry()
                .define(name_of(definition), resource::rows(definition));
        }
        if has_finalizer(definition) {
            // In a task of its own: instances with finalizers may take for ever, and other definitions must not wait for them.
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
        // With the version: a status for names that have changed meanwhile must fail. The write's own event then registers the rows.
        let patch = json!({"metadata": {"resourceVersion": definition["metadata"]["resourceVersion"]}, "status": wanted});
        if let Err(status) = send(server, Method::PATCH, &path, &patch).await {
            tracing::debug!(definition = name_of(definition), %status, "the definition has changed meanwhile");
        }
        return;
    }
    if is_established(definition) {
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

/// Returns the status that a definition should have: each of its names is accepted unless the group has that name already. If several names
/// conflict, the condition reports the last one.
fn accepted_status(server: &Arc<ApiServer>, definition: &Value) -> Value {
    let wanted = &definition["spec"]["names"];
    let before = &definition["status"]["acceptedNames"];
    let (resources, kinds) = accepted_names(server, definition);
    // Names that are refused keep the value that was accepted before, so that an established resource is still served.
    let mut accepted = before.clone();
    let mut conflict = None;
    for (field, reason, taken) in [
        ("plural", "PluralConflict", &resources),
        ("singular", "SingularConflict", &resources),
        ("shortNames", "ShortNamesConflict", &resources),
        ("kind", "KindConflict", &kinds),
        ("listKind", "ListKindConflict", &kinds),
    ] {
        // A name that this definition has already is no conflict with itself.
        let ours: HashSet<&str> = texts(&before[field]).collect();
        let mut problems: IndexSet<String> = IndexSet::new();
        for name in texts(&wanted[field]) {
            if !ours.contains(name) && taken.contains(name) {
                problems.insert(format!("{name:?} is already in use"));
            }
        }
        match problems.len() {
            0 => take(&mut accepted, wanted, field),
            count => {
                let problems: Vec<String> = problems.into_iter().collect();
                let all = problems.join(", ");
                conflict = Some((reason, if count == 1 { all } else { format!("[{all}]") }));
            }
        }
    }
    take(&mut accepted, wanted, "categories");
    let conditions = match conflict {
        None => [
            (
                "NamesAccepted",
                true,
                "NoConflicts",
                "no conflicts found".to_owned(),
            ),
            (
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted".to_owned(),
            ),
        ],
        // kube-apiserver never takes Established back: stored instances must stay reachable.
        Some((reason, message)) if is_established(definition) => [
            ("NamesAccepted", false, reason, message),
            (
                "Established",
                true,
                "InitialNamesAccepted",
                "the initial names have been accepted".to_owned(),
            ),
        ],
        Some((reason, message)) => [
            ("NamesAccepted", false, reason, message),
            (
                "Established",
                false,
                "NotAccepted",
                "not all names are accepted".to_owned(),
            ),
        ],
    };
    let now = time::format_seconds(&server.now());
    let given = definition["status"]["conditions"].as_array();
    let given = given.into_iter().flatten();
    let conditions = conditions
        .into_iter()
        .chain(approval(definition))
        .map(|(kind, holds, reason, message)| {
            let status = if holds { "True" } else { "False" };
            let mut before = definition["status"]["conditions"].as_array().into_iter().flatten();
            let unchanged = before.find(|before| before["type"] == kind && before["status"] == status);
            // The time says when the status changed, so a new message alone does not move it.
            let since = unchanged.map_or_else(|| now.clone().into(), |before| before["lastTransitionTime"].clone());
            json!({"type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message})
        })
        .collect();
    let mut conditions: Vec<Value> = conditions;
    let known = |condition: &Value| {
        conditions
            .iter()
            .any(|ours| ours["type"] == condition["type"])
    };
    // Other clients' conditions in the status are kept.
    let others: Vec<Value> = given
        .filter(|condition| !known(condition))
        .cloned()
        .collect();
    conditions.extend(others);
    json!({"acceptedNames": accepted, "conditions": conditions})
}

/// Returns the `KubernetesAPIApprovalPolicyConformant` condition of a definition in one of Kubernetes' own groups, or `None` for other
/// groups.
fn approval(definition: &Value) -> Option<(&'static str, bool, &'static str, String)> {
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    let (state, message) = Approval::of(definition, group)?;
    let (holds, reason) = match state {
        Approval::Missing => (false, "MissingAnnotation"),
        Approval::Invalid => (false, "InvalidAnnotation"),
        Approval::Bypassed => (false, "UnapprovedAnnotation"),
        Approval::Approved => (true, "ApprovedAnnotation"),
    };
    Some((
        "KubernetesAPIApprovalPolicyConformant",
        holds,
        reason,
        message,
    ))
}

/// Copies a field, or removes it if `from` does not have it.
fn take(to: &mut Value, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => {
            to.as_object_mut().map(|to| to.remove(field));
        }
    }
}

/// Returns the string, or the strings of a list.
fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let list = value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    value.as_str().into_iter().chain(list)
}

/// Returns the accepted resource names and kinds of all definitions in the group, including this one's.
fn accepted_names(
    server: &Arc<ApiServer>,
    definition: &Value,
) -> (BTreeSet<String>, BTreeSet<String>) {
    let collection = server
        .store()
        .collection("customresourcedefinitions.apiextensions.k8s.io");
    let (mut resources, mut kinds) = (BTreeSet::new(), BTreeSet::new());
    for object in collection.snapshot(None).objects.iter() {
        let other = object.parse();
        if other["spec"]["group"] != definition["spec"]["group"] {
            continue;
        }
        let names = &other["status"]["acceptedNames"];
        for (fields, taken) in [
            (&["plural", "singular", "shortNames"][..], &mut resources),
            (&["kind", "listKind"][..], &mut kinds),
        ] {
            let given = fields.iter().flat_map(|field| texts(&names[*field]));
            taken.extend(given.filter(|name| !name.is_empty()).map(str::to_owned));
        }
    }
    (resources, kinds)
}

/// Sets the reason of the `Terminating` condition to `InstanceDeletionInProgress`. Returns whether it was changed, which starts another
/// round.
async fn announce(server: &Arc<ApiServer>, definition: &Value) -> bool {
    const REASON: &str = "InstanceDeletionInProgress";
    let mut conditions = definition["status"]["conditions"].clone();
    let mut all = conditions.as_array_mut().into_iter().flatten();
    let Some(terminating) = all.find(|condition| condition["type"] == "Terminating") else {
        return false;
    };
    if terminating["reason"] == REASON {
        return false;
    }
    terminating["reason"] = REASON.into();
    terminating["message"] = "CustomResource deletion is in progress".into();
    let path = format!("{DEFINITIONS}/{}/status", name_of(definition));
    let version = &definition["metadata"]["resourceVersion"];
    let patch =
        json!({"metadata": {"resourceVersion": version}, "status": {"conditions": conditions}});
    match send(server, Method::PATCH, &path, &patch).await {
        Ok(_) => true,
        // The client that changed or deleted the definition meanwhile has caused another watch event, which starts another round.
        Err(status) => matches!(status.as_u16(), 404 | 409),
    }
}

/// Deletes the instances of a deleted definition, then removes the definition's finalizer.
async fn clean_up(server: Weak<ApiServer>, definition: Value) {
    match server.upgrade() {
        Some(server) if announce(&server, &definition).await => return,
        Some(_) => {}
        None => return,
    }
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
        // Deleting through the router honours the instances' finalizers, so some instances may remain.
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
        // The server must not be kept alive while this task sleeps.
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
