//! Lists in a strategic merge patch: merged by key, brought into the order the patch asks for.
//!
//! The order of a merged list is `$setElementOrder`, then the patch, then the live list: an item that only the server has stays before
//! the item of the patch that it stood before.

use serde_json::{Map, Value};

use super::{
    ELEMENT_ORDER, PATCH, Schema, bad_type, go_text, go_type, merge_map, subject, unexpected,
    unknown_directive, without_directives,
};
use crate::{
    schema::{List, merge::inapplicable},
    status::Status,
};

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

/// Merges the lists that come with a `$setElementOrder` and removes them from the patch.
pub(super) fn merge_ordered_lists(
    original: &mut Map<String, Value>,
    patch: &mut Map<String, Value>,
    schema: Schema<'_>,
) -> Result<(), Status> {
    let directives: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(ELEMENT_ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            other => return Err(bad_type(LIST, &other.unwrap_or_default())),
        };
        let name = subject(&directive, ELEMENT_ORDER).ok_or_else(bad_element_order)?;
        let before = list_of(original.get(name))?;
        let change = list_of(patch.get(name))?;
        let list = schema.list(name)?;
        let key = list.and_then(|list| list.merge_key.as_deref());
        check_order(change.as_deref().unwrap_or_default(), &order, key)?;
        let merged = match (before.clone(), change.clone()) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(change)) => change.into_iter().filter_map(without_directives).collect(),
            (Some(before), Some(change)) => merge_list(before, change, list, schema, false)?,
        };
        let (ordered, others) = partition(merged, &order, key)?;
        let before = before.unwrap_or_default();
        let items = item_kind(&before, &change.unwrap_or_default())?;
        let key = key.filter(|_| items == Items::Maps);
        let merged = in_order(ordered, others, &order, &before, key)?;
        original.insert(name.to_owned(), Value::Array(merged));
        patch.remove(name);
    }
    Ok(())
}

fn list_of(value: Option<&Value>) -> Result<Option<Vec<Value>>, Status> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items.clone())),
        Some(other) => Err(bad_type(LIST, other)),
    }
}

