//! Which value of the stored object a value of the new one goes back to, and whether a write leaves it alone.
//!
//! Errors about what a write does not change are forgiven (ratcheting): a value is unchanged when it equals the one it goes back to, or, where
//! none can be told (items of lists without keys), when the nearest value around it that can be told is unchanged. Source:
//! k8s.io/apiserver/pkg/cel/common: CorrelatedObject.

use serde_json::Value;

use super::structural::Schema;

/// A new value and what it goes back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Correlation<'v> {
    /// The new and the old value; `None` where the old one cannot be told.
    here: Option<Pair<'v>>,
    /// The nearest pair around it.
    around: Option<Pair<'v>>,
}

/// A new value, the old one, and what both are.
#[derive(Clone, Copy, Debug)]
struct Pair<'v> {
    new: &'v Value,
    old: &'v Value,
    schema: &'v Schema,
}

impl<'v> Correlation<'v> {
    /// A whole object.
    pub(super) fn new(schema: &'v Schema, new: &'v Value, old: &'v Value) -> Self {
        Correlation {
            here: Some(Pair { new, old, schema }),
            around: None,
        }
    }

    /// Whether the write leaves the value alone.
    pub(super) fn is_unchanged(&self) -> bool {
        let nearest = self.here.or(self.around);
        nearest.is_some_and(|pair| is_same(pair.schema, pair.new, pair.old))
    }

    /// Of a property or entry.
    pub(super) fn key(&self, name: &str) -> Self {
        let Some(Pair { new, old, schema }) = self.here else {
            return *self;
        };
        if self.around.is_none() && matches!(name, "apiVersion" | "kind") {
            return Correlation {
                here: None,
                around: None,
            };
        }
        let below = || {
            Some(Pair {
                new: new.get(name)?,
                old: old.get(name)?,
                schema: below(schema, name)?,
            })
        };
        Correlation {
            here: below(),
            around: self.here,
        }
    }

    /// Of an item.
    pub(super) fn index(&self, index: usize) -> Self {
        let Some(Pair { new, old, schema }) = self.here else {
            return *self;
        };
        let below = || {
            let item = new.get(index)?;
            Some(Pair {
                new: item,
                old: item_before(schema, item, index, old)?,
                schema: schema.items.as_deref()?,
            })
        };
        Correlation {
            here: below(),
            around: self.here,
        }
    }
}

/// What a property or entry is.
fn below<'s>(schema: &'s Schema, name: &str) -> Option<&'s Schema> {
    let property = schema.properties.get(name);
    property.or_else(|| schema.additional_schema())
}

/// Whether two values are the same: the order of lists of type map does not matter, and what the schema does not describe cannot be told.
fn is_same(schema: &Schema, new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Array(items), Value::Array(before)) => match schema.items.as_deref() {
            Some(of_items) if has_keys(schema) => {
                let mut items = items.iter().enumerate();
                before.len() == items.len()
                    && items.all(|(index, item)| {
                        item_before(schema, item, index, old)
                            .is_some_and(|before| is_same(of_items, item, before))
                    })
            }
            _ => items == before,
        },
        (Value::Object(map), Value::Object(before)) => {
            let mut entries = map.iter();
            before.len() == entries.len()
                && entries.all(|(name, value)| {
                    let pair = before.get(name).zip(below(schema, name));
                    pair.is_some_and(|(before, schema)| is_same(schema, value, before))
                })
        }
        _ => new == old,
    }
}

fn has_keys(schema: &Schema) -> bool {
    schema.list_type.as_deref() == Some("map")
}

/// The item of the old list with the same keys, which is often at the same place; only lists of type map have keys.
pub(super) fn item_before<'v>(
    schema: &Schema,
    item: &Value,
    index: usize,
    old: &'v Value,
) -> Option<&'v Value> {
    if !has_keys(schema) {
        return None;
    }
    let keys = &schema.list_keys;
    let is_same = |other: &&Value| keys.iter().all(|key| other.get(key) == item.get(key));
    let old = old.as_array()?;
    let here = old.get(index).filter(is_same);
    here.or_else(|| old.iter().find(is_same))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_unchanged_is_told_by_keys_and_by_the_schema() {
        let text = json!({"type": "string"});
        let item = json!({"type": "object", "properties": {"k": text, "v": text}});
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item},
            "plain": {"type": "array", "items": text},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }}));
        for (name, new, old, same) in [
            (
                "keyed",
                json!([{"k": "a"}, {"k": "b"}]),
                json!([{"k": "b"}, {"k": "a"}]),
                true,
            ),
            (
                "keyed",
                json!([{"k": "a"}]),
                json!([{"k": "a", "v": "x"}]),
                false,
            ),
            ("keyed", json!([{"k": "a"}]), json!([{"k": "b"}]), false),
            ("plain", json!(["a", "b"]), json!(["b", "a"]), false),
            ("plain", json!(["a"]), json!(["a"]), true),
            ("free", json!({}), json!({}), true),
            ("free", json!({"x": 1}), json!({"x": 1}), false),
        ] {
            let (new, old) = (json!({ name: new }), json!({ name: old }));
            let correlation = Correlation::new(&schema, &new, &old).key(name);
            assert_eq!(correlation.is_unchanged(), same, "{name} {new} {old}");
        }
    }
}
