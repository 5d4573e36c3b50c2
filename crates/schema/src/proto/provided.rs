//! Protobuf messages of provided resources, which are not in the schema table: the embedding program declares the tag of each field.

use serde_json::Value;

use super::{Envelope, Writer, encode_message, write};
use crate::{Scalar, Type};

/// A field of a message: its JSON name, its tag, and its type.
pub type Tagged = (&'static str, u32, Wire);

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// A string.
    Text,
    /// A `resource.Quantity`.
    Quantity,
    /// A `metav1.Time`.
    Time,
    /// A `metav1.Duration`, which JSON writes as `1m30s`.
    Duration,
    /// A message.
    Fields(&'static [Tagged]),
    /// A repeated value.
    List(&'static Wire),
    /// A map from string keys.
    Map(&'static Wire),
}

/// Encodes the whole body of an object; its metadata has tag 1.
pub fn encode_object(fields: &[Tagged], object: &Value) -> Vec<u8> {
    sealed(object, &message(fields, object))
}

/// Encodes the whole body of a list of such objects.
pub fn encode_list(fields: &[Tagged], list: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(1, &metadata("ListMeta", list));
    for item in list["items"].as_array().into_iter().flatten() {
        out.bytes(2, &message(fields, item));
    }
    sealed(list, &out.finish())
}

fn sealed(value: &Value, raw: &[u8]) -> Vec<u8> {
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let envelope = Envelope {
        api_version,
        kind,
        raw,
    };
    envelope.seal()
}

fn message(fields: &[Tagged], object: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(1, &metadata("ObjectMeta", object));
    write_fields(&mut out, fields, object);
    out.finish()
}

fn metadata(kind: &str, object: &Value) -> Vec<u8> {
    let kind = Type::builtin(&format!("apimachinery.pkg.apis.meta.v1.{kind}"));
    kind.map_or_else(Vec::new, |kind| encode_message(&kind, &object["metadata"]))
}

fn write_fields(out: &mut Writer, fields: &[Tagged], object: &Value) {
    for (name, tag, wire) in fields {
        write_field(out, *tag, wire, &object[*name]);
    }
}

fn write_field(out: &mut Writer, tag: u32, wire: &Wire, value: &Value) {
    let scalar = |kind| {
        let mut inner = Writer::default();
        write::special(&mut inner, kind, value);
        inner.finish()
    };
    match (wire, value) {
        (_, Value::Null) => {}
        (Wire::List(item), Value::Array(items)) => {
            for value in items {
                write_field(out, tag, item, value);
            }
        }
        (Wire::Map(item), Value::Object(entries)) => {
            for (key, value) in entries {
                let mut entry = Writer::default();
                entry.bytes(1, key.as_bytes());
                write_field(&mut entry, 2, item, value);
                out.bytes(tag, &entry.finish());
            }
        }
        (Wire::Text, Value::String(text)) => out.bytes(tag, text.as_bytes()),
        (Wire::Quantity, _) => out.bytes(tag, &scalar(Scalar::Quantity)),
        (Wire::Time, _) => out.bytes(tag, &scalar(Scalar::Time)),
        (Wire::Duration, Value::String(text)) => {
            let length: jiff::SignedDuration = text.parse().unwrap_or_default();
            let mut inner = Writer::default();
            let nanos = i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
            inner.varint(1, nanos as u64);
            out.bytes(tag, &inner.finish());
        }
        (Wire::Fields(fields), Value::Object(_)) => {
            let mut inner = Writer::default();
            write_fields(&mut inner, fields, value);
            out.bytes(tag, &inner.finish());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_what_go_writes() {
        const USAGE: Wire = Wire::Map(&Wire::Quantity);
        const FIELDS: &[Tagged] = &[
            ("timestamp", 2, Wire::Time),
            ("window", 3, Wire::Duration),
            ("usage", 4, USAGE),
        ];
        let object =
            json!({"timestamp": "1970-01-01T00:00:05Z", "window": "1m30s", "usage": {"cpu": "5m"}});
        let mut out = Writer::default();
        write_fields(&mut out, FIELDS, &object);
        let nanos = 90_000_000_000_u64;
        let mut window = Writer::default();
        window.varint(1, nanos);
        let window = window.finish();
        let mut wanted = vec![0x12, 4, 0x08, 5, 0x10, 0];
        wanted.extend([0x1a, u8::try_from(window.len()).unwrap()]);
        wanted.extend(window);
        wanted.extend([
            0x22, 11, 0x0a, 3, b'c', b'p', b'u', 0x12, 4, 0x0a, 2, b'5', b'm',
        ]);
        assert_eq!(out.finish(), wanted);
    }
}
