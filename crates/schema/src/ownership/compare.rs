//! Compares two objects according to their schema and returns the differences as sets of paths: lists by their keys, atomic values as a
//! whole.
//!
//! The rules are those of structured-merge-diff: a value that only one side has is in the set together with everything below it; lists
//! and maps that are empty on both sides are leaves.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::FieldSet;
use crate::{Arena, List, ListKind, Node, Type, TypeId};

/// The paths at which two objects differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The paths that only the new object has.
    pub added: FieldSet,
    /// The paths with different values.
    pub modified: FieldSet,
    /// The paths that only the old object has.
    pub removed: FieldSet,
}

impl Comparison {
    /// Returns whether the objects are the same.
    pub fn is_same(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    /// Adds the differences found at an element; its name is formatted only if there are any.
    fn take(&mut self, found: Differences, name: impl Fn() -> String) {
        let Differences { here, below } = found;
        for (set, below, side) in [
            (&mut self.added, below.added, Side::Added),
            (&mut self.modified, below.modified, Side::Modified),
            (&mut self.removed, below.removed, Side::Removed),
        ] {
            let member = here == Some(side);
            if member || !below.is_empty() {
                set.add(name(), member, below);
            }
        }
    }
}

/// Compares two objects of a type; `None` if a list cannot be keyed as its schema says.
pub fn compare(kind: &Type, old: &Value, new: &Value) -> Option<Comparison> {
    let walk = Walk {
        arena: kind.arena(),
    };
    walk.value(Some(kind.id()), Some(old), Some(new))
        .map(|found| found.below)
}

/// Returns the path element of a list's item; `None` if the item has no key.
pub(crate) fn element(list: &List, item: &Value) -> Option<String> {
    match list.kind {
        ListKind::Set => Some(format!("v:{item}")),
        ListKind::Map => {
            let value = |key: &str| {
                // A key that is left out has its default, such as `protocol: TCP` in a port.
                item.get(key).or_else(|| {
                    list.key_defaults
                        .iter()
                        .find(|(name, _)| name == key)
                        .map(|(_, default)| default)
                })
            };
            let mut pairs: Vec<(&str, &Value)> = Vec::with_capacity(list.keys.len());
            pairs.extend(
                list.keys
                    .iter()
                    .filter_map(|key| Some((&**key, value(key)?))),
            );
            // FieldsV1 has the keys in this order, so equal items get equal elements.
            pairs.sort_unstable_by_key(|(key, _)| *key);
            let mut text = String::from("k:{");
            for (index, (key, value)) in pairs.iter().enumerate() {
                let comma = if index > 0 { "," } else { "" };
                // The keys of lists are field names, which need no escaping in JSON.
                write!(text, "{comma}\"{key}\":{value}")
                    .expect("writing to a string does not fail");
            }
            text.push('}');
            (!pairs.is_empty()).then_some(text)
        }
        ListKind::Atomic => None,
    }
}

struct Walk<'s> {
    arena: &'s Arena,
}

/// The set of a comparison that a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Added,
    Modified,
    Removed,
}

/// The differences at a path and below it.
#[derive(Debug, Default)]
struct Differences {
    here: Option<Side>,
    below: Comparison,
}

/// How a value is compared.
enum Shape<'s> {
    Leaf,
    Map,
    List(&'s List),
}

