//! `null` where nothing is meant: `resources:` in YAML with nothing behind it, `containers: null` from programs in Go.
//!
//! The engine's types take absent fields; whoever reads objects looks for nulls only once that fails, which is seldom.

use serde_json::Value;

/// The same JSON without fields that are null; none where there are none, or where it is no JSON.
pub(super) fn without_nulls(json: &[u8]) -> Option<String> {
    json.windows(4).find(|word| word == b"null")?;
    let mut value: Value = serde_json::from_slice(json).ok()?;
    drop_nulls(&mut value).then(|| value.to_string())
}

/// Whether there were any.
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
