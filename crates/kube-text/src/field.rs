//! Field paths and validation errors, with the messages of `k8s.io/apimachinery/pkg/util/validation/field`.
//!
//! A [`Path`] is a chain of borrowed segments on the stack. It becomes text only when an error is recorded, so validating a valid object
//! allocates nothing. [`Errors`] become the `causes` and the message of a 422 Status.

mod emptied;

use std::{borrow::Cow, fmt};

use indexmap::IndexSet;
use serde_json::{Map, Value};

pub use emptied::Emptied;

use crate::golang::{number, quote};

/// A path to a field, built on the stack while an object is walked: `spec.containers[0].env[PATH]`.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    segment: Segment<'a>,
}

#[derive(Clone, Copy)]
enum Segment<'a> {
    Root,
    Name(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// The path of the whole object, whose children are the top-level fields.
    pub const ROOT: &'static Path<'static> = &Path {
        parent: None,
        segment: Segment::Root,
    };

    /// Returns the path of a top-level field.
    pub fn new(name: &'a str) -> Self {
        Path {
            parent: None,
            segment: Segment::Name(name),
        }
    }

    fn is_root(&self) -> bool {
        matches!(self.segment, Segment::Root)
    }

    /// Returns the path of a field below this one: `self.name`.
    pub fn child<'b>(&'b self, name: &'b str) -> Path<'b> {
        Path {
            parent: Some(self),
            segment: Segment::Name(name),
        }
    }

    /// Returns the path of a list item: `self[index]`.
    pub fn index(&self, index: usize) -> Path<'_> {
        Path {
            parent: Some(self),
            segment: Segment::Index(index),
        }
    }

    /// Returns the path of a map entry: `self[key]`.
    pub fn key<'b>(&'b self, key: &'b str) -> Path<'b> {
        Path {
            parent: Some(self),
            segment: Segment::Key(key),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match (self.segment, self.parent) {
            (Segment::Root, _) => Ok(()),
            // Go's field package prints an element without a name as a subscript; errors about whole objects have such a path.
            (Segment::Name(""), None) => f.write_str("[]"),
            (Segment::Name(name), None) => f.write_str(name),
            (Segment::Name(name), Some(parent)) if parent.is_root() => f.write_str(name),
            (Segment::Name(name), Some(_)) => write!(f, ".{name}"),
            (Segment::Index(index), _) => write!(f, "[{index}]"),
            (Segment::Key(key), _) => write!(f, "[{key}]"),
        }
    }
}

/// The type of a validation error; decides the cause's `reason` and the beginning of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// A required value is missing.
    Required,
    /// The value is malformed or not allowed in combination with others.
    Invalid,
    /// The value is not in the enumeration.
    NotSupported,
    /// A value that must be unique appears twice.
    Duplicate,
    /// The field may not be set or changed here.
    Forbidden,
    /// A string or document is longer than allowed.
    TooLong,
    /// A list has more items than allowed.
    TooMany,
    /// A reference names nothing that exists.
    NotFound,
    /// The value has another JSON type than the schema says.
    TypeInvalid,
    /// The validation itself failed.
    Internal,
}

/// The offending value as the message prints it.
#[derive(Clone, Debug, PartialEq)]
pub enum BadValue {
    /// Strings are quoted as in Go, other values are printed as JSON.
    Json(Value),
    /// Printed as given: for structs, which kube-apiserver prints with the names and order of Go's internal types (see [`go_struct`]).
    Text(String),
}

/// A validation error of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The type of the error.
    pub error_type: ErrorType,
    /// The field's path as clients see it.
    pub field: String,
    /// The offending value; `None` where kube-apiserver prints none.
    pub bad_value: Option<BadValue>,
    /// The text after the value; may be empty.
    pub detail: String,
}

