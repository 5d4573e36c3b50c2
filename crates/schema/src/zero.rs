//! Zero values as Go writes them: optional ones are dropped, required ones are present, and nil lists are null.
//!
//! Decoding applies this while it reads; [`normalise`] applies it to a tree that is about to be stored. They differ in one point: a
//! required empty list stays empty until it is stored as protobuf, which makes it null ([`Form`]). Custom resources stay as sent, except
//! for their metadata.

use serde_json::{Map, Value};

use super::{Arena, Field, Node, Presence, Scalar, Struct, Type, TypeId};

/// The stage at which an object is processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Just decoded from a body.
    Decoded,
    /// As it comes back from storage.
    Stored,
}

/// Converts a tree that is valid for its type to the form that Go would write. Unknown fields stay.
pub fn normalise(kind: &Type, value: &mut Value) {
    normalise_at(kind.arena(), kind.id(), value);
}

fn normalise_at(arena: &Arena, id: TypeId, value: &mut Value) {
    match (arena.node(id), value) {
        (Node::Struct(fields), Value::Object(map)) if fields.custom => {
            for (key, value) in map {
                if let Some(field) = fields.field(key)
                    && field.presence != Presence::Verbatim
                {
                    normalise_at(arena, field.id, value);
                }
            }
        }
        (Node::Struct(fields), Value::Object(map)) => {
            let visit = |field: &Field, value: &mut Value| normalise_at(arena, field.id, value);
            settle(arena, fields, map, Form::Stored, visit, |_| {});
        }
        (Node::Map { value: item, .. }, Value::Object(map)) => map
            .values_mut()
            .for_each(|value| normalise_at(arena, *item, value)),
        (Node::List(list), Value::Array(items)) => items
            .iter_mut()
            .for_each(|value| normalise_at(arena, list.item, value)),
        _ => {}
    }
}

/// Completes one struct whose fields are in that form already: drops, adds and nulls fields.
pub(super) fn complete(arena: &Arena, fields: &Struct, map: &mut Map<String, Value>, form: Form) {
    settle(arena, fields, map, form, |_, _| {}, |_| {});
}

/// Does the same as [`complete`] after decoding, and calls `tell` for each empty list, map or byte string that is dropped, or that will
/// become null in storage.
pub(super) fn complete_telling(
    arena: &Arena,
    fields: &Struct,
    map: &mut Map<String, Value>,
    mut tell: impl FnMut(&Field),
) {
    let form = Form::Decoded;
    settle(
        arena,
        fields,
        map,
        form,
        |_, _| {},
        |field| {
            let holds = match arena.node(field.id) {
                Node::List(_) | Node::Map { .. } => true,
                Node::Scalar(scalar) => *scalar == Scalar::Bytes,
                Node::Struct(_) => false,
            };
            if holds {
                tell(field);
            }
        },
    );
}

/// Does the same as [`complete`], after `visit` has converted each field. It iterates over the fields that are present, because types
/// have many more fields than objects.
fn settle(
    arena: &Arena,
    fields: &Struct,
    map: &mut Map<String, Value>,
    form: Form,
    visit: impl Fn(&Field, &mut Value),
    mut tell: impl FnMut(&Field),
) {
    let mut dropped: Vec<&Field> = Vec::new();
    for (key, value) in map.iter_mut() {
        let Some(field) = fields.field(key) else {
            continue;
        };
        visit(field, value);
        match field.presence {
            Presence::DropZero if is_empty(arena, field.id, value) => dropped.push(field),
            Presence::Optional if value.is_null() => dropped.push(field),
            Presence::Always if value.is_null() => *value = zero(arena, field.id),
            // Protobuf, the form in which objects are stored, does not tell an empty list from an absent one.
            Presence::Null if form == Form::Stored && is_empty(arena, field.id, value) => {
                *value = Value::Null;
            }
            Presence::Null if !value.is_null() && is_empty(arena, field.id, value) => tell(field),
            _ => {}
        }
    }
    for field in dropped {
        tell(field);
        map.remove(&*field.name);
    }
    for field in &fields.fields {
        if !field.is_always_written() || map.contains_key(&*field.name) {
            continue;
        }
        let value = match field.presence {
            Presence::Always => zero(arena, field.id),
            _ => Value::Null,
        };
        map.insert(field.name.to_string(), value);
    }
}

/// Returns whether Go's `omitempty` drops a value. Must not be called for pointer fields.
fn is_empty(arena: &Arena, id: TypeId, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        // `omitempty` never drops a struct, however empty it is.
        Value::Object(map) => map.is_empty() && matches!(arena.node(id), Node::Map { .. }),
    }
}

/// Returns a type's zero value as Go writes it.
pub(super) fn zero(arena: &Arena, id: TypeId) -> Value {
    match arena.node(id) {
        Node::Struct(fields) => {
            let mut map = Map::new();
            complete(arena, fields, &mut map, Form::Stored);
            Value::Object(map)
        }
        Node::Map { .. } | Node::List(_) => Value::Null,
        Node::Scalar(scalar) => match scalar {
            Scalar::String | Scalar::Bytes => Value::from(""),
            Scalar::Bool => Value::from(false),
            Scalar::Int32 | Scalar::Int64 | Scalar::Double | Scalar::IntOrString => Value::from(0),
            Scalar::Quantity => Value::from("0"),
            Scalar::Time
            | Scalar::MicroTime
            | Scalar::RawExtension
            | Scalar::FieldsV1
            | Scalar::Json => Value::Null,
            Scalar::SchemaOrBool => Value::from(true),
            Scalar::SchemaOrArray | Scalar::SchemaOrStrings => Value::Null,
        },
    }
}
