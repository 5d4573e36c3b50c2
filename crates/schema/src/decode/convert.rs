//! Conversion of trees into Go structs by apimachinery's `FromUnstructured`, which strategic merge patch and server-side apply use
//! without JSON in between.
//!
//! [`convert_numbers`] converts numbers before the tree is decoded. If [`super::value`] refuses the tree, [`unconvertible`] returns the
//! error of the first field in Go's order that does not fit; the error names types but no path.

use mullion_kube_text::golang::number;
use serde_json::Value;

use crate::{Arena, Field, Node, Scalar, Type, TypeId, time};

/// Returns Go's conversion error, or `None` if the tree fails only as JSON.
pub fn unconvertible(kind: &Type, tree: &Value) -> Option<String> {
    wrong(kind.arena(), kind.id(), "", tree)
}

/// Converts whole numbers to integers where the type has them, as Go's reflection does on amd64: an `int32` keeps the low 32 bits of a
/// larger number, and a float beyond `int64` becomes the smallest `int64`.
pub fn convert_numbers(kind: &Type, tree: &mut Value) {
    convert(kind.arena(), kind.id(), tree);
}

fn convert(arena: &Arena, id: TypeId, value: &mut Value) {
    match (arena.node(id), value) {
        (Node::Struct(fields), Value::Object(map)) => {
            // Most values neither are nor hold numbers, so do not look up their fields.
            let may_hold_numbers =
                |value: &Value| !matches!(value, Value::String(_) | Value::Bool(_) | Value::Null);
            for (name, value) in map.into_iter().filter(|(_, value)| may_hold_numbers(value)) {
                if let Some(field) = fields.field(name) {
                    convert(arena, field.id, value);
                }
            }
        }
        (Node::Map { value: id, .. }, Value::Object(map)) => {
            map.values_mut()
                .for_each(|value| convert(arena, *id, value));
        }
        (Node::List(list), Value::Array(items)) => {
            items
                .iter_mut()
                .for_each(|item| convert(arena, list.item, item));
        }
        (Node::Scalar(Scalar::Int32), value) => {
            if let Some(whole) = whole(value) {
                // Go keeps the low 32 bits.
                *value = (whole as i32).into();
            }
        }
        (Node::Scalar(Scalar::Int64), value) => {
            if let Some(whole) = whole(value) {
                *value = whole.into();
            }
        }
        (Node::Scalar(Scalar::Bytes), Value::Array(items)) => {
            for item in items {
                if let Some(whole) = whole(item) {
                    // Go keeps the low 8 bits.
                    *item = (whole as u8).into();
                }
            }
        }
        (_, value) => number::settle(value),
    }
}

/// Returns the integer that Go converts a whole number to.
fn whole(value: &Value) -> Option<i64> {
    if let Some(whole) = value.as_i64() {
        return Some(whole);
    }
    let float = value.as_f64().filter(|float| float.fract() == 0.0)?;
    Some(number::to_integer(float))
}

/// Returns the error of a value. `go` is its Go type if known; pointers make no difference.
fn wrong(arena: &Arena, id: TypeId, go: &str, value: &Value) -> Option<String> {
    let go = go.trim_start_matches('*');
    match (arena.node(id), value) {
        // A null gives the zero value of any type.
        (_, Value::Null) => None,
        (Node::Struct(fields), Value::Object(map)) => {
            let mut given: Vec<(&Field, &Value)> = map
                .iter()
                .filter_map(|(name, value)| Some((fields.field(name)?, value)))
                .collect();
            given.sort_by_key(|(field, _)| field.place);
            given
                .into_iter()
                .find_map(|(field, value)| wrong(arena, field.id, &field.go, value))
        }
        (Node::Struct(_), other) => Some(format!("cannot restore struct from: {}", kind_of(other))),
        (Node::Map { value: id, .. }, Value::Object(map)) => {
            let go = go.split_once(']').map_or("", |(_, item)| item);
            map.values().find_map(|value| wrong(arena, *id, go, value))
        }
        (Node::Map { .. }, other) => Some(format!("cannot restore map from {}", kind_of(other))),
        (Node::List(list), Value::Array(items)) => {
            let go = go.strip_prefix("[]").unwrap_or_default();
            items
                .iter()
                .find_map(|item| wrong(arena, list.item, go, item))
        }
        (Node::List(_), other) => Some(format!("cannot restore slice from {}", kind_of(other))),
        (Node::Scalar(scalar), value) => unfit(*scalar, go, value),
    }
}

fn unfit(scalar: Scalar, go: &str, value: &Value) -> Option<String> {
    let (wanted, fits, converts) = match scalar {
        Scalar::String => ("string", value.is_string(), value.is_i64()),
        Scalar::Bool => ("bool", value.is_boolean(), false),
        Scalar::Int32 => ("int32", is_whole(value), value.is_number()),
        Scalar::Int64 => ("int64", is_whole(value), value.is_number()),
        Scalar::Double => ("float64", value.is_number(), false),
        Scalar::IntOrString => return unfit_count(value),
        Scalar::Time | Scalar::MicroTime => return unfit_time(scalar, value),
        Scalar::Bytes => return unfit_bytes(value),
        _ => return None,
    };
    if fits {
        return None;
    }
    // Go converts whole numbers to strings (as the character with that number) and fractions to integers; JSON decoding does not.
    Some(if converts {
        let go = if go.is_empty() { wanted } else { go };
        format!("cannot convert {} to {go}", kind_of(value))
    } else {
        format!("unrecognized type: {wanted}")
    })
}

