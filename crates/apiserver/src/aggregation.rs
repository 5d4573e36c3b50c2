//! The APIServices of built-in groups and of CustomResourceDefinitions, one per group and version (kube-apiserver: autoregister and
//! crd-autoregister controllers).
//!
//! The objects only inform clients: [`crate::registry`] routes requests. A group that the embedding program provides has no APIService
//! until a user creates one, as in a cluster without the add-on that serves it, so that helm and kubectl own the object that their chart
//! or manifest contains. The group is served either way. [`availability`] maintains the condition `Available` of users' APIServices.
//! [`crate::boot`] creates the first objects before the server answers; later changes go through the server's own router.

mod availability;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::{Arc, Weak},
};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    own::send,
    registry::{Row, Table},
    state::ApiServer,
};

pub(crate) use availability::run as tell_availability;

const COLLECTION: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const STORAGE: &str = "apiservices.apiregistration.k8s.io";
pub(crate) const GROUP: &str = "apiregistration.k8s.io";
/// The label of objects that this module manages.
const MANAGED: &str = "kube-aggregator.kubernetes.io/automanaged";

/// The priorities of groups (kube-apiserver: `apiVersionPriorities`). [`priorities`] has those of versions.
const GROUP_PRIORITIES: [(&str, i64); 20] = [
    ("", 18_000),
    ("apps", 17_800),
    ("events.k8s.io", 17_750),
    ("authentication.k8s.io", 17_700),
    ("authorization.k8s.io", 17_600),
    ("autoscaling", 17_500),
    ("batch", 17_400),
    ("certificates.k8s.io", 17_300),
    ("networking.k8s.io", 17_200),
    ("policy", 17_100),
    ("rbac.authorization.k8s.io", 17_000),
    ("storage.k8s.io", 16_800),
    ("apiextensions.k8s.io", 16_700),
    ("admissionregistration.k8s.io", 16_700),
    ("scheduling.k8s.io", 16_600),
    ("coordination.k8s.io", 16_500),
    ("node.k8s.io", 16_300),
    ("discovery.k8s.io", 16_200),
    ("flowcontrol.apiserver.k8s.io", 16_100),
    ("resource.k8s.io", 16_200),
];

/// Keeps the APIServices in line with the served groups until the server is dropped. [`crate::boot`] creates the first ones.
pub(crate) async fn run(server: Weak<ApiServer>, mut changes: watch::Receiver<()>) {
    loop {
        match server.upgrade() {
            Some(server) => settle(&server).await,
            None => return,
        }
        // The sender is dropped together with the server.
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the APIService of each group and version that some of these rows of `table` belong to, by name.
pub(crate) fn wanted(table: &Table, which: impl Fn(&Row) -> bool) -> BTreeMap<String, Value> {
    let mut wanted = BTreeMap::new();
    let has_service = |row: &Row| row.resource.group != GROUP && !row.is_provided();
    let rows = table.rows().iter();
    for row in rows.filter(|row| has_service(row) && which(row)) {
        let name = format!("{}.{}", row.resource.version, row.resource.group);
        if let Entry::Vacant(vacant) = wanted.entry(name) {
            let object = object(table, vacant.key(), row);
            vacant.insert(object);
        }
    }
    wanted
}

async fn settle(server: &Arc<ApiServer>) {
    let mut wanted = wanted(&server.registry().table(), |_| true);
    let mut told = Vec::new();
    for object in server.store().collection(STORAGE).snapshot(None).objects {
        let name = object.key().name().to_owned();
        let is_managed = object.meta().label(MANAGED).is_some();
        // Only objects with the label are this module's; an APIService that a user created stays.
        if wanted.remove(&name).is_none() && is_managed {
            let path = format!("{COLLECTION}/{name}");
            let deleted = send(server, Method::DELETE, &path, &Value::Null).await;
            told.push((name, deleted));
        }
    }
    for (name, object) in wanted {
        let created = send(server, Method::POST, COLLECTION, &object).await;
        told.push((name, created));
    }
    for (name, done) in told {
        if let Err(status) = done {
            tracing::debug!(name, %status, "an APIService is not as it should be");
        }
    }
}

fn object(table: &Table, name: &str, row: &Row) -> Value {
    let resource = &row.resource;
    let managed = if row.is_defined() { "true" } else { "onstart" };
    let (group_priority, version_priority) = priorities(table, row);
    let mut object = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": name, "labels": {MANAGED: managed}},
        "spec": {
            "version": *resource.version,
            "groupPriorityMinimum": group_priority, "versionPriority": version_priority,
        },
    });
    if !resource.group.is_empty() {
        object["spec"]["group"] = (*resource.group).into();
    }
    object
}

/// Returns the priorities of a row's group and version.
fn priorities(table: &Table, row: &Row) -> (i64, i64) {
    let resource = &row.resource;
    if row.custom {
        return (1_000, 100);
    }
    let mut known = GROUP_PRIORITIES.iter();
    let group = known.find(|(group, _)| *group == resource.group);
    let of_version = match (&*resource.group, &*resource.version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        (group, version) if version != "v1" && table.serves(group, "v1") => 9,
        _ => 15,
    };
    (group.map_or(15_000, |(_, priority)| *priority), of_version)
}
