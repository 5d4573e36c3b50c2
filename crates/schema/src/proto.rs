//! Kubernetes' protobuf encoding, driven by the schema table.
//!
//! A body is the four bytes `k8s\0` followed by a `runtime.Unknown` with apiVersion, kind and the object's own message ([`Envelope`]).
//! Messages are decoded into the same trees as JSON, so the rest of the server does not depend on the encoding. Fields without a protobuf
//! tag are not encoded.

use std::cell::Cell;

use serde_json::Value;

use super::{Type, decode::MAX_OBJECTS};

pub mod provided;
mod read;
mod wire;
mod write;

use wire::Reader;
pub use wire::Writer;

const MAGIC: &[u8] = b"k8s\0";

/// The reason why a protobuf body cannot be decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProtoError {
    /// The body does not start with the prefix of Kubernetes' protobuf bodies.
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Prefix,
    /// A message ends in the middle of a field.
    #[error("unexpected EOF")]
    Truncated,
    /// A field has a wire type that its schema type does not allow.
    #[error("proto: wrong wireType = {wire} for field {field}")]
    WireType {
        /// The wire type found.
        wire: u8,
        /// The field's name.
        field: String,
    },
    /// A string is not UTF-8.
    #[error("proto: string field contains invalid UTF-8")]
    Utf8,
    /// Embedded JSON cannot be parsed.
    #[error("proto: embedded JSON: {0}")]
    Json(String),
    /// Messages are nested more deeply than in any object.
    #[error("proto: messages are nested more than {MAX_DEPTH} levels deep")]
    Nested,
    /// The object is nested too deeply to be decoded again once it is stored, or is too large.
    #[error("proto: {0}")]
    Unreadable(#[from] super::decode::DecodeError),
}

/// The most levels of nested messages.
const MAX_DEPTH: u32 = 100;

/// The `runtime.Unknown` around an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<'a> {
    /// The object's apiVersion; may be empty.
    pub api_version: String,
    /// The object's kind; may be empty.
    pub kind: String,
    /// The object's message.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Parses the envelope of a body.
    ///
    /// # Errors
    /// The body is not Kubernetes protobuf.
    pub fn open(body: &'a [u8]) -> Result<Self, ProtoError> {
        let mut envelope = Envelope {
            api_version: String::new(),
            kind: String::new(),
            raw: &[],
        };
        let mut reader = Reader::new(body.strip_prefix(MAGIC).ok_or(ProtoError::Prefix)?);
        while let Some((tag, field)) = reader.field()? {
            match tag {
                1 => {
                    let mut type_meta = Reader::new(field.bytes("typeMeta")?);
                    while let Some((tag, field)) = type_meta.field()? {
                        match tag {
                            1 => envelope.api_version = field.text("apiVersion")?,
                            2 => envelope.kind = field.text("kind")?,
                            _ => {}
                        }
                    }
                }
                2 => envelope.raw = field.bytes("raw")?,
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// Returns the body with this envelope.
    pub fn seal(&self) -> Vec<u8> {
        let mut type_meta = Writer::default();
        type_meta.bytes(1, self.api_version.as_bytes());
        type_meta.bytes(2, self.kind.as_bytes());
        let mut unknown = Writer::starting_with(MAGIC, self.raw.len() + 64);
        unknown.bytes(1, &type_meta.finish());
        unknown.bytes(2, self.raw);
        // Go writes contentEncoding and contentType even if they are empty.
        unknown.bytes(3, b"");
        unknown.bytes(4, b"");
        unknown.finish()
    }
}

/// Decodes the message of an object of this type, without apiVersion and kind, which the [`Envelope`] holds.
///
/// # Errors
/// The bytes are not a message of this type.
pub fn decode_message(kind: &Type, message: &[u8]) -> Result<Value, ProtoError> {
    let objects = Cell::new(MAX_OBJECTS);
    let bounds = read::Bounds {
        levels: MAX_DEPTH,
        objects: &objects,
    };
    let value = read::message(kind, message, bounds)?;
    // Messages and JSON are nested differently, so the tree is checked as well.
    super::decode::check_depth(&value)?;
    Ok(value)
}

/// Decodes a whole body: envelope, message, apiVersion and kind.
///
/// # Errors
/// The body is not Kubernetes protobuf of this type.
pub fn decode(kind: &Type, body: &[u8]) -> Result<Value, ProtoError> {
    let envelope = Envelope::open(body)?;
    let mut value = decode_message(kind, envelope.raw)?;
    if let Value::Object(map) = &mut value {
        for (name, text) in [
            ("apiVersion", envelope.api_version),
            ("kind", envelope.kind),
        ] {
            if !text.is_empty() {
                map.insert(name.to_owned(), text.into());
            }
        }
    }
    Ok(value)
}

/// Encodes the message of an object of this type, without an envelope.
pub fn encode_message(kind: &Type, value: &Value) -> Vec<u8> {
    write::message(kind, value)
}

/// Encodes the whole body of an object of this type, with the object's apiVersion and kind.
pub fn encode(kind: &Type, value: &Value) -> Vec<u8> {
    let text = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let raw = encode_message(kind, value);
    Envelope {
        api_version: text("apiVersion"),
        kind: text("kind"),
        raw: &raw,
    }
    .seal()
}

/// Encodes the whole body of a response that is not an object of its kind: a Status, a Scale, PartialObjectMetadata or a list of that.
/// Returns `None` for anything else; a Table has no protobuf form.
pub fn encode_answer(value: &Value) -> Option<Vec<u8>> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let meta = |name: &str| Type::builtin(&format!("apimachinery.pkg.apis.meta.v1.{name}"));
    // Starts a message whose first field is the metadata.
    let begun = |value: &Value, metadata: &Type| {
        let mut message = Writer::default();
        let inner = encode_message(metadata, value.get("metadata").unwrap_or(&Value::Null));
        message.bytes(1, &inner);
        message
    };
    let raw = match text("kind") {
        "Status" => return Some(encode(&meta("Status")?, value)),
        "Scale" => return Some(encode(&Type::builtin("api.autoscaling.v1.Scale")?, value)),
        "PartialObjectMetadata" => begun(value, &meta("ObjectMeta")?).finish(),
        "PartialObjectMetadataList" => {
            let mut list = begun(value, &meta("ListMeta")?);
            let object = meta("ObjectMeta")?;
            let items = value.get("items").and_then(Value::as_array);
            for item in items.into_iter().flatten() {
                list.bytes(2, &begun(item, &object).finish());
            }
            list.finish()
        }
        _ => return None,
    };
    let envelope = Envelope {
        api_version: text("apiVersion").to_owned(),
        kind: text("kind").to_owned(),
        raw: &raw,
    };
    Some(envelope.seal())
}

/// Returns one frame of a protobuf watch: the length as four bytes, then a `metav1.WatchEvent` with the object's whole body.
pub fn watch_frame(event_type: &str, object_body: &[u8]) -> Vec<u8> {
    let mut raw = Writer::default();
    raw.bytes(1, object_body);
    let mut event = Writer::default();
    event.bytes(1, event_type.as_bytes());
    event.bytes(2, &raw.finish());
    let event = event.finish();
    let length = u32::try_from(event.len()).expect("an event is smaller than 4 GiB");
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend(event);
    frame
}

#[cfg(test)]
mod tests;