impl FieldError {
    /// Returns the message without the field, for example `Invalid value: "x": must be ...`.
    pub fn body(&self) -> String {
        let head = match self.error_type {
            ErrorType::Required => "Required value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooMany => "Too many",
            ErrorType::NotFound => "Not found",
            ErrorType::Internal => "Internal error",
        };
        let mut text = head.to_owned();
        if let Some(value) = &self.bad_value {
            text.push_str(": ");
            text.push_str(&value.to_string());
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    /// Returns the approximate length in bytes of the printed error.
    fn bytes(&self) -> usize {
        let value = match &self.bad_value {
            None => 0,
            Some(BadValue::Text(text)) => text.len(),
            Some(BadValue::Json(value)) => bytes_of(value),
        };
        self.field.len() + value + self.detail.len()
    }

    /// Returns the error with `path` put in front: for an object inside a field of another object.
    #[must_use]
    pub fn below(mut self, path: &str) -> Self {
        // An error about the inner object as a whole has no path of its own.
        self.field = match self.field.as_str() {
            "" | "<nil>" => path.to_owned(),
            field => format!("{path}.{field}"),
        };
        self
    }
}

/// The total bytes of paths, values and texts beyond which errors are dropped, because a response repeats them several times.
const MAX_ERROR_BYTES: usize = 16 << 20;

/// The errors of one object in the order in which they were found, the forgiven ones, and the fields that were sent empty.
///
/// Errors that follow after [`MAX_ERROR_BYTES`] are dropped. An error may show a whole list or a path with a long key, so the errors of a
/// body could otherwise be many times longer than the body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Errors(pub Vec<FieldError>, Vec<FieldError>, Emptied, usize);

impl Errors {
    /// Returns an empty list for an object whose `emptied` fields were sent empty.
    pub fn about(emptied: Emptied) -> Self {
        Errors(Vec::new(), Vec::new(), emptied, 0)
    }

    /// Returns whether the list or map at a path was sent empty, so that Go's validation sees it as present.
    pub fn sent_empty(&self, path: &Path<'_>) -> bool {
        self.2.has(path)
    }

    /// Returns whether further errors are dropped ([`MAX_ERROR_BYTES`]), so that a check need not format a long one.
    pub fn is_full(&self) -> bool {
        self.3 > MAX_ERROR_BYTES
    }

    /// Returns whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a list as Go prints it: `[]` if it was sent empty, `null` if it was absent.
    pub fn as_sent(&self, path: &Path<'_>, list: &Value) -> Value {
        match list {
            Value::Null if self.sent_empty(path) => Value::Array(Vec::new()),
            list => list.clone(),
        }
    }

    /// Returns a map as Go prints it: `{}` if it was sent empty, `null` if it was absent.
    pub fn map_as_sent(&self, path: &Path<'_>, map: &Value) -> Value {
        match map {
            Value::Null if self.sent_empty(path) => Value::Object(Map::new()),
            map => map.clone(),
        }
    }

    /// Returns the fields that were sent empty.
    pub fn emptied(&self) -> &Emptied {
        &self.2
    }

    /// Does the same as [`Errors::sent_empty`] for the schema of a CustomResourceDefinition.
    pub fn sent_empty_in_schema(&self, path: &Path<'_>) -> bool {
        self.2.has_in_schema(path)
    }

    /// Records an error that the stored object has already: the write is not refused, but the client is warned.
    pub fn forgive(&mut self, error: FieldError) {
        self.1.push(error);
    }

    /// Returns the warnings for the forgiven errors.
    pub fn forgiven(&self) -> Vec<String> {
        let errors = self.1.iter();
        errors
            .map(|error| format!("{}: {}", error.field, error.body()))
            .collect()
    }

    /// Returns all errors in one line without duplicates, as Go's `Aggregate` prints them.
    pub fn aggregate(&self) -> String {
        let errors = self.0.iter();
        let texts = errors.map(|error| format!("{}: {}", error.field, error.body()));
        let texts: IndexSet<String> = texts.collect();
        let texts: Vec<String> = texts.into_iter().collect();
        match texts.len() {
            1 => texts.concat(),
            _ => format!("[{}]", texts.join(", ")),
        }
    }

    fn push(
        &mut self,
        error_type: ErrorType,
        path: &Path<'_>,
        bad_value: Option<impl Into<Value>>,
        detail: impl Into<String>,
    ) {
        let bad_value = bad_value.map(|value| || BadValue::Json(value.into()));
        self.record(error_type, path, bad_value, detail);
    }

    /// Records an error; the value is formatted only if the error is kept.
    fn record(
        &mut self,
        error_type: ErrorType,
        path: &Path<'_>,
        bad_value: Option<impl FnOnce() -> BadValue>,
        detail: impl Into<String>,
    ) {
        if self.is_full() {
            return;
        }
        let error = FieldError {
            error_type,
            field: path.to_string(),
            bad_value: bad_value.map(|value| value()),
            detail: detail.into(),
        };
        self.3 += error.bytes();
        self.0.push(error);
    }

    /// Records an error whose value is printed as given: a struct of Go's internal types, formatted by [`go_struct`].
    pub fn with_text(
        &mut self,
        error_type: ErrorType,
        path: &Path<'_>,
        text: String,
        detail: impl Into<String>,
    ) {
        self.record(error_type, path, Some(|| BadValue::Text(text)), detail);
    }

    /// Records `field: Required value[: detail]`.
    pub fn required(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(ErrorType::Required, path, None::<Value>, detail);
    }

    /// Records `field: Invalid value: value: detail`.
    pub fn invalid(&mut self, path: &Path<'_>, value: impl Into<Value>, detail: impl Into<String>) {
        self.push(ErrorType::Invalid, path, Some(value), detail);
    }

    /// Records `field: Invalid value: detail`, where kube-apiserver prints no value.
    pub fn invalid_as_a_whole(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(ErrorType::Invalid, path, None::<Value>, detail);
    }

    /// Records `field: Unsupported value: value: supported values: "a", "b"`. The values are printed in the given order, which must be
    /// kube-apiserver's. For a field that has a string type of its own in Go, which is printed as JSON.
    pub fn not_supported(&mut self, path: &Path<'_>, value: impl Into<Value>, supported: &[&str]) {
        let shown = || match value.into() {
            Value::String(text) => BadValue::Text(json_string(&text)),
            other => BadValue::Json(other),
        };
        self.record(
            ErrorType::NotSupported,
            path,
            Some(shown),
            choices(supported),
        );
    }

    /// Records the same for a field that is a plain string in Go, which is printed with its quotes.
    pub fn not_supported_text(
        &mut self,
        path: &Path<'_>,
        value: impl Into<Value>,
        supported: &[&str],
    ) {
        self.push(
            ErrorType::NotSupported,
            path,
            Some(value),
            choices(supported),
        );
    }

    /// Records `field: Duplicate value: value`.
    pub fn duplicate(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(ErrorType::Duplicate, path, Some(value), "");
    }

    /// Records `field: Forbidden: detail`.
    pub fn forbidden(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(ErrorType::Forbidden, path, None::<Value>, detail);
    }

    /// Records `field: Internal error: detail`.
    pub fn internal(&mut self, path: &Path<'_>, detail: impl Into<String>) {
        self.push(ErrorType::Internal, path, None::<Value>, detail);
    }

    /// Records `field: Not found: value`.
    pub fn not_found(&mut self, path: &Path<'_>, value: impl Into<Value>) {
        self.push(ErrorType::NotFound, path, Some(value), "");
    }

    /// Records `field: Not found: value: detail`.
    pub fn not_found_because(
        &mut self,
        path: &Path<'_>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) {
        self.push(ErrorType::NotFound, path, Some(value), detail);
    }

    /// Records `field: Too long: may not be more than N bytes`.
    pub fn too_long(&mut self, path: &Path<'_>, max_bytes: usize) {
        self.push(
            ErrorType::TooLong,
            path,
            None::<Value>,
            match max_bytes {
                1 => "may not be more than 1 byte".to_owned(),
                _ => format!("may not be more than {max_bytes} bytes"),
            },
        );
    }

    /// Records `field: Too many: actual: must have at most max items`.
    pub fn too_many(&mut self, path: &Path<'_>, actual: usize, max: usize) {
        let items = if max == 1 { "item" } else { "items" };
        self.push(
            ErrorType::TooMany,
            path,
            Some(actual),
            format!("must have at most {max} {items}"),
        );
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadValue::Json(Value::String(text)) => f.write_str(&quote(text)),
            // Go prints a bare float with `%v`, and encodes other values as JSON.
            BadValue::Json(Value::Number(number)) if number.is_f64() => {
                f.write_str(&number::text(number.as_f64().unwrap_or_default()))
            }
            BadValue::Json(value) => f.write_str(&escape_html(&number::json_text(value))),
            BadValue::Text(text) => f.write_str(&escape_html(text)),
        }
    }
}

fn choices(supported: &[&str]) -> String {
    if supported.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = supported.iter().map(|s| quote(s)).collect();
    format!("supported values: {}", quoted.join(", "))
}

/// Encodes a text as Go's JSON encoder does, except the characters of HTML.
fn json_string(text: &str) -> String {
    let json = Value::from(text).to_string();
    if json.contains(['\u{2028}', '\u{2029}']) {
        json.replace('\u{2028}', "\\u2028")
            .replace('\u{2029}', "\\u2029")
    } else {
        json
    }
}

/// Escapes the characters of HTML in JSON, as Go's encoder does.
fn escape_html(json: &str) -> Cow<'_, str> {
    if !json.contains(['<', '>', '&']) {
        return json.into();
    }
    let escaped = json.replace('<', "\\u003c").replace('>', "\\u003e");
    escaped.replace('&', "\\u0026").into()
}

