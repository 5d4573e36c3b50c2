//! JSON patch (RFC 6902) with the limits, extensions and error messages of the library that kube-apiserver uses
//! (`gopkg.in/evanphx/json-patch.v4`).
//!
//! Negative indexes count from the end; `test` treats a missing member as null, and `copy` copies it as null; `replace` adds a missing
//! member, and only `replace` and `test` accept the empty path. An operation that fails refuses the whole patch.

mod error;

use serde_json::{Map, Value};

pub use self::error::{ElementError, Inapplicable, JsonPatchError, MemberError};
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

/// Returns the error of an operation of which nothing is where `path` leads.
fn absent(operation: &'static str, absent: &'static str, path: impl Into<String>) -> Inapplicable {
    Inapplicable::Absent {
        operation,
        absent,
        path: path.into(),
    }
}

/// Returns a function that makes the error of an operation from the error of the last segment of its `member`.
fn element(
    operation: &'static str,
    member: &'static str,
    path: &str,
) -> impl FnOnce(ElementError) -> Inapplicable {
    move |why| Inapplicable::Element {
        operation,
        member,
        path: path.to_owned(),
        why,
    }
}

/// Returns a function that makes the error of an operation from the error of its `member`.
fn member(
    operation: &'static str,
    member: &'static str,
) -> impl FnOnce(MemberError) -> Inapplicable {
    move |why| Inapplicable::Member {
        operation,
        member,
        why,
    }
}

/// An operation as sent.
struct Operation<'p>(Option<&'p Map<String, Value>>);

impl<'p> Operation<'p> {
    fn path(&self) -> Result<&'p str, MemberError> {
        self.string("path", MemberError::NoPath)
    }

    /// Returns the path that a value is moved or copied from.
    fn source(&self) -> Result<&'p str, MemberError> {
        self.string("from", MemberError::NoSource)
    }

    fn string(&self, member: &str, missing: MemberError) -> Result<&'p str, MemberError> {
        match self.0.and_then(|members| members.get(member)) {
            None | Some(Value::Null) => Err(missing),
            Some(Value::String(text)) => Ok(text),
            Some(other) => Err(MemberError::NotAString(json_kind(other))),
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
    check_depth(&document).map_err(Inapplicable::TooDeep)?;
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
    // The library does not say why for these operations.
    let unusable = |operation| move |_| member(operation, "path")(MemberError::Unusable);
    match operation.text("op").unwrap_or("unknown") {
        "add" => {
            let path = operation.path().map_err(unusable("add"))?;
            let (container, key) = container(document, path)
                .ok_or_else(|| absent("add", "doc is missing path", format!("\"{path}\"")))?;
            add(container, &key, operation.value()).map_err(element("add", "path", path))?;
        }
        "remove" => {
            let path = operation.path().map_err(unusable("remove"))?;
            let (container, key) = container(document, path)
                .ok_or_else(|| absent("remove", "doc is missing path", format!("\"{path}\"")))?;
            remove(container, &key).map_err(element("remove", "path", path))?;
        }
        "replace" => {
            let path = operation.path().map_err(member("replace", "path"))?;
            let value = operation.value();
            if path.is_empty() {
                if !value.is_object() && !value.is_array() {
                    return Err(Inapplicable::Scalar.into());
                }
                *document = value;
                return Ok(());
            }
            let (container, key) = container(document, path)
                .ok_or_else(|| absent("replace", "doc is missing path", path))?;
            find(container, &key).map_err(|_| absent("replace", "doc is missing key", path))?;
            put(container, &key, value);
        }
        "move" => {
            let from = operation.source().map_err(member("move", "from"))?;
            let (source, key) = container(document, from)
                .ok_or_else(|| absent("move", "doc is missing from path", from))?;
            let value = remove(source, &key).map_err(element("move", "path", &key))?;
            // Only now, because the library reports its errors in this order.
            let path = operation.path().map_err(member("move", "path"))?;
            let (target, key) = container(document, path)
                .ok_or_else(|| absent("move", "doc is missing destination path", path))?;
            add(target, &key, value).map_err(element("move", "path", path))?;
        }
        "test" => {
            let path = operation.path().map_err(member("test", "path"))?;
            let found = if path.is_empty() {
                Some(&*document)
            } else {
                let (container, key) = container(document, path)
                    .ok_or_else(|| absent("test", "is missing path", path))?;
                find(container, &key).map_err(element("test", "path", path))?
            };
            if *found.unwrap_or(&Value::Null) != operation.value() {
                return Err(JsonPatchError::TestFailed(path.to_owned()));
            }
        }
        "copy" => {
            let from = operation.source().map_err(member("copy", "from"))?;
            let (source, key) = container(document, from)
                .ok_or_else(|| absent("copy", "doc is missing from path", from))?;
            let value = find(source, &key).map_err(element("copy", "from", from))?;
            *copied += value.map_or(0, json_size);
            // Check the limit before copying: a document that doubles itself would fill the memory first.
            let value = (*copied <= MAX_COPIED_BYTES).then(|| value.cloned().unwrap_or_default());
            let path = operation.path().map_err(unusable("copy"))?;
            let (target, key) = container(document, path)
                .ok_or_else(|| absent("copy", "doc is missing destination path", path))?;
            // The library finds a missing destination before it checks the limit.
            let value = value.ok_or(Inapplicable::CopiesTooMuch(*copied))?;
            add(target, &key, value).map_err(Inapplicable::CopiedElement)?;
        }
        other => return Err(Inapplicable::Operation(other.to_owned()).into()),
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
fn index(segment: &str, places: usize) -> Result<usize, ElementError> {
    let at: i64 = segment
        .parse()
        .map_err(|_| ElementError::NotAnIndex(segment.to_owned()))?;
    let places = i64::try_from(places).unwrap_or(i64::MAX);
    let counted = if at < 0 {
        at.saturating_add(places)
    } else {
        at
    };
    match usize::try_from(counted) {
        Ok(index) if counted < places => Ok(index),
        _ => Err(ElementError::NoSuchIndex(at)),
    }
}

/// Returns a container's element; `None` for a missing member of an object.
fn find<'v>(container: &'v Value, key: &str) -> Result<Option<&'v Value>, ElementError> {
    match container {
        Value::Array(items) => Ok(items.get(index(key, items.len())?)),
        other => Ok(other.get(key)),
    }
}

fn add(container: &mut Value, key: &str, value: Value) -> Result<(), ElementError> {
    match container {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // An item may also be added behind the last one.
            let at = index(key, items.len() + 1).map_err(|why| match why {
                ElementError::NotAnIndex(segment) => ElementError::NotAPlace { segment },
                why => why,
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

fn remove(container: &mut Value, key: &str) -> Result<Value, ElementError> {
    match container {
        Value::Array(items) => Ok(items.remove(index(key, items.len())?)),
        other => {
            let members = other.as_object_mut();
            members
                .and_then(|members| members.remove(key))
                .ok_or_else(|| ElementError::NoSuchKey(key.to_owned()))
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