/// The items of the patch must appear in the order list, in the same relative order.
fn check_order(change: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Status> {
    if change.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted: Vec<&Value> = Vec::with_capacity(change.len());
    for item in change {
        if key.is_some() && !item.is_object() {
            return Err(bad_type(MAP, item));
        }
        if key.is_none()
            || item
                .get(PATCH)
                .is_none_or(|directive| directive != "delete")
        {
            wanted.push(item);
        }
    }
    let (mut at, mut place) = (0, 0);
    while at < wanted.len() && place < order.len() {
        if wanted[at].get(PATCH).is_some() {
            at += 1;
            continue;
        }
        if same(wanted[at], &order[place], key)? {
            at += 1;
        }
        place += 1;
    }
    if at == wanted.len() {
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
    for side in [left, right] {
        if !side.is_object() {
            return Err(bad_type(MAP, side));
        }
    }
    let left_key = left.get(key).ok_or_else(|| no_merge_key(left, key))?;
    let right_key = right.get(key).ok_or_else(|| no_merge_key(right, key))?;
    Ok(left_key == right_key)
}

/// What the items of lists are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Items {
    Maps,
    Scalars,
}

/// What the items of two lists are: all of one type, and no lists.
fn item_kind(before: &[Value], change: &[Value]) -> Result<Items, Status> {
    let mut items = before.iter().chain(change);
    let Some(first) = items.next() else {
        return Err(unexpected(
            "no elements in any of the given slices".to_owned(),
        ));
    };
    if first.is_array() {
        return Err(inapplicable());
    }
    if items.any(|item| go_type(item) != go_type(first)) {
        let lists = [before, change].map(|list| go_text(&Value::Array(list.to_vec())));
        return Err(unexpected(format!(
            "list element types are not identical: [{}]",
            lists.join(" ")
        )));
    }
    Ok(if first.is_object() {
        Items::Maps
    } else {
        Items::Scalars
    })
}

/// Merges a list by its merge key, or as a set where its items are scalars; a list without a strategy is replaced. With `deletes`, scalars
/// of the patch are taken out.
pub(super) fn merge_list(
    before: Vec<Value>,
    change: Vec<Value>,
    list: Option<&List>,
    schema: Schema<'_>,
    deletes: bool,
) -> Result<Vec<Value>, Status> {
    if !deletes && !list.is_some_and(|list| list.merge) {
        return Ok(change);
    }
    if before.is_empty() && change.is_empty() {
        return Ok(before);
    }
    if item_kind(&before, &change)? == Items::Scalars {
        if deletes {
            let mut kept = before;
            kept.retain(|item| !change.contains(item));
            return Ok(kept);
        }
        let mut merged: Vec<Value> = Vec::with_capacity(before.len() + change.len());
        for item in before.iter().chain(&change) {
            if !merged.contains(item) {
                merged.push(item.clone());
            }
        }
        let (ordered, others) = partition(merged, &change, None)?;
        return in_order(ordered, others, &change, &before, None);
    }
    let Some((list, key)) = list.and_then(|list| Some((list, list.merge_key.as_deref()?))) else {
        return Err(unexpected(
            "cannot merge lists without merge key for struct".to_owned(),
        ));
    };
    let (before, change) = obey_item_directives(before, change, key)?;
    // Only the keys are asked for once the items are merged.
    let (live_order, patch_order) = (keys_of(&before, key), keys_of(&change, key));
    let mut merged = before;
    let item_schema = schema.at(list.item);
    for item in change {
        let wanted = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
        match (
            merged
                .iter_mut()
                .find(|present| present.get(key) == Some(wanted)),
            item,
        ) {
            (Some(Value::Object(present)), Value::Object(item)) => {
                *present = merge_map(std::mem::take(present), item, item_schema)?;
            }
            (_, item) => merged.push(item),
        }
    }
    let (ordered, others) = partition(merged, &patch_order, Some(key))?;
    in_order(ordered, others, &patch_order, &live_order, Some(key))
}

/// Items that have nothing but the merge key, to tell an order by.
fn keys_of(items: &[Value], key: &str) -> Vec<Value> {
    let only_key = |item: &Value| {
        let value = item.get(key)?.clone();
        Some(Value::Object(Map::from_iter([(key.to_owned(), value)])))
    };
    items.iter().filter_map(only_key).collect()
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
        let Some(directive) = item.get(PATCH) else {
            plain.push(item);
            continue;
        };
        match directive.as_str().unwrap_or_default() {
            "delete" => {
                let gone = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
                before.retain(|present| present.get(key) != Some(gone));
            }
            "replace" => replace = true,
            "merge" => {
                return Err(unexpected(
                    "merging lists cannot yet be specified in the patch".to_owned(),
                ));
            }
            _ => {
                let map = item.as_object().cloned().unwrap_or_default();
                return Err(unknown_directive(directive, &map));
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
    if let Some(key) = key {
        for item in &items {
            if !item.is_object() {
                return Err(bad_type(MAP, item));
            }
            if item.get(key).is_none() {
                return Err(no_merge_key(item, key));
            }
            let found = position(by, item, Some(key));
            // Upstream looks until it finds the item, and no further.
            let passed = &by[..found.unwrap_or(by.len())];
            if let Some(at) = passed.iter().position(|other| !other.is_object()) {
                return Err(unexpected(format!("value for key {at} is not a map.")));
            }
        }
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
    ordered: Vec<Value>,
    others: Vec<Value>,
    patch_order: &[Value],
    live_order: &[Value],
    key: Option<&str>,
) -> Result<Vec<Value>, Status> {
    if let Some(key) = key
        && let Some(item) = patch_order.iter().find(|item| item.get(key).is_none())
    {
        return Err(no_merge_key(item, key));
    }
    let ordered = sorted(ordered, patch_order, key);
    let others = sorted(others, live_order, key);
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
    Ok(merged)
}

/// Items in an order that may not have all of them. For Go's sort an item without a place is less than every other and the other way round:
/// inserting one by one does the same.
fn sorted(items: Vec<Value>, order: &[Value], key: Option<&str>) -> Vec<Value> {
    let mut placed: Vec<(Option<usize>, Value)> = items
        .into_iter()
        .map(|item| (position(order, &item, key), item))
        .collect();
    if placed.iter().all(|(place, _)| place.is_some()) {
        placed.sort_by_key(|(place, _)| *place);
    } else {
        for end in 1..placed.len() {
            for at in (1..=end).rev() {
                match (placed[at].0, placed[at - 1].0) {
                    (Some(one), Some(other)) if one >= other => break,
                    _ => placed.swap(at, at - 1),
                }
            }
        }
    }
    placed.into_iter().map(|(_, item)| item).collect()
}

fn no_merge_key(item: &Value, key: &str) -> Status {
    unexpected(format!(
        "map: {} does not contain declared merge key: {key}",
        go_text(item)
    ))
}

fn bad_element_order() -> Status {
    Status::bad_request("invalid patch format of setElementOrder list")
}
