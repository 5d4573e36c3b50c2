//! Decodes an object as an API server does and finds every value that is of another type than its field, where a server names the first one
//! alone.
//!
//! Invariant: each misfit of a built-in kind is refused by the decoder itself, which is asked about the object with this one misfit.

use mullion_kinds::schema::{
    Node, Presence, Scalar, Type,
    decode::{self, Problem},
};
use mullion_kube_text::golang::number::is_json_integer;
use serde_json::Value;

use super::{Misfit, Refusal};
use crate::check::path::{Path, Step};

/// The most misfits of an object that are found.
const MOST: usize = 50;

/// What decoding finds in an object.
pub(super) struct Decoding {
    /// The problems that strict decoding reports, such as unknown fields.
    pub(super) problems: Vec<Problem>,
    /// The values that the decoder refuses.
    pub(super) misfits: Vec<Misfit>,
    /// The values of a custom resource that its validation refuses, with what their fields take.
    pub(super) in_custom: Vec<(Path, &'static str)>,
    /// The object without the values that the decoder refuses.
    pub(super) rest: Value,
}

/// Decodes an object. Values of other types are left out where they would hide other problems.
pub(super) fn decode(schema: &Type, object: &Value) -> Decoding {
    let decoded = decode::value(schema, object.clone());
    let mut walk = Walk::default();
    // The decoder takes custom resources as they are, and a server validates them later.
    if decoded.is_err() || schema.is_custom() {
        walk.value(schema, object);
    }
    let (in_custom, others): (Vec<_>, Vec<_>) =
        walk.found.into_iter().partition(|own| own.is_in_custom);
    let in_custom = in_custom.into_iter().map(|own| (own.path, own.expected));
    let mut decoding = Decoding {
        problems: Vec::new(),
        misfits: Vec::new(),
        in_custom: in_custom.collect(),
        rest: object.clone(),
    };
    let error = match decoded {
        Ok(decoded) => {
            decoding.problems = decoded.problems;
            return decoding;
        }
        Err(error) => error,
    };
    for own in &others {
        put(&mut decoding.rest, &own.path, Value::Null);
    }
    for own in others {
        let mut alone = decoding.rest.clone();
        let value = own.path.get(object).cloned().unwrap_or_default();
        put(&mut alone, &own.path, value);
        if let Err(error) = decode::value(schema, alone) {
            decoding.misfits.push(Misfit {
                path: own.path,
                expected: Some(own.expected),
                refusal: Refusal::Decoding(error.to_string()),
            });
        }
    }
    let rest = decode::value(schema, decoding.rest.clone());
    if decoding.misfits.is_empty() || rest.is_err() {
        let error = rest.as_ref().err().unwrap_or(&error);
        decoding.misfits.push(Misfit {
            path: Path::default(),
            expected: None,
            refusal: Refusal::Decoding(error.to_string()),
        });
    }
    decoding.problems = rest.map(|rest| rest.problems).unwrap_or_default();
    decoding
}

/// Replaces the value at a path, which is there.
fn put(object: &mut Value, path: &Path, value: Value) {
    let at = path.0.iter().try_fold(object, |at, step| match step {
        Step::Key(key) => at.get_mut(key),
        Step::Index(index) => at.get_mut(*index),
    });
    if let Some(at) = at {
        *at = value;
    }
}

/// A value that may be of another type than its field.
struct Candidate {
    path: Path,
    expected: &'static str,
    /// Whether the type is one of a custom resource's schema.
    is_in_custom: bool,
}

/// A walk over an object beside its type.
#[derive(Default)]
struct Walk {
    path: Path,
    is_in_custom: bool,
    found: Vec<Candidate>,
}

impl Walk {
    fn value(&mut self, kind: &Type, value: &Value) {
        // Null is an absent field.
        if value.is_null() || self.found.len() >= MOST {
            return;
        }
        match (kind.node(), value) {
            (Node::Struct(fields), Value::Object(map)) => {
                for (name, value) in map {
                    let Some(field) = fields.field(name) else {
                        if let Some(rest) = fields.rest {
                            self.below(Step::Key(name.clone()), &kind.sibling(rest), value);
                        }
                        continue;
                    };
                    let outer = self.is_in_custom;
                    self.is_in_custom = fields.custom && field.presence == Presence::Verbatim;
                    self.below(Step::Key(name.clone()), &kind.sibling(field.id), value);
                    self.is_in_custom = outer;
                }
            }
            (Node::Map { value: item, .. }, Value::Object(map)) => {
                for (name, value) in map {
                    self.below(Step::Key(name.clone()), &kind.sibling(*item), value);
                }
            }
            (Node::List(list), Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    self.below(Step::Index(index), &kind.sibling(list.item), value);
                }
            }
            (Node::Struct(fields), _) if fields.any => {}
            (Node::Struct(_), _) => self.found("a map of fields"),
            (Node::Map { .. }, _) => self.found("a map"),
            (Node::List(_), _) => self.found("a list"),
            (Node::Scalar(scalar), value) => self.scalar(*scalar, kind, value),
        }
    }

    fn scalar(&mut self, scalar: Scalar, kind: &Type, value: &Value) {
        // A custom resource may have 3.0 where its schema says integer.
        let is_integer = value.is_i64() || value.is_u64();
        let is_whole = is_integer || value.as_f64().is_some_and(is_json_integer);
        let (is_fit, expected) = match scalar {
            Scalar::String => (value.is_string(), "a text"),
            Scalar::Bool => (value.is_boolean(), "true or false"),
            Scalar::Double => (value.is_number(), "a number"),
            Scalar::Int64 if self.is_in_custom => (is_whole, "a whole number"),
            Scalar::IntOrString if self.is_in_custom => {
                (is_whole || value.is_string(), "a whole number or a text")
            }
            _ => {
                // The types that only built-in kinds have are left to the decoder.
                let expected = match scalar {
                    Scalar::Int32 | Scalar::Int64 => "a whole number",
                    Scalar::IntOrString => "a whole number or a text",
                    Scalar::Bytes => "a text in base64",
                    Scalar::Quantity => "a quantity, such as 500m or 1Gi",
                    Scalar::Time | Scalar::MicroTime => "a time, such as 2026-01-31T12:00:00Z",
                    _ => "a value of its type",
                };
                let is_fit = decode::value(kind, value.clone()).is_ok();
                (is_fit, expected)
            }
        };
        if !is_fit {
            self.found(expected);
        }
    }

    fn below(&mut self, step: Step, kind: &Type, value: &Value) {
        self.path.0.push(step);
        self.value(kind, value);
        self.path.0.pop();
    }

    fn found(&mut self, expected: &'static str) {
        self.found.push(Candidate {
            path: self.path.clone(),
            expected,
            is_in_custom: self.is_in_custom,
        });
    }
}
