//! Writes and compares JSON as Go's `encoding/json` does.

use serde_json::{Map, Value};

/// Serializes a value as `json.Marshal` does: compact, with sorted keys, and with `<`, `>`, `&` and Unicode's line
/// separators escaped.
pub(super) fn text(value: &Value) -> String {
    let mut out = String::new();
    for c in sorted(value).to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out += &format!("\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(key, _)| key.as_str());
            let fields = fields.into_iter();
            Value::Object(Map::from_iter(
                fields.map(|(key, value)| (key.clone(), sorted(value))),
            ))
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        plain => plain.clone(),
    }
}

/// A text is not a JSON object, with windows-gmsa's message around Go's. The position of a syntax error is less exact than
/// Go's.
#[derive(Debug, thiserror::Error)]
#[error("unable to parse {text:?} as a JSON object: {why}")]
pub(super) struct NotAnObject {
    text: String,
    why: ObjectError,
}

/// The reason why a text is not a JSON object.
#[derive(Debug, thiserror::Error)]
enum ObjectError {
    /// The text has another JSON type.
    #[error("json: cannot unmarshal {0} into Go value of type map[string]interface {{}}")]
    Type(&'static str),
    /// The text ends too early.
    #[error("unexpected end of JSON input")]
    End,
    /// The text is not JSON.
    #[error(transparent)]
    Syntax(serde_json::Error),
}

/// Returns whether `text` is the same JSON object as `expected`.
///
/// # Errors
/// `text` is not a JSON object.
pub(super) fn is_same_object(text: &str, expected: &str) -> Result<bool, NotAnObject> {
    if text == expected {
        return Ok(true);
    }
    let why = match serde_json::from_str::<Value>(text) {
        // Go's decoder reads `null` into a map without an error.
        Ok(parsed @ (Value::Object(_) | Value::Null)) => {
            let expected: Result<Value, _> = serde_json::from_str(expected);
            return Ok(expected.is_ok_and(|expected| parsed == expected));
        }
        Ok(Value::Array(_)) => ObjectError::Type("array"),
        Ok(Value::String(_)) => ObjectError::Type("string"),
        Ok(Value::Number(_)) => ObjectError::Type("number"),
        Ok(Value::Bool(_)) => ObjectError::Type("bool"),
        Err(error) if error.is_eof() => ObjectError::End,
        Err(error) => ObjectError::Syntax(error),
    };
    let text = text.to_owned();
    Err(NotAnObject { text, why })
}
