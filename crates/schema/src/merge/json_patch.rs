//! JSON patch (RFC 6902) with the limits, extensions and error messages of the library that kube-apiserver uses
//! (`gopkg.in/evanphx/json-patch.v4`).
//!
//! Negative indexes count from the end; `test` treats a missing member as null, and `copy` copies it as null; `replace` adds a missing
//! member, and only `replace` and `test` accept the empty path. An operation that fails refuses the whole patch.

use mullion_kube_text::golang::integer;
use serde_json::{Map, Value};

use crate::decode::{check_depth, json_kind};

/// The most operations of a patch (kube-apiserver: `maxJSONPatchOperations`).
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes of JSON that copies may add to a document (kube-apiserver: JSONPatchMaxCopyBytes). Otherwise a patch that doubles a
/// value thirty times would exhaust the memory.
const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;
/// The most segments of a path; no object is nested deeper.
const MAX_SEGMENTS: usize = 128;

/// The members of an operation: three strings, and the value.
pub const MEMBERS: [&str; 4] = ["op", "path", "from", "value"];

/// The reason why a JSON patch cannot be applied; the messages are the library's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonPatchError {
    /// The patch has too many operations.
    #[error("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {0}")]
    TooMany(usize),
    /// An operation cannot be applied.
    #[error("{0}")]
    Inapplicable(String),
    /// A `test` operation failed.
    #[error("testing value {0} failed: test failed")]
    TestFailed(String),
}

impl<S: Into<String>> From<S> for JsonPatchError {
    fn from(why: S) -> Self {
        JsonPatchError::Inapplicable(why.into())
    }
}

/// An operation as sent.
struct Operation<'p>(Option<&'p Map<String, Value>>);

impl<'p> Operation<'p> {
    /// Returns the path, or the library's reason why the operation has none.
    fn path(&self) -> Result<&'p str, String> {
        self.string("path", "operation missing path field: missing value")
    }

    /// Returns the path that a value is moved or copied from, or the library's reason why the operation has none.
    fn source(&self) -> Result<&'p str, String> {
        self.string("from", "operation, missing from field: missing value")
    }

    fn string(&self, member: &str, missing: &str) -> Result<&'p str, String> {
        match self.0.and_then(|members| members.get(member)) {
            None | Some(Value::Null) => Err(missing.to_owned()),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(format!(
                "json: cannot unmarshal {} into Go value of type string",
                json_kind(other)
            )),
        }
    }

    /// Returns a member that is a string.
    fn text(&self, member: &str) -> Option<&'p str> {
        self.0?.get(member)?.as_str()
    }

    fn value(&self) -> Value {
        let value = self.0.and_then(|members| members.get("value"));
        value.cloned().unwrap_or_default()
    }
}

/// Returns kube-apiserver's error for a patch whose operations have members of wrong types, or `None` if they are valid.
pub fn misfit(patch: &Value) -> Option<String> {
    let wrong = |value: &Value, place: &str| {
        let kind = json_kind(value);
        format!("json: cannot unmarshal {kind} into Go {place}")
    };
    let Value::Array(operations) = patch else {
        // To Go, null is a patch without operations.
        return (!patch.is_null()).then(|| wrong(patch, "value of type []handlers.jsonPatchOp"));
    };
    operations.iter().find_map(|operation| match operation {
        Value::Null => None,
        Value::Object(members) => {
            let (name, value) = members.iter().find(|(name, value)| {
                MEMBERS[..3].contains(&&***name) && !value.is_string() && !value.is_null()
            })?;
            let place = format!("struct field jsonPatchOp.{name} of type string");
            Some(wrong(value, &place))
        }
        other => Some(wrong(other, "value of type handlers.jsonPatchOp")),
    })
}

/// Applies the operations of a JSON patch one after the other.
///
/// # Errors
/// There are too many operations, or one cannot be applied.
pub fn apply(original: &Value, patch: &Value) -> Result<Value, JsonPatchError> {
    let count = patch.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        return Err(JsonPatchError::TooMany(count));
    }
    let mut document = original.clone();
    let mut copied = 0;
    for operation in operations(patch) {
        run(&mut document, &operation, &mut copied)?;
    }
    // Moving values into each other can nest them deeper than any body.
    check_depth(&document).map_err(|error| error.to_string())?;
    Ok(document)
}

