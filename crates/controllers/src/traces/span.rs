//! Spans as values, with ids that depend on nothing but the UID of an object, the span's name and its start.

use std::fmt;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// The id of a trace: 16 bytes, which are those of a UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

impl TraceId {
    /// Returns the id of the trace of the object with this UID: the UID itself, or a hash of it if it is no UUID.
    pub fn of(uid: &str) -> Self {
        match uuid::Uuid::parse_str(uid) {
            Ok(uuid) if !uuid.is_nil() => Self(uuid.into_bytes()),
            _ => Self(first_bytes(Sha256::digest(uid).as_slice())),
        }
    }

    /// Returns the id of the trace's root.
    pub fn root(self) -> SpanId {
        SpanId(first_bytes(Sha256::digest(self.0).as_slice()))
    }

    pub(super) fn span(self, name: &str, start: Timestamp) -> SpanId {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(start.as_nanosecond().to_be_bytes());
        hash.update(name);
        SpanId(first_bytes(hash.finalize().as_slice()))
    }

    /// Returns the last 56 bits, which are random in UUIDs, as a number from 0 to less than 1.
    pub(super) fn fraction(self) -> f64 {
        let last = self.0[9..].iter();
        let bits = last.fold(0u64, |bits, byte| bits << 8 | u64::from(*byte));
        bits as f64 / (1u64 << 56) as f64
    }
}

fn first_bytes<const N: usize>(digest: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| digest[at])
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A list of texts.
    Texts(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<usize> for Value {
    fn from(count: usize) -> Self {
        Value::Whole(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Value::Number(number)
    }
}

impl From<Vec<String>> for Value {
    fn from(texts: Vec<String>) -> Self {
        Value::Texts(texts)
    }
}

/// A reference to a span of another trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The other trace.
    pub trace: TraceId,
    /// The span in it.
    pub span: SpanId,
}

/// A part of a trace that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The trace.
    pub trace: TraceId,
    /// The id in the trace.
    pub id: SpanId,
    /// The span that this one is a part of; `None` for the root.
    pub parent: Option<SpanId>,
    /// What happened.
    pub name: &'static str,
    /// When it began.
    pub start: Timestamp,
    /// When it ended.
    pub end: Timestamp,
    /// What there is to know about it.
    pub attributes: Vec<(&'static str, Value)>,
    /// Spans of other traces that belong to it.
    pub links: Vec<Link>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Span {
    /// Adds an attribute.
    pub(crate) fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.attributes.push((key, value.into()));
        self
    }

    /// Adds an attribute if there is a value.
    pub(crate) fn with_some(self, key: &'static str, value: Option<impl Into<Value>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Makes the span a part of another one.
    pub(crate) fn below(mut self, parent: SpanId) -> Self {
        self.parent = Some(parent);
        self
    }

    /// Adds a link to the trace of the object with this UID.
    pub(crate) fn linked_to(mut self, uid: Option<&str>) -> Self {
        self.links.extend(uid.map(|uid| {
            let trace = TraceId::of(uid);
            Link {
                trace,
                span: trace.root(),
            }
        }));
        self
    }

    /// Marks the span as failed.
    pub(crate) fn failed(mut self, why: impl Into<String>) -> Self {
        self.error = Some(why.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_that_is_no_uuid_has_an_id_too() {
        let ids = ["", "a", "00000000-0000-0000-0000-000000000000"].map(TraceId::of);
        assert!(ids.iter().all(|id| id.0 != [0; 16]));
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
        assert_eq!(TraceId::of("a"), ids[1]);
    }
}
