//! Checks that a configuration or an object has the shape of its type: only declared fields, lists where lists belong, and items with keys.
//!
//! The errors are those of structured-merge-diff's validation (`typed/validate.go`), which precedes decoding: all that are found, but
//! only the first undeclared field of each object.

use std::{collections::HashSet, fmt};

use serde_json::Value;

use super::super::{compare::element, set::FieldSet};
use crate::{Arena, List, ListKind, Node, Scalar, Struct, Type, TypeId, merge::go_text};

/// The reasons why a configuration does not have the shape of its type; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfits(Vec<Misfit>);

/// A value that does not have the shape of its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The path of the value; empty for the whole.
    pub place: String,
    /// What is wrong with the value.
    pub reason: MisfitReason,
}

/// What is wrong with a value. Values are in the form in which Go prints them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MisfitReason {
    /// The type has no such field.
    #[error("field not declared in schema")]
    Undeclared,
    /// The value is not an object.
    #[error("expected map, got &{{{0}}}")]
    NotAMap(String),
    /// The value is not a list.
    #[error("expected list, got &{{{0}}}")]
    NotAList(String),
    /// The value is not a string.
    #[error("expected string, got &value.valueUnstructured{{Value:{0}}}")]
    NotAString(String),
    /// The value is not a boolean.
    #[error("expected boolean, got &{{{0}}}")]
    NotABoolean(String),
    /// The value is not a number, but of this type of Go.
    #[error("expected numeric (int or float), got {0}")]
    NotANumber(&'static str),
    /// The value is a list or an object.
    #[error("expected any scalar, got &{{{0}}}")]
    NotAScalar(String),
    /// Another item of the list has the same key.
    #[error("duplicate entries for key {0}")]
    Duplicate(String),
    /// The item with this index, of a list with keys, is null.
    #[error("element {0}: associative list with keys may not have a null element")]
    NullWithKeys(usize),
    /// The item with this index, of a list with keys, is not an object.
    #[error("element {0}: associative list with keys may not have non-map elements")]
    NotAMapWithKeys(usize),
    /// An item of a list with keys has none of them.
    #[error(
        "element {index}: associative list with keys has an element that omits all key fields [{keys}] (and doesn't have default values for any key fields)"
    )]
    WithoutKeys {
        /// The index of the item.
        index: usize,
        /// The keys of the list.
        keys: String,
    },
    /// The item with this index, of a set, is null.
    #[error("element {0}: associative list without keys has an element that's an explicit null")]
    NullInSet(usize),
    /// The item with this index, of a set, is an object.
    #[error("element {0}: associative list without keys has an element that's a map type")]
    MapInSet(usize),
    /// The item with this index, of a set, is a list.
    #[error("element {0}: not supported: associative list with lists as elements")]
    ListInSet(usize),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}", self.reason)
    }
}

impl fmt::Display for Misfits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [one] = self.0.as_slice() {
            return write!(f, "{one}");
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|one| write!(f, "\n  {one}"))
    }
}

impl std::error::Error for Misfits {}

/// Checks a configuration.
///
/// # Errors
/// All that does not fit.
pub(super) fn check(kind: &Type, config: &Value) -> Result<(), Misfits> {
    let found = misfits(kind, config, false);
    if found.is_empty() {
        Ok(())
    } else {
        Err(Misfits(found))
    }
}

/// Returns whether an object has the shape of its type. Items of a list may have the same key, as in objects that were not applied.
pub(in crate::ownership) fn fits(kind: &Type, object: &Value) -> bool {
    misfits(kind, object, true).is_empty()
}

fn misfits(kind: &Type, value: &Value, allows_duplicates: bool) -> Vec<Misfit> {
    let mut walk = Walk {
        arena: kind.arena(),
        allows_duplicates,
        path: Vec::new(),
        found: Vec::new(),
    };
    walk.value(kind.id(), value);
    walk.found
}

struct Walk<'s> {
    arena: &'s Arena,
    /// Whether items of a list may have the same key.
    allows_duplicates: bool,
    /// The elements of the current path, in the form of field sets.
    path: Vec<String>,
    found: Vec<Misfit>,
}

