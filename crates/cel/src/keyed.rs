//! Lists of type set and map, whose items are identified by value or by key: the order does not matter for equality, and adding an item
//! replaces the existing one. Source: k8s.io/apiserver/pkg/cel/common/values.go.
//!
//! As there, the left operand decides: a plain list is compared in order, whatever the right operand is.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use kube_cel::cel::{
    Value,
    objects::{Map, Opaque},
};

use super::{
    error::EvalError,
    messages::message,
    total::total,
    values::{VisitLimit, equal_within, optional},
};

/// The identity of a list's items.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Keys {
    /// The items themselves.
    Whole,
    /// These fields of the items.
    Fields(Arc<[String]>),
}

/// A list of type set or map.
#[derive(Debug, PartialEq)]
pub(super) struct KeyedList {
    /// The items as a plain list.
    list: Value,
    keys: Keys,
}

// Lists are compared with [`equal_within`] only.
impl Eq for KeyedList {}

impl Opaque for KeyedList {
    fn runtime_type_name(&self) -> &str {
        "list"
    }
}

/// The identity of an item like a Go map key: numbers of different types are different.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Part {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(u64),
    Text(Arc<String>),
    /// A part that no stored list contains.
    Foreign,
}

/// Returns a list of type set.
pub fn set_of(items: Vec<Value>) -> Value {
    made(items, Keys::Whole)
}

/// Returns a list of type map with these key fields.
pub fn list_by(items: Vec<Value>, fields: impl IntoIterator<Item = String>) -> Value {
    made(items, Keys::Fields(fields.into_iter().collect()))
}

fn made(items: Vec<Value>, keys: Keys) -> Value {
    let list = Value::List(Arc::new(items));
    Value::Opaque(Arc::new(KeyedList { list, keys }))
}

/// Returns the keyed list that a value is, if it is one.
pub(super) fn keyed(value: &Value) -> Option<&KeyedList> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref(),
        _ => None,
    }
}

/// Returns a value without its identity rules: a keyed list as a plain one, a total map as its real entries.
pub(super) fn plain(value: &Value) -> &Value {
    let list = keyed(value).map(|keyed| &keyed.list);
    list.or_else(|| total(value).map(|total| &total.map))
        .unwrap_or(value)
}

/// Returns a value in which all lists and maps are plain, as the libraries need them.
pub(super) fn all_plain(value: Value) -> Value {
    if !holds_keyed(&value) {
        return value;
    }
    match plain(&value) {
        Value::List(items) => {
            let items = items.iter().cloned().map(all_plain);
            Value::List(Arc::new(items.collect()))
        }
        Value::Map(map) => {
            let entries = map.map.iter();
            let entries = entries.map(|(key, value)| (key.clone(), all_plain(value.clone())));
            Value::Map(Map {
                map: Arc::new(entries.collect()),
            })
        }
        other => other.clone(),
    }
}

fn holds_keyed(value: &Value) -> bool {
    match value {
        Value::List(items) => items.iter().any(holds_keyed),
        Value::Map(map) => map.map.values().any(holds_keyed),
        Value::Opaque(_) => {
            keyed(value).is_some()
                || total(value).is_some()
                || optional(value).flatten().is_some_and(holds_keyed)
                || message(value).is_some_and(|message| message.fields.values().any(holds_keyed))
        }
        _ => false,
    }
}

fn items(value: &Value) -> Option<&[Value]> {
    match plain(value) {
        Value::List(items) => Some(items),
        _ => None,
    }
}

impl KeyedList {
    fn items(&self) -> &[Value] {
        items(&self.list).expect("it is made of a list")
    }

    /// Returns whether another list has the same items.
    ///
    /// # Errors
    /// Items of a set that are not scalars have no identity; the message is Go's.
    pub(super) fn equals(&self, other: &Value, looks: &mut VisitLimit) -> Result<bool, EvalError> {
        let (mine, Some(other)) = (self.items(), items(other)) else {
            return Ok(false);
        };
        // As upstream, only this is checked below: each of the others is here. With equal lengths that suffices where no
        // item comes twice.
        if mine.len() != other.len() {
            return Ok(false);
        }
        match &self.keys {
            Keys::Whole => {
                let mine = own_parts(mine)?;
                for item in other {
                    if !mine.contains(&part(item)?) {
                        return Ok(false);
                    }
                }
            }
            Keys::Fields(fields) => {
                let mine = mine.iter().map(|item| (fields_of(item, fields), item));
                let mine: HashMap<_, _> = mine.collect();
                for item in other {
                    match mine.get(&fields_of(item, fields)) {
                        Some(before) if equal_within(before, item, looks)? => {}
                        _ => return Ok(false),
                    }
                }
            }
        }
        Ok(true)
    }

    /// Returns the list with another list's items added: existing items are replaced, new ones are appended.
    ///
    /// # Errors
    /// The errors of [`KeyedList::equals`], and a value that is not a list.
    pub(super) fn with(&self, other: &Value) -> Result<Value, EvalError> {
        let Some(added) = items(other) else {
            return Err(EvalError::NoOverload(None));
        };
        let mut joined = self.items().to_vec();
        match &self.keys {
            Keys::Whole => {
                let mut present = own_parts(self.items())?;
                for item in added {
                    if present.insert(part(item)?) {
                        joined.push(item.clone());
                    }
                }
            }
            Keys::Fields(fields) => {
                let mine = joined.iter().enumerate();
                let mine = mine.map(|(at, item)| (fields_of(item, fields), at));
                let places: HashMap<_, _> = mine.collect();
                for item in added {
                    match places.get(&fields_of(item, fields)) {
                        Some(at) => joined[*at] = item.clone(),
                        None => joined.push(item.clone()),
                    }
                }
            }
        }
        Ok(made(joined, self.keys.clone()))
    }
}

