//! Strategic merge patch: merges lists by the keys in the schema and obeys the directives in the patch.
//!
//! Directives: `$patch: replace|delete` in objects and list items, `$deleteFromPrimitiveList/f`, `$setElementOrder/f`, `$retainKeys`. A
//! merged list follows the order of `$setElementOrder`, then of the patch, then of the live list. New values are inserted as sent; of
//! directives in them, only objects with `$patch` are removed. Errors have the text and code of Go's `strategicpatch`.

mod lists;
#[cfg(test)]
mod properties;

use mullion_kube_text::status::Status;
use serde_json::{Map, Value};

use self::lists::{merge_list, merge_ordered_lists};
use super::{go_string, go_text, go_type, json_merge};
use crate::{Arena, Field, List, Node, Type, TypeId, decode::json_kind};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList";

/// Applies a strategic merge patch to an object of this type.
///
/// # Errors
/// 400 for a malformed directive, 422 for lists of lists, and 500 without a reason for what Go's `strategicpatch` does not expect.
pub fn apply(kind: &Type, original: Value, patch: &Value) -> Result<Value, Status> {
    let (original, patch) = match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => (original, patch),
        (original, patch) => return Ok(json_merge(&original, patch)),
    };
    let schema = Schema {
        arena: kind.arena(),
        id: kind.id(),
    };
    merge_map(original, patch.clone(), schema).map(Value::Object)
}

/// Returns a patch as its error message shows it: without the directives that were carried out, which `tree`, the merged object, no longer
/// has.
pub fn without_spent_directives(patch: &Value, tree: &Value) -> Value {
    match (patch, tree) {
        (Value::Object(patch), Value::Object(tree)) => {
            let is_spent = |key: &str| {
                let is_carried_out = key == RETAIN_KEYS
                    || key.starts_with(ELEMENT_ORDER)
                    || (key == PATCH && patch[key] == "replace");
                is_carried_out && !tree.contains_key(key)
            };
            // A list with an order is merged first and taken out of the patch, so the message does not show it
            // either.
            let ordered = |field: &str| {
                let mut keys = patch.keys();
                keys.any(|key| subject(key, ELEMENT_ORDER) == Some(field) && is_spent(key))
            };
            let kept = patch
                .iter()
                .filter(|(key, _)| !is_spent(key) && !ordered(key));
            let kept = kept.map(|(key, value)| {
                let merged = tree.get(key).unwrap_or(&Value::Null);
                (key.clone(), without_spent_directives(value, merged))
            });
            Value::Object(kept.collect())
        }
        (Value::Array(items), Value::Array(merged)) => {
            let has_directives = |item: &Value| {
                let mut keys = item.as_object().into_iter().flatten();
                keys.any(|(key, _)| key == RETAIN_KEYS)
            };
            // An item that is new keeps its directives, and the others have lost them.
            let kept = items.iter().map(|item| match merged.contains(item) {
                true => item.clone(),
                false if has_directives(item) => {
                    let mut item = item.clone();
                    if let Some(item) = item.as_object_mut() {
                        item.remove(RETAIN_KEYS);
                    }
                    item
                }
                false => item.clone(),
            });
            kept.collect()
        }
        (patch, _) => patch.clone(),
    }
}

/// Returns a patch as its error message shows it: without the nulls below fields that the original does not have, which the merge takes
/// out of the patch itself (kube-apiserver: `discardNullValuesFromPatch`).
pub fn without_unmatched_nulls(patch: &Value, original: &Value) -> Value {
    match (patch, original) {
        (Value::Object(patch), Value::Object(original)) => patch
            .iter()
            .map(|(key, value)| {
                let shown = match original.get(key) {
                    Some(original) => without_unmatched_nulls(value, original),
                    None => without_nulls(value.clone()),
                };
                (key.clone(), shown)
            })
            .collect(),
        (patch, _) => patch.clone(),
    }
}

/// The type of the value that is merged.
#[derive(Clone, Copy)]
struct Schema<'s> {
    arena: &'s Arena,
    id: TypeId,
}

