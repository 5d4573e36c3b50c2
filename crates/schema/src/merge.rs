//! The three patch types on trees: JSON merge patch (RFC 7386), JSON patch (RFC 6902) and strategic merge patch.
//!
//! Patches work on untyped trees. The result is decoded again ([`super::decode::value`]), which finds unknown fields and wrong types
//! ([`unfit`] builds that error). Errors in the patch itself are those of kube-apiserver's handlers.

use mullion_kube_text::status::Status;
use mullion_kube_text::{
    field::{Errors, Path},
    golang::number,
};
use serde_json::Value;

mod document;
mod json_patch;
mod strategic;

pub use document::text as document;
pub use json_patch::{
    ElementError, Inapplicable, JsonPatchError, MEMBERS as JSON_PATCH_MEMBERS, MemberError,
    apply as json_patch, misfit as json_patch_misfit, visited as json_patch_visits,
};
pub use strategic::{apply as strategic, without_spent_directives, without_unmatched_nulls};

/// Applies a JSON merge patch like kube-apiserver's library: where the patch adds a value, or replaces a list or scalar, nulls are removed
/// from its objects, also from those in lists; lists keep their nulls. A list that replaces an object stays as it is.
pub fn json_merge(original: &Value, patch: &Value) -> Value {
    let (Value::Object(original), Value::Object(changes)) = (original, patch) else {
        return match original {
            Value::Object(_) => patch.clone(),
            _ => without_nulls(patch),
        };
    };
    let mut merged = original.clone();
    for (key, change) in changes {
        if change.is_null() {
            merged.remove(key);
        } else {
            // Null stands for an absent member, so that the nulls in a new value are removed.
            let before = merged.get(key).unwrap_or(&Value::Null);
            let after = json_merge(before, change);
            merged.insert(key.clone(), after);
        }
    }
    Value::Object(merged)
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                kept.map(|(key, value)| (key.clone(), without_nulls(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        scalar => scalar.clone(),
    }
}

impl From<JsonPatchError> for Status {
    fn from(error: JsonPatchError) -> Self {
        match error {
            JsonPatchError::TooMany(_) => Status::new(
                413,
                "RequestEntityTooLarge",
                format!("Request entity too large: {error}"),
            ),
            JsonPatchError::Inapplicable(_) | JsonPatchError::TestFailed(_) => inapplicable(),
        }
    }
}

/// Returns the 422 for a patch whose result does not fit the type. `text` is the patched [`document`](document()), or [`go_text`] of the
/// patch for strategic merge patches.
pub fn unfit(text: &str, why: &impl std::fmt::Display) -> Status {
    let mut errors = Errors::default();
    errors.invalid(&Path::new("patch"), text, why.to_string());
    Status::invalid_kind("", "", "", &errors)
}

/// Returns the 422, without a reason, for a patch that cannot be applied.
fn inapplicable() -> Status {
    let mut status = Status::new(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    );
    status.details = Some(Box::default());
    status
}

/// Returns the Go type that a value is decoded into.
pub fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats a tree as Go's `%v` does, for example `map[a:1 b:[x y]]`.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!(
            "[{}]",
            items.iter().map(go_text).collect::<Vec<_>>().join(" ")
        ),
        Value::Object(map) => {
            let entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{key}:{}", go_text(value)))
                .collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Number(number) if number.is_f64() => {
            number::text(number.as_f64().unwrap_or_default())
        }
        scalar => scalar.to_string(),
    }
}

/// Formats a tree as Go's `%s` does, which knows no other scalars than strings: `[a %!s(int64=1)]`.
fn go_string(value: &Value) -> String {
    match value {
        Value::Null | Value::String(_) => go_text(value),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_string).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(map) => {
            let entries = map.iter();
            let entries: Vec<String> = entries
                .map(|(key, value)| format!("{key}:{}", go_string(value)))
                .collect();
            format!("map[{}]", entries.join(" "))
        }
        scalar => format!("%!s({}={})", go_type(scalar), go_text(scalar)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_deletes_with_null_and_replaces_lists() {
        let merged = json_merge(
            &json!({"a": {"b": 1, "c": 2}, "l": [1, 2]}),
            &json!({"a": {"b": null, "d": {"e": null}}, "l": [3]}),
        );
        assert_eq!(merged, json!({"a": {"c": 2, "d": {}}, "l": [3]}));
    }

    #[test]
    fn a_merge_patch_leaves_no_nulls_in_the_objects_that_it_brings() {
        let merged = json_merge(
            &json!({"l": [1], "o": {"p": 1}}),
            &json!({"l": [null, {"a": null}], "m": [null, [null]], "o": [null, {"a": null}]}),
        );
        assert_eq!(
            merged,
            json!({"l": [null, {}], "m": [null, [null]], "o": [null, {"a": null}]})
        );
    }
}
