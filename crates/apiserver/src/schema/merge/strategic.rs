//! Strategic merge patch: merges lists by the keys of the schema and obeys the directives in the patch.
//!
//! Directives: `$patch: replace|delete` in objects and list items, `$deleteFromPrimitiveList/f`, `$setElementOrder/f`, `$retainKeys`.
//! The order of a merged list is `$setElementOrder`, then the patch, then the live list. Errors carry upstream's text and code.

mod lists;
#[cfg(test)]
mod properties;

use serde_json::{Map, Value};

use self::lists::{merge_list, merge_ordered_lists};
use super::{go_text, json_merge};
use crate::{
    schema::{Arena, List, Node, Type, TypeId},
    status::Status,
};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Applies a strategic merge patch to an object of that type.
///
/// # Errors
/// 400 for a malformed directive, 422 for lists of lists, 500 without a reason for what upstream does not expect either.
pub fn apply(kind: &Type, original: Value, patch: &Value) -> Result<Value, Status> {
    let (original, patch) = match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => (original, patch),
        (original, patch) => return Ok(json_merge(&original, patch)),
    };
    let schema = Some(Schema {
        arena: kind.arena(),
        id: kind.id(),
    });
    merge_map(original, patch.clone(), schema).map(Value::Object)
}

/// The schema of a value, where one is known.
#[derive(Clone, Copy)]
struct Schema<'s> {
    arena: &'s Arena,
    id: TypeId,
}

impl<'s> Schema<'s> {
    fn at(self, id: TypeId) -> Schema<'s> {
        Schema { id, ..self }
    }

    fn child(self, key: &str) -> Option<Schema<'s>> {
        match self.arena.node(self.id) {
            Node::Struct(fields) => fields
                .field(key)
                .map(|field| field.id)
                .or(fields.rest)
                .map(|id| self.at(id)),
            Node::Map { value, .. } => Some(self.at(*value)),
            _ => None,
        }
    }

    fn list(self) -> Option<&'s List> {
        match self.arena.node(self.id) {
            Node::List(list) => Some(list),
            _ => None,
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

fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    schema: Option<Schema<'_>>,
) -> Result<Map<String, Value>, Status> {
    match patch.get(PATCH) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            patch.remove(PATCH);
            return Ok(patch);
        }
        Some(Value::String(directive)) if directive == "delete" => return Ok(Map::new()),
        Some(other) => {
            return Err(unexpected(format!(
                "unknown patch type: {} in map: {}",
                go_text(other),
                go_text(&Value::Object(patch.clone()))
            )));
        }
    }
    retain_keys(&mut original, &mut patch)?;
    merge_ordered_lists(&mut original, &mut patch, schema)?;
    for (key, change) in patch {
        if let Some(name) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(Value::Array(items)), Value::Array(gone)) =
                (original.get_mut(name), &change)
            {
                items.retain(|item| !gone.contains(item));
            } else if !change.is_array() {
                return Err(bad_primitive_list());
            }
            continue;
        }
        if change.is_null() {
            original.remove(&key);
            continue;
        }
        let child = schema.and_then(|schema| schema.child(&key));
        let merged = match (original.remove(&key), change) {
            (Some(Value::Object(before)), Value::Object(change)) => {
                Value::Object(merge_map(before, change, child)?)
            }
            (Some(Value::Array(before)), Value::Array(change)) => {
                Value::Array(merge_list(before, change, child)?)
            }
            (_, change) => match without_directives(change) {
                Some(added) => added,
                None => continue,
            },
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// What a patch adds where nothing was: its nulls and directives mean nothing there, and a map that says how it is to be merged is none.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(map) if map.contains_key(PATCH) => None,
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, value)| {
                let directive = key == RETAIN_KEYS
                    || key.starts_with(ELEMENT_ORDER)
                    || key.starts_with(DELETE_PRIMITIVES);
                !directive && !value.is_null()
            });
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
}
