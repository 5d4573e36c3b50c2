//! Finds the stored value that corresponds to each value of an updated object, to tell whether an update changes it.
//!
//! kube-apiserver forgives errors about values that an update does not change (ratcheting). A value is unchanged if it equals its stored
//! counterpart. Items of lists without keys have no counterpart: such a value is unchanged if the nearest enclosing value with a
//! counterpart is. Source: k8s.io/apiserver/pkg/cel/common: CorrelatedObject.

use std::{cell::OnceCell, collections::HashMap};

use mullion_schema::structural::Schema;
use serde_json::Value;

/// A value of the updated object, and its counterpart in the stored object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Correlation<'v> {
    /// The new and the stored value; `None` if the value has no counterpart.
    here: Option<Pair<'v>>,
    /// The nearest enclosing pair.
    around: Option<Pair<'v>>,
}

/// A new value, the stored one, and the schema of both.
#[derive(Clone, Copy, Debug)]
struct Pair<'v> {
    new: &'v Value,
    old: &'v Value,
    schema: &'v Schema,
}

impl<'v> Correlation<'v> {
    /// Returns the correlation of a whole object.
    pub(super) fn new(schema: &'v Schema, new: &'v Value, old: &'v Value) -> Self {
        Correlation {
            here: Some(Pair { new, old, schema }),
            around: None,
        }
    }

    /// Returns whether the write leaves the value unchanged.
    pub(super) fn is_unchanged(&self) -> bool {
        let nearest = self.here.or(self.around);
        nearest.is_some_and(|pair| is_same(pair.schema, pair.new, pair.old))
    }

    /// Returns the correlation of a property or map entry.
    pub(super) fn key(&self, name: &str) -> Self {
        let Some(Pair { new, old, schema }) = self.here else {
            return *self;
        };
        // Only at the root, where kube-apiserver correlates neither.
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

    /// Returns the correlations of a list's items.
    pub(super) fn items(&self) -> Items<'v> {
        let before = self.here.and_then(|pair| Before::of(pair.schema, pair.old));
        Items {
            list: *self,
            before,
        }
    }
}

/// The items of a list, each to be correlated with an item of the stored list.
pub(super) struct Items<'v> {
    list: Correlation<'v>,
    before: Option<Before<'v>>,
}

impl<'v> Items<'v> {
    /// Returns the correlation of one item.
    pub(super) fn at(&self, index: usize) -> Correlation<'v> {
        let Some(Pair { new, schema, .. }) = self.list.here else {
            return self.list;
        };
        let below = || {
            let item = new.get(index)?;
            Some(Pair {
                new: item,
                old: self.before.as_ref()?.item(item, index)?,
                schema: schema.items.as_deref()?,
            })
        };
        Correlation {
            here: below(),
            around: self.list.here,
        }
    }
}

/// Returns the schema of a property or map entry.
fn below<'s>(schema: &'s Schema, name: &str) -> Option<&'s Schema> {
    let property = schema.properties.get(name);
    property.or_else(|| schema.additional_schema())
}

/// Returns whether two values are equal. The order of lists of type `map` does not matter, and fields without a schema count as different.
fn is_same<'v>(schema: &'v Schema, new: &Value, old: &'v Value) -> bool {
    match (new, old) {
        (Value::Array(items), Value::Array(list)) => {
            let by_keys = schema.items.as_deref().zip(Before::of(schema, old));
            let Some((of_items, before)) = by_keys else {
                return items == list;
            };
            let mut items = items.iter().enumerate();
            list.len() == items.len()
                && items.all(|(index, item)| {
                    let before = before.item(item, index);
                    before.is_some_and(|before| is_same(of_items, item, before))
                })
        }
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

/// The items of a stored list of type map, looked up by their keys.
pub(super) struct Before<'v> {
    keys: &'v [String],
    items: &'v [Value],
    /// The index by keys; built for the first item that is not at its old position.
    by_keys: OnceCell<HashMap<Vec<Option<&'v Value>>, &'v Value>>,
}

impl<'v> Before<'v> {
    /// Returns the items of a stored list, or `None` if the list has no keys, so that its items have no counterparts.
    pub(super) fn of(schema: &'v Schema, old: &'v Value) -> Option<Self> {
        let items = old.as_array().filter(|_| has_keys(schema))?;
        Some(Before {
            keys: &schema.list_keys,
            items,
            by_keys: OnceCell::new(),
        })
    }

    /// Returns the stored item with the same keys; the position `index` is tried first, because items seldom move.
    pub(super) fn item(&self, item: &Value, index: usize) -> Option<&'v Value> {
        let is_same = |other: &&Value| self.keys.iter().all(|key| other.get(key) == item.get(key));
        let here = self.items.get(index).filter(is_same);
        here.or_else(|| {
            let by_keys = self.by_keys.get_or_init(|| {
                let mut by_keys = HashMap::with_capacity(self.items.len());
                for item in self.items {
                    by_keys.entry(values_of(self.keys, item)).or_insert(item);
                }
                by_keys
            });
            by_keys.get(&values_of(self.keys, item)).copied()
        })
    }
}

fn values_of<'i>(keys: &[String], item: &'i Value) -> Vec<Option<&'i Value>> {
    keys.iter().map(|key| item.get(key)).collect()
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
