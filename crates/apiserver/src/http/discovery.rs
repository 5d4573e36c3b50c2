//! Discovery: lists the served groups, versions and resources, as plain lists and as one aggregated document.
//!
//! The aggregated document has exactly the version that the client asked for: a client that knows only v2beta1 cannot read a v2 document.

mod plain;

use std::sync::Arc;

use axum::body::Body;
use http::{
    HeaderMap, HeaderValue, Response,
    header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use mullion_kinds::{Resource, Subresource};
use mullion_kube_text::status::Status;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    negotiate::{self, Media},
    path::Route,
    reply,
};
use crate::{
    auth::oidc,
    openapi::documents::digest,
    registry::{Row, Table},
    version_order,
};

/// The order in which discovery lists the verbs of a custom resource.
const DEFINED_VERBS: [&str; 8] = [
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];

/// Answers a discovery path; `None` if the path serves nothing. `address` is the `host:port` at which clients reach the server.
pub(crate) fn serve(
    table: &Table,
    route: &Route<'_>,
    headers: &HeaderMap,
    address: &str,
) -> Option<Response<Body>> {
    match route {
        Route::Groups { core } => Some(match aggregated_version(headers) {
            Some(version) => aggregated(table, *core, version, headers),
            None if *core => list(headers, true, &plain::core(address)),
            None => list(headers, false, &plain::all(table)),
        }),
        Route::Group(group) => plain::group(table, group).map(|group| list(headers, false, &group)),
        Route::Version { group, version } => {
            let resources = plain::resources(table, group, version);
            let custom = table.rows().iter().any(|row| {
                row.custom && row.resource.group == *group && row.resource.version == *version
            });
            resources.map(|resources| list(headers, !custom, &resources))
        }
        Route::Object(_) | Route::Other(_) => None,
    }
}

/// Encodes a plain list as JSON, or as YAML if the client asks for it. `routed` says whether kube-apiserver serves the list through its
/// router.
fn list(headers: &HeaderMap, routed: bool, list: &impl Serialize) -> Response<Body> {
    let internal = |error: serde_json::Error| Status::internal(error.to_string());
    let answer = negotiate::of_lists(headers, routed).and_then(|media| match media {
        Media::Yaml => {
            let value = serde_json::to_value(list).map_err(internal)?;
            reply::encode(Media::Yaml, 200, &value, None)
        }
        _ => {
            let body = serde_json::to_vec(list).map_err(internal)?;
            Ok(reply::bytes(200, Media::Json, body.into()))
        }
    });
    answer.unwrap_or_else(|status| reply::refusal(&status, Media::Json))
}

/// Returns the version of the aggregated document, if the client prefers it to the plain lists.
fn aggregated_version(headers: &HeaderMap) -> Option<&'static str> {
    for clause in negotiate::clauses(headers) {
        if !matches!(clause.range, "application/json" | "application/*" | "*/*") {
            continue;
        }
        match (
            clause.parameter("as"),
            clause.parameter("g"),
            clause.parameter("v"),
        ) {
            // The client prefers the plain lists, whatever it would accept after them.
            ("", _, _) => return None,
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Some("v2"),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => return Some("v2beta1"),
            _ => {}
        }
    }
    None
}

/// Returns the list of paths at `/`.
pub(crate) fn root_paths(table: &Table) -> Value {
    let first = [oidc::CONFIGURATION, "/api", "/api/v1", "/apis"];
    let mut paths: Vec<String> = first.map(str::to_owned).to_vec();
    for group in groups(table, Order::Names) {
        paths.push(format!("/apis/{group}"));
        paths.extend(
            versions(table, group)
                .into_iter()
                .map(|version| format!("/apis/{group}/{version}")),
        );
    }
    let others = [
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        oidc::KEYS,
        "/readyz",
        "/version",
    ];
    paths.extend(others.map(str::to_owned));
    json!({"paths": paths})
}

/// How groups of equal priority are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By name, as in the aggregated document.
    Names,
    /// By the names of their APIServices, which begin with the version, as in the plain list (kube-aggregator: `ByGroupPriorityMinimum`).
    Services,
}

