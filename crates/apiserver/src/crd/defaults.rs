//! Fills in the defaults of custom resources and drops nulls that their schema does not allow.
//!
//! A null for a field that is not nullable is treated as an absent field: it is dropped, and the field gets its default.

use mullion_kube_text::field::bytes_of;
use mullion_schema::structural::Schema;
use serde_json::Value;

/// The most bytes of JSON that defaults may add to an object. The default of a list's items is added once for each item, so a short object
/// could grow without limit. An object that reaches this size is too large to be stored, and the rest of it is not defaulted.
const MAX_DEFAULT_BYTES: usize = 3 << 20;

/// Drops disallowed nulls and fills in defaults, from the outside inwards, so that defaults are themselves completed.
pub(crate) fn apply(schema: &Schema, value: &mut Value) {
    walk(schema, value, false);
}

/// Does the same as [`apply`] for the result of a server-side apply, in which kube-apiserver leaves the disallowed nulls that have no
/// default, so that validation refuses them.
pub(crate) fn apply_keeping_nulls(schema: &Schema, value: &mut Value) {
    walk(schema, value, true);
}

fn walk(schema: &Schema, value: &mut Value, keeps_nulls: bool) {
    let mut left = MAX_DEFAULT_BYTES;
    let mut defaults = Defaults {
        left: &mut left,
        keeps_nulls,
    };
    defaults.apply(schema, value);
}

/// A walk that fills in defaults.
struct Defaults<'a> {
    /// The number of bytes of defaults that may still be filled in.
    left: &'a mut usize,
    /// Whether disallowed nulls without a default stay.
    keeps_nulls: bool,
}

impl Defaults<'_> {
    /// Returns a default, unless there is no room for it.
    fn take(&mut self, default: &Value) -> Option<Value> {
        *self.left = self.left.saturating_sub(bytes_of(default));
        (*self.left > 0).then(|| default.clone())
    }

    fn apply(&mut self, schema: &Schema, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, property) in &schema.properties {
                    let missing = match map.get(name) {
                        None => true,
                        Some(Value::Null)
                            if !property.nullable
                                && (!self.keeps_nulls || property.default.is_some()) =>
                        {
                            map.remove(name);
                            true
                        }
                        Some(_) => false,
                    };
                    if let (true, Some(default)) = (missing, &property.default)
                        && let Some(default) = self.take(default)
                    {
                        map.insert(name.clone(), default);
                    }
                    if let Some(value) = map.get_mut(name) {
                        // The default that was just filled in may itself lack fields with defaults.
                        self.apply(property, value);
                    }
                }
                let Some(additional) = schema.additional_schema() else {
                    return;
                };
                // A null entry stays only if it is allowed, or if a default replaces it below.
                if additional.default.is_none() && !additional.nullable && !self.keeps_nulls {
                    map.retain(|name, value| {
                        schema.properties.contains_key(name) || !value.is_null()
                    });
                }
                for (_, value) in map
                    .iter_mut()
                    .filter(|(name, _)| !schema.properties.contains_key(*name))
                {
                    self.complete(additional, value);
                }
            }
            Value::Array(items) => {
                if let Some(schema) = schema.items.as_deref() {
                    for item in items {
                        self.complete(schema, item);
                    }
                }
            }
            _ => {}
        }
    }

    /// Completes a list item or a map value: a disallowed null becomes the default.
    fn complete(&mut self, schema: &Schema, value: &mut Value) {
        if let (true, false, Some(default)) = (value.is_null(), schema.nullable, &schema.default)
            && let Some(default) = self.take(default)
        {
            *value = default;
        }
        self.apply(schema, value);
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

    #[test]
    fn defaults_of_many_items_are_filled_in_up_to_a_bound() {
        let large = json!({"type": "string", "default": "x".repeat(100_000)});
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "l": {"type": "array", "items": {"type": "object", "properties": {"a": large}}},
        }}));
        let mut object = json!({"l": vec![json!({}); 20_000]});
        let counted = allocation_counter::measure(|| apply(&schema, &mut object));
        assert!(counted.bytes_total < 20 << 20, "{}", counted.bytes_total);
        assert!(object.to_string().len() > 3_000_000);
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
