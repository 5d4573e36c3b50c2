//! OpenAPI documents: one per group and version in version 3, one for everything in version 2.
//!
//! Schemas are written from the same table that decoding walks, with the texts of [`crate::schema::descriptions`]; those of custom
//! resources from their definitions ([`custom`]). Paths say what clients may send and what they get ([`paths`]).

mod custom;
mod enums;
mod everything;
mod gnostic;
mod paths;
mod schemas;
mod scheme;
mod values;
mod wire;

use std::sync::Arc;

use serde_json::{Map, Value, json};

pub(crate) use self::everything::{V2, v2};
use self::schemas::Schemas;
use crate::{
    admission::Lookup,
    kinds::Resource,
    registry::{Row, Table},
};

/// The two versions of the specification that clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Swagger 2.0: `definitions`, parameters with types of their own.
    V2,
    /// OpenAPI 3.0: `components/schemas`.
    V3,
}

/// What a group and version is called in `/openapi/v3`: `api/v1`, `apis/apps/v1`.
pub(crate) fn name(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// The documents of version 3 for the resources that there are, each with the resources it tells of.
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

/// The document of a group and version as JSON; `None` if nothing is served there.
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

/// The documents beside those of groups' versions: what discovery, the version and the keys of tokens are read with. They are always the
/// same.
pub(crate) fn v3_around(table: &Table, lookup: &dyn Lookup) -> Vec<(String, String)> {
    let around = paths::around::all(Dialect::V3, &groups(table));
    let document = |around: paths::around::Around| {
        let mut schemas = Schemas::new(Dialect::V3, lookup);
        schemas.reach(&around.item);
        let mut paths = Entries::default();
        paths.push(&around.path, &around.item);
        (around.name, v3_text(paths, &schemas.finish(), false))
    };
    around.into_iter().map(document).collect()
}

fn v3_text(paths: Entries, components: &Map<String, Value>, is_defined: bool) -> String {
    let (info, security) = match is_defined {
        true => (
            json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}),
            String::new(),
        ),
        false => (info(), format!(r#","securitySchemes":{}"#, security())),
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

/// A document of version 3 as the protobuf message of gnostic; `None` if it is no JSON.
pub(crate) fn v3_protobuf(document: &[u8]) -> Option<Vec<u8>> {
    let document = serde_json::from_slice(document).ok()?;
    Some(gnostic::v3::document(&document))
}

fn rows(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows().iter().map(AsRef::as_ref)
}

/// The groups that have a path of their own: all but core and those of custom resources alone.
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

/// Shows the path items of all rows one by one, and answers with the schemas they lead to.
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
            let resources = paths::around::resources(dialect, version.0, version.1);
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

/// A JSON object written entry by entry: as a tree a whole document takes ten times the room of its text.
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

/// How clients show who they are.
fn security() -> Value {
    json!({"BearerToken": {
        "type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication",
    }})
}

/// A reference to a schema by name.
fn reference(dialect: Dialect, name: &str) -> Value {
    let place = match dialect {
        Dialect::V2 => "definitions",
        Dialect::V3 => "components/schemas",
    };
    json!({"$ref": format!("#/{place}/{name}")})
}

#[cfg(test)]
mod tests;
