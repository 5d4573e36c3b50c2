//! Removes `null` fields, which YAML such as `resources:` with nothing behind it produces, as do programs in Go (`containers: null`).
//!
//! The engine's types accept missing fields but not nulls. Readers call this only after an object could not be read, which is rare.

use serde_json::Value;

use crate::input;

/// Returns the same JSON without fields that are null; `None` if it has none or is not valid JSON.
pub(super) fn without_nulls(json: &[u8]) -> Option<String> {
    json.windows(4).find(|word| word == b"null")?;
    let mut value: Value = input::json(json).ok()?;
    drop_nulls(&mut value).then(|| value.to_string())
}

/// Removes all null fields; returns whether there were any.
fn drop_nulls(value: &mut Value) -> bool {
    match value {
        Value::Object(fields) => {
            let before = fields.len();
            fields.retain(|_, value| !value.is_null());
            let mut dropped = fields.len() < before;
            for value in fields.values_mut() {
                dropped |= drop_nulls(value);
            }
            dropped
        }
        Value::Array(items) => {
            let mut dropped = false;
            for value in items {
                dropped |= drop_nulls(value);
            }
            dropped
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::without_nulls;

    #[test]
    fn fields_that_are_null_are_left_out_at_any_depth() {
        let found = without_nulls(br#"{"a":null,"b":[{"c":null,"d":1}]}"#);
        assert_eq!(found.as_deref(), Some(r#"{"b":[{"d":1}]}"#));
        assert_eq!(without_nulls(br#"{"a":"null"}"#), None);
    }
}
