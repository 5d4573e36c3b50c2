//! OpenAPI documents: one per group and version in version 3, one for everything in version 2.
//!
//! Schemas are written from the same table that decoding walks, with the texts of [`crate::schema::descriptions`]; those of custom
//! resources from their definitions ([`custom`]). Paths hold what clients look for: which kind a path serves and which
//! parameters its verbs take.

mod custom;
mod enums;
mod gnostic;
mod paths;
mod schemas;
mod scheme;
mod values;

use serde_json::{Map, Value, json};

use self::schemas::Schemas;
use crate::{
    admission::Lookup,
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

/// The document of a group and version as JSON; `None` if nothing is served there.
pub(crate) fn v3(table: &Table, lookup: &dyn Lookup, group: &str, version: &str) -> Option<String> {
    let rows: Vec<&Row> = rows(table)
        .filter(|row| row.resource.group == group && row.resource.version == version)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let (mut paths, mut schemas) = (Entries::default(), Entries::default());
    let components = walk(Dialect::V3, lookup, &rows, |path, item| {
        paths.push(path, item);
    });
    for (name, schema) in components {
        schemas.push(&name, &schema);
    }
    let info = match rows.iter().all(|row| row.is_defined()) {
        true => json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}),
        false => info(),
    };
    let (paths, schemas) = (paths.done(), schemas.done());
    Some(format!(
        r#"{{"openapi":"3.0.0","info":{info},"paths":{paths},"components":{{"schemas":{schemas}}}}}"#
    ))
}

/// A document of version 3 as the protobuf message of gnostic; `None` if it is no JSON.
pub(crate) fn v3_protobuf(document: &[u8]) -> Option<Vec<u8>> {
    let document = serde_json::from_slice(document).ok()?;
    Some(gnostic::v3::document(&document))
}

/// The one document of everything, in its two forms.
pub(crate) struct V2 {
    /// JSON.
    pub(crate) json: String,
    /// The protobuf message that kubectl and helm read.
    pub(crate) protobuf: Vec<u8>,
}

/// The one document of everything.
pub(crate) fn v2(table: &Table, lookup: &dyn Lookup) -> V2 {
    let (mut paths, mut definitions) = (Entries::default(), Entries::default());
    let mut message = gnostic::v2::Document::default();
    let rows: Vec<&Row> = rows(table).collect();
    let schemas = walk(Dialect::V2, lookup, &rows, |path, item| {
        paths.push(path, item);
        message.path(path, item);
    });
    for (name, schema) in schemas {
        definitions.push(&name, &schema);
        message.definition(&name, &schema);
    }
    let info = info();
    let protobuf = message.finish(&info);
    let (paths, definitions) = (paths.done(), definitions.done());
    V2 {
        json: format!(
            r#"{{"swagger":"2.0","info":{info},"paths":{paths},"definitions":{definitions}}}"#
        ),
        protobuf,
    }
}

fn rows(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows().iter().map(AsRef::as_ref)
}

/// Shows the path items of all rows one by one, and answers with the schemas they lead to.
fn walk(
    dialect: Dialect,
    lookup: &dyn Lookup,
    rows: &[&Row],
    mut path: impl FnMut(&str, &Value),
) -> Map<String, Value> {
    let mut schemas = Schemas::new(dialect, lookup);
    for row in rows {
        let kind = schemas.add_kind(row);
        let mut items = Map::new();
        paths::add(&mut items, dialect, row, &kind);
        for (name, item) in &items {
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
