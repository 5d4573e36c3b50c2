//! Checks that a configuration or an object has the shape of its type: only declared fields, lists where lists belong, and items with keys.
//!
//! The errors are those of structured-merge-diff's validation (`typed/validate.go`), which precedes decoding: all that are found, but
//! only the first undeclared field of each object.

use std::{borrow::Cow, collections::HashSet};

use serde_json::Value;

use super::super::{compare::element, set::FieldSet};
use crate::{Arena, List, ListKind, Node, Scalar, Struct, Type, TypeId, merge::go_text};

/// Checks a configuration; returns all errors as one text.
pub(super) fn check(kind: &Type, config: &Value) -> Result<(), String> {
    let found = misfits(kind, config, false);
    match found.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        all => Err(format!("errors:\n  {}", all.join("\n  "))),
    }
}

/// Returns whether an object has the shape of its type. Items of a list may have the same key, as in objects that were not applied.
pub(in crate::ownership) fn fits(kind: &Type, object: &Value) -> bool {
    misfits(kind, object, true).is_empty()
}

fn misfits(kind: &Type, value: &Value, allows_duplicates: bool) -> Vec<String> {
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
    found: Vec<String>,
}

impl Walk<'_> {
    fn wrong(&mut self, why: &str) {
        let mut whole = FieldSet::default();
        whole.insert(&self.path);
        let place = whole.paths().concat();
        self.found.push(match place.as_str() {
            "" => why.to_owned(),
            place => format!("{place}: {why}"),
        });
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
                            self.wrong("field not declared in schema");
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
                self.wrong(&format!("expected map, got &{{{}}}", go_text(other)));
            }
            (Node::List(list), Value::Array(items)) => {
                let mut seen: HashSet<String> = HashSet::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let at = match (list.kind, item) {
                        (ListKind::Atomic, _) => Ok(format!("i:{index}")),
                        (ListKind::Map, Value::Null) => {
                            Err("associative list with keys may not have a null element".into())
                        }
                        (ListKind::Map, Value::Object(_)) => {
                            element(list, item).ok_or_else(|| without_keys(list).into())
                        }
                        (ListKind::Map, _) => {
                            Err("associative list with keys may not have non-map elements".into())
                        }
                        (ListKind::Set, Value::Null) => Err(Cow::Borrowed(
                            "associative list without keys has an element that's an explicit null",
                        )),
                        (ListKind::Set, Value::Object(_)) => Err(Cow::Borrowed(
                            "associative list without keys has an element that's a map type",
                        )),
                        (ListKind::Set, Value::Array(_)) => Err(Cow::Borrowed(
                            "not supported: associative list with lists as elements",
                        )),
                        (ListKind::Set, _) => Ok(format!("v:{item}")),
                    };
                    let at = match at {
                        Ok(at) => at,
                        // The items behind it are not checked either, as upstream.
                        Err(why) => return self.wrong(&format!("element {index}: {why}")),
                    };
                    if !self.allows_duplicates && seen.contains(&at) {
                        let mut key = FieldSet::default();
                        key.insert(std::slice::from_ref(&at));
                        let key = key.paths().concat();
                        self.wrong(&format!("duplicate entries for key {key}"));
                    }
                    self.below(at.clone(), list.item, item);
                    seen.insert(at);
                }
            }
            (Node::List(_), other) => {
                self.wrong(&format!("expected list, got &{{{}}}", go_text(other)));
            }
            (Node::Scalar(scalar), value) => {
                if let Some(why) = unfit(*scalar, value) {
                    self.wrong(&why);
                }
            }
        }
    }
}

fn without_keys(list: &List) -> String {
    let keys: Vec<String> = list.keys.iter().map(|key| format!("{key:?}")).collect();
    format!(
        "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
        keys.join(" ")
    )
}

/// Returns the error of a scalar with the wrong JSON type. Decoding checks later whether its value is valid.
fn unfit(scalar: Scalar, value: &Value) -> Option<String> {
    match scalar {
        Scalar::String | Scalar::Bytes if !value.is_string() => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            go_syntax(value)
        )),
        Scalar::Bool if !value.is_boolean() => {
            Some(format!("expected boolean, got &{{{}}}", go_text(value)))
        }
        Scalar::Int32 | Scalar::Int64 | Scalar::Double if !value.is_number() => {
            let found = match value {
                Value::String(_) => "string",
                Value::Bool(_) => "bool",
                Value::Array(_) => "[]interface {}",
                _ => "map[string]interface {}",
            };
            Some(format!("expected numeric (int or float), got {found}"))
        }
        Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime
            if value.is_array() || value.is_object() =>
        {
            Some(format!("expected any scalar, got &{{{}}}", go_text(value)))
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
        check(&kind, &config).expect_err("it does not fit")
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
