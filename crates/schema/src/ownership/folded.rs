//! Folded trees: each `fieldsV1` in managedFields is a string with the set's JSON, as in the store.
//!
//! A write folds the object that it stores and unfolds the one that it returns. Entries that a write does not change are carried over
//! without being parsed ([`StoredEntry`]). Clients cannot send folded entries: in a request, a string is no valid set.

use serde_json::Value;

use super::{Entry, FieldSet, Manager, Managers, text_of};

const FIELDS: &str = "fieldsV1";

/// Folds the managedFields of a tree.
pub fn fold(object: &mut Value) {
    for fields in sets(object).filter(|fields| !fields.is_string()) {
        *fields = fields.to_string().into();
    }
}

/// Unfolds the managedFields of a tree.
pub fn unfold(object: &mut Value) {
    for fields in sets(object) {
        if let Value::String(text) = fields {
            *fields = serde_json::from_str(text).unwrap_or_default();
        }
    }
}

fn sets(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let entries = object.pointer_mut("/metadata/managedFields");
    let entries = entries.and_then(Value::as_array_mut).into_iter().flatten();
    entries.filter_map(|entry| entry.get_mut(FIELDS))
}

/// A stored entry whose set has not been parsed.
pub(super) struct StoredEntry {
    pub(super) manager: Manager,
    pub(super) time: Option<String>,
    text: String,
}

impl StoredEntry {
    /// Returns the entries of a stored object, folded or not; `None` if one of them is invalid.
    pub(super) fn all(entries: &Value) -> Option<Vec<StoredEntry>> {
        let mut all: Vec<StoredEntry> = Vec::new();
        for entry in entries.as_array()? {
            let manager = Manager::of(entry)?;
            let text = match entry.get(FIELDS) {
                Some(Value::String(text)) => text.clone(),
                Some(set) => FieldSet::from_json(set)?.to_text(),
                None => "{}".to_owned(),
            };
            // If a manager has two entries, the later one counts.
            all.retain(|kept| kept.manager != manager);
            all.push(StoredEntry {
                manager,
                time: text_of(entry, "time"),
                text,
            });
        }
        Some(all)
    }

    /// Returns whether the set is empty or may have paths in common with another.
    pub(super) fn may_meet(&self, set: &FieldSet) -> bool {
        self.text == "{}" || set.may_meet(&self.text)
    }

    /// Parses the set and adds the entry to the managers.
    pub(super) fn read(self, into: &mut Managers) {
        let fields = FieldSet::from_text(&self.text).unwrap_or_default();
        let entry = Entry {
            fields,
            time: self.time,
        };
        into.insert(self.manager, entry);
    }

    /// Returns the entry in the form in which it is written.
    pub(super) fn written(self) -> (Manager, Option<String>, Value) {
        (self.manager, self.time, self.text.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_folded_unfolds_to_what_it_was() {
        let whole = json!({"metadata": {"managedFields": [
            {"manager": "a", "fieldsV1": {"f:spec": {".": {}, "f:x": {}}}}, {"manager": "b", "fieldsV1": {}}, {"manager": "c"},
        ]}});
        let mut object = whole.clone();
        fold(&mut object);
        let entries = &object["metadata"]["managedFields"];
        assert_eq!(entries[0]["fieldsV1"], r#"{"f:spec":{".":{},"f:x":{}}}"#);
        let again = object.clone();
        fold(&mut object);
        assert_eq!(object, again);
        unfold(&mut object);
        assert_eq!(object, whole);
    }

    #[test]
    fn a_set_that_shares_nothing_is_not_read() {
        let entry = json!([{"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                            "fieldsV1": {"f:spec": {"f:x": {}}}}]);
        let kept = StoredEntry::all(&entry).unwrap().remove(0);
        let meets = |path: &[&str]| {
            let mut set = FieldSet::default();
            set.insert(
                &path
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>(),
            );
            kept.may_meet(&set)
        };
        assert!(meets(&["f:spec"]) && meets(&["f:spec", "f:x"]));
        assert!(!meets(&["f:status"]) && !meets(&["f:spec", "f:y"]));
    }
}