/// Returns the groups in discovery order, without core. Built-in rows are in order of priority; all groups of CustomResourceDefinitions
/// have the same priority.
fn groups(table: &Table, order: Order) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    let rows = table.rows().iter();
    let (defined, others): (Vec<&Arc<Row>>, Vec<&Arc<Row>>) =
        rows.partition(|row| row.is_defined());
    // Groups that the embedding program provides come last.
    let (provided, own): (Vec<&Arc<Row>>, Vec<&Arc<Row>>) =
        others.into_iter().partition(|row| row.custom);
    let mut defined: Vec<(String, &str)> = defined
        .into_iter()
        .map(|row| (&row.resource.version, &*row.resource.group))
        .map(|(version, group)| match order {
            Order::Names => (group.to_owned(), group),
            Order::Services => (format!("{version}.{group}"), group),
        })
        .collect();
    defined.sort_unstable();
    let own = own.into_iter().map(|row| &*row.resource.group);
    let provided = provided.into_iter().map(|row| &*row.resource.group);
    for group in own
        .chain(defined.into_iter().map(|(_, group)| group))
        .chain(provided)
    {
        if !group.is_empty() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// Returns the versions of a group, the preferred one first.
fn versions<'a>(table: &'a Table, group: &str) -> Vec<&'a str> {
    let mut versions: Vec<&str> = Vec::new();
    for row in table
        .rows()
        .iter()
        .filter(|row| row.resource.group == group)
    {
        let version = &*row.resource.version;
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    versions.sort_by_key(|version| version_order::priority(version));
    versions
}

fn verbs(row: &Row) -> Vec<&'static str> {
    let mut verbs = row.resource.rules.verbs();
    if row.is_defined() {
        verbs.sort_by_key(|verb| DEFINED_VERBS.iter().position(|defined| defined == verb));
    }
    verbs
}

fn insert_names(entry: &mut Map<String, Value>, resource: &Resource) {
    for (key, names) in [
        ("shortNames", &resource.short_names),
        ("categories", &resource.categories),
    ] {
        if !names.is_empty() {
            entry.insert(
                key.into(),
                names.iter().map(|name| Value::from(&**name)).collect(),
            );
        }
    }
}

fn aggregated(
    table: &Table,
    core: bool,
    document: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let names = if core {
        vec![""]
    } else {
        groups(table, Order::Names)
    };
    let items: Vec<Value> = names
        .into_iter()
        .map(|group| {
            let versions: Vec<Value> = versions(table, group)
                .into_iter()
                .map(|version| aggregated_version_value(table, group, version))
                .collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    let api_version = format!("apidiscovery.k8s.io/{document}");
    let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": api_version, "metadata": {}, "items": items});
    let content_type = match document {
        "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
    };
    cacheable(list.to_string(), content_type, headers)
}

/// Returns a document with an ETag, or 304 if the client has it already.
pub(crate) fn cacheable(
    document: String,
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let tag = format!("\"{}\"", digest(document.as_bytes()));
    let known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = if known {
        reply::respond(304, content_type, Body::empty())
    } else {
        reply::respond(200, content_type, Body::from(document))
    };
    if known {
        // Go's server sends no Content-Type with a 304.
        response.headers_mut().remove(CONTENT_TYPE);
    }
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("Accept"));
    response
}

fn aggregated_version_value(table: &Table, group: &str, version: &str) -> Value {
    let rows = table
        .rows()
        .iter()
        .filter(|row| row.resource.group == group && row.resource.version == version);
    let resources: Vec<Value> = rows
        .map(|row| {
            let resource = &row.resource;
            let mut entry = Map::new();
            entry.insert("resource".into(), (*resource.plural).into());
            // kube-apiserver leaves the group and version of built-in kinds empty here, which means those of the list.
            let (kind_group, kind_version) = if row.custom {
                (&*resource.group, &*resource.version)
            } else {
                ("", "")
            };
            entry.insert(
                "responseKind".into(),
                json!({"group": kind_group, "version": kind_version, "kind": *resource.kind}),
            );
            entry.insert(
                "scope".into(),
                if resource.namespaced {
                    "Namespaced"
                } else {
                    "Cluster"
                }
                .into(),
            );
            entry.insert("singularResource".into(), (*resource.singular).into());
            entry.insert("verbs".into(), verbs(row).into());
            insert_names(&mut entry, resource);
            if !resource.subresources.is_empty() {
                let kind = (kind_group, kind_version);
                let subresources = resource
                    .subresources
                    .iter()
                    .map(|subresource| subresource_value(subresource, kind));
                entry.insert("subresources".into(), subresources.collect());
            }
            Value::Object(entry)
        })
        .collect();
    json!({"version": version, "resources": resources, "freshness": "Current"})
}

fn subresource_value(subresource: &Subresource, (group, version): (&str, &str)) -> Value {
    let kind = json!({
        "group": subresource.group.unwrap_or(group),
        "version": subresource.version.unwrap_or(version),
        "kind": *subresource.kind,
    });
    json!({"subresource": subresource.name, "responseKind": kind, "verbs": subresource.verbs})
}
