//! Lists in a strategic merge patch: merges them by key and sorts them in the order that the patch asks for.
//!
//! A merged list follows `$setElementOrder`, then the patch, then the live list: an item that only the live list has stays in front of
//! the patch item that it preceded there.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use mullion_kube_text::status::Status;
use serde_json::{Map, Value};

use super::{
    ELEMENT_ORDER, PATCH, Schema, bad_type, go_text, go_type, merge_map, subject, unexpected,
    unknown_directive, without_directives,
};
use crate::{List, merge::inapplicable};

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

/// Merges the lists that have a `$setElementOrder` directive, and removes them from the patch.
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
            // An order alone creates no list.
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
        // The list is done; the merge of the other fields must not do it again.
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

/// Checks that the patch's items appear in the order list, in the same relative order.
fn check_order(change: &[Value], order: &[Value], key: Option<&str>) -> Result<(), Status> {
    if change.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut wanted: Vec<&Value> = Vec::with_capacity(change.len());
    for item in change {
        if key.is_some() && !item.is_object() {
            return Err(bad_type(MAP, item));
        }
        // An item that is to be deleted has no place in the order.
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
        // A `$patch: replace` item is a directive, not an item of the list.
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

/// Returns whether two items are the same: by key, or by value for scalars.
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

/// The type of a list's items.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Items {
    Maps,
    Scalars,
}

/// Returns the type of the items of two lists, which must be the same for all and not lists.
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

/// Merges a list by its merge key, or as a set if its items are scalars; a list without a merge strategy is replaced. With `deletes`, the
/// patch's scalars are removed instead.
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
            let gone: HashSet<&Value> = change.iter().collect();
            kept.retain(|item| !gone.contains(item));
            return Ok(kept);
        }
        let mut seen: HashSet<&Value> = HashSet::new();
        let items = before.iter().chain(&change);
        let merged = items.filter(|item| seen.insert(item)).cloned().collect();
        let (ordered, others) = partition(merged, &change, None)?;
        return in_order(ordered, others, &change, &before, None);
    }
    let Some((list, key)) = list.and_then(|list| Some((list, list.merge_key.as_deref()?))) else {
        return Err(unexpected(
            "cannot merge lists without merge key for struct".to_owned(),
        ));
    };
    let (before, change) = obey_item_directives(before, change, key)?;
    // After the merge only the keys are needed, to restore the order.
    let (live_order, patch_order) = (keys_of(&before, key), keys_of(&change, key));
    let mut merged = before;
    let mut places: HashMap<Value, usize> = HashMap::new();
    for (place, item) in merged.iter().enumerate() {
        if let Some(value) = item.get(key) {
            // Of several live items with one key, Go's search finds the first.
            places.entry(value.clone()).or_insert(place);
        }
    }
    let item_schema = schema.at(list.item);
    for item in change {
        let wanted = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
        // Another patch item with this key is merged into the same item.
        let place = *places.entry(wanted.clone()).or_insert(merged.len());
        match (merged.get_mut(place), item) {
            (Some(Value::Object(present)), Value::Object(item)) => {
                *present = merge_map(std::mem::take(present), item, item_schema)?;
            }
            (_, item) => merged.push(item),
        }
    }
    let (ordered, others) = partition(merged, &patch_order, Some(key))?;
    in_order(ordered, others, &patch_order, &live_order, Some(key))
}

/// Returns the items reduced to their merge key.
fn keys_of(items: &[Value], key: &str) -> Vec<Value> {
    let only_key = |item: &Value| {
        let value = item.get(key)?.clone();
        Some(Value::Object(Map::from_iter([(key.to_owned(), value)])))
    };
    items.iter().filter_map(only_key).collect()
}