/// Returns the identities of a set's own items in stored form: whole numbers are integers, and times and bytes are strings, so they never
/// equal values of those types.
fn own_parts(items: &[Value]) -> Result<HashSet<Part>, EvalError> {
    let stored = items.iter().map(|item| match item {
        Value::Float(number) if number.fract() == 0.0 => Ok(Some(Part::Int(*number as i64))),
        Value::Null => Ok(Some(Part::Null)),
        item => part(item).map(|part| (part != Part::Foreign).then_some(part)),
    });
    stored.filter_map(Result::transpose).collect()
}

fn part(item: &Value) -> Result<Part, EvalError> {
    let unhashable = |go: &str| Err(EvalError::Unhashable(go.to_owned()));
    Ok(match item {
        Value::Bool(truth) => Part::Bool(*truth),
        Value::Int(number) => Part::Int(*number),
        Value::UInt(number) => Part::Uint(*number),
        Value::Float(number) => Part::Double(number.to_bits()),
        Value::String(text) => Part::Text(text.clone()),
        Value::Bytes(_) => return unhashable("[]uint8"),
        Value::Map(_) => return unhashable("map[string]interface {}"),
        item if items(item).is_some() => return unhashable("[]interface {}"),
        _ => Part::Foreign,
    })
}

/// Returns the values of an item's key fields; absent fields are null.
fn fields_of(item: &Value, fields: &[String]) -> Vec<Part> {
    let of = |field: &String| {
        let Value::Map(map) = item else {
            return Part::Null;
        };
        let key = kube_cel::cel::objects::Key::String(Arc::new(field.clone()));
        match map.map.get(&key) {
            None | Some(Value::Null) => Part::Null,
            // Both sides are stored values, so times and bytes are compared as such.
            Some(value) => part(value)
                .ok()
                .filter(|part| *part != Part::Foreign)
                .unwrap_or_else(|| Part::Text(Arc::new(format!("{value:?}")))),
        }
    };
    fields.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::of_json;
    use crate::values::equal;

    fn list(kind: &str, items: serde_json::Value) -> Value {
        let items: Vec<Value> = items
            .as_array()
            .into_iter()
            .flatten()
            .map(of_json)
            .collect();
        match kind {
            "set" => set_of(items),
            "map" => list_by(items, ["k".to_owned()]),
            _ => Value::List(Arc::new(items)),
        }
    }

    #[test]
    fn the_list_on_the_left_says_what_is_the_same() {
        use serde_json::json;
        for (left, mine, right, other, same) in [
            ("set", json!(["a", "b"]), "set", json!(["b", "a"]), true),
            ("set", json!(["a", "b"]), "plain", json!(["b", "a"]), true),
            ("plain", json!(["a", "b"]), "set", json!(["b", "a"]), false),
            ("set", json!(["a", "b"]), "set", json!(["a"]), false),
            ("set", json!(["a", "b"]), "set", json!(["a", "c"]), false),
            ("set", json!([1.5, 2]), "set", json!([2, 1.5]), true),
            (
                "map",
                json!([{"k": "a", "v": 1}, {"k": "b"}]),
                "map",
                json!([{"k": "b"}, {"k": "a", "v": 1}]),
                true,
            ),
            (
                "map",
                json!([{"k": "a", "v": 1}]),
                "map",
                json!([{"k": "a", "v": 2}]),
                false,
            ),
            (
                "map",
                json!([{"k": "a"}]),
                "map",
                json!([{"k": "b"}]),
                false,
            ),
        ] {
            let told = equal(&list(left, mine.clone()), &list(right, other.clone()));
            assert_eq!(told, Ok(same), "{left} {mine} {right} {other}");
        }
        let odd = list("set", json!([{"a": 1}]));
        assert_eq!(
            equal(&odd, &odd).map_err(|error| error.to_string()),
            Err(
                "internal error: runtime error: hash of unhashable type map[string]interface {}"
                    .to_owned()
            )
        );
    }

    #[test]
    fn what_is_added_replaces_what_is_there() {
        use serde_json::json;
        for (kind, mine, added, sum) in [
            (
                "set",
                json!(["a", "b"]),
                json!(["b", "c"]),
                json!(["a", "b", "c"]),
            ),
            (
                "map",
                json!([{"k": "a"}, {"k": "b", "v": 1}]),
                json!([{"k": "c"}, {"k": "b", "v": 2}]),
                json!([{"k": "a"}, {"k": "b", "v": 2}, {"k": "c"}]),
            ),
        ] {
            let mine = list(kind, mine);
            let joined = keyed(&mine).expect("it is").with(&list("plain", added));
            let joined = joined.expect("they can be joined");
            assert!(keyed(&joined).is_some());
            assert_eq!(plain(&joined), &list("plain", sum));
        }
    }
}
