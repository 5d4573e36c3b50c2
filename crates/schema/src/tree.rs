//! Reads fields of JSON trees like fields of Go structs: an absent field has the zero value.
//!
//! Accessors borrow, do not allocate, and do not fail, because decoding has refused values of a wrong type.

use serde_json::{Map, Value};

/// Counts accesses to fields, so that tests can measure the work of a request. Only the feature `count-steps` counts.
pub mod steps {
    #[cfg(feature = "count-steps")]
    thread_local! {
        static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    /// Counts one access by this thread.
    #[inline]
    pub(super) fn count() {
        #[cfg(feature = "count-steps")]
        TAKEN.set(TAKEN.get() + 1);
    }

    /// Returns the accesses by this thread since it began.
    #[cfg(feature = "count-steps")]
    pub fn taken() -> u64 {
        TAKEN.get()
    }
}

/// Field access with Go's zero values.
pub trait Tree {
    /// Returns a string field; empty if the field is absent.
    fn text(&self, field: &str) -> &str;
    /// Returns a list field; empty if the field is absent.
    fn items(&self, field: &str) -> &[Value];
    /// Returns the entries of a map field in key order; none if the field is absent.
    fn entries(&self, field: &str) -> impl Iterator<Item = (&str, &Value)>;
    /// Returns a boolean field; false if the field is absent.
    fn flag(&self, field: &str) -> bool;
    /// Returns an integer field.
    fn integer(&self, field: &str) -> Option<i64>;
    /// Returns the field, unless it is absent or null.
    fn field(&self, field: &str) -> Option<&Value>;
    /// Returns whether the field is set.
    fn has(&self, field: &str) -> bool {
        self.field(field).is_some()
    }
}

impl Tree for Value {
    fn text(&self, field: &str) -> &str {
        steps::count();
        self.get(field).and_then(Value::as_str).unwrap_or("")
    }

    fn items(&self, field: &str) -> &[Value] {
        steps::count();
        self.get(field)
            .and_then(Value::as_array)
            .map_or(&[], Vec::as_slice)
    }

    fn entries(&self, field: &str) -> impl Iterator<Item = (&str, &Value)> {
        steps::count();
        self.get(field)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.as_str(), value))
    }

    fn flag(&self, field: &str) -> bool {
        steps::count();
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    fn integer(&self, field: &str) -> Option<i64> {
        steps::count();
        self.get(field).and_then(Value::as_i64)
    }

    fn field(&self, field: &str) -> Option<&Value> {
        steps::count();
        self.get(field).filter(|value| !value.is_null())
    }
}

/// Returns the object in a field, which is created if it is absent.
pub fn object_at<'a>(
    parent: &'a mut Map<String, Value>,
    field: &str,
) -> &'a mut Map<String, Value> {
    let value = entry(parent, field);
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("made an object just above")
}

/// Sets a field if it is absent or null.
pub fn set_default(parent: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let slot = entry(parent, field);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Sets a string or number field if it is absent or has Go's zero value.
pub fn set_zero(parent: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    let slot = entry(parent, field);
    let zero = match slot {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        _ => false,
    };
    if zero {
        *slot = value.into();
    }
}

fn entry<'a>(parent: &'a mut Map<String, Value>, field: &str) -> &'a mut Value {
    if !parent.contains_key(field) {
        parent.insert(field.to_owned(), Value::Null);
    }
    parent.get_mut(field).expect("inserted just above")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_fields_read_as_zero_values() {
        let value = json!({"a": null});
        assert_eq!(
            (
                value.text("a"),
                value.items("b").len(),
                value.flag("c"),
                value.integer("d")
            ),
            ("", 0, false, None)
        );
        assert!(!value.has("a"));
        assert_eq!(value.entries("e").count(), 0);
    }

    #[test]
    fn zero_values_are_defaulted_and_others_are_kept() {
        let mut value = json!({"a": "", "b": 0, "c": "x"});
        let map = value.as_object_mut().unwrap();
        set_zero(map, "a", "1");
        set_zero(map, "b", 2);
        set_zero(map, "c", "3");
        set_default(map, "d", 4);
        assert_eq!(value, json!({"a": "1", "b": 2, "c": "x", "d": 4}));
    }
}