/// Carries out the `$patch: delete` and `$patch: replace` items. Returns the list to merge into, and the remaining items of the patch.
fn obey_item_directives(
    mut before: Vec<Value>,
    change: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), Status> {
    let mut plain = Vec::with_capacity(change.len());
    let mut replace = false;
    let mut gone: HashSet<Value> = HashSet::new();
    for item in change {
        let Some(directive) = item.get(PATCH) else {
            plain.push(item);
            continue;
        };
        match directive.as_str().unwrap_or_default() {
            "delete" => {
                let value = item.get(key).ok_or_else(|| no_merge_key(&item, key))?;
                gone.insert(value.clone());
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
    before.retain(|present| present.get(key).is_none_or(|value| !gone.contains(value)));
    Ok(if replace {
        (plain, Vec::new())
    } else {
        (before, plain)
    })
}

/// Splits a list into the items that are also in `by`, and the others.
fn partition(
    items: Vec<Value>,
    by: &[Value],
    key: Option<&str>,
) -> Result<(Vec<Value>, Vec<Value>), Status> {
    let positions = Positions::of(by, key);
    if let Some(key) = key {
        let no_map = by.iter().position(|other| !other.is_object());
        for item in &items {
            if !item.is_object() {
                return Err(bad_type(MAP, item));
            }
            if item.get(key).is_none() {
                return Err(no_merge_key(item, key));
            }
            // Go's search stops at the matching item, so a wrong type after it causes no error.
            let passed = positions.get(item).unwrap_or(by.len());
            if let Some(at) = no_map.filter(|at| *at < passed) {
                return Err(unexpected(format!("value for key {at} is not a map")));
            }
        }
    }
    Ok(items
        .into_iter()
        .partition(|item| positions.get(item).is_some()))
}

/// The first position of each item of a list, by key or by value.
struct Positions<'a> {
    first: HashMap<&'a Value, usize>,
    key: Option<&'a str>,
}

impl<'a> Positions<'a> {
    fn of(list: &'a [Value], key: Option<&'a str>) -> Self {
        let mut positions = Positions {
            first: HashMap::with_capacity(list.len()),
            key,
        };
        for (position, item) in list.iter().enumerate() {
            if let Some(identity) = positions.identity(item) {
                positions.first.entry(identity).or_insert(position);
            }
        }
        positions
    }

    fn identity<'v>(&self, item: &'v Value) -> Option<&'v Value> {
        match self.key {
            Some(key) => item.get(key),
            None => Some(item),
        }
    }

    fn get(&self, item: &Value) -> Option<usize> {
        self.first.get(self.identity(item)?).copied()
    }
}

/// Merges the patch's items, in the patch's order, with the other items, in the live order: one of the others goes first where the live
/// list has it before the next patch item.
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
    let live = Positions::of(live_order, key);
    while let (Some(left), Some(right)) = (others.peek(), ordered.peek()) {
        let before =
            matches!((live.get(left), live.get(right)), (Some(left), Some(right)) if left < right);
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

/// Sorts items by an order that may lack some of them, like Go's sort with its inconsistent comparison, in which an item without a place
/// is less than every other and also greater. Go's insertion sort then moves an item without a place to the front, and puts one with a
/// place directly behind the last item that must precede it, which passes on the unplaced items behind it.
fn sorted(items: Vec<Value>, order: &[Value], key: Option<&str>) -> Vec<Value> {
    let positions = Positions::of(order, key);
    let mut front: VecDeque<Value> = VecDeque::new();
    let mut placed: BTreeMap<(usize, usize), (Value, VecDeque<Value>)> = BTreeMap::new();
    for (index, item) in items.into_iter().enumerate() {
        let Some(place) = positions.get(&item) else {
            front.push_front(item);
            continue;
        };
        let before = placed.range_mut(..(place, index)).next_back();
        let behind = before.map_or(&mut front, |(_, (_, behind))| behind);
        let behind = std::mem::take(behind);
        placed.insert((place, index), (item, behind));
    }
    let placed = placed.into_values();
    let placed = placed.flat_map(|(item, behind)| std::iter::once(item).chain(behind));
    front.into_iter().chain(placed).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorts by inserting items one by one from the end, as Go's sort does.
    fn sorted_slowly(items: Vec<Value>, order: &[Value]) -> Vec<Value> {
        let place = |item: &Value| order.iter().position(|other| other == item);
        let mut sorted = items;
        for end in 1..sorted.len() {
            for at in (1..=end).rev() {
                match (place(&sorted[at]), place(&sorted[at - 1])) {
                    (Some(one), Some(other)) if one >= other => break,
                    _ => sorted.swap(at, at - 1),
                }
            }
        }
        sorted
    }

    proptest::proptest! {
        #[test]
        fn items_without_a_place_end_where_inserting_one_by_one_puts_them(
            items in proptest::collection::vec(0..9_u8, 0..12),
            order in proptest::collection::vec(0..6_u8, 0..6),
        ) {
            let values = |numbers: Vec<u8>| -> Vec<Value> { numbers.into_iter().map(Value::from).collect() };
            let (items, order) = (values(items), values(order));
            proptest::prop_assert_eq!(sorted(items.clone(), &order, None), sorted_slowly(items, &order));
        }
    }
}