/// Returns the approximate length in bytes of the printed value.
pub fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 2 + bytes_of(item)).sum(),
        Value::Object(map) => {
            let entries = map.iter();
            entries
                .map(|(key, value)| 4 + key.len() + bytes_of(value))
                .sum()
        }
        _ => 4,
    }
}

/// Formats a struct as Go marshals it: fields in the order of the type, each under its Go name.
pub fn go_struct(fields: &[(&str, Value)]) -> String {
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{}:{value}", Value::from(*name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

/// Returns the errors that a check records, each as `field: body`.
pub fn causes(check: impl FnOnce(&mut Errors)) -> Vec<String> {
    let mut errors = Errors::default();
    check(&mut errors);
    let text = |error: &FieldError| format!("{}: {}", error.field, error.body());
    errors.0.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_that_show_much_are_kept_up_to_a_bound() {
        let mut errors = Errors::default();
        let list = vec!["x"; 1_000_000];
        for _ in 0..1000 {
            errors.invalid(&Path::new("a"), list.clone(), "why");
        }
        assert!((2..20).contains(&errors.0.len()), "{}", errors.0.len());
    }

    #[test]
    fn values_print_as_go_prints_them() {
        assert_eq!(quote("a\u{1}\"\\é\n"), r#""a\x01\"\\é\n""#);
        assert_eq!(BadValue::Json(json!(3)).to_string(), "3");
        assert_eq!(BadValue::Json(json!(5.0)).to_string(), "5");
        assert_eq!(BadValue::Json(json!(["a"])).to_string(), r#"["a"]"#);
        assert_eq!(BadValue::Json(json!("<&>")).to_string(), r#""<&>""#);
        let escaped = r#"["\u003c\u0026\u003e"]"#;
        assert_eq!(BadValue::Json(json!(["<&>"])).to_string(), escaped);
        assert_eq!(BadValue::Text(r#"["<&>"]"#.into()).to_string(), escaped);
        assert_eq!(
            go_struct(&[("Key", json!("b")), ("Effect", json!(null))]),
            r#"{"Key":"b","Effect":null}"#
        );
    }
}
