//! Lists in a strategic merge patch: merged by key, brought into the order the patch asks for.
//!
//! The order of a merged list is `$setElementOrder`, then the patch, then the live list: an item that only the server has stays before
//! the item of the patch that it stood before.

use serde_json::{Map, Value};

use super::{ELEMENT_ORDER, PATCH, Schema, go_text, merge_map, unexpected, without_directives};
use crate::status::Status;

/// Merges the lists that come with a `$setElementOrder` and removes them from the patch.
pub(super) fn merge_ordered_lists(
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
            (None, Some(change)) => change.into_iter().filter_map(without_directives).collect(),
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

/// Merges a list by its merge key, or as a set where its items are scalars; a list without a strategy is replaced.
pub(super) fn merge_list(
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
    // Only the keys are asked for once the items are merged.
    let (live_order, patch_order) = (keys_of(&before, key), keys_of(&change, key));
    let mut merged = before;
    let item_schema = schema.map(|schema| schema.at(list.item));
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
            (_, item) => merged.extend(without_directives(item)),
        }
    }
    let (ordered, others) = partition(merged, &patch_order, Some(key))?;
    Ok(in_order(
        ordered,
        others,
        &patch_order,
        &live_order,
        Some(key),
    ))
}

/// Items that have nothing but the merge key, to tell an order by.
fn keys_of(items: &[Value], key: &str) -> Vec<Value> {
    let only_key = |item: &Value| {
        let value = item.get(key)?.clone();
        Some(Value::Object(Map::from_iter([(key.to_owned(), value)])))
    };
    items
        .iter()
        .map(|item| only_key(item).unwrap_or_default())
        .collect()
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

fn no_merge_key(item: &Value, key: &str) -> Status {
    unexpected(format!(
        "map: {} does not contain declared merge key: {key}",
        go_text(item)
    ))
}

fn bad_element_order() -> Status {
    Status::bad_request("invalid patch format of setElementOrder list")
}
