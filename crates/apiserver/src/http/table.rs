//! Tables and PartialObjectMetadata: the representations of objects for `kubectl get` and for clients that read only metadata.

use jiff::Timestamp;
use mullion_kinds::Column;
use mullion_kube_text::status::Status;
use serde_json::{Map, Value, json};

use super::call::Call;
use crate::{registry::Row, request::query::Query};

/// The `includeObject` option: what a row carries of its object besides the cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    pub(crate) fn parse(query: &Query) -> Result<Self, Status> {
        match query.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Include::Metadata),
            "Object" => Ok(Include::Object),
            "None" => Ok(Include::Nothing),
            other => Err(Status::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
            ))),
        }
    }
}

const DEFAULT_COLUMNS: &[Column] = &[
    Column {
        name: "Name",
        cell_type: "string",
        format: "name",
        priority: 0,
    },
    Column {
        name: "Created At",
        cell_type: "date",
        format: "",
        priority: 0,
    },
];

/// Returns the column definitions of a kind.
pub(crate) fn definitions(row: &Row) -> Value {
    columns(row.resource.columns().unwrap_or(DEFAULT_COLUMNS))
}

/// Returns column definitions as JSON.
pub(crate) fn columns(columns: &[Column]) -> Value {
    let definition = |column: &Column| {
        json!({
            "name": column.name, "type": column.cell_type, "format": column.format,
            "description": "", "priority": column.priority,
        })
    };
    columns.iter().map(definition).collect()
}

/// Returns the row of an object in its kind's table.
pub(crate) fn row(
    row: &Row,
    version: &str,
    object: &Value,
    now: Timestamp,
    include: Include,
) -> Value {
    let (cells, conditions) = match row.resource.behaviour.printing() {
        Some(printing) => (printing.cells(object, now), printing.row_conditions(object)),
        None => {
            let metadata = &object["metadata"];
            let cells = ["name", "creationTimestamp"].map(|field| metadata[field].clone());
            (cells.to_vec(), Vec::new())
        }
    };
    let mut out = match include {
        Include::Metadata => {
            let shown = metadata_of(row, object, version);
            json!({"cells": cells, "object": shown})
        }
        _ => row_of(cells, object, version, include),
    };
    if !conditions.is_empty() {
        out["conditions"] = conditions.into();
    }
    out
}

/// Returns a row with the given cells.
pub(crate) fn row_of(cells: Vec<Value>, object: &Value, version: &str, include: Include) -> Value {
    let shown = match include {
        Include::Nothing => Value::Null,
        Include::Metadata => all_metadata_of(object, version),
        Include::Object => object.clone(),
    };
    json!({"cells": cells, "object": shown})
}

/// Returns a table with the given rows.
pub(crate) fn table(version: &str, metadata: Value, columns: Value, rows: Vec<Value>) -> Value {
    json!({"kind": "Table", "apiVersion": version, "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

/// Returns the table of one object.
pub(crate) fn of_object(call: &Call, version: &str, object: &Value, include: Include) -> Value {
    let mut metadata = Map::new();
    if let Some(revision) = object["metadata"].get("resourceVersion") {
        metadata.insert("resourceVersion".into(), revision.clone());
    }
    let rows = vec![row(&call.row, version, object, call.now, include)];
    table(version, metadata.into(), definitions(&call.row), rows)
}

/// Returns the PartialObjectMetadata of an object of a row, without annotations that are fields in kube-apiserver.
pub(crate) fn metadata_of(row: &Row, object: &Value, version: &str) -> Value {
    let mut shown = all_metadata_of(object, version);
    let fields = row.resource.behaviour.annotations_of_fields();
    let metadata = &mut shown["metadata"];
    if let Some(annotations) = metadata
        .get_mut("annotations")
        .filter(|_| !fields.is_empty())
        && let Some(annotations) = annotations.as_object_mut()
    {
        annotations.retain(|name, _| !fields.contains(&name.as_str()));
        if annotations.is_empty()
            && let Some(metadata) = metadata.as_object_mut()
        {
            metadata.remove("annotations");
        }
    }
    shown
}

/// Returns the PartialObjectMetadata of an object with all of its metadata.
pub(crate) fn all_metadata_of(object: &Value, version: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": object["metadata"]})
}