impl<'s> Walk<'s> {
    /// Returns how a value is compared. Without a type (below unknown fields) objects are maps, and everything else is one value.
    fn shape(&self, id: Option<TypeId>, sample: &Value) -> Shape<'s> {
        match (id.map(|id| self.arena.node(id)), sample) {
            (None, Value::Object(_)) => Shape::Map,
            (Some(Node::Struct(fields)), Value::Object(_) | Value::Null) if !fields.atomic => {
                Shape::Map
            }
            (Some(Node::Map { atomic: false, .. }), Value::Object(_) | Value::Null) => Shape::Map,
            (Some(Node::List(list)), Value::Array(_) | Value::Null)
                if list.kind != ListKind::Atomic =>
            {
                Shape::List(list)
            }
            _ => Shape::Leaf,
        }
    }

    fn value(
        &self,
        id: Option<TypeId>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Option<Differences> {
        // The side that has a value shows how the two are compared.
        let sample = new.filter(|value| !value.is_null()).or(old).or(new)?;
        if is_empty(old) && is_empty(new) {
            return Some(leaf(old, new));
        }
        // Equal values have no differences, but a list without keys is an error even then.
        if old == new {
            return self.has_keys(id, sample).then(Differences::default);
        }
        // Below unknown fields, a map on one side only is compared entry by entry, and also counts as modified itself.
        let is_map = |side: Option<&Value>| side.is_some_and(Value::is_object);
        let is_mixed =
            id.is_none() && is_map(old) != is_map(new) && !is_empty(old) && !is_empty(new);
        let shape = if is_mixed {
            Shape::Map
        } else {
            self.shape(id, sample)
        };
        let below = match shape {
            Shape::Leaf => return Some(leaf(old, new)),
            Shape::Map => self.map(id, old, new)?,
            Shape::List(list) => self.list(list, old, new)?,
        };
        Some(Differences {
            here: one_sided(old, new).or(is_mixed.then_some(Side::Modified)),
            below,
        })
    }

    /// Returns whether all items of keyed lists in a value have keys.
    fn has_keys(&self, id: Option<TypeId>, value: &Value) -> bool {
        if !id.is_some_and(|id| self.arena.holds_keyed_lists(id)) {
            return true;
        }
        match (self.shape(id, value), value) {
            (Shape::Map, Value::Object(map)) => map
                .iter()
                .all(|(key, value)| self.has_keys(self.below(id, key), value)),
            (Shape::List(list), Value::Array(items)) => items
                .iter()
                .all(|item| has_key(list, item) && self.has_keys(Some(list.item), item)),
            _ => true,
        }
    }

    /// Returns the type of a field or entry.
    fn below(&self, id: Option<TypeId>, key: &str) -> Option<TypeId> {
        match self.arena.node(id?) {
            Node::Struct(fields) => fields.field(key).map(|field| field.id).or(fields.rest),
            Node::Map { value, .. } => Some(*value),
            _ => None,
        }
    }

    fn map(
        &self,
        id: Option<TypeId>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) -> Option<Comparison> {
        let (old, new) = (
            old.and_then(Value::as_object),
            new.and_then(Value::as_object),
        );
        let mut found = Comparison::default();
        for (key, old, new) in side_by_side(old, new) {
            let below = self.value(self.below(id, key), old, new)?;
            found.take(below, || ["f:", key].concat());
        }
        Some(found)
    }

    fn list(&self, list: &List, old: Option<&Value>, new: Option<&Value>) -> Option<Comparison> {
        let (old, new) = (all_keyed(list, old)?, all_keyed(list, new)?);
        let (mut old, mut new) = (&old[..], &new[..]);
        let mut found = Comparison::default();
        // Iterates in the order of the keys, which is also the order of the sets.
        while let Some(key) = lowest_key(old, new) {
            let before = split_off(&mut old, key);
            let after = split_off(&mut new, key);
            let item = match (before, after) {
                // Several items with one key on both sides cannot be paired, so they are compared together.
                ([_, _, ..], [_, _, ..]) => {
                    let differ = before
                        .iter()
                        .map(|(_, item)| item)
                        .ne(after.iter().map(|(_, item)| item));
                    Differences {
                        here: differ.then_some(Side::Modified),
                        below: Comparison::default(),
                    }
                }
                // If a side has several items with this key, they are added or removed as a whole, and the other side's item is compared
                // with nothing.
                ([_, _, ..], _) => {
                    found.removed.add(key.clone(), true, FieldSet::default());
                    match first(after) {
                        Some(item) => self.value(Some(list.item), None, Some(item))?,
                        None => Differences::default(),
                    }
                }
                (_, [_, _, ..]) => {
                    found.added.add(key.clone(), true, FieldSet::default());
                    match first(before) {
                        Some(item) => self.value(Some(list.item), Some(item), None)?,
                        None => Differences::default(),
                    }
                }
                _ => self.value(Some(list.item), first(before), first(after))?,
            };
            found.take(item, || key.clone());
        }
        Some(found)
    }
}

/// Returns the entries of two maps, paired by key and sorted. The sets have the same order, so each element is appended; inserting in the
/// middle would move all later ones.
fn side_by_side<'v>(
    old: Option<&'v Map<String, Value>>,
    new: Option<&'v Map<String, Value>>,
) -> impl Iterator<Item = (&'v String, Option<&'v Value>, Option<&'v Value>)> {
    let [mut old, mut new] = [old, new].map(|map| map.into_iter().flatten().peekable());
    std::iter::from_fn(move || {
        let firsts = [old.peek(), new.peek()].into_iter().flatten();
        let key = firsts.map(|(key, _)| *key).min()?;
        let old = old.next_if(|(other, _)| *other == key);
        let new = new.next_if(|(other, _)| *other == key);
        Some((
            key,
            old.map(|(_, value)| value),
            new.map(|(_, value)| value),
        ))
    })
}

fn leaf(old: Option<&Value>, new: Option<&Value>) -> Differences {
    let here = match (old, new) {
        (Some(old), Some(new)) => (old != new).then_some(Side::Modified),
        _ => one_sided(old, new),
    };
    Differences {
        here,
        below: Comparison::default(),
    }
}

