//! Creates the default roles and bindings, and completes them at every start (upstream: registry/rbac/reconciliation).
//!
//! Additions of an administrator stay, and missing parts of a default are restored, unless the object's annotation
//! `rbac.authorization.kubernetes.io/autoupdate` is `false`. A cluster role binding to another role than the default's is made anew.

use std::sync::{Arc, OnceLock};

use futures::future::join_all;
use jiff::Timestamp;
use mullion_kinds::rbac::{
    GROUP,
    rule::{Rule, missing_atoms},
};
use mullion_kube_text::status::Status;
use mullion_schema::{
    self as schema,
    ownership::{self, Writer},
    tree::{Tree, object_at},
};
use mullion_store::{Change, EventType, Key, Object};
use serde_json::{Map, Value, json};

use crate::{http::write, object::metadata, registry::Row, state::ApiServer};

const TABLE: &str = include_str!("default-roles.txt");
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// Creates the defaults that are missing and completes the others. All writes begin together, so that a durable store persists them at once.
pub(crate) async fn run(server: &Arc<ApiServer>) {
    let table = server.registry().table();
    let all = defaults().iter().filter_map(|default| {
        let row = table.find(GROUP, "v1", default.plural)?;
        Some(ensure(server, row, default))
    });
    join_all(all).await;
}

async fn ensure(server: &ApiServer, row: &Row, default: &DefaultObject) {
    let ensured = match row.collection.get(default.key.as_str()) {
        None => create(server, row, default).await,
        Some(stored) => reconcile(server, row, default, stored).await,
    };
    if let Err(status) = ensured {
        tracing::error!(object = default.key.as_str(), %status, "a default role or binding cannot be kept up");
    }
}

async fn create(server: &ApiServer, row: &Row, default: &DefaultObject) -> Result<(), Status> {
    let mut object = default.object.clone();
    schema::normalise(&row.resource.schema, &mut object);
    let now = server.now();
    metadata::begin(&mut object, &row.resource, now);
    let writer = Writer {
        manager: "kube-apiserver",
        api_version: row.api_version(),
        subresource: None,
        resets_status: false,
        resets: &[],
        now,
    };
    ownership::track(&row.resource.schema, &writer, &mut object, None);
    let draft = write::draft(row, EventType::Added, &mut object);
    let change = Change::Create(default.key.clone(), draft);
    commit(row, change, now).await
}

async fn commit(row: &Row, change: Change, now: Timestamp) -> Result<(), Status> {
    let committed = row.collection.commit(change, now).await;
    committed
        .map(drop)
        .map_err(|error| Status::internal(error.to_string()))
}

async fn reconcile(
    server: &ApiServer,
    row: &Row,
    default: &DefaultObject,
    stored: Arc<Object>,
) -> Result<(), Status> {
    let object = stored.parse();
    if !is_kept_up(&object) {
        return Ok(());
    }
    // `roleRef` is immutable, so the binding must be deleted and created (kube-apiserver: ReconcileRecreate).
    if object["roleRef"] != default.object["roleRef"] {
        commit(row, Change::Delete(stored), server.now()).await?;
        return create(server, row, default).await;
    }
    let completed = write::modify(row, server.now(), &default.key, false, |object| {
        Ok(complete(object, &default.object))
    });
    completed.await.map(drop)
}

fn is_kept_up(object: &Value) -> bool {
    object["metadata"]["annotations"].text(AUTO_UPDATE) != "false"
}

/// Adds what an object lacks of its default, and returns whether it lacked anything.
fn complete(object: &mut Value, default: &Value) -> bool {
    let before = object.clone();
    for field in ["labels", "annotations"] {
        let wanted = default["metadata"].entries(field);
        let have = object_at(metadata::of(object), field);
        for (key, value) in wanted {
            have.entry(key).or_insert_with(|| value.clone());
        }
    }
    let missing = missing_atoms(&Rule::all_of(object), &Rule::all_of(default));
    append(object, "rules", missing.iter().map(Rule::to_json).collect());
    let lacking = |object: &Value, field: &str, default: &Value| -> Vec<Value> {
        let wanted = default.items(field).iter();
        wanted
            .filter(|item| !object.items(field).contains(item))
            .cloned()
            .collect()
    };
    let subjects = lacking(object, "subjects", default);
    append(object, "subjects", subjects);
    if let Some(wanted) = default.field("aggregationRule") {
        let selectors = lacking(&object["aggregationRule"], "clusterRoleSelectors", wanted);
        append(
            &mut object["aggregationRule"],
            "clusterRoleSelectors",
            selectors,
        );
    }
    *object != before
}

fn append(parent: &mut Value, field: &str, items: Vec<Value>) {
    if items.is_empty() {
        return;
    }
    match parent[field].as_array_mut() {
        Some(list) => list.extend(items),
        None => parent[field] = items.into(),
    }
}

/// A default role or binding, as the table describes it.
struct DefaultObject {
    plural: &'static str,
    key: Key,
    object: Value,
}

fn defaults() -> &'static [DefaultObject] {
    static DEFAULTS: OnceLock<Vec<DefaultObject>> = OnceLock::new();
    DEFAULTS.get_or_init(|| read(TABLE))
}