/// Returns the error of a byte string, for which Go also takes a list of whole numbers.
fn unfit_bytes(value: &Value) -> Option<String> {
    match value {
        Value::String(_) => None,
        Value::Array(items) => items.iter().find_map(|item| match item {
            Value::Null => None,
            item if is_whole(item) => None,
            Value::Number(_) => Some(format!("cannot convert {} to uint8", kind_of(item))),
            _ => Some("unrecognized type: uint8".to_owned()),
        }),
        other => Some(format!("cannot restore slice from {}", kind_of(other))),
    }
}

/// Returns the error of an IntOrString, whose Go type decodes JSON itself and so does not know its field.
fn unfit_count(value: &Value) -> Option<String> {
    let found = match value {
        Value::String(_) => return None,
        Value::Number(number) => {
            let whole = number.as_i64().or_else(|| number::whole(number.as_f64()?));
            if whole.is_some_and(|whole| i32::try_from(whole).is_ok()) {
                return None;
            }
            format!("number {}", number::json_text(value))
        }
        other => super::json_kind(other).to_owned(),
    };
    Some(format!(
        "json: cannot unmarshal {found} into Go value of type int32"
    ))
}

/// Returns the error of a time, whose Go type decodes JSON itself and so does not know its field.
fn unfit_time(scalar: Scalar, value: &Value) -> Option<String> {
    let Some(text) = value.as_str() else {
        let found = super::json_kind(value);
        return Some(format!(
            "json: cannot unmarshal {found} into Go value of type string"
        ));
    };
    let read = match scalar {
        Scalar::MicroTime => time::micros(text),
        _ => time::seconds(text),
    };
    read.err().map(|error| error.to_string())
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Returns the `reflect.Kind` that Go decodes a JSON value into.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn integers_that_are_too_large_keep_their_low_bits() {
        let kind = Type::builtin("api.apps.v1.DeploymentSpec").expect("the type is built in");
        for (given, converted) in [
            (json!(2_147_483_648_i64), json!(-2_147_483_648)),
            (json!(i64::MAX), json!(-1)),
            (json!(u64::MAX), json!(0)),
            (json!(1e300), json!(0)),
            (json!(3.0), json!(3)),
            (json!(1.5), json!(1.5)),
            (json!("x"), json!("x")),
        ] {
            let mut tree =
                json!({"replicas": given, "template": {"spec": {"activeDeadlineSeconds": 1e300}}});
            convert_numbers(&kind, &mut tree);
            assert_eq!(tree["replicas"], converted, "{given}");
            let spec = &tree["template"]["spec"];
            assert_eq!(spec["activeDeadlineSeconds"], i64::MIN);
        }
    }

    #[test]
    fn a_list_of_whole_numbers_is_a_byte_string_of_their_low_bits() {
        let kind = Type::builtin("api.core.v1.ConfigMap").expect("the type is built in");
        let mut tree = json!({"binaryData": {"a": [300, -1, 2.0, null]}});
        assert_eq!(unconvertible(&kind, &tree), None);
        convert_numbers(&kind, &mut tree);
        assert_eq!(tree, json!({"binaryData": {"a": [44, 255, 2, null]}}));
        for (list, said) in [
            (json!([1, "a"]), "unrecognized type: uint8"),
            (json!([[]]), "unrecognized type: uint8"),
            (json!([1.5]), "cannot convert float64 to uint8"),
            (json!(true), "cannot restore slice from bool"),
        ] {
            let tree = json!({"binaryData": {"a": list}});
            assert_eq!(unconvertible(&kind, &tree), Some(said.to_owned()), "{tree}");
        }
    }

    #[test]
    fn what_does_not_fit_is_told_by_types_in_the_order_of_the_struct() {
        let spec = Type::builtin("api.apps.v1.DeploymentSpec").expect("the type is built in");
        let pod = |pod: Value| json!({"template": {"spec": pod}});
        for (tree, said) in [
            (json!({"replicas": "x"}), "unrecognized type: int32"),
            (json!({"replicas": 1.5}), "cannot convert float64 to int32"),
            (
                json!({"paused": "x", "replicas": []}),
                "unrecognized type: int32",
            ),
            (json!({"selector": []}), "cannot restore struct from: slice"),
            (
                json!({"template": {"metadata": {"labels": {"a": 1}}}}),
                "cannot convert int64 to string",
            ),
            (
                json!({"template": {"metadata": {"labels": "a"}}}),
                "cannot restore map from string",
            ),
            (
                pod(json!({"containers": {}})),
                "cannot restore slice from map",
            ),
            (
                pod(json!({"containers": [{"imagePullPolicy": 5}]})),
                "cannot convert int64 to v1.PullPolicy",
            ),
            (
                pod(json!({"restartPolicy": true})),
                "unrecognized type: string",
            ),
            (
                json!({"template": {"metadata": {"creationTimestamp": 5}}}),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({"template": {"metadata": {"creationTimestamp": "x"}, "spec": {"hostname": 5}}}),
                r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
            ),
        ] {
            assert_eq!(unconvertible(&spec, &tree), Some(said.to_owned()), "{tree}");
        }
        assert_eq!(
            unconvertible(&spec, &json!({"replicas": 1.0, "paused": null})),
            None
        );
    }
}