/// Returns the containers that the operations' paths go through, as a tree of names.
pub fn visited(patch: &Value) -> Value {
    let mut places = Value::Object(Map::new());
    let paths = operations(patch)
        .flat_map(|operation| [operation.text("path"), operation.text("from")])
        .flatten();
    for (parents, _) in paths.filter_map(split) {
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

fn operations(patch: &Value) -> impl Iterator<Item = Operation<'_>> {
    let operations = patch.as_array().into_iter().flatten();
    operations.map(|operation| Operation(operation.as_object()))
}

/// Applies one operation; `copied` counts the bytes that copies have added.
fn run(
    document: &mut Value,
    operation: &Operation<'_>,
    copied: &mut usize,
) -> Result<(), JsonPatchError> {
    match operation.text("op").unwrap_or("unknown") {
        "add" => {
            let path = operation
                .path()
                .map_err(|_| "add operation failed to decode path: missing value")?;
            let (container, key) = container(document, path).ok_or_else(|| {
                format!(
                    "add operation does not apply: doc is missing path: \"{path}\": missing value"
                )
            })?;
            add(container, &key, operation.value())
                .map_err(|why| format!("error in add for path: '{path}': {why}"))?;
        }
        "remove" => {
            let path = operation
                .path()
                .map_err(|_| "remove operation failed to decode path: missing value")?;
            let (container, key) = container(document, path).ok_or_else(|| {
                format!("remove operation does not apply: doc is missing path: \"{path}\": missing value")
            })?;
            remove(container, &key)
                .map_err(|why| format!("error in remove for path: '{path}': {why}"))?;
        }
        "replace" => {
            let path = operation
                .path()
                .map_err(|why| format!("replace operation failed to decode path: {why}"))?;
            let value = operation.value();
            if path.is_empty() {
                if !value.is_object() && !value.is_array() {
                    return Err(
                        "replace operation value must be object or array: %!w(<nil>)".into(),
                    );
                }
                *document = value;
                return Ok(());
            }
            let missing = |what: &str| {
                format!(
                    "replace operation does not apply: doc is missing {what}: {path}: missing value"
                )
            };
            let (container, key) = container(document, path).ok_or_else(|| missing("path"))?;
            find(container, &key).map_err(|_| missing("key"))?;
            put(container, &key, value);
        }
        "move" => {
            let from = operation
                .source()
                .map_err(|why| format!("move operation failed to decode from: {why}"))?;
            let (source, key) = container(document, from).ok_or_else(|| {
                format!(
                    "move operation does not apply: doc is missing from path: {from}: missing value"
                )
            })?;
            let value = remove(source, &key)
                .map_err(|why| format!("error in move for path: '{key}': {why}"))?;
            // Only now, because the library reports its errors in this order.
            let path = operation
                .path()
                .map_err(|why| format!("move operation failed to decode path: {why}"))?;
            let (target, key) = container(document, path).ok_or_else(|| {
                format!("move operation does not apply: doc is missing destination path: {path}: missing value")
            })?;
            add(target, &key, value)
                .map_err(|why| format!("error in move for path: '{path}': {why}"))?;
        }
        "test" => {
            let path = operation
                .path()
                .map_err(|why| format!("test operation failed to decode path: {why}"))?;
            let found = if path.is_empty() {
                Some(&*document)
            } else {
                let (container, key) = container(document, path).ok_or_else(|| {
                    format!("test operation does not apply: is missing path: {path}: missing value")
                })?;
                find(container, &key)
                    .map_err(|why| format!("error in test for path: '{path}': {why}"))?
            };
            if *found.unwrap_or(&Value::Null) != operation.value() {
                return Err(JsonPatchError::TestFailed(path.to_owned()));
            }
        }
        "copy" => {
            let from = operation
                .source()
                .map_err(|why| format!("copy operation failed to decode from: {why}"))?;
            let (source, key) = container(document, from).ok_or_else(|| {
                format!(
                    "copy operation does not apply: doc is missing from path: {from}: missing value"
                )
            })?;
            let value = find(source, &key)
                .map_err(|why| format!("error in copy for from: '{from}': {why}"))?;
            *copied += value.map_or(0, json_size);
            // Check the limit before copying: a document that doubles itself would fill the memory first.
            let value = (*copied <= MAX_COPIED_BYTES).then(|| value.cloned().unwrap_or_default());
            let path = operation
                .path()
                .map_err(|_| "copy operation failed to decode path: missing value")?;
            let (target, key) = container(document, path).ok_or_else(|| {
                format!("copy operation does not apply: doc is missing destination path: {path}: missing value")
            })?;
            // The library finds a missing destination before it checks the limit.
            let value = value.ok_or_else(|| {
                format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED_BYTES}"
                )
            })?;
            add(target, &key, value)
                .map_err(|why| format!("error while adding value during copy: {why}"))?;
        }
        other => return Err(format!("Unexpected kind: {other}").into()),
    }
    Ok(())
}

