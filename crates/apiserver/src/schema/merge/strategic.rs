//! Strategic merge patch: merges lists by the keys of the schema and obeys the directives in the patch.
//!
//! Directives: `$patch: replace|delete` in objects and list items, `$deleteFromPrimitiveList/f`, `$setElementOrder/f`, `$retainKeys`.
//! The order of a merged list is `$setElementOrder`, then the patch, then the live list. Errors carry upstream's text and code.

use serde_json::{Map, Value};

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
pub fn apply(kind: &Type, original: &Value, patch: &Value) -> Result<Value, Status> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Ok(json_merge(original, patch));
    };
    let schema = Some(Schema {
        arena: kind.arena(),
        id: kind.id(),
    });
    merge_map(original.clone(), patch.clone(), schema).map(Value::Object)
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

fn no_merge_key(item: &Value, key: &str) -> Status {
    unexpected(format!(
        "map: {} does not contain declared merge key: {key}",
        go_text(item)
    ))
}

fn bad_retain_keys() -> Status {
    Status::bad_request("invalid patch format of retainKeys")
}

fn bad_element_order() -> Status {
    Status::bad_request("invalid patch format of setElementOrder list")
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
            (_, change) => without_directives(change),
        };
        original.insert(key, merged);
    }
    Ok(original)
}

/// What a patch adds where nothing was: its nulls and directives mean nothing there.
fn without_directives(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(key, value)| {
                let directive = key == PATCH
                    || key == RETAIN_KEYS
                    || key.starts_with(ELEMENT_ORDER)
                    || key.starts_with(DELETE_PRIMITIVES);
                !directive && !value.is_null()
            });
            Value::Object(
                kept.map(|(key, value)| (key, without_directives(value)))
                    .collect(),
            )
        }
        Value::Array(items) => {
            let plain = items.into_iter().filter(|item| item.get(PATCH).is_none());
            Value::Array(plain.map(without_directives).collect())
        }
        scalar => scalar,
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

/// Merges the lists that come with a `$setElementOrder` and removes them from the patch.
fn merge_ordered_lists(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Option<Schema<'_>>,
) -> Result<(), Status> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ELEMENT_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let Some(Value::Array(order)) = patch.remove(&directive) else {
            return Err(bad_element_order());
        };
        let name = &directive[ELEMENT_ORDER.len()..];
        let child = schema.and_then(|schema| schema.child(name));
        let list = child.and_then(Schema::list);
        let key = list.and_then(|list| list.merge_key.as_deref());
        let before = list_of(original.get(name))?;
        let change = list_of(patch.get(name))?;
        check_order(change.as_deref().unwrap_or_default(), &order, key)?;
        let merged = match (before.clone(), change) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(change)) => change
                .into_iter()
                .filter(|item| item.get(PATCH).is_none())
                .map(without_directives)
                .collect(),
            (Some(before), Some(change)) => merge_list(before, change, child)?,
        };
        let (ordered, others) = partition(merged, &order, key)?;
        original.insert(
            name.to_owned(),
            Value::Array(in_order(
                ordered,
                others,
                &order,
                &before.unwrap_or_default(),
                key,
            )),
        );
        patch.remove(name);
    }
    Ok(())
}

fn list_of(value: Option<&Value>) -> Result<Option<Vec<Value>>, Status> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(_) => Err(bad_element_order()),
    }
}

