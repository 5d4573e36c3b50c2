//! JSON patch (RFC 6902) with the limits and the liberties of the library that kube-apiserver uses.
//!
//! Negative indexes count from the end, `test` finds null where nothing is, `replace` adds a missing member, and any operation that cannot be done refuses the whole
//! patch with the same words.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::inapplicable;
use crate::{schema::decode::check_depth, status::Status};

/// More operations than this are refused.
const MAX_OPERATIONS: usize = 10_000;
/// Copies may add so many bytes of JSON to a document (kube-apiserver: JSONPatchMaxCopyBytes); doubling something thirty times would
/// otherwise fill any memory.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// A path may have so many segments.
const MAX_SEGMENTS: usize = 128;

#[derive(Deserialize)]
struct Operation {
    #[serde(default)]
    op: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    value: Value,
}

/// Applies a JSON patch, one operation after the other.
///
/// # Errors
/// 400 when it is no list of operations, 413 when there are too many, 422 when one cannot be done.
pub fn apply(original: &Value, patch: &Value) -> Result<Value, Status> {
    let operations = operations(patch)?;
    let mut document = original.clone();
    let mut copied = 0;
    for operation in &operations {
        run(&mut document, operation, &mut copied).ok_or_else(inapplicable)?;
    }
    // Moving things into each other goes deeper than any body.
    check_depth(&document).map_err(|_| inapplicable())?;
    Ok(document)
}

/// Which operation of a patch cannot be done, as the library says it; `None` if all can.
pub fn failure(original: &Value, patch: &Value) -> Option<String> {
    let operations = operations(patch).ok()?;
    let mut document = original.clone();
    let mut copied = 0;
    let failing = operations
        .iter()
        .find(|operation| run(&mut document, operation, &mut copied).is_none())?;
    Some(match failing.op.as_str() {
        op @ ("add" | "remove" | "replace" | "move" | "copy") => format!(
            "jsonpatch {op} operation does not apply: doc is missing path: {}: missing value",
            failing.path
        ),
        "test" => format!("testing value {} failed", failing.path),
        other => format!("unexpected kind: {other}"),
    })
}

/// The places that a patch's operations go through, as a tree of their names.
pub fn visited(patch: &Value) -> Value {
    let mut places = Value::Object(Map::new());
    let operations = operations(patch).unwrap_or_default();
    for path in operations
        .iter()
        .flat_map(|operation| [&operation.path, &operation.from])
    {
        let Some(path) = pointer(path) else { continue };
        let Some((_, parents)) = path.split_last() else {
            continue;
        };
        let mut place = &mut places;
        for segment in parents {
            let inner = &mut place[segment];
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            place = inner;
        }
    }
    places
}

fn operations(patch: &Value) -> Result<Vec<Operation>, Status> {
    let malformed = || {
        Status::bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
        )
    };
    let items = patch.as_array().ok_or_else(malformed)?;
    if items.len() > MAX_OPERATIONS {
        let limit = format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            items.len()
        );
        return Err(Status::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: {limit}"),
        ));
    }
    items
        .iter()
        .map(|item| Operation::deserialize(item).map_err(|_| malformed()))
        .collect()
}

/// `copied` counts the bytes that copies have added.
fn run(document: &mut Value, operation: &Operation, copied: &mut usize) -> Option<()> {
    let path = pointer(&operation.path)?;
    match operation.op.as_str() {
        "add" => add(document, &path, operation.value.clone()),
        "remove" => remove(document, &path).map(|_| ()),
        "replace" => replace(document, &path, operation.value.clone()),
        "move" => {
            let value = remove(document, &pointer(&operation.from)?)?;
            add(document, &path, value)
        }
        "copy" => {
            let value = find_mut(document, &pointer(&operation.from)?)?;
            *copied += json_size(value);
            if *copied > MAX_COPIED_BYTES {
                return None;
            }
            let value = value.clone();
            add(document, &path, value)
        }
        "test" => {
            let found = find_mut(document, &path).map_or(&Value::Null, |value| value);
            (*found == operation.value).then_some(())
        }
        _ => None,
    }
}

/// About how many bytes a value is as JSON.
fn json_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 4,
        Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| json_size(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => {
            let fields = fields.iter();
            fields
                .map(|(name, value)| name.len() + json_size(value) + 4)
                .sum::<usize>()
                + 2
        }
    }
}