impl Walk<'_> {
    fn wrong(&mut self, reason: MisfitReason) {
        let mut whole = FieldSet::default();
        whole.insert(&self.path);
        let place = whole.paths().concat();
        self.found.push(Misfit { place, reason });
    }

    fn below(&mut self, element: String, id: TypeId, value: &Value) {
        self.path.push(element);
        self.value(id, value);
        self.path.pop();
    }

    fn value(&mut self, id: TypeId, value: &Value) {
        // structured-merge-diff accepts null everywhere.
        if value.is_null() {
            return;
        }
        match (self.arena.node(id), value) {
            (Node::Struct(fields), Value::Object(map)) => {
                for (key, value) in map {
                    let declared = fields.field(key).map(|field| field.id);
                    match declared.or(fields.rest) {
                        Some(id) => self.below(format!("f:{key}"), id, value),
                        None if fields.preserve => {}
                        None => {
                            self.path.push(format!("f:{key}"));
                            self.wrong(MisfitReason::Undeclared);
                            self.path.pop();
                            return;
                        }
                    }
                }
            }
            (Node::Map { value: id, .. }, Value::Object(map)) => {
                for (key, value) in map {
                    self.below(format!("f:{key}"), *id, value);
                }
            }
            (Node::Struct(Struct { any: true, .. }), _) => {}
            (Node::Struct(_) | Node::Map { .. }, other) => {
                self.wrong(MisfitReason::NotAMap(go_text(other)));
            }
            (Node::List(list), Value::Array(items)) => {
                let mut seen: HashSet<String> = HashSet::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let at = match (list.kind, item) {
                        (ListKind::Atomic, _) => Ok(format!("i:{index}")),
                        (ListKind::Map, Value::Null) => Err(MisfitReason::NullWithKeys(index)),
                        (ListKind::Map, Value::Object(_)) => {
                            let without_keys = || MisfitReason::WithoutKeys {
                                index,
                                keys: keys_of(list),
                            };
                            element(list, item).ok_or_else(without_keys)
                        }
                        (ListKind::Map, _) => Err(MisfitReason::NotAMapWithKeys(index)),
                        (ListKind::Set, Value::Null) => Err(MisfitReason::NullInSet(index)),
                        (ListKind::Set, Value::Object(_)) => Err(MisfitReason::MapInSet(index)),
                        (ListKind::Set, Value::Array(_)) => Err(MisfitReason::ListInSet(index)),
                        (ListKind::Set, _) => Ok(format!("v:{item}")),
                    };
                    let at = match at {
                        Ok(at) => at,
                        // The items behind it are not checked either, as upstream.
                        Err(reason) => return self.wrong(reason),
                    };
                    if !self.allows_duplicates && seen.contains(&at) {
                        let mut key = FieldSet::default();
                        key.insert(std::slice::from_ref(&at));
                        self.wrong(MisfitReason::Duplicate(key.paths().concat()));
                    }
                    self.below(at.clone(), list.item, item);
                    seen.insert(at);
                }
            }
            (Node::List(_), other) => {
                self.wrong(MisfitReason::NotAList(go_text(other)));
            }
            (Node::Scalar(scalar), value) => {
                if let Some(reason) = unfit(*scalar, value) {
                    self.wrong(reason);
                }
            }
        }
    }
}

fn keys_of(list: &List) -> String {
    let keys: Vec<String> = list.keys.iter().map(|key| format!("{key:?}")).collect();
    keys.join(" ")
}

/// Returns the error of a scalar with the wrong JSON type. Decoding checks later whether its value is valid.
fn unfit(scalar: Scalar, value: &Value) -> Option<MisfitReason> {
    match scalar {
        Scalar::String | Scalar::Bytes if !value.is_string() => {
            Some(MisfitReason::NotAString(go_syntax(value)))
        }
        Scalar::Bool if !value.is_boolean() => Some(MisfitReason::NotABoolean(go_text(value))),
        Scalar::Int32 | Scalar::Int64 | Scalar::Double if !value.is_number() => {
            let found = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            Some(MisfitReason::NotANumber(found))
        }
        Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime
            if value.is_array() || value.is_object() =>
        {
            Some(MisfitReason::NotAScalar(go_text(value)))
        }
        _ => None,
    }
}

