//! Values of custom resources as CEL sees them: numbers by their schema, times and bytes as such, properties by their escaped names.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value as Json;

use super::types::escape;
use crate::{
    cel::{Value, call, of_json as plain},
    crd::structural::Schema,
};

/// A value with its schema; at the root of a resource with its type and metadata.
pub(super) fn of_json(schema: &Schema, value: &Json, is_resource: bool) -> Value {
    match value {
        Json::Array(items) => {
            let items = items.iter().map(|item| match schema.items.as_deref() {
                Some(schema) => of_json(schema, item, schema.embedded),
                None => plain(item),
            });
            Value::List(Arc::new(items.collect()))
        }
        Json::Object(map) => {
            let mut fields = HashMap::with_capacity(map.len());
            for (name, value) in map {
                let seen = match (schema.properties.get(name), schema.additional_schema()) {
                    _ if is_resource
                        && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") =>
                    {
                        Some((name.clone(), plain(value)))
                    }
                    (Some(schema), _) => {
                        escape(name).map(|name| (name, of_json(schema, value, schema.embedded)))
                    }
                    (None, Some(schema)) => {
                        Some((name.clone(), of_json(schema, value, schema.embedded)))
                    }
                    (None, None) => None,
                };
                if let Some((name, value)) = seen {
                    fields.insert(Key::String(Arc::new(name)), value);
                }
            }
            Value::Map(Map {
                map: Arc::new(fields),
            })
        }
        Json::Number(number) if schema.kind == "number" && !schema.int_or_string => {
            Value::Float(number.as_f64().unwrap_or(f64::NAN))
        }
        Json::String(text) if schema.kind == "string" => with_format(&schema.format, text),
        other => plain(other),
    }
}

/// A text that stands for something else; as it is when it does not.
fn with_format(format: &str, given: &str) -> Value {
    let text = Value::String(Arc::new(given.to_owned()));
    let read = match format {
        "byte" => {
            return STANDARD
                .decode(given)
                .map_or(text, |b| Value::Bytes(Arc::new(b)));
        }
        "duration" => call("duration", vec![text.clone()]),
        "date-time" => call("timestamp", vec![text.clone()]),
        "date" => call(
            "timestamp",
            vec![Value::String(Arc::new(format!("{given}T00:00:00Z")))],
        ),
        _ => return text,
    };
    read.unwrap_or(text)
}
