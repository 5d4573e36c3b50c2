//! Defaults of custom resources, and what becomes of nulls that their schema does not allow.
//!
//! A null for a field that is not nullable means that the field is not there: it is dropped, and defaulted like an absent one.

use serde_json::Value;

use super::structural::Schema;

/// Drops disallowed nulls and fills in defaults, from the outside inwards, so that defaults are themselves completed.
pub(crate) fn apply(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, property) in &schema.properties {
                let missing = match map.get(name) {
                    None => true,
                    Some(Value::Null) if !property.nullable => {
                        map.remove(name);
                        true
                    }
                    Some(_) => false,
                };
                if let (true, Some(default)) = (missing, &property.default) {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(value) = map.get_mut(name) {
                    apply(property, value);
                }
            }
            let Some(additional) = schema.additional_schema() else {
                return;
            };
            if additional.default.is_none() && !additional.nullable {
                map.retain(|name, value| schema.properties.contains_key(name) || !value.is_null());
            }
            for (_, value) in map
                .iter_mut()
                .filter(|(name, _)| !schema.properties.contains_key(*name))
            {
                complete(additional, value);
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items.as_deref() {
                for item in items {
                    complete(schema, item);
                }
            }
        }
        _ => {}
    }
}

/// An item or a value of a map: a null that may not be one becomes the default.
fn complete(schema: &Schema, value: &mut Value) {
    if let (true, false, Some(default)) = (value.is_null(), schema.nullable, &schema.default) {
        *value = default.clone();
    }
    apply(schema, value);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_complete_each_other_and_replace_nulls() {
        let schema = Schema::parse(
            &json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
                "a": {"type": "string", "default": "x"},
                "n": {"type": "string", "nullable": true, "default": "y"},
                "o": {"type": "object", "default": {"q": 1}, "properties": {"r": {"type": "integer", "default": 2}}},
            }}}}),
        );
        let mut object = json!({});
        apply(&schema, &mut object);
        assert_eq!(
            object,
            json!({"spec": {"a": "x", "n": "y", "o": {"q": 1, "r": 2}}})
        );
        let mut object = json!({"spec": {"a": null, "n": null, "o": {}}});
        apply(&schema, &mut object);
        assert_eq!(
            object,
            json!({"spec": {"a": "x", "n": null, "o": {"r": 2}}})
        );
    }

    #[test]
    fn values_and_items_that_are_null_become_their_defaults() {
        let text = json!({"type": "string", "default": "x"});
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "l": {"type": "array", "items": text},
            "m": {"type": "object", "additionalProperties": text},
            "n": {"type": "object", "additionalProperties": {"type": "string"}},
        }}));
        let mut object = json!({"l": [null, "y"], "m": {"a": null, "b": "y"}, "n": {"a": null}});
        apply(&schema, &mut object);
        assert_eq!(
            object,
            json!({"l": ["x", "y"], "m": {"a": "x", "b": "y"}, "n": {}})
        );
    }
}