impl<'s> Schema<'s> {
    fn at(self, id: TypeId) -> Schema<'s> {
        Schema { id, ..self }
    }

    /// Returns the field that says how a value is merged. Only structs have fields.
    fn field(self, name: &str) -> Result<&'s Field, Status> {
        let unknown = |within: &str| {
            unexpected(format!(
                "unable to find api field in struct {within} for the json field {name:?}"
            ))
        };
        match self.arena.node(self.id) {
            Node::Struct(fields) => fields.field(name).ok_or_else(|| unknown(fields.go_name())),
            Node::Map { .. } => Err(unexpected(
                "merging an object in json but data type is not struct, instead is: map".to_owned(),
            )),
            Node::List(_) => Err(unexpected(
                "merging an object in json but data type is not struct, instead is: slice"
                    .to_owned(),
            )),
            Node::Scalar(scalar) => Err(unknown(&format!("{scalar:?}"))),
        }
    }

    /// Returns the list type of a field; `None` for a pointer to something else.
    fn list(self, name: &str) -> Result<Option<&'s List>, Status> {
        let field = self.field(name)?;
        match self.arena.node(field.id) {
            Node::List(list) => Ok(Some(list)),
            _ if field.go.starts_with('*') => Ok(None),
            _ => Err(unexpected(
                "expected slice or array type, but got: struct".to_owned(),
            )),
        }
    }
}

fn unexpected(message: String) -> Status {
    Status::new(500, "", message)
}

fn bad_retain_keys() -> Status {
    Status::bad_request("invalid patch format of retainKeys")
}

fn bad_primitive_list() -> Status {
    Status::bad_request("invalid patch format of primitive list")
}

fn unknown_directive(directive: &Value, map: &Map<String, Value>) -> Status {
    let directive = match directive {
        Value::Null => "%!s(<nil>)".to_owned(),
        other => go_string(other),
    };
    let map = go_text(&Value::Object(map.clone()));
    unexpected(format!("unknown patch type: {directive} in map: {map}"))
}

fn bad_type(wanted: &str, found: &Value) -> Status {
    let found = match found {
        // Go's `%s` of a nil type prints this.
        Value::Null => "%!s(<nil>)",
        found => go_type(found),
    };
    unexpected(format!("expected a {wanted}, but received a {found}"))
}

/// Returns the field that a directive is about: the part of the key after the directive and a slash.
fn subject<'k>(key: &'k str, directive: &str) -> Option<&'k str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Schema<'_>,
) -> Result<Map<String, Value>, Status> {
    match patch.get(PATCH) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            patch.remove(PATCH);
            return Ok(patch);
        }
        Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
        Some(other) => return Err(unknown_directive(other, &patch)),
    }
    // These directives are carried out and removed first; `$deleteFromPrimitiveList` is handled with its field below.
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (key, change) in patch {
        let deletes = key.starts_with(DELETE_PRIMITIVES);
        let key = if deletes {
            subject(&key, DELETE_PRIMITIVES)
                .ok_or_else(bad_primitive_list)?
                .to_owned()
        } else {
            key
        };
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let merged = match (original.remove(&key), change) {
            (None, _) if deletes => continue,
            // Go ignores a deletion from a field of another type.
            (Some(before), change) if deletes && json_kind(&before) != json_kind(&change) => before,
            (Some(Value::Object(before)), Value::Object(change)) => {
                let field = schema.field(&key)?;
                Value::Object(if field.replace {
                    change
                } else {
                    merge_map(before, change, schema.at(field.id))?
                })
            }
            (Some(Value::Array(before)), Value::Array(change)) => {
                let list = schema.list(&key)?;
                Value::Array(merge_list(before, change, list, schema, deletes)?)
            }
            (_, change) => match without_directives(without_nulls(change)) {
                Some(added) => added,
                None => continue,
            },
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// Removes nulls from a value that the patch adds, because null means absent.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(
                kept.map(|(key, value)| (key, without_nulls(value)))
                    .collect(),
            )
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        scalar => scalar,
    }
}

/// Removes objects with a `$patch` directive from a value; `None` if the value itself is one.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.into_iter();
            Some(Value::Object(
                kept.filter_map(|(key, value)| Some((key, without_directives(value)?)))
                    .collect(),
            ))
        }
        Value::Array(items) => Some(Value::Array(
            items.into_iter().filter_map(without_directives).collect(),
        )),
        scalar => Some(scalar),
    }
}

