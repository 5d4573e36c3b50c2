//! Encodes trees as messages.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::wire::Writer;
use crate::{Arena, Field, Node, Scalar, Type, TypeId};

pub(super) const JSON_SCHEMA: &str =
    "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

pub(super) fn message(kind: &Type, value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    body(&mut out, kind.arena(), kind.id(), value);
    out.finish()
}

/// Writes the content of a struct's or list's message.
fn body(out: &mut Writer, arena: &Arena, id: TypeId, value: &Value) {
    match (arena.node(id), value) {
        (Node::Struct(fields), Value::Object(map)) => {
            let present: Vec<&Field> = fields
                .fields
                .iter()
                .filter(|field| !field.tags.is_empty())
                .collect();
            struct_fields(out, arena, &present, 0, map);
        }
        (Node::List(list), Value::Array(items)) => items
            .iter()
            .for_each(|item| one(out, arena, list.item, 1, item)),
        _ => {}
    }
}

/// Writes fields in the order of their tags at this depth. Fields with longer tag paths share the message of a struct that Go embeds.
fn struct_fields(
    out: &mut Writer,
    arena: &Arena,
    fields: &[&Field],
    depth: usize,
    map: &Map<String, Value>,
) {
    let mut sorted: Vec<&Field> = fields.to_vec();
    sorted.sort_by_key(|field| field.tags[depth]);
    for group in sorted.chunk_by(|a, b| a.tags[depth] == b.tags[depth]) {
        let tag = group[0].tags[depth];
        if group[0].tags.len() > depth + 1 {
            let mut embedded = Writer::default();
            struct_fields(&mut embedded, arena, group, depth + 1, map);
            out.bytes(tag, &embedded.finish());
        } else if let Some(value) = map.get(&*group[0].name) {
            field(out, arena, group[0].id, tag, value);
        }
    }
}

fn field(out: &mut Writer, arena: &Arena, id: TypeId, tag: u32, value: &Value) {
    match (arena.node(id), value) {
        (_, Value::Null) => {}
        (Node::List(list), Value::Array(items)) => items
            .iter()
            .for_each(|item| one(out, arena, list.item, tag, item)),
        (Node::Map { value: item, .. }, Value::Object(entries)) => {
            for (key, value) in entries {
                let mut entry = Writer::default();
                entry.bytes(1, key.as_bytes());
                one(&mut entry, arena, *item, 2, value);
                out.bytes(tag, &entry.finish());
            }
        }
        _ => one(out, arena, id, tag, value),
    }
}

/// Writes a single value.
fn one(out: &mut Writer, arena: &Arena, id: TypeId, tag: u32, value: &Value) {
    let Node::Scalar(kind) = arena.node(id) else {
        let mut inner = Writer::default();
        body(&mut inner, arena, id, value);
        out.bytes(tag, &inner.finish());
        return;
    };
    match (kind, value) {
        (Scalar::String, Value::String(text)) => out.bytes(tag, text.as_bytes()),
        (Scalar::Bool, Value::Bool(truth)) => out.varint(tag, u64::from(*truth)),
        (Scalar::Int32 | Scalar::Int64, Value::Number(number)) => {
            out.varint(tag, number.as_i64().unwrap_or_default() as u64)
        }
        (Scalar::Double, Value::Number(number)) => {
            out.fixed64(tag, number.as_f64().unwrap_or_default().to_bits())
        }
        (Scalar::Bytes, Value::String(text)) => {
            out.bytes(tag, &STANDARD.decode(text).unwrap_or_default())
        }
        _ => {
            let mut inner = Writer::default();
            special(&mut inner, *kind, value);
            out.bytes(tag, &inner.finish());
        }
    }
}

/// Writes the content of the message for a type that has a special JSON form.
pub(super) fn special(out: &mut Writer, kind: Scalar, value: &Value) {
    match (kind, value) {
        (Scalar::Quantity, Value::String(text)) => out.bytes(1, text.as_bytes()),
        // Go's generated code writes all three fields, also the one that does not count.
        (Scalar::IntOrString, Value::String(text)) => {
            out.varint(1, 1);
            out.varint(2, 0);
            out.bytes(3, text.as_bytes());
        }
        (Scalar::IntOrString, Value::Number(number)) => {
            out.varint(1, 0);
            out.varint(2, number.as_i64().unwrap_or_default() as u64);
            out.bytes(3, b"");
        }
        (Scalar::Time | Scalar::MicroTime, Value::String(text)) => {
            if let Ok(time) = text.parse::<jiff::Timestamp>() {
                let (mut seconds, mut nanos) = (time.as_second(), time.subsec_nanosecond());
                // Protobuf counts the nanoseconds forward from the second, jiff towards zero.
                if nanos < 0 {
                    (seconds, nanos) = (seconds - 1, nanos + 1_000_000_000);
                }
                out.varint(1, seconds as u64);
                out.varint(2, nanos as u64);
            }
        }
        (Scalar::RawExtension | Scalar::FieldsV1 | Scalar::Json, value) if !value.is_null() => {
            out.bytes(1, value.to_string().as_bytes())
        }
        (Scalar::SchemaOrBool, Value::Bool(allows)) => out.varint(1, u64::from(*allows)),
        (Scalar::SchemaOrBool, schema @ Value::Object(_)) => {
            out.varint(1, 1);
            out.bytes(2, &json_schema(schema));
        }
        (Scalar::SchemaOrArray | Scalar::SchemaOrStrings, schema @ Value::Object(_)) => {
            out.bytes(1, &json_schema(schema))
        }
        (Scalar::SchemaOrArray, Value::Array(schemas)) => schemas
            .iter()
            .for_each(|schema| out.bytes(2, &json_schema(schema))),
        (Scalar::SchemaOrStrings, Value::Array(names)) => {
            names
                .iter()
                .filter_map(Value::as_str)
                .for_each(|name| out.bytes(2, name.as_bytes()));
        }
        _ => {}
    }
}

fn json_schema(schema: &Value) -> Vec<u8> {
    let kind = Type::builtin(JSON_SCHEMA).expect("the table has JSONSchemaProps");
    message(&kind, schema)
}