/// Returns the approximate length in bytes of a value as JSON.
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

/// Decodes a JSON pointer into its parent segments and the last one. Text before the first slash is ignored. Returns `None` for a pointer
/// without a slash, and for one that is deeper than any object.
fn split(path: &str) -> Option<(Vec<String>, String)> {
    let (_, rest) = path.split_once('/')?;
    if rest.bytes().filter(|byte| *byte == b'/').count() >= MAX_SEGMENTS {
        return None;
    }
    // `~1` comes first: otherwise `~01` would become a slash (RFC 6901).
    let mut segments: Vec<String> = rest
        .split('/')
        .map(|segment| segment.replace("~1", "/").replace("~0", "~"))
        .collect();
    let last = segments.pop()?;
    Some((segments, last))
}

/// Returns the object or list that contains the path's last segment, and that segment.
fn container<'v>(document: &'v mut Value, path: &str) -> Option<(&'v mut Value, String)> {
    let (parents, last) = split(path)?;
    let found = parents
        .iter()
        .try_fold(document, |value, segment| match value {
            Value::Object(map) => map.get_mut(segment),
            Value::Array(items) => {
                let at = index(segment, items.len()).ok()?;
                items.get_mut(at)
            }
            _ => None,
        })?;
    (found.is_object() || found.is_array()).then_some((found, last))
}

/// Parses an index into a list with `places` places; negative ones count from the end.
fn index(segment: &str, places: usize) -> Result<usize, String> {
    let at: i64 = segment
        .parse()
        .map_err(|_| integer::fault("Atoi", segment))?;
    let places = i64::try_from(places).unwrap_or(i64::MAX);
    let counted = if at < 0 {
        at.saturating_add(places)
    } else {
        at
    };
    match usize::try_from(counted) {
        Ok(index) if counted < places => Ok(index),
        _ => Err(format!(
            "Unable to access invalid index: {at}: invalid index referenced"
        )),
    }
}

/// Returns a container's element; `None` for a missing member of an object.
fn find<'v>(container: &'v Value, key: &str) -> Result<Option<&'v Value>, String> {
    match container {
        Value::Array(items) => Ok(items.get(index(key, items.len())?)),
        other => Ok(other.get(key)),
    }
}

fn add(container: &mut Value, key: &str, value: Value) -> Result<(), String> {
    match container {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // An item may also be added behind the last one.
            let at = index(key, items.len() + 1).map_err(|why| {
                if why.starts_with("strconv") {
                    format!("value was not a proper array index: '{key}': {why}")
                } else {
                    why
                }
            })?;
            items.insert(at, value);
        }
        other => other[key] = value,
    }
    Ok(())
}

/// Replaces the element that [`find`] returned.
fn put(container: &mut Value, key: &str, value: Value) {
    match container {
        Value::Array(items) => {
            if let Some(place) = index(key, items.len())
                .ok()
                .and_then(|at| items.get_mut(at))
            {
                *place = value;
            }
        }
        other => other[key] = value,
    }
}