fn retain_keys(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
) -> Result<(), Status> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(kept) = directive else {
        return Err(bad_retain_keys());
    };
    let is_kept = |key: &str| kept.iter().any(|kept| kept == key);
    // The patch may not set a field that it does not retain.
    for (key, value) in &*patch {
        if !value.is_null()
            && !key.starts_with(ELEMENT_ORDER)
            && !key.starts_with(DELETE_PRIMITIVES)
            && !is_kept(key)
        {
            return Err(bad_retain_keys());
        }
    }
    original.retain(|key, _| is_kept(key));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(kind: &str, original: Value, patch: Value) -> Result<Value, Status> {
        apply(
            &Type::builtin(kind).expect("the type is built in"),
            original,
            &patch,
        )
    }

    #[test]
    fn containers_merge_by_name_and_new_ones_come_first() {
        let after = patched(
            "api.core.v1.PodSpec",
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}]}),
            json!({"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "c"}]}),
        );
        assert_eq!(
            after,
            Ok(
                json!({"containers": [{"name": "a", "image": "2", "args": ["y"]}, {"name": "c"}, {"name": "b"}]})
            )
        );
    }

    #[test]
    fn items_are_deleted_replaced_and_reordered_by_directives() {
        let live = || json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]});
        let delete = json!({"containers": [{"name": "b", "$patch": "delete"}]});
        assert_eq!(
            patched("api.core.v1.PodSpec", live(), delete),
            Ok(json!({"containers": [{"name": "a"}, {"name": "c"}]}))
        );
        let replace = json!({"containers": [{"$patch": "replace"}, {"name": "z"}]});
        assert_eq!(
            patched("api.core.v1.PodSpec", live(), replace),
            Ok(json!({"containers": [{"name": "z"}]}))
        );
        let order = json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "a", "image": "x"}]});
        assert_eq!(
            patched("api.core.v1.PodSpec", live(), order),
            Ok(json!({"containers": [{"name": "b"}, {"name": "c"}, {"name": "a", "image": "x"}]}))
        );
    }

    #[test]
    fn messages_show_a_patch_without_the_directives_that_were_carried_out() {
        let patch = json!({"$retainKeys": ["spec"], "spec": {"a": 1, "b": {"$retainKeys": ["c"]}}});
        let tree = json!({"spec": {"a": 1, "b": {"$retainKeys": ["c"]}}});
        assert_eq!(
            without_spent_directives(&patch, &tree),
            json!({"spec": {"a": 1, "b": {"$retainKeys": ["c"]}}})
        );
        let patch = json!({"spec": {"$patch": "replace", "a": "x"}});
        let tree = json!({"spec": {"a": "x"}});
        assert_eq!(
            without_spent_directives(&patch, &tree),
            json!({"spec": {"a": "x"}})
        );
    }

    #[test]
    fn retain_keys_clears_the_other_members_of_a_union() {
        let after = patched(
            "api.core.v1.PodSpec",
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}]}),
        );
        assert_eq!(
            after,
            Ok(json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}))
        );
    }

    #[test]
    fn finalizers_are_a_set_that_the_patch_adds_to_and_deletes_from() {
        let live = || json!({"finalizers": ["a/b", "c/d"]});
        let kind = "apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let delete = json!({"$deleteFromPrimitiveList/finalizers": ["a/b"]});
        assert_eq!(
            patched(kind, live(), delete),
            Ok(json!({"finalizers": ["c/d"]}))
        );
        assert_eq!(
            patched(kind, live(), json!({"finalizers": ["e/f"]})),
            Ok(json!({"finalizers": ["e/f", "a/b", "c/d"]}))
        );
    }

    #[test]
    fn what_cannot_be_merged_is_refused_in_upstreams_words() {
        let refusal = |patch| {
            let refused = patched(
                "api.core.v1.PodSpec",
                json!({"containers": [{"name": "c"}]}),
                patch,
            )
            .expect_err("the patch is wrong");
            (refused.code, refused.message)
        };
        assert_eq!(
            refusal(json!({"containers": [{"image": "z"}]})),
            (
                500,
                "map: map[image:z] does not contain declared merge key: name".to_owned()
            )
        );
        assert_eq!(
            refusal(json!({"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "c", "image": "k:1"}]})),
            (500, "The order in patch list:\n[map[image:k:1 name:c]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n".to_owned())
        );
        let unknown = patched(
            "api.core.v1.ConfigMap",
            json!({"data": {"a": "1"}}),
            json!({"data": {"$patch": "merge", "z": "1"}}),
        );
        assert_eq!(
            unknown.map_err(|refused| refused.message),
            Err("unknown patch type: merge in map: map[$patch:merge z:1]".to_owned())
        );
    }

    #[test]
    fn directives_that_make_no_sense_are_refused_in_upstreams_words() {
        let refusal = |patch: Value| {
            let live = json!({"hostNetwork": true, "containers": [{"name": "c"}], "nodeSelector": {"a": "b"}});
            let refused =
                patched("api.core.v1.PodSpec", live, patch).expect_err("the patch is wrong");
            (refused.code, refused.message)
        };
        for (patch, code, message) in [
            (
                json!({"containers": [1]}),
                500,
                "list element types are not identical: [[map[name:c]] [1]]",
            ),
            (
                json!({"containers": [["c"]]}),
                500,
                "list element types are not identical: [[map[name:c]] [[c]]]",
            ),
            (
                json!({"$setElementOrder/containers": "c"}),
                500,
                "expected a []interface {}, but received a string",
            ),
            (
                json!({"$setElementOrder/containers": ["c"]}),
                500,
                "value for key 0 is not a map",
            ),
            (
                json!({"$setElementOrder/containers": [{"image": "i"}]}),
                500,
                "map: map[image:i] does not contain declared merge key: name",
            ),
            (
                json!({"$setElementOrder/containers": [], "containers": null}),
                500,
                "expected a []interface {}, but received a %!s(<nil>)",
            ),
            (
                json!({"$setElementOrder/volumes": [], "volumes": []}),
                500,
                "no elements in any of the given slices",
            ),
            (
                json!({"$setElementOrder/hostNetwork": []}),
                500,
                "expected a []interface {}, but received a bool",
            ),
            (
                json!({"$setElementOrder/hostPID": []}),
                500,
                "expected slice or array type, but got: struct",
            ),
            (
                json!({"$setElementOrder/nothing": []}),
                500,
                r#"unable to find api field in struct PodSpec for the json field "nothing""#,
            ),
            (
                json!({"$setElementOrder": []}),
                400,
                "invalid patch format of setElementOrder list",
            ),
            (
                json!({"$deleteFromPrimitiveListcontainers": []}),
                400,
                "invalid patch format of primitive list",
            ),
            (
                json!({"nodeSelector": {"$patch": 5}}),
                500,
                "unknown patch type: %!s(int64=5) in map: map[$patch:5]",
            ),
            (
                json!({"nodeSelector": {"$patch": ["delete", 5, null, {"a": true}]}}),
                500,
                "unknown patch type: [delete %!s(int64=5) <nil> map[a:%!s(bool=true)]] in map: map[$patch:[delete 5 <nil> map[a:true]]]",
            ),
        ] {
            assert_eq!(
                refusal(patch.clone()),
                (code, message.to_owned()),
                "{patch}"
            );
        }
    }

    #[test]
    fn what_is_new_keeps_its_directives_but_for_objects_with_one() {
        let new = json!({"volumes": [{"name": "v", "$retainKeys": ["name"], "secret": {"$patch": "delete"}}, {"$patch": "replace"}]});
        assert_eq!(
            patched("api.core.v1.PodSpec", json!({}), new),
            Ok(json!({"volumes": [{"name": "v", "$retainKeys": ["name"]}]}))
        );
        // A new item of a merged list is inserted as sent.
        let item = json!({"name": "w", "secret": {"$patch": "delete", "secretName": null}});
        assert_eq!(
            patched(
                "api.core.v1.PodSpec",
                json!({"volumes": [{"name": "v"}]}),
                json!({"volumes": [item]})
            ),
            Ok(json!({"volumes": [item, {"name": "v"}]}))
        );
    }

    #[test]
    fn what_is_deleted_from_a_list_need_not_be_there() {
        let kind = "apimachinery.pkg.apis.meta.v1.ObjectMeta";
        let delete = |what: Value| json!({"$deleteFromPrimitiveList/finalizers": what});
        for (live, what, after) in [
            (json!({}), json!(["a"]), json!({})),
            (
                json!({"finalizers": ["a"]}),
                json!("a"),
                json!({"finalizers": ["a"]}),
            ),
            (json!({"finalizers": ["a"]}), json!(null), json!({})),
            (
                json!({"finalizers": ["a", "a", "b"]}),
                json!(["a"]),
                json!({"finalizers": ["b"]}),
            ),
        ] {
            assert_eq!(patched(kind, live, delete(what)), Ok(after));
        }
    }

    #[test]
    fn a_list_of_scalars_that_is_merged_has_everything_once() {
        let after = patched(
            "apimachinery.pkg.apis.meta.v1.ObjectMeta",
            json!({"finalizers": ["a", "a", "b"]}),
            json!({"finalizers": ["c", "b", "c"]}),
        );
        assert_eq!(after, Ok(json!({"finalizers": ["c", "a", "b"]})));
    }

    #[test]
    fn a_selector_of_disruption_budgets_is_replaced() {
        let after = patched(
            "api.policy.v1.PodDisruptionBudgetSpec",
            json!({"selector": {"matchLabels": {"a": "1"}}}),
            json!({"selector": {"matchLabels": {"b": "2"}}}),
        );
        assert_eq!(after, Ok(json!({"selector": {"matchLabels": {"b": "2"}}})));
    }

    #[test]
    fn inside_of_what_has_no_schema_nothing_can_be_merged() {
        let refused = patched(
            "api.apps.v1.ControllerRevision",
            json!({"data": {"spec": {"a": 1}}}),
            json!({"data": {"spec": {"a": 2}}}),
        );
        assert_eq!(
            refused.map_err(|refused| refused.message),
            Err(
                r#"unable to find api field in struct RawExtension for the json field "spec""#
                    .to_owned()
            )
        );
    }
}
