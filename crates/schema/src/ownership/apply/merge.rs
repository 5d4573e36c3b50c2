//! The tree operations of server-side apply: merging by the schema, and removing a set of fields.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::{
    Arena, List, ListKind, Node, Type, TypeId,
    ownership::{FieldSet, compare::element},
};

/// Merges a configuration into the live object: maps and keyed lists item by item, other values are replaced.
pub(super) fn merge(kind: &Type, live: &Value, config: &Value) -> Value {
    merge_value(kind.arena(), Some(kind.id()), live, config)
}

fn merge_value(arena: &Arena, id: Option<TypeId>, live: &Value, config: &Value) -> Value {
    match (id.map(|id| arena.node(id)), live, config) {
        // A null does not remove a value with content: its fields are removed once nobody owns them.
        (node, live, Value::Null) if is_opened(node, live) => live.clone(),
        (None, Value::Object(live), Value::Object(config)) => merge_map(arena, None, live, config),
        (Some(Node::Struct(fields)), Value::Object(live), Value::Object(config))
            if !fields.atomic =>
        {
            merge_map(arena, id, live, config)
        }
        (Some(Node::Map { atomic: false, .. }), Value::Object(live), Value::Object(config)) => {
            merge_map(arena, id, live, config)
        }
        (Some(Node::List(list)), Value::Array(live), Value::Array(config))
            if list.kind != ListKind::Atomic =>
        {
            Value::Array(merge_list(arena, list, live, config))
        }
        _ => config.clone(),
    }
}

/// Returns whether a value is merged by its content.
fn is_opened(node: Option<&Node>, value: &Value) -> bool {
    match (node, value) {
        (Some(Node::Struct(fields)), Value::Object(map)) => !fields.atomic && !map.is_empty(),
        (Some(Node::Map { atomic, .. }), Value::Object(map)) => !atomic && !map.is_empty(),
        (Some(Node::List(list)), Value::Array(items)) => {
            list.kind != ListKind::Atomic && !items.is_empty()
        }
        (None, Value::Object(map)) => !map.is_empty(),
        _ => false,
    }
}

