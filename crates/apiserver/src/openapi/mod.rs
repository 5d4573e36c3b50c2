//! OpenAPI documents: one per group and version in version 3, one for everything in version 2.
//!
//! Schemas are written from the same table that decoding walks, those of custom resources from their definitions as they were sent,
//! descriptions included. Paths hold what clients look for: which kind a path serves and which parameters its verbs take.

mod gnostic;
mod paths;
mod schemas;

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

/// The document of a group and version; `None` if nothing is served there.
pub(crate) fn v3(table: &Table, lookup: &dyn Lookup, group: &str, version: &str) -> Option<Value> {
    let rows: Vec<&Row> = table
        .rows()
        .iter()
        .map(AsRef::as_ref)
        .filter(|row| row.resource.group == group && row.resource.version == version)
        .collect();
    if rows.is_empty() {
        return None;
    }
    let (paths, schemas) = parts(Dialect::V3, lookup, &rows);
    Some(
        json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {"schemas": schemas}}),
    )
}

/// The one document of everything.
pub(crate) fn v2(table: &Table, lookup: &dyn Lookup) -> Value {
    let rows: Vec<&Row> = table.rows().iter().map(AsRef::as_ref).collect();
    let (paths, definitions) = parts(Dialect::V2, lookup, &rows);
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions})
}

/// The version 2 document as the protobuf message that kubectl and helm read.
pub(crate) fn v2_protobuf(document: &Value) -> Vec<u8> {
    gnostic::document(document)
}

fn parts(
    dialect: Dialect,
    lookup: &dyn Lookup,
    rows: &[&Row],
) -> (Map<String, Value>, Map<String, Value>) {
    let mut schemas = Schemas::new(dialect, lookup);
    let mut all = Map::new();
    for row in rows {
        let kind = schemas.add_kind(row);
        paths::add(&mut all, dialect, row, &kind);
    }
    (all, schemas.finish())
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