fn read(table: &str) -> Vec<DefaultObject> {
    let mut defaults: Vec<DefaultObject> = Vec::new();
    let mut bindings = Vec::new();
    for line in table.lines() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let mut words = line.split_whitespace();
        if line.starts_with(' ') {
            let rule = rule(words.collect());
            let role = defaults.last_mut().expect("a rule follows its role");
            append(&mut role.object, "rules", vec![rule]);
            continue;
        }
        let (what, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (what, namespace) = match what.split_once('@') {
            Some((what, namespace)) => (what, Some(namespace)),
            None => (what, None),
        };
        match what {
            "role" => defaults.push(role(name, namespace, words.collect())),
            "bind" => {
                let (name, role) = name.split_once('=').unwrap_or((name, name));
                bindings.push(binding(name, role, namespace, words.collect()));
            }
            _ => {
                let account = format!("account:kube-system/{name}");
                let name = format!("system:controller:{name}");
                defaults.push(role(&name, None, Vec::new()));
                bindings.push(binding(&name, &name, None, vec![&account]));
            }
        }
    }
    defaults.extend(bindings);
    defaults
}

fn object(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {
            "name": name,
            "annotations": {AUTO_UPDATE: "true"},
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        },
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

fn role(name: &str, namespace: Option<&str>, marks: Vec<&str>) -> DefaultObject {
    let (kind, plural) = match namespace {
        Some(_) => ("Role", "roles"),
        None => ("ClusterRole", "clusterroles"),
    };
    let mut object = object(kind, name, namespace);
    for mark in marks {
        let (sign, other) = mark.split_at(1);
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{other}");
        if sign == ">" {
            object["metadata"]["labels"][label] = "true".into();
        } else {
            let labels: Map<String, Value> = [(label, "true".into())].into_iter().collect();
            object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
        }
    }
    DefaultObject {
        plural,
        key: Key::new(namespace, name),
        object,
    }
}

fn binding(name: &str, role: &str, namespace: Option<&str>, subjects: Vec<&str>) -> DefaultObject {
    let (kind, role_kind, plural) = match namespace {
        Some(_) => ("RoleBinding", "Role", "rolebindings"),
        None => ("ClusterRoleBinding", "ClusterRole", "clusterrolebindings"),
    };
    let mut object = object(kind, name, namespace);
    object["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": role});
    let subjects = subjects.into_iter().filter_map(|subject| {
        let (kind, name) = subject.split_once(':')?;
        Some(match kind {
            "user" => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
            "group" => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
            _ => {
                let (namespace, name) = name.split_once('/')?;
                json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
            }
        })
    });
    append(&mut object, "subjects", subjects.collect());
    DefaultObject {
        plural,
        key: Key::new(namespace, name),
        object,
    }
}

fn rule(words: Vec<&str>) -> Value {
    let words = match words.as_slice() {
        ["EVENTS"] => &["create,patch,update", "core,events.k8s.io", "events"],
        words => words,
    };
    let list = |at: usize| -> Vec<&str> {
        let text = words.get(at).copied().unwrap_or_default();
        text.split(',').filter(|word| !word.is_empty()).collect()
    };
    let mut verbs: Vec<&str> = Vec::new();
    for verb in list(0) {
        match verb {
            "READ" => verbs.extend(READ),
            "WRITE" => verbs.extend(WRITE),
            verb => verbs.push(verb),
        }
    }
    verbs.sort_unstable();
    if words.get(1) == Some(&"-") {
        return json!({"nonResourceURLs": list(2), "verbs": verbs});
    }
    let groups: Vec<&str> = list(1)
        .into_iter()
        .map(|group| if group == "core" { "" } else { group })
        .collect();
    let mut rule = json!({"apiGroups": groups, "resources": list(2), "verbs": verbs});
    if words.len() > 3 {
        rule["resourceNames"] = list(3).into();
    }
    rule
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(defaults: &'a [DefaultObject], plural: &str, key: &str) -> &'a Value {
        let found = defaults
            .iter()
            .find(|default| default.plural == plural && default.key.as_str() == key);
        &found.unwrap_or_else(|| panic!("no {plural} {key}")).object
    }

    #[test]
    fn the_table_reads_as_upstream_s_objects() {
        let defaults = defaults();
        let admin = find(defaults, "clusterroles", "admin");
        let selector = &admin["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"];
        assert_eq!(
            selector["rbac.authorization.k8s.io/aggregate-to-admin"],
            "true"
        );
        let edit = find(defaults, "clusterroles", "edit");
        let labels = &edit["metadata"]["labels"];
        assert_eq!(
            labels["rbac.authorization.k8s.io/aggregate-to-admin"],
            "true"
        );
        let everything: Vec<Value> = Rule::everything().iter().map(Rule::to_json).collect();
        let cluster_admin = find(defaults, "clusterroles", "cluster-admin");
        assert_eq!(cluster_admin["rules"], Value::from(everything));
        let events =
            &find(defaults, "clusterroles", "system:controller:job-controller")["rules"][4];
        assert_eq!(
            *events,
            json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]})
        );
        let bound = find(
            defaults,
            "clusterrolebindings",
            "system:controller:job-controller",
        );
        assert_eq!(
            bound["subjects"],
            json!([{"kind": "ServiceAccount", "name": "job-controller", "namespace": "kube-system"}])
        );
    }

    #[test]
    fn a_default_that_lost_something_is_completed_and_what_was_added_stays() {
        let default = find(defaults(), "clusterrolebindings", "system:discovery");
        let mut changed = default.clone();
        changed["subjects"] = json!([{"apiGroup": GROUP, "kind": "User", "name": "jane"}]);
        assert!(complete(&mut changed, default));
        let subjects = changed["subjects"].as_array().map(Vec::len);
        assert_eq!(subjects, Some(2));
        assert!(!complete(&mut changed, default));
        let default = find(defaults(), "clusterroles", "system:kube-dns");
        let mut changed = default.clone();
        changed["rules"][0]["verbs"] = json!(["list"]);
        assert!(complete(&mut changed, default));
        assert!(!complete(&mut changed, default));
    }
}
