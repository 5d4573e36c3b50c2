//! JSON as Go's `encoding/json` writes and reads it.

use serde_json::{Map, Value};

/// Writes a value as `json.Marshal` does: compact, keys in order, and `<`, `>`, `&` and the line separators of Unicode escaped.
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

/// Returns whether a text is the same JSON object as another one that `expected` is.
///
/// # Errors
/// Why `text` is no JSON object, in windows-gmsa's words around those of Go. Where a text stops being JSON is said less exactly than Go does.
pub(super) fn is_same_object(text: &str, expected: &str) -> Result<bool, String> {
    if text == expected {
        return Ok(true);
    }
    let parsed: Result<Value, _> = serde_json::from_str(text);
    let why = match &parsed {
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
