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
            if let Some(additional) = schema.additional_schema() {
                map.retain(|name, value| {
                    schema.properties.contains_key(name) || !value.is_null() || additional.nullable
                });
                for (_, value) in map
                    .iter_mut()
                    .filter(|(name, _)| !schema.properties.contains_key(*name))
                {
                    apply(additional, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(schema) = schema.items.as_deref() {
                for item in items {
                    if let (true, false, Some(default)) =
                        (item.is_null(), schema.nullable, &schema.default)
                    {
                        *item = default.clone();
                    }
                    apply(schema, item);
                }
            }
        }
        _ => {}
    }
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
}
