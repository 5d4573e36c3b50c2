//! Checks that lists of type set have no item twice, and lists of type map no keys. Source:
//! k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype.

use std::collections::HashMap;

use mullion_kube_text::field::{Errors, Path};
use mullion_schema::structural::Schema;
use serde_json::{Map, Value};

use super::each_below;

/// Checks the lists in a value. The path of the whole object is `None`.
pub(super) fn check(schema: &Schema, value: &Value, path: Option<&Path<'_>>, errors: &mut Errors) {
    if !schema.has_keys {
        return;
    }
    if let Value::Array(items) = value {
        let root = Path::new("");
        let path = path.unwrap_or(&root);
        match schema.list_type.as_deref() {
            Some("set") => set(items, path, errors),
            Some("map") => keyed(&schema.list_keys, items, path, errors),
            _ => {}
        }
    }
    each_below(schema, value, path, |schema, value, path| {
        check(schema, value, Some(path), errors);
    });
}

fn set(items: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for index in repeated(items) {
        errors.duplicate(&path.index(index), items[index].clone());
    }
}

fn keyed(keys: &[String], items: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let is_odd = |item: &Value| !item.is_object() && !item.is_null();
    if let Some(index) = items.iter().position(is_odd) {
        let why = "must be an object for an array of list-type map";
        return errors.invalid(&path.index(index), items[index].clone(), why);
    }
    if items.len() < 2 {
        return;
    }
    let keys_of = |item: &Value| -> Value {
        let keys = keys.iter();
        let given = keys.filter_map(|key| Some((key.clone(), item.get(key)?.clone())));
        Value::Object(given.collect::<Map<_, _>>())
    };
    let all: Vec<Value> = items.iter().map(keys_of).collect();
    for index in repeated(&all) {
        errors.duplicate(&path.index(index), all[index].clone());
    }
}

/// Returns the positions of items that occur for the second time; further occurrences are not reported.
fn repeated(items: &[Value]) -> Vec<usize> {
    let mut times: HashMap<String, u32> = HashMap::with_capacity(items.len());
    let mut found = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let times = times.entry(item.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            found.push(index);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    fn found(schema: Value, value: Value) -> Vec<String> {
        let schema = Schema::parse(&schema);
        causes(|errors| check(&schema, &value, Some(&Path::new("spec")), errors))
    }

    #[test]
    fn of_items_that_are_there_often_the_second_is_told() {
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "integer"}});
        assert_eq!(
            found(set, json!([1, 2, 1, 2, 1])),
            ["spec[2]: Duplicate value: 1", "spec[3]: Duplicate value: 2"]
        );
    }

    #[test]
    fn a_key_that_is_missing_is_not_one_that_is_null() {
        let list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "properties": {"k": {"type": "string"}}}});
        assert_eq!(
            found(list.clone(), json!([{}, {"k": null}, {"k": "a"}, {}, null])),
            ["spec[3]: Duplicate value: {}"]
        );
        assert_eq!(
            found(list, json!([{"k": "a"}, "b", {"k": "a"}, 3])),
            ["spec[1]: Invalid value: \"b\": must be an object for an array of list-type map"]
        );
    }

    #[test]
    fn lists_in_maps_are_named_by_their_keys() {
        let set =
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
        let map = json!({"type": "object", "additionalProperties": {"type": "object", "properties": {"s": set}}});
        assert_eq!(
            found(map, json!({"a": {"s": ["x", "x"]}})),
            ["spec[a].s[1]: Duplicate value: \"x\""]
        );
    }
}
