//! OpenAPI documents: in v3 one per group and version, in v2 one for all resources.
//!
//! Schemas come from the table that decoding uses, with the texts of [`mullion_schema::descriptions`]; those of custom resources come from
//! their definitions ([`custom`]). Paths describe requests and responses ([`paths`]).

mod custom;
pub(crate) mod documents;
mod enums;
mod everything;
mod gnostic;
mod paths;
mod schemas;
mod scheme;
mod values;
mod wire;

use std::sync::Arc;

use mullion_kinds::{Resource, request::Lookup};
use serde_json::{Map, Value, json};

pub(crate) use self::everything::{V2, v2};
use self::schemas::Schemas;
use crate::registry::{Row, Table};

/// The version of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Swagger 2.0: `definitions`, parameters with types of their own.
    V2,
    /// OpenAPI 3.0: `components/schemas`.
    V3,
}

/// Returns the name of a group and version in `/openapi/v3`, for example `api/v1` or `apis/apps/v1`.
pub(crate) fn name(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Returns the name of each v3 document with the resources that it describes.
pub(crate) fn subjects(table: &Table) -> Vec<(String, Vec<Arc<Resource>>)> {
    let mut subjects: Vec<(String, Vec<Arc<Resource>>)> = Vec::new();
    for row in table.rows() {
        let name = name(&row.resource.group, &row.resource.version);
        match subjects.iter_mut().find(|(known, _)| *known == name) {
            Some((_, resources)) => resources.push(row.resource.clone()),
            None => subjects.push((name, vec![row.resource.clone()])),
        }
    }
    subjects
}

/// Generates the v3 document of a group and version as JSON; `None` if it is not served.
pub(crate) fn v3(table: &Table, lookup: &dyn Lookup, group: &str, version: &str) -> Option<String> {
    let rows: Vec<&Row> = rows(table)
        .filter(|row| row.resource.group == group && row.resource.version == version)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut paths = Entries::default();
    let schemas = walk(Dialect::V3, lookup, &rows, |path, item| {
        paths.push(path, item);
    });
    let is_defined = rows.iter().all(|row| row.is_defined());
    Some(v3_text(paths, &schemas, is_defined))
}

/// Generates the v3 documents that belong to no group's version: discovery, the server's version, and the keys of service account tokens.
/// They never change.
pub(crate) fn v3_non_resource(table: &Table, lookup: &dyn Lookup) -> Vec<(String, String)> {
    let around = paths::non_resource::all(Dialect::V3, &groups(table));
    let document = |around: paths::non_resource::NonResourcePath| {
        let mut schemas = Schemas::new(Dialect::V3, lookup);
        schemas.reach(&around.item);
        let mut paths = Entries::default();
        paths.push(&around.path, &around.item);
        (around.name, v3_text(paths, &schemas.finish(), false))
    };
    around.into_iter().map(document).collect()
}

fn v3_text(paths: Entries, components: &Map<String, Value>, is_defined: bool) -> String {
    let (info, security) = if is_defined {
        (
            json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}),
            String::new(),
        )
    } else {
        (info(), format!(r#","securitySchemes":{}"#, security()))
    };
    let mut schemas = Entries::default();
    for (name, schema) in components {
        schemas.push(name, schema);
    }
    let (paths, schemas) = (paths.done(), schemas.done());
    format!(
        r#"{{"openapi":"3.0.0","info":{info},"paths":{paths},"components":{{"schemas":{schemas}{security}}}}}"#
    )
}

/// Converts a v3 document to gnostic's protobuf message; `None` if it is not JSON.
pub(crate) fn v3_protobuf(document: &[u8]) -> Option<Vec<u8>> {
    let document = serde_json::from_slice(document).ok()?;
    Some(gnostic::v3::document(&document))
}

fn rows(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows().iter().map(AsRef::as_ref)
}

/// Returns the groups that have a path of their own: all but core and those with custom resources only.
fn groups(table: &Table) -> Vec<&str> {
    let mut groups: Vec<&str> = Vec::new();
    for row in rows(table).filter(|row| !row.is_defined()) {
        let group = &*row.resource.group;
        if !group.is_empty() && !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// Calls `path` with each path item of the rows, and returns the schemas that the items refer to.
fn walk(
    dialect: Dialect,
    lookup: &dyn Lookup,
    rows: &[&Row],
    mut path: impl FnMut(&str, &Value),
) -> Map<String, Value> {
    let mut schemas = Schemas::new(dialect, lookup);
    let mut versions: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let version = (&*row.resource.group, &*row.resource.version);
        if !row.is_defined() && !versions.contains(&version) {
            versions.push(version);
            let resources = paths::non_resource::resources(dialect, version.0, version.1);
            schemas.reach(&resources.item);
            path(&resources.path, &resources.item);
        }
        let kind = schemas.add_kind(row);
        let mut items = Map::new();
        paths::add(&mut items, dialect, row, &kind);
        for (name, item) in &items {
            schemas.reach(item);
            path(name, item);
        }
    }
    schemas.finish()
}

/// A JSON object that is written entry by entry: as a tree, a whole document would take ten times the memory of its text.
#[derive(Default)]
struct Entries(String);

impl Entries {
    fn push(&mut self, name: &str, value: &Value) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&Value::from(name).to_string());
        self.0.push(':');
        self.0.push_str(&value.to_string());
    }

    fn done(mut self) -> String {
        if self.0.is_empty() {
            self.0.push('{');
        }
        self.0.push('}');
        self.0
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.36.2"})
}

/// Returns the security definitions: how clients authenticate.
fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
    }})
}

/// Returns a reference to a schema by name.
fn reference(dialect: Dialect, name: &str) -> Value {
    let place = match dialect {
        Dialect::V2 => "definitions",
        Dialect::V3 => "components/schemas",
    };
    json!({"$ref": format!("#/{place}/{name}")})
}

#[cfg(test)]
mod tests;