/// Formats a value as Go's `%#v` does.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_syntax).collect();
            format!("[]interface {{}}{{{}}}", items.join(", "))
        }
        Value::Object(map) => {
            let entries = map.iter();
            let entries: Vec<String> = entries
                .map(|(key, value)| format!("{key:?}:{}", go_syntax(value)))
                .collect();
            format!("map[string]interface {{}}{{{}}}", entries.join(", "))
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(kind: &str, config: Value) -> String {
        let kind = Type::builtin(kind).expect("the type is built in");
        let misfits = check(&kind, &config).expect_err("it does not fit");
        misfits.to_string()
    }

    #[test]
    fn what_does_not_fit_is_told_with_its_place() {
        let containers = |containers: Value| json!({"spec": {"containers": containers}});
        for (config, message) in [
            (
                json!({"metadata": {"labels": {"a": 5}}}),
                ".metadata.labels.a: expected string, got &value.valueUnstructured{Value:5}",
            ),
            (
                json!({"metadata": {"labels": ["a", 1]}}),
                ".metadata.labels: expected map, got &{[a 1]}",
            ),
            (
                json!({"metadata": {"generation": "x"}}),
                ".metadata.generation: expected numeric (int or float), got string",
            ),
            (
                json!({"spec": {"hostNetwork": "yes"}}),
                ".spec.hostNetwork: expected boolean, got &{yes}",
            ),
            (
                json!({"spec": {"nodeName": {"a": ["b"]}}}),
                r#".spec.nodeName: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":[]interface {}{"b"}}}"#,
            ),
            (
                containers(json!({"name": "x"})),
                ".spec.containers: expected list, got &{map[name:x]}",
            ),
            (
                containers(json!([{"image": 1}])),
                r#".spec.containers[name=""].image: expected string, got &value.valueUnstructured{Value:1}"#,
            ),
            (
                containers(json!([{"name": {"a": 1, "b": ["x"]}}])),
                r#".spec.containers[name=a=1b=["x"]].name: expected string, got &value.valueUnstructured{Value:map[string]interface {}{"a":1, "b":[]interface {}{"x"}}}"#,
            ),
            (
                containers(json!([{}, {"name": ""}])),
                r#".spec.containers: duplicate entries for key [name=""]"#,
            ),
            (
                json!({"spec": {"containers": [{"name": "a", "ports": [{}, {}]}]}}),
                r#".spec.containers[name="a"].ports: duplicate entries for key [containerPort=0,protocol="TCP"]"#,
            ),
            (
                containers(json!([null])),
                ".spec.containers: element 0: associative list with keys may not have a null element",
            ),
            (
                containers(json!(["a"])),
                ".spec.containers: element 0: associative list with keys may not have non-map elements",
            ),
            (
                containers(json!([{"name": "a", "imag": 1}])),
                r#".spec.containers[name="a"].imag: field not declared in schema"#,
            ),
            (
                containers(
                    json!([{"name": "a", "image": 1}, {"name": "a", "resources": {"limits": {"cpu": []}}}]),
                ),
                "errors:\n  .spec.containers[name=\"a\"].image: expected string, got &value.valueUnstructured{Value:1}\n  .spec.containers: duplicate entries for key [name=\"a\"]\n  .spec.containers[name=\"a\"].resources.limits.cpu: expected any scalar, got &{[]}",
            ),
            (
                json!({"metadata": {"finalizers": ["a", {}]}}),
                ".metadata.finalizers: element 1: associative list without keys has an element that's a map type",
            ),
        ] {
            assert_eq!(said("api.core.v1.Pod", config), message);
        }
        let fits = json!({"metadata": {"labels": null}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": 1}}}]}});
        let pod = Type::builtin("api.core.v1.Pod").expect("pods are built in");
        assert_eq!(check(&pod, &fits), Ok(()));
    }
}
