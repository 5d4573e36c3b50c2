//! Discovery: what is served, as plain lists per group and version and as one aggregated document.
//!
//! The aggregated form is answered in exactly the version that was asked for: a client that knows only v2beta1 sees nothing in a v2
//! document.

use std::fmt::Write;

use axum::body::Body;
use http::{
    HeaderMap, HeaderValue, Response,
    header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use super::{
    negotiate::{self, Media},
    path::Route,
    reply,
};
use crate::{
    auth::oidc,
    kinds::{Resource, Subresource},
    registry::Table,
};

/// Answers a discovery path; `None` if nothing is served there.
pub(crate) fn serve(
    table: &Table,
    route: &Route<'_>,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    match route {
        Route::Groups { core } => Some(match aggregated_version(headers) {
            Some(version) => aggregated(table, *core, version, headers),
            None if *core => plain(headers, &api_versions()),
            None => plain(headers, &group_list(table)),
        }),
        Route::Group(group) => {
            let mut value = group_value(table, group)?;
            value["kind"] = "APIGroup".into();
            value["apiVersion"] = "v1".into();
            Some(plain(headers, &value))
        }
        Route::Version { group, version } => {
            resource_list(table, group, version).map(|list| plain(headers, &list))
        }
        Route::Object(_) | Route::Other(_) => None,
    }
}

/// A document in JSON, or in YAML for those who ask for that.
fn plain(headers: &HeaderMap, value: &Value) -> Response<Body> {
    match negotiate::of_refusals(headers) {
        Media::Yaml => reply::encode(Media::Yaml, 200, value, None)
            .unwrap_or_else(|status| reply::refusal(&status, Media::Json)),
        _ => reply::json(200, value),
    }
}

/// The version of the aggregated document the client prefers to the plain lists.
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
            ("", _, _) => return None,
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Some("v2"),
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => return Some("v2beta1"),
            _ => {}
        }
    }
    None
}

/// What `/` lists.
pub(crate) fn root_paths(table: &Table) -> Value {
    let first = [oidc::CONFIGURATION, "/api", "/api/v1", "/apis"];
    let mut paths: Vec<String> = first.map(str::to_owned).to_vec();
    for group in groups(table) {
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

fn api_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"],
           "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]})
}

/// The groups in discovery order, core left out.
fn groups(table: &Table) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for row in table.rows() {
        let group = &*row.resource.group;
        if !group.is_empty() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// The versions of a group, the preferred one first.
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
    versions.sort_by_key(|version| version_priority(version));
    versions
}

/// Sorts versions as upstream prefers them: general before beta before alpha, newer before older, others last by name.
fn version_priority(version: &str) -> (u8, std::cmp::Reverse<u64>, std::cmp::Reverse<u64>, String) {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let digits = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (0, 0),
            tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                (Some(minor), _) => (1, minor.parse().ok()?),
                (_, Some(minor)) => (2, minor.parse().ok()?),
                _ => return None,
            },
        };
        Some((stage, major, minor))
    });
    let (stage, major, minor) = parsed.unwrap_or((3, 0, 0));
    (
        stage,
        std::cmp::Reverse(major),
        std::cmp::Reverse(minor),
        version.to_owned(),
    )
}

fn group_value(table: &Table, group: &str) -> Option<Value> {
    let versions: Vec<Value> = versions(table, group)
        .into_iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    let preferred = versions.first()?.clone();
    Some(json!({"name": group, "versions": versions, "preferredVersion": preferred}))
}

fn group_list(table: &Table) -> Value {
    let groups: Vec<Value> = groups(table)
        .into_iter()
        .filter_map(|group| group_value(table, group))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn resource_list(table: &Table, group: &str, version: &str) -> Option<Value> {
    if !table.serves(group, version) {
        return None;
    }
    let mut resources = Vec::new();
    for row in table
        .rows()
        .iter()
        .filter(|row| row.resource.group == group && row.resource.version == version)
    {
        let resource = &row.resource;
        let mut entry = Map::new();
        entry.insert("name".into(), (*resource.plural).into());
        entry.insert("singularName".into(), (*resource.singular).into());
        entry.insert("namespaced".into(), resource.namespaced.into());
        entry.insert("kind".into(), (*resource.kind).into());
        entry.insert("verbs".into(), resource.rules.verbs().into());
        insert_names(&mut entry, resource);
        resources.push(Value::Object(entry));
        for subresource in &resource.subresources {
            let mut entry = Map::new();
            entry.insert(
                "name".into(),
                format!("{}/{}", resource.plural, subresource.name).into(),
            );
            entry.insert("singularName".into(), "".into());
            entry.insert("namespaced".into(), resource.namespaced.into());
            for (key, value) in [
                ("group", subresource.group),
                ("version", subresource.version),
            ] {
                if let Some(value) = value {
                    entry.insert(key.into(), value.into());
                }
            }
            entry.insert("kind".into(), (*subresource.kind).into());
            entry.insert("verbs".into(), subresource.verbs.to_vec().into());
            resources.push(Value::Object(entry));
        }
    }
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    Some(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}),
    )
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
    let names = if core { vec![""] } else { groups(table) };
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

/// A document with an ETag: 304 for a client that has it already.
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

/// A hash of a document, as upstream writes them: SHA-512 in capital hexadecimal digits.
pub(crate) fn digest(document: &[u8]) -> String {
    let mut text = String::with_capacity(128);
    for byte in Sha512::digest(document) {
        let _ = write!(text, "{byte:02X}");
    }
    text
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
            entry.insert("verbs".into(), resource.rules.verbs().into());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_preferred_as_upstream_prefers_them() {
        let mut versions = ["v1alpha1", "foo", "v2", "v1beta1", "v1", "v10", "v2beta3"];
        versions.sort_by_key(|version| version_priority(version));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v2beta3", "v1beta1", "v1alpha1", "foo"]
        );
    }
}
