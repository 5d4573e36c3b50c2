//! Renders new pieces of YAML in the notation of the text around them.

use granit_parser::ScalarStyle;
use serde_json::{Map, Value};

/// The fields that people write first, in this order; others follow sorted by name.
const FIRST: [&str; 4] = ["name", "key", "operator", "value"];

/// Returns the fields of an object in the order in which people write them.
pub(in crate::check) fn ordered(fields: &Map<String, Value>) -> Vec<(&String, &Value)> {
    let mut ordered: Vec<_> = fields.iter().collect();
    let place = |key: &str| {
        FIRST
            .iter()
            .position(|first| *first == key)
            .unwrap_or(FIRST.len())
    };
    ordered.sort_by_key(|(key, _)| place(key));
    ordered
}

/// Renders a value on one line: a scalar, or a collection in brackets. With `quoted`, strings are written as in JSON.
pub(super) fn flow(value: &Value, quoted: bool) -> String {
    match value {
        Value::String(text) if !quoted => scalar(text, true),
        Value::Object(fields) => {
            let shown = ordered(fields)
                .into_iter()
                .map(|(key, value)| format!("{}: {}", self::key(key, quoted), flow(value, quoted)));
            format!("{{{}}}", shown.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            let shown: Vec<_> = items.iter().map(|item| flow(item, quoted)).collect();
            format!("[{}]", shown.join(", "))
        }
        other => other.to_string(),
    }
}

/// Renders a key.
pub(super) fn key(key: &str, quoted: bool) -> String {
    if quoted {
        Value::from(key).to_string()
    } else {
        scalar(key, true)
    }
}

/// Renders `key: value` as lines of a block at this column; the first line is not indented.
pub(super) fn entry(key: &str, value: &Value, column: usize) -> String {
    let key = scalar(key, false);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            format!("{key}:\n{}{}", spaces(column + 2), block(value, column + 2))
        }
        Value::Array(items) if !items.is_empty() => {
            format!("{key}:\n{}{}", spaces(column), block(value, column))
        }
        Value::String(text) => format!("{key}: {}", scalar(text, false)),
        other => format!("{key}: {}", flow(other, false)),
    }
}

/// Renders a value as lines of a block at this column; the first line is not indented.
pub(super) fn block(value: &Value, column: usize) -> String {
    let between = format!("\n{}", spaces(column));
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let shown = ordered(fields)
                .into_iter()
                .map(|(key, value)| entry(key, value, column));
            shown.collect::<Vec<_>>().join(&between)
        }
        Value::Array(items) if !items.is_empty() => {
            let shown = items
                .iter()
                .map(|item| format!("- {}", block(item, column + 2)));
            shown.collect::<Vec<_>>().join(&between)
        }
        Value::String(text) => scalar(text, false),
        other => flow(other, false),
    }
}

/// Renders a string in the notation of the one that it replaces.
pub(super) fn like(value: &Value, style: ScalarStyle, quoted: bool) -> String {
    match (value, style) {
        (Value::String(text), ScalarStyle::SingleQuoted) if !text.contains(['\n', '\t']) => {
            format!("'{}'", text.replace('\'', "''"))
        }
        (Value::String(text), ScalarStyle::DoubleQuoted) => Value::from(text.as_str()).to_string(),
        _ => flow(value, quoted),
    }
}

pub(super) fn spaces(count: usize) -> String {
    " ".repeat(count)
}

/// Renders a string without quotes if it parses back to the same string.
fn scalar(text: &str, in_flow: bool) -> String {
    let read: Result<Value, _> = serde_saphyr::from_str(text);
    let is_same = read.is_ok_and(|read| read == text);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    // A number with dots, such as a Windows build, is a string in YAML but looks like a number, so people quote it.
    let is_version = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_simple = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| is_plain(c) || (c == ':' && !in_flow));
    if is_same && is_simple && !is_version {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}
