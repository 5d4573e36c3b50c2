//! The plain discovery lists: versions, groups and resources, with their fields in the order of Go's structs.

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_kinds::Subresource;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Order, groups, verbs, versions};
use crate::registry::{Row, Table};

/// The response to `/api`.
#[derive(Serialize)]
pub(super) struct Versions<'a> {
    kind: &'static str,
    versions: [&'static str; 1],
    #[serde(rename = "serverAddressByClientCIDRs")]
    addresses: [Address<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Address<'a> {
    #[serde(rename = "clientCIDR")]
    clients: &'static str,
    server_address: &'a str,
}

/// The response to `/apis`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Groups<'a> {
    kind: &'static str,
    api_version: &'static str,
    groups: Vec<Group<'a>>,
}

/// A group, as an item of the list or as a response of its own.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    name: &'a str,
    versions: Vec<Version<'a>>,
    preferred_version: Version<'a>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    group_version: String,
    version: &'a str,
}

/// The response to `/apis/<group>/<version>`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resources<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    group_version: String,
    resources: Vec<Resource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    name: String,
    singular_name: &'a str,
    namespaced: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    kind: &'a str,
    verbs: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    short_names: Vec<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categories: Vec<&'a str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    storage_version_hash: String,
}

/// Returns the versions of the core group; `address` is the `host:port` at which clients reach the server.
pub(super) fn core(address: &str) -> Versions<'_> {
    Versions {
        kind: "APIVersions",
        versions: ["v1"],
        addresses: [Address {
            clients: "0.0.0.0/0",
            server_address: address,
        }],
    }
}

/// Returns all groups.
pub(super) fn all(table: &Table) -> Groups<'_> {
    let groups = groups(table, Order::Services);
    Groups {
        kind: "APIGroupList",
        api_version: "v1",
        groups: groups
            .into_iter()
            .filter_map(|name| in_list(table, name))
            .collect(),
    }
}

/// Returns one group, or `None` if it is not served.
pub(super) fn group<'a>(table: &'a Table, name: &'a str) -> Option<Group<'a>> {
    Some(Group {
        kind: "APIGroup",
        api_version: "v1",
        ..in_list(table, name)?
    })
}

fn in_list<'a>(table: &'a Table, name: &'a str) -> Option<Group<'a>> {
    let versions: Vec<Version<'_>> = versions(table, name)
        .into_iter()
        .map(|version| Version {
            group_version: format!("{name}/{version}"),
            version,
        })
        .collect();
    Some(Group {
        kind: "",
        api_version: "",
        name,
        preferred_version: versions.first()?.clone(),
        versions,
    })
}

/// Returns the resources of a group and version, or `None` if it is not served.
pub(super) fn resources<'a>(table: &'a Table, group: &str, version: &str) -> Option<Resources<'a>> {
    if !table.serves(group, version) {
        return None;
    }
    let rows = table
        .rows()
        .iter()
        .filter(|row| row.resource.group == group && row.resource.version == version);
    let own = |row: &'a Row| {
        let parts = row.resource.subresources.iter();
        std::iter::once(resource(row)).chain(parts.map(|part| subresource(row, part)))
    };
    Some(Resources {
        kind: "APIResourceList",
        // kube-apiserver leaves it out of the list at /api/v1, which clients older than Kubernetes 1.1 read.
        api_version: if group.is_empty() { "" } else { "v1" },
        group_version: match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        resources: rows.flat_map(|row| own(row)).collect(),
    })
}

fn resource(row: &Row) -> Resource<'_> {
    let resource = &row.resource;
    Resource {
        name: resource.plural.to_string(),
        singular_name: &resource.singular,
        namespaced: resource.namespaced,
        group: None,
        version: None,
        kind: &resource.kind,
        verbs: verbs(row),
        short_names: resource.short_names.iter().map(|name| &**name).collect(),
        categories: resource.categories.iter().map(|name| &**name).collect(),
        storage_version_hash: storage_version_hash(row),
    }
}

fn subresource<'a>(row: &'a Row, part: &'a Subresource) -> Resource<'a> {
    Resource {
        name: format!("{}/{}", row.resource.plural, part.name),
        singular_name: "",
        namespaced: row.resource.namespaced,
        group: part.group,
        version: part.version,
        kind: &part.kind,
        verbs: part.verbs.to_vec(),
        short_names: Vec::new(),
        categories: Vec::new(),
        storage_version_hash: String::new(),
    }
}

/// Returns a hash that differs for each storage version; empty for resources that are not stored (k8s.io/apiserver:
/// `discovery.StorageVersionHash`).
fn storage_version_hash(row: &Row) -> String {
    let resource = &row.resource;
    let rules = &resource.rules;
    // A hash would tell storage migrators that there is something to migrate.
    if rules.transient || rules.read_only || resource.source().is_some() {
        return String::new();
    }
    // The hash covers `/v1` for the core group: its empty group is not left out.
    let stored = if row.stored_version.contains('/') {
        row.stored_version.to_string()
    } else {
        format!("/{}", row.stored_version)
    };
    let hash = Sha256::digest(format!("{stored}/{}", resource.kind));
    STANDARD.encode(&hash[..8])
}
