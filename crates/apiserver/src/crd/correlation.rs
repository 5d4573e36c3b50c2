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
    here: Option<(&'v Value, &'v Value)>,
    /// The nearest pair around it.
    around: Option<(&'v Value, &'v Value)>,
}

impl<'v> Correlation<'v> {
    /// A whole object.
    pub(super) fn new(new: &'v Value, old: &'v Value) -> Self {
        Correlation {
            here: Some((new, old)),
            around: None,
        }
    }

    /// Whether the write leaves the value alone.
    pub(super) fn is_unchanged(&self) -> bool {
        self.here
            .or(self.around)
            .is_some_and(|(new, old)| new == old)
    }

    /// Of a property or entry.
    pub(super) fn key(&self, schema: &Schema, name: &str) -> Self {
        let Some((new, old)) = self.here else {
            return *self;
        };
        if self.around.is_none() && matches!(name, "apiVersion" | "kind") {
            return Correlation {
                here: None,
                around: None,
            };
        }
        let is_known = schema.properties.contains_key(name) || schema.additional_schema().is_some();
        let below = new.get(name).zip(old.get(name));
        Correlation {
            here: below.filter(|_| is_known),
            around: self.here,
        }
    }

    /// Of an item.
    pub(super) fn index(&self, schema: &Schema, index: usize) -> Self {
        let Some((new, old)) = self.here else {
            return *self;
        };
        let item = new.get(index);
        Correlation {
            here: item.and_then(|item| Some((item, item_before(schema, item, old)?))),
            around: self.here,
        }
    }
}

/// The item of the old list with the same keys; only lists of type map have keys.
pub(super) fn item_before<'v>(schema: &Schema, item: &Value, old: &'v Value) -> Option<&'v Value> {
    if schema.list_type.as_deref() != Some("map") {
        return None;
    }
    let keys = &schema.list_keys;
    let is_same = |other: &&Value| keys.iter().all(|key| other.get(key) == item.get(key));
    old.as_array()?.iter().find(is_same)
}