fn remove(container: &mut Value, key: &str) -> Result<Value, String> {
    match container {
        Value::Array(items) => Ok(items.remove(index(key, items.len())?)),
        other => {
            let members = other.as_object_mut();
            members
                .and_then(|members| members.remove(key))
                .ok_or_else(|| format!("Unable to remove nonexistent key: {key}: missing value"))
        }
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
    fn what_is_missing_is_null_to_some_and_the_whole_document_is_known_to_few() {
        let document = || json!({"a": {"b": 1}});
        for (operation, after) in [
            (json!({"op": "test", "path": "/c"}), document()),
            (
                json!({"op": "test", "path": "", "value": {"a": {"b": 1}}}),
                document(),
            ),
            (
                json!({"op": "copy", "from": "/c", "path": "/d"}),
                json!({"a": {"b": 1}, "d": null}),
            ),
            (
                json!({"op": "replace", "path": "/c", "value": 1}),
                json!({"a": {"b": 1}, "c": 1}),
            ),
            (
                json!({"op": "replace", "path": "", "value": {"z": 1}}),
                json!({"z": 1}),
            ),
            (
                json!({"op": "add", "path": "/c"}),
                json!({"a": {"b": 1}, "c": null}),
            ),
        ] {
            assert_eq!(
                patched(document(), json!([operation])),
                Some(after),
                "{operation}"
            );
        }
    }

    #[test]
    fn an_operation_that_cannot_be_done_refuses_all_in_the_librarys_words() {
        for (operation, why) in [
            (
                json!({"op": "remove", "path": "/none"}),
                "error in remove for path: '/none': Unable to remove nonexistent key: none: missing value",
            ),
            (
                json!({"op": "remove", "path": "/none/none"}),
                r#"remove operation does not apply: doc is missing path: "/none/none": missing value"#,
            ),
            (
                json!({"op": "replace", "path": "/none/none", "value": 1}),
                "replace operation does not apply: doc is missing path: /none/none: missing value",
            ),
            (
                json!({"op": "replace", "path": "/l/0", "value": 1}),
                "replace operation does not apply: doc is missing key: /l/0: missing value",
            ),
            (
                json!({"op": "replace", "path": "", "value": 1}),
                "replace operation value must be object or array: %!w(<nil>)",
            ),
            (
                json!({"op": "add", "path": "/l/9", "value": 1}),
                "error in add for path: '/l/9': Unable to access invalid index: 9: invalid index referenced",
            ),
            (
                json!({"op": "add", "path": "/l/x", "value": 1}),
                r#"error in add for path: '/l/x': value was not a proper array index: 'x': strconv.Atoi: parsing "x": invalid syntax"#,
            ),
            (
                json!({"op": "add", "path": "", "value": {}}),
                r#"add operation does not apply: doc is missing path: "": missing value"#,
            ),
            (
                json!({"op": "add", "value": {}}),
                "add operation failed to decode path: missing value",
            ),
            (
                json!({"op": "remove", "path": 5}),
                "remove operation failed to decode path: missing value",
            ),
            (
                json!({"op": "replace", "path": 5, "value": 1}),
                "replace operation failed to decode path: json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({"op": "test", "path": null}),
                "test operation failed to decode path: operation missing path field: missing value",
            ),
            (
                json!({"op": "move", "from": ["/a"], "path": "/b"}),
                "move operation failed to decode from: json: cannot unmarshal array into Go value of type string",
            ),
            (
                json!({"op": "copy", "path": "/b"}),
                "copy operation failed to decode from: operation, missing from field: missing value",
            ),
            (
                json!({"op": "copy", "from": "", "path": "/b"}),
                "copy operation does not apply: doc is missing from path: : missing value",
            ),
            (
                json!({"op": "move", "from": "/a", "path": "/b/c"}),
                "move operation does not apply: doc is missing destination path: /b/c: missing value",
            ),
            (
                json!({"op": "test", "path": "/a", "value": 2}),
                "testing value /a failed: test failed",
            ),
            (
                json!({"op": "test", "path": "/l/-1"}),
                "error in test for path: '/l/-1': Unable to access invalid index: -1: invalid index referenced",
            ),
            (
                json!({"op": "test", "path": "/b/c"}),
                "test operation does not apply: is missing path: /b/c: missing value",
            ),
            (
                json!({"op": "shout", "path": "/a"}),
                "Unexpected kind: shout",
            ),
            (json!(null), "Unexpected kind: unknown"),
        ] {
            let refusal = apply(&json!({"a": 1, "l": []}), &json!([operation]));
            let refusal = refusal.expect_err("it cannot be done");
            assert_eq!(refusal.to_string(), why, "{operation}");
        }
    }

    #[test]
    fn members_of_other_types_are_told_as_go_tells_them() {
        for (patch, why) in [
            (
                json!({}),
                "object into Go value of type []handlers.jsonPatchOp",
            ),
            (
                json!([null, 5]),
                "number into Go value of type handlers.jsonPatchOp",
            ),
            (
                json!([{"op": "add", "path": ["a"]}]),
                "array into Go struct field jsonPatchOp.path of type string",
            ),
        ] {
            assert_eq!(
                misfit(&patch),
                Some(format!("json: cannot unmarshal {why}"))
            );
        }
        assert_eq!(misfit(&json!(null)), None);
        assert_eq!(
            misfit(&json!([{"op": "add", "path": null, "value": []}])),
            None
        );
    }

    #[test]
    fn what_is_copied_again_and_again_is_refused_before_it_fills_the_memory() {
        let double = json!({"op": "copy", "from": "/a", "path": "/a/b"});
        let patch = |times: usize| Value::Array(vec![double.clone(); times]);
        let document = |text: String| json!({"a": {"b": text}});
        assert!(patched(document("c".into()), patch(3)).is_some());
        assert_eq!(patched(document("c".repeat(100)), patch(9000)), None);
    }

    #[test]
    fn a_patch_with_too_many_operations_is_refused() {
        let patch = Value::Array(vec![
            json!({"op": "add", "path": "/a", "value": 1});
            MAX_OPERATIONS + 1
        ]);
        assert_eq!(
            apply(&json!({}), &patch),
            Err(JsonPatchError::TooMany(MAX_OPERATIONS + 1))
        );
    }
}