fn one_sided(old: Option<&Value>, new: Option<&Value>) -> Option<Side> {
    match (old, new) {
        (None, Some(_)) => Some(Side::Added),
        (Some(_), None) => Some(Side::Removed),
        _ => None,
    }
}

/// Returns whether [`element`] can identify a list's item.
fn has_key(list: &List, item: &Value) -> bool {
    match list.kind {
        ListKind::Set => true,
        ListKind::Map => {
            let given = |key: &str| item.get(key).is_some();
            let has_default = |key: &str| list.key_defaults.iter().any(|(name, _)| name == key);
            list.keys.iter().any(|key| given(key) || has_default(key))
        }
        ListKind::Atomic => false,
    }
}

/// The items of a list with their keys, sorted by key; items with equal keys keep their order. A list may be as long as a request, so it
/// must never be searched once per item.
type Items<'v> = [(String, &'v Value)];

/// Returns the items that have a key.
fn keyed_items<'v>(list: &List, items: &'v [Value]) -> Vec<(String, &'v Value)> {
    let keyed = items
        .iter()
        .filter_map(|item| Some((element(list, item)?, item)));
    let mut keyed: Vec<_> = keyed.collect();
    keyed.sort_by(|(key, _), (other, _)| key.cmp(other));
    keyed
}

/// Returns all items of a list; `None` if one has no key.
fn all_keyed<'v>(list: &List, side: Option<&'v Value>) -> Option<Vec<(String, &'v Value)>> {
    let items = side
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let keyed = keyed_items(list, items);
    (keyed.len() == items.len()).then_some(keyed)
}

fn first<'v>(items: &Items<'v>) -> Option<&'v Value> {
    items.first().map(|(_, item)| *item)
}

fn lowest_key<'i>(old: &'i Items<'_>, new: &'i Items<'_>) -> Option<&'i String> {
    let (old, new) = (old.first(), new.first());
    old.into_iter().chain(new).map(|(key, _)| key).min()
}

/// Splits off the items with the lowest key, if that key is `key`.
fn split_off<'i, 'v>(items: &mut &'i Items<'v>, key: &str) -> &'i Items<'v> {
    let length = items.iter().take_while(|(other, _)| other == key).count();
    let (same, rest) = items.split_at(length);
    *items = rest;
    same
}

/// Returns whether a value is absent, null, or an empty list or object.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// Returns the fields that an object names, as server-side apply reads a configuration. Items with the same key are named as one, without
/// the fields below; an item without a key is not named.
pub(super) fn fields_of(kind: &Type, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(
        kind.arena(),
        Some(kind.id()),
        value,
        &mut Vec::new(),
        &mut set,
    );
    set
}

/// Returns whether a value is named itself: null or an empty map. An empty keyed list names nothing.
fn names_itself(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty)
}

fn collect(
    arena: &Arena,
    id: Option<TypeId>,
    value: &Value,
    path: &mut Vec<String>,
    set: &mut FieldSet,
) {
    let node = id.map(|id| arena.node(id));
    let leaf = match node {
        Some(Node::Struct(fields)) => fields.atomic,
        Some(Node::Map { atomic, .. }) => *atomic,
        Some(Node::List(list)) => list.kind == ListKind::Atomic,
        Some(Node::Scalar(_)) => true,
        None => !value.is_object(),
    };
    if leaf || names_itself(value) || !(value.is_object() || value.is_array()) {
        set.insert(path);
        return;
    }
    match (node, value) {
        (_, Value::Object(map)) => {
            for (key, value) in map {
                let (below, declared) = match node {
                    Some(Node::Struct(fields)) => (
                        fields.field(key).map(|field| field.id).or(fields.rest),
                        fields.field(key).is_some(),
                    ),
                    Some(Node::Map { value, .. }) => (Some(*value), false),
                    _ => (None, false),
                };
                path.push(format!("f:{key}"));
                // As in structured-merge-diff, a declared field is named by what it contains; an entry of a map is
                // named itself.
                if !declared || names_itself(value) {
                    set.insert(path);
                }
                collect(arena, below, value, path, set);
                path.pop();
            }
        }
        (Some(Node::List(list)), Value::Array(items)) => {
            let keyed = keyed_items(list, items);
            for same in keyed.chunk_by(|(key, _), (other, _)| key == other) {
                path.push(same[0].0.clone());
                set.insert(path);
                if let [(_, item)] = same {
                    collect(arena, Some(list.item), item, path, set);
                }
                path.pop();
            }
        }
        _ => set.insert(path),
    }
}