fn merge_map(
    arena: &Arena,
    id: Option<TypeId>,
    live: &Map<String, Value>,
    config: &Map<String, Value>,
) -> Value {
    let mut merged = live.clone();
    for (key, value) in config {
        let below = child(arena, id, key);
        let value = match live.get(key) {
            Some(live) => merge_value(arena, below, live, value),
            None => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    Value::Object(merged)
}

fn child(arena: &Arena, id: Option<TypeId>, key: &str) -> Option<TypeId> {
    match arena.node(id?) {
        Node::Struct(fields) => fields.field(key).map(|field| field.id).or(fields.rest),
        Node::Map { value, .. } => Some(*value),
        _ => None,
    }
}

/// The position of a key in a list.
struct Place {
    first: usize,
    only: bool,
}

fn places(keys: &[String]) -> HashMap<&str, Place> {
    let mut places: HashMap<&str, Place> = HashMap::with_capacity(keys.len());
    for (first, key) in keys.iter().enumerate() {
        let place = places.entry(key);
        place
            .and_modify(|place| place.only = false)
            .or_insert(Place { first, only: true });
    }
    places
}

/// Merges two lists by key: live items keep their positions, shared ones take the configuration's order, and a new item follows its
/// predecessor in the configuration.
fn merge_list(arena: &Arena, list: &List, live: &[Value], config: &[Value]) -> Vec<Value> {
    let keys = |items: &[Value]| -> Vec<String> {
        items
            .iter()
            .map(|item| element(list, item).unwrap_or_default())
            .collect()
    };
    let (left, right) = (keys(live), keys(config));
    let (at_left, at_right) = (places(&left), places(&right));
    let is_in = |places: &HashMap<&str, Place>, key: &str| places.contains_key(key);
    let shared: Vec<&String> = right.iter().filter(|key| is_in(&at_left, key)).collect();
    let mut next_shared = shared.iter();
    let mut awaited = next_shared.next();
    let both = |at: usize| {
        let config = &config[at];
        match at_left.get(&*right[at]) {
            Some(Place { first, only: true }) => {
                merge_value(arena, Some(list.item), &live[*first], config)
            }
            // With several items of one key, it is undefined which one is meant, so replace them.
            _ => config.clone(),
        }
    };
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut l, mut r) = (0, 0);
    while l < left.len() || r < right.len() {
        if l < left.len() && r < right.len() {
            if left[l] == right[r] {
                merged.push(both(r));
                (l, r) = (l + 1, r + 1);
                awaited = next_shared.next();
                continue;
            }
            // A shared item out of turn is skipped here: the configuration's order decides its place.
            if is_in(&at_right, &left[l]) && awaited.is_some_and(|awaited| **awaited != left[l]) {
                l += 1;
                continue;
            }
        }
        if l < left.len() {
            match at_right.get(&*left[l]) {
                // Only the live list has it, so it stays where it is.
                None => {
                    merged.push(live[l].clone());
                    l += 1;
                    continue;
                }
                // The configuration has placed it already.
                Some(place) if place.first < r => l += 1,
                Some(_) => {}
            }
        }
        if r < right.len() {
            merged.push(both(r));
            if awaited.is_some_and(|awaited| **awaited == right[r]) {
                awaited = next_shared.next();
            }
            r += 1;
        }
    }
    merged
}

/// Removes the fields and list items of a set from a value; an object or list that becomes empty turns into null, as in
/// structured-merge-diff.
pub(super) fn without(kind: &Type, value: &Value, gone: &FieldSet) -> Value {
    remove(kind.arena(), Some(kind.id()), value, gone)
}

fn remove(arena: &Arena, id: Option<TypeId>, value: &Value, gone: &FieldSet) -> Value {
    match (id.map(|id| arena.node(id)), value) {
        // An atomic value is owned as a whole, so there is nothing to remove in it.
        (Some(Node::Struct(fields)), _) if fields.atomic => value.clone(),
        (Some(Node::Map { atomic: true, .. }), _) => value.clone(),
        (_, Value::Object(map)) => {
            let kept = map.iter().filter_map(|(key, value)| {
                let at = format!("f:{key}");
                if gone.has(&at) {
                    return None;
                }
                let value = match gone.below(&at) {
                    Some(below) => remove(arena, child(arena, id, key), value, below),
                    None => value.clone(),
                };
                Some((key.clone(), value))
            });
            let kept: Map<String, Value> = kept.collect();
            if kept.is_empty() && !map.is_empty() {
                return Value::Null;
            }
            Value::Object(kept)
        }
        (Some(Node::List(list)), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let kept = items.iter().filter_map(|item| {
                let at = element(list, item)?;
                if gone.has(&at) {
                    return None;
                }
                Some(match gone.below(&at) {
                    Some(below) => remove(arena, Some(list.item), item, below),
                    None => item.clone(),
                })
            });
            let kept: Vec<Value> = kept.collect();
            if kept.is_empty() && !items.is_empty() {
                return Value::Null;
            }
            Value::Array(kept)
        }
        _ => value.clone(),
    }
}

/// Adds the declared fields on the paths to a set's members: a configuration that names `spec.replicas` also names `spec`.
pub(super) fn with_named_fields(kind: &Type, set: &FieldSet) -> FieldSet {
    named(kind.arena(), Some(kind.id()), set)
}

fn named(arena: &Arena, id: Option<TypeId>, set: &FieldSet) -> FieldSet {
    set.map_children(|at, below| {
        let key = at.strip_prefix("f:");
        let declared = match (id.map(|id| arena.node(id)), key) {
            (Some(Node::Struct(fields)), Some(key)) => fields.field(key).is_some(),
            _ => false,
        };
        let child_id = match (id.map(|id| arena.node(id)), key) {
            (Some(Node::List(list)), _) => Some(list.item),
            (_, Some(key)) => child(arena, id, key),
            _ => None,
        };
        (declared, named(arena, child_id, below))
    })
}