/// The items of the patch must appear in the order list, in the same relative order.
fn check_order(change: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Status> {
    if change.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted = change
        .iter()
        .filter(|item| item.get(PATCH).is_none())
        .peekable();
    for position in order {
        let Some(item) = wanted.peek() else {
            return Ok(());
        };
        if same(item, position, key)? {
            wanted.next();
        }
    }
    if wanted.peek().is_none() {
        return Ok(());
    }
    let (change, order) = (
        go_text(&Value::Array(change.to_vec())),
        go_text(&Value::Array(order.to_vec())),
    );
    Err(unexpected(format!(
        "The order in patch list:\n{change}\n doesn't match $setElementOrder list:\n{order}\n"
    )))
}

/// Whether two items are the same one: by key, or for scalars by value.
fn same(left: &Value, right: &Value, key: Option<&str>) -> Result<bool, Status> {
    let Some(key) = key else {
        return Ok(left == right);
    };
    let left_key = left.get(key).ok_or_else(|| no_merge_key(left, key))?;
    let right_key = right.get(key).ok_or_else(|| no_merge_key(right, key))?;
    Ok(left_key == right_key)
}

fn merge_list(
    before: Vec<Value>,
    change: Vec<Value>,
    schema: Option<Schema<'_>>,
) -> Result<Vec<Value>, Status> {
    let Some(list) = schema.and_then(Schema::list).filter(|list| list.merge) else {
        return Ok(change);
    };
    if before.is_empty() && change.is_empty() {
        return Ok(before);
    }
    if before.iter().chain(&change).any(Value::is_array) {
        return Err(Status::new(
            422,
            "Invalid",
            "lists of lists are not supported",
        ));
    }
    let Some(key) = list.merge_key.as_deref() else {
        let mut merged = before.clone();
        merged.extend(change.iter().filter(|item| !before.contains(item)).cloned());
        let (ordered, others) = partition(merged, &change, None)?;
        return Ok(in_order(ordered, others, &change, &before, None));
    };
    let (before, change) = obey_item_directives(before, change, key)?;
    let mut merged = before.clone();
    let item_schema = schema.map(|schema| schema.at(list.item));
    for item in &change {
        let wanted = item.get(key).ok_or_else(|| no_merge_key(item, key))?;
        match (
            merged
                .iter_mut()
                .find(|present| present.get(key) == Some(wanted)),
            item,
        ) {
            (Some(Value::Object(present)), Value::Object(item)) => {
                *present = merge_map(std::mem::take(present), item.clone(), item_schema)?;
            }
            _ => merged.push(without_directives(item.clone())),
        }
    }
    let (ordered, others) = partition(merged, &change, Some(key))?;
    Ok(in_order(ordered, others, &change, &before, Some(key)))
}

/// Carries out `$patch: delete` and `$patch: replace` items; the rest of the patch comes back with the list it is for.
fn obey_item_directives(
    mut before: Vec<Value>,
    change: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Status> {
    let mut plain = Vec::with_capacity(change.len());
    let mut replace = false;
    for item in change {
        match item
            .get(PATCH)
            .map(|directive| directive.as_str().unwrap_or_default())
        {
            None => plain.push(item),
            Some("delete") => {
                let gone = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
                before.retain(|present| present.get(key) != Some(gone));
            }
            Some("replace") => replace = true,
            Some("merge") => {
                return Err(unexpected(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            Some(_) => {
                let directive = go_text(&item[PATCH]);
                return Err(unexpected(format!(
                    "unknown patch type: {directive} in map: {}",
                    go_text(&item)
                )));
            }
        }
    }
    Ok(if replace {
        (plain, Vec::new())
    } else {
        (before, plain)
    })
}

/// Splits a list into the items that are in `by` and the others.
fn partition(
    items: Vec<Value>,
    by: &[Value],
    key: Option<&str>,
) -> Result<(Vec<Value>, Vec<Value>), Status> {
    if let Some(key) = key
        && let Some(item) = items.iter().find(|item| item.get(key).is_none())
    {
        return Err(no_merge_key(item, key));
    }
    Ok(items
        .into_iter()
        .partition(|item| position(by, item, key).is_some()))
}

fn position(list: &[Value], item: &Value, key: Option<&str>) -> Option<usize> {
    list.iter().position(|other| match key {
        Some(key) => other.get(key).is_some() && other.get(key) == item.get(key),
        None => other == item,
    })
}

/// Merges the patch's items (in the patch's order) with the server's others (in the live order): an item of the server goes first
/// where the live list had it before the next item of the patch.
fn in_order(
    mut ordered: Vec<Value>,
    mut others: Vec<Value>,
    patch_order: &[Value],
    live_order: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    ordered.sort_by_key(|item| position(patch_order, item, key));
    others.sort_by_key(|item| position(live_order, item, key));
    let mut merged = Vec::with_capacity(ordered.len() + others.len());
    let (mut ordered, mut others) = (
        ordered.into_iter().peekable(),
        others.into_iter().peekable(),
    );
    while let (Some(left), Some(right)) = (others.peek(), ordered.peek()) {
        let before = matches!((position(live_order, left, key), position(live_order, right, key)), (Some(left), Some(right)) if left < right);
        merged.extend(if before {
            others.next()
        } else {
            ordered.next()
        });
    }
    merged.extend(ordered);
    merged.extend(others);
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(kind: &str, original: Value, patch: Value) -> Result<Value, Status> {
        apply(
            &Type::builtin(kind).expect("the type is built in"),
            &original,
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
