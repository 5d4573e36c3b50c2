//! Decodes messages into trees.

use std::cell::Cell;

use base64::{Engine, engine::general_purpose::STANDARD};
use mullion_kube_text::quantity;
use serde_json::{Map, Value};

use super::{
    ProtoError,
    wire::{self, Reader},
};
use crate::{Arena, Field, Node, Scalar, Struct, Type, TypeId, decode::DecodeError, time, zero};

/// The remaining levels of nested messages, and the remaining number of objects.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'a> {
    pub(super) levels: u32,
    pub(super) objects: &'a Cell<usize>,
}

impl Bounds<'_> {
    fn below(self) -> Result<Self, ProtoError> {
        let levels = self.levels.checked_sub(1).ok_or(ProtoError::Nested)?;
        Ok(Bounds { levels, ..self })
    }

    fn count_object(self) -> Result<(), ProtoError> {
        let left = self.objects.get().checked_sub(1);
        self.objects.set(left.ok_or(DecodeError::TooLarge)?);
        Ok(())
    }
}

pub(super) fn message(
    kind: &Type,
    message: &[u8],
    bounds: Bounds<'_>,
) -> Result<Value, ProtoError> {
    value(
        kind.arena(),
        kind.id(),
        "",
        wire::Field::Bytes(message),
        bounds,
    )
}

fn value(
    arena: &Arena,
    id: TypeId,
    name: &str,
    field: wire::Field<'_>,
    bounds: Bounds<'_>,
) -> Result<Value, ProtoError> {
    let bounds = bounds.below()?;
    match arena.node(id) {
        Node::Struct(fields) => {
            bounds.count_object()?;
            let mut map = Map::new();
            let message = field.bytes(name)?;
            struct_fields(arena, fields, &mut Vec::new(), message, &mut map, bounds)?;
            zero::complete(arena, fields, &mut map, zero::Form::Stored);
            Ok(Value::Object(map))
        }
        Node::List(list) => {
            let mut items = Vec::new();
            let mut reader = Reader::new(field.bytes(name)?);
            while let Some((_, item)) = reader.field()? {
                items.push(value(arena, list.item, name, item, bounds)?);
            }
            Ok(Value::Array(items))
        }
        Node::Map { .. } => Err(field.wrong(name)),
        Node::Scalar(kind) => scalar(*kind, name, field, bounds),
    }
}

/// Decodes a message into the fields whose tags start with `prefix`. A field with a longer tag path is inside a struct that Go embeds and
/// JSON inlines.
fn struct_fields(
    arena: &Arena,
    fields: &Struct,
    prefix: &mut Vec<u32>,
    message: &[u8],
    map: &mut Map<String, Value>,
    bounds: Bounds<'_>,
) -> Result<(), ProtoError> {
    let mut reader = Reader::new(message);
    while let Some((tag, wire)) = reader.field()? {
        prefix.push(tag);
        match fields
            .fields
            .iter()
            .find(|field| field.tags.starts_with(prefix))
        {
            Some(field) if field.tags.len() == prefix.len() => {
                set_field(arena, field, wire, map, bounds)?;
            }
            Some(field) => {
                let message = wire.bytes(&field.name)?;
                struct_fields(arena, fields, prefix, message, map, bounds)?;
            }
            // Like Go's generated code, skip fields of a later version.
            None => {}
        }
        prefix.pop();
    }
    Ok(())
}

fn set_field(
    arena: &Arena,
    field: &Field,
    wire: wire::Field<'_>,
    map: &mut Map<String, Value>,
    bounds: Bounds<'_>,
) -> Result<(), ProtoError> {
    match arena.node(field.id) {
        Node::List(list) => {
            let mut items = Vec::new();
            let packed = matches!(
                arena.node(list.item),
                Node::Scalar(Scalar::Int32 | Scalar::Int64 | Scalar::Bool)
            );
            // Encoders may pack repeated numbers into one field.
            if let (true, wire::Field::Bytes(bytes)) = (packed, wire) {
                let mut reader = Reader::new(bytes);
                while !reader.is_empty() {
                    items.push(value(
                        arena,
                        list.item,
                        &field.name,
                        wire::Field::Varint(reader.varint()?),
                        bounds,
                    )?);
                }
            } else {
                items.push(value(arena, list.item, &field.name, wire, bounds)?);
            }
            let present = map
                .entry(field.name.to_string())
                .or_insert_with(|| Value::Array(Vec::new()));
            present
                .as_array_mut()
                .expect("only this function puts the list there")
                .extend(items);
        }
        Node::Map { value: item, .. } => {
            let mut entry = Reader::new(wire.bytes(&field.name)?);
            let (mut key, mut read) = (String::new(), None);
            while let Some((tag, part)) = entry.field()? {
                match tag {
                    1 => key = part.text(&field.name)?,
                    2 => read = Some(value(arena, *item, &field.name, part, bounds)?),
                    _ => {}
                }
            }
            let present = map
                .entry(field.name.to_string())
                .or_insert_with(|| Value::Object(Map::new()));
            let entries = present
                .as_object_mut()
                .expect("only this function puts the map there");
            entries.insert(key, read.unwrap_or_else(|| zero::zero(arena, *item)));
        }
        _ => {
            let read = value(arena, field.id, &field.name, wire, bounds)?;
            map.insert(field.name.to_string(), read);
        }
    }
    Ok(())
}

