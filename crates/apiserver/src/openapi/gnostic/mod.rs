//! Converts documents to gnostic's protobuf messages; v2 and v3 have much in common.
//!
//! Values that the messages hold as YAML text are written as JSON, which is valid YAML.

pub(super) mod v2;
pub(super) mod v3;

use mullion_schema::proto::Writer;
use serde_json::Value;

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(out: &mut Writer, tag: u32, value: &Value) {
    if let Some(value) = value.as_str().filter(|value| !value.is_empty()) {
        out.bytes(tag, value.as_bytes());
    }
}

fn texts(out: &mut Writer, tag: u32, values: &Value) {
    items(values).for_each(|value| text(out, tag, value));
}

fn flag(out: &mut Writer, tag: u32, value: &Value) {
    if *value == true {
        out.varint(tag, 1);
    }
}

fn number(out: &mut Writer, tag: u32, value: &Value) {
    if let Some(value) = value.as_f64().filter(|value| *value != 0.0) {
        out.fixed64(tag, value.to_bits());
    }
}

/// Encodes `NamedX`, an entry of a map.
fn named(name: &str, value: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(1, name.as_bytes());
    out.bytes(2, value);
    out.finish()
}

/// Encodes `Any`, a value as YAML text.
fn any(value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(2, value.to_string().as_bytes());
    out.finish()
}

/// Encodes a message with one field, which is another message.
fn wrapped(tag: u32, inner: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(tag, inner);
    out.finish()
}

fn extensions(out: &mut Writer, tag: u32, value: &Value) {
    for (name, value) in entries(value).filter(|(name, _)| name.starts_with("x-")) {
        out.bytes(tag, &named(name, &any(value)));
    }
}
