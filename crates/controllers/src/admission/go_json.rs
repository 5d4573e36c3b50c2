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

/// Returns whether `text` is the same JSON object as `expected`.
///
/// # Errors
/// Returns why `text` is not a JSON object, in windows-gmsa's message around Go's. The position of a syntax error
/// is less exact than Go's.
pub(super) fn is_same_object(text: &str, expected: &str) -> Result<bool, String> {
    if text == expected {
        return Ok(true);
    }
    let parsed: Result<Value, _> = serde_json::from_str(text);
    let why = match &parsed {
        // Go's decoder reads `null` into a map without an error.
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(other) => {
            let kind = match other {
                Value::Array(_) => "array",
                Value::String(_) => "string",
                Value::Number(_) => "number",
                _ => "bool",
            };
            Some(format!(
                "json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
            ))
        }
        Err(error) if error.is_eof() => Some("unexpected end of JSON input".to_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(why) = why {
        return Err(format!("unable to parse {text:?} as a JSON object: {why}"));
    }
    let expected: Result<Value, _> = serde_json::from_str(expected);
    Ok(parsed.ok() == expected.ok())
}