fn scalar(
    kind: Scalar,
    name: &str,
    field: wire::Field<'_>,
    bounds: Bounds<'_>,
) -> Result<Value, ProtoError> {
    Ok(match kind {
        Scalar::String => field.text(name)?.into(),
        Scalar::Bool => (field.number(name)? != 0).into(),
        Scalar::Int32 => (field.number(name)? as i32).into(),
        Scalar::Int64 => (field.number(name)? as i64).into(),
        Scalar::Double => match field {
            wire::Field::Fixed64(bits) => f64::from_bits(bits).into(),
            other => return Err(other.wrong(name)),
        },
        Scalar::Bytes => STANDARD.encode(field.bytes(name)?).into(),
        Scalar::Quantity => {
            let text = inner(field.bytes(name)?, 1)?
                .map(|field| field.text(name))
                .transpose()?
                .unwrap_or_default();
            quantity::canonical(&text).unwrap_or(text).into()
        }
        Scalar::IntOrString => {
            let message = field.bytes(name)?;
            if number(message, 1, name)? == 1 {
                inner(message, 3)?
                    .map(|field| field.text(name))
                    .transpose()?
                    .unwrap_or_default()
                    .into()
            } else {
                (number(message, 2, name)? as i32).into()
            }
        }
        Scalar::Time | Scalar::MicroTime => {
            let message = field.bytes(name)?;
            // Go's zero time is an empty message, and null in JSON.
            if message.is_empty() {
                return Ok(Value::Null);
            }
            let (seconds, nanos) = (
                number(message, 1, name)? as i64,
                number(message, 2, name)? as i32,
            );
            let Ok(read) = jiff::Timestamp::new(seconds, nanos) else {
                return Ok(Value::Null);
            };
            if kind == Scalar::Time {
                time::format_seconds(&read).into()
            } else {
                time::format_micros(&read).into()
            }
        }
        Scalar::RawExtension | Scalar::FieldsV1 | Scalar::Json => {
            match inner(field.bytes(name)?, 1)? {
                None => Value::Null,
                Some(raw) => serde_json::from_slice(raw.bytes(name)?)
                    .map_err(|error| ProtoError::Json(error.to_string()))?,
            }
        }
        Scalar::SchemaOrBool => match inner(field.bytes(name)?, 2)? {
            Some(schema) => json_schema(schema.bytes(name)?, bounds)?,
            None => (number(field.bytes(name)?, 1, name)? != 0).into(),
        },
        Scalar::SchemaOrArray | Scalar::SchemaOrStrings => {
            let message = field.bytes(name)?;
            if let Some(schema) = inner(message, 1)? {
                return json_schema(schema.bytes(name)?, bounds);
            }
            let mut items = Vec::new();
            let mut reader = Reader::new(message);
            while let Some((tag, item)) = reader.field()? {
                match (tag, kind) {
                    (2, Scalar::SchemaOrArray) => {
                        items.push(json_schema(item.bytes(name)?, bounds)?)
                    }
                    (2, _) => items.push(item.text(name)?.into()),
                    _ => {}
                }
            }
            Value::Array(items)
        }
    })
}

fn json_schema(bytes: &[u8], bounds: Bounds<'_>) -> Result<Value, ProtoError> {
    let kind = Type::builtin(super::write::JSON_SCHEMA).expect("the table has JSONSchemaProps");
    message(&kind, bytes, bounds)
}

/// Returns the last field with that tag in a small message.
fn inner(message: &[u8], wanted: u32) -> Result<Option<wire::Field<'_>>, ProtoError> {
    let mut reader = Reader::new(message);
    let mut found = None;
    while let Some((tag, field)) = reader.field()? {
        if tag == wanted {
            found = Some(field);
        }
    }
    Ok(found)
}

fn number(message: &[u8], wanted: u32, name: &str) -> Result<u64, ProtoError> {
    inner(message, wanted)?.map_or(Ok(0), |field| field.number(name))
}
