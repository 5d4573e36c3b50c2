//! managedFields across the `scale` subresource: a Scale shows who owns its object's replicas, and writing the Scale takes ownership of
//! them.
//!
//! As in kube-apiserver's scale handler, the object's entries that own the replicas become entries of the Scale, the write is tracked
//! there, and the result is carried back. An entry is identified by its version for updates but not for applies, and a Scale's version
//! differs from its object's. So an applier keeps its entry, while the entry of a manager that updated the object is split at the first
//! write to the Scale, even an unchanged one, into the replicas (without a time) and the rest.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Entry, FieldSet, Manager, parse, with_sets, written};

const SCALE_VERSION: &str = "autoscaling/v1";
const REPLICAS_OF_SCALE: &str = "spec.replicas";

/// Returns the Scale's entries: those of the object that own its replicas at `path`.
pub fn owners_of_scale(entries: &Value, path: &str) -> Option<Value> {
    let path = segments(path);
    let owners: Vec<(Manager, Entry)> = parse(entries)
        .unwrap_or_default()
        .into_iter()
        .filter(|(_, entry)| entry.fields.contains(&path))
        .map(|(manager, entry)| {
            let manager = Manager {
                api_version: SCALE_VERSION.to_owned(),
                ..manager
            };
            let fields = only(&segments(REPLICAS_OF_SCALE));
            (manager, Entry { fields, ..entry })
        })
        .collect();
    (!owners.is_empty()).then(|| written(with_sets(owners).collect()))
}

/// Returns the object's entries after a write that left its Scale with the entries `scale`.
pub fn owners_after_scale(
    entries: &Value,
    scale: &Value,
    path: &str,
    api_version: &str,
) -> Option<Value> {
    let path = segments(path);
    let names: Vec<&str> = path.iter().map(String::as_str).collect();
    let stored = parse(entries).unwrap_or_default();
    let mut of_scale: BTreeMap<Manager, (Manager, Entry)> = parse(scale)
        .unwrap_or_default()
        .into_iter()
        .map(|(manager, entry)| (identity(&manager), (manager, entry)))
        .collect();
    let mut kept: BTreeMap<Manager, (Manager, Entry)> = BTreeMap::new();
    for (manager, entry) in &stored {
        let same = identity(manager);
        let mut entry = entry.clone();
        // A manager that owned the replicas and is not in the Scale any more has lost them.
        if entry.fields.contains(&path) && of_scale.remove(&same).is_none() {
            entry.fields.remove(&names);
            if entry.fields.is_empty() {
                continue;
            }
        }
        kept.insert(same, (manager.clone(), entry));
    }
    // The Scale's other entries are new ones of the object: of new owners, or split from the entry of an updater.
    for (same, (manager, entry)) in of_scale {
        if !entry.fields.contains(&segments(REPLICAS_OF_SCALE)) {
            continue;
        }
        let manager = Manager {
            api_version: api_version.to_owned(),
            ..manager
        };
        let known = stored
            .iter()
            .find(|(stored, _)| identity(stored) == same)
            .and_then(|(_, entry)| entry.time.clone());
        let fields = only(&path);
        kept.insert(
            same,
            (
                manager,
                Entry {
                    fields,
                    time: known,
                },
            ),
        );
    }
    (!kept.is_empty()).then(|| written(with_sets(kept.into_values()).collect()))
}

/// Returns the part of an entry's key that identifies it: for applies, the version does not count.
fn identity(manager: &Manager) -> Manager {
    let mut identity = manager.clone();
    if identity.operation == "Apply" {
        identity.api_version.clear();
    }
    identity
}

fn only(path: &[String]) -> FieldSet {
    let mut fields = FieldSet::default();
    fields.insert(path);
    fields
}

fn segments(path: &str) -> Vec<String> {
    path.trim_start_matches('.')
        .split('.')
        .map(|segment| format!("f:{segment}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PATH: &str = "spec.replicas";

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "time": "2026-01-01T00:00:00Z",
               "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn a_manager_that_lost_the_replicas_keeps_the_rest() {
        let entries = json!([entry(
            "a",
            "Apply",
            json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})
        )]);
        let scale = json!([{"manager": "b", "operation": "Update", "subresource": "scale", "apiVersion": "autoscaling/v1",
                            "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        let after = owners_after_scale(&entries, &scale, PATH, "apps/v1").unwrap();
        assert_eq!(after[0]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(after[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(
            (&after[1]["apiVersion"], &after[1]["subresource"]),
            (&json!("apps/v1"), &json!("scale"))
        );
    }

    #[test]
    fn an_applier_that_keeps_the_replicas_keeps_its_entry() {
        let entries = json!([entry(
            "a",
            "Apply",
            json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})
        )]);
        let scale = owners_of_scale(&entries, PATH).unwrap();
        assert_eq!(scale[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(
            owners_after_scale(&entries, &scale, PATH, "apps/v1"),
            Some(entries)
        );
    }

    #[test]
    fn the_entry_of_an_update_is_split_and_at_the_next_write_its_replicas_are_nobodys() {
        let entries = json!([entry(
            "a",
            "Update",
            json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})
        )]);
        let scale = owners_of_scale(&entries, PATH).unwrap();
        let split = owners_after_scale(&entries, &scale, PATH, "apps/v1").unwrap();
        assert_eq!(split[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(split[0].get("time"), None);
        assert_eq!(split[1]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(owners_of_scale(&split, PATH), None);
        let after = owners_after_scale(&split, &Value::Null, PATH, "apps/v1").unwrap();
        assert_eq!(after, json!([split[1]]));
    }

    #[test]
    fn nobody_may_be_left() {
        let entries = json!([entry("a", "Update", json!({"f:spec": {"f:replicas": {}}}))]);
        assert_eq!(
            owners_after_scale(&entries, &Value::Null, PATH, "apps/v1"),
            None
        );
    }
}