/// The decoded segments of a JSON pointer; `None` for one that goes deeper than any object. What stands before its first slash is passed over; `None` when text has no slash at all.
fn pointer(text: &str) -> Option<Vec<String>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let (_, rest) = text.split_once('/')?;
    if rest.bytes().filter(|byte| *byte == b'/').count() >= MAX_SEGMENTS {
        return None;
    }
    Some(
        rest.split('/')
            .map(|segment| segment.replace("~1", "/").replace("~0", "~"))
            .collect(),
    )
}

/// An index into a list of that length; negative ones count from the end.
fn index(segment: &str, length: usize) -> Option<usize> {
    let at: i64 = segment.parse().ok()?;
    let at = if at < 0 {
        at + i64::try_from(length).ok()?
    } else {
        at
    };
    usize::try_from(at).ok()
}

fn find_mut<'v>(document: &'v mut Value, path: &[String]) -> Option<&'v mut Value> {
    path.iter()
        .try_fold(document, |value, segment| match value {
            Value::Object(map) => map.get_mut(segment),
            Value::Array(items) => {
                let at = index(segment, items.len())?;
                items.get_mut(at)
            }
            _ => None,
        })
}

fn add(document: &mut Value, path: &[String], value: Value) -> Option<()> {
    let Some((last, parents)) = path.split_last() else {
        *document = value;
        return Some(());
    };
    match find_mut(document, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(items) => {
            let at = if last == "-" {
                items.len()
            } else {
                index(last, items.len() + 1)?
            };
            if at > items.len() {
                return None;
            }
            items.insert(at, value);
        }
        _ => return None,
    }
    Some(())
}

/// The library replaces a member that an object does not have by adding it.
fn replace(document: &mut Value, path: &[String], value: Value) -> Option<()> {
    let (last, parents) = path.split_last()?;
    match find_mut(document, parents)? {
        Value::Object(map) => {
            map.insert(last.clone(), value);
        }
        Value::Array(items) => {
            let at = index(last, items.len())?;
            *items.get_mut(at)? = value;
        }
        _ => return None,
    }
    Some(())
}

fn remove(document: &mut Value, path: &[String]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    match find_mut(document, parents)? {
        Value::Object(map) => map.remove(last),
        Value::Array(items) => {
            let at = index(last, items.len()).filter(|&at| at < items.len())?;
            Some(items.remove(at))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(original: Value, patch: Value) -> Option<Value> {
        apply(&original, &patch).ok()
    }

    #[test]
    fn operations_add_move_copy_and_test() {
        let patch = json!([
            {"op": "test", "path": "/a/b~1c", "value": 1},
            {"op": "add", "path": "/l/-", "value": 3},
            {"op": "add", "path": "/l/0", "value": 0},
            {"op": "move", "from": "/a/b~1c", "path": "/m"},
            {"op": "copy", "from": "/l", "path": "/n"},
            {"op": "remove", "path": "/l/-1"},
        ]);
        let after = patched(json!({"a": {"b/c": 1}, "l": [1]}), patch);
        assert_eq!(
            after,
            Some(json!({"a": {}, "l": [0, 1], "m": 1, "n": [0, 1, 3]}))
        );
    }

    #[test]
    fn an_operation_that_cannot_be_done_refuses_all() {
        for patch in [
            json!([{"op": "remove", "path": "/none"}]),
            json!([{"op": "replace", "path": "/none/none", "value": 1}]),
            json!([{"op": "add", "path": "/l/9", "value": 1}]),
            json!([{"op": "test", "path": "/a", "value": 2}]),
            json!([{"op": "shout", "path": "/a"}]),
        ] {
            assert_eq!(
                patched(json!({"a": 1, "l": []}), patch.clone()),
                None,
                "{patch}"
            );
        }
    }

    #[test]
    fn what_is_copied_again_and_again_is_refused_before_it_fills_the_memory() {
        let double = json!({"op": "copy", "from": "", "path": "/a"});
        let patch = |times: usize| Value::Array(vec![double.clone(); times]);
        assert!(patched(json!({"b": "c"}), patch(3)).is_some());
        assert_eq!(patched(json!({"b": "c".repeat(100)}), patch(9000)), None);
    }

    #[test]
    fn a_patch_with_too_many_operations_is_refused() {
        let patch = Value::Array(vec![
            json!({"op": "add", "path": "/a", "value": 1});
            MAX_OPERATIONS + 1
        ]);
        assert_eq!(
            apply(&json!({}), &patch).map_err(|refused| refused.code),
            Err(413)
        );
    }
}
