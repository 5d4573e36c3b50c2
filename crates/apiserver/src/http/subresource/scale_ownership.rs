//! managedFields across `/scale`: a Scale shows who owns its object's replicas, and who writes the Scale comes to own them.
//!
//! The object's entries that own the replicas become entries of the Scale; the write is tracked on the Scale; the outcome is carried
//! back. A manager that lost them there loses them here.

use serde_json::{Map, Value, json};

/// The Scale's entries: those of the object that own its replicas.
pub(super) fn to_scale(entries: &Value, path: &str) -> Option<Value> {
    let owners: Vec<Value> = list(entries)
        .filter(|entry| owns(entry, path))
        .map(|entry| {
            let mut entry = entry.clone();
            entry["apiVersion"] = "autoscaling/v1".into();
            entry["fieldsV1"] = json!({"f:spec": {"f:replicas": {}}});
            entry
        })
        .collect();
    (!owners.is_empty()).then(|| owners.into())
}

/// The object's entries after a write to its Scale.
pub(super) fn to_object(
    entries: &Value,
    scale: &Value,
    path: &str,
    api_version: &str,
) -> Option<Value> {
    let mut of_scale: Vec<&Value> = list(scale).collect();
    let mut kept = Vec::new();
    for entry in list(entries) {
        if !owns(entry, path) {
            kept.push(entry.clone());
            continue;
        }
        match of_scale.iter().position(|other| same_manager(entry, other)) {
            Some(at) => {
                of_scale.swap_remove(at);
                kept.push(entry.clone());
            }
            None => {
                let mut entry = entry.clone();
                remove(&mut entry["fieldsV1"], &segments(path));
                if entry["fieldsV1"]
                    .as_object()
                    .is_some_and(|fields| !fields.is_empty())
                {
                    kept.push(entry);
                }
            }
        }
    }
    for entry in of_scale {
        let mut entry = entry.clone();
        // Upstream carries the owners over without their times.
        entry.as_object_mut().map(|entry| entry.remove("time"));
        entry["apiVersion"] = api_version.into();
        entry["fieldsV1"] = segments(path)
            .into_iter()
            .rev()
            .fold(json!({}), |inner, segment| {
                Value::Object(Map::from_iter([(segment, inner)]))
            });
        kept.push(entry);
    }
    (!kept.is_empty()).then(|| kept.into())
}

fn list(entries: &Value) -> impl Iterator<Item = &Value> {
    entries.as_array().into_iter().flatten()
}

fn segments(path: &str) -> Vec<String> {
    path.trim_start_matches('.')
        .split('.')
        .map(|segment| format!("f:{segment}"))
        .collect()
}

fn owns(entry: &Value, path: &str) -> bool {
    segments(path)
        .iter()
        .try_fold(&entry["fieldsV1"], |fields, segment| fields.get(segment))
        .is_some()
}

fn same_manager(one: &Value, other: &Value) -> bool {
    ["manager", "operation", "subresource", "time"]
        .into_iter()
        .all(|field| one.get(field) == other.get(field))
}

/// Removes a path and the sets it leaves empty.
fn remove(fields: &mut Value, path: &[String]) {
    let (Some((first, rest)), Some(map)) = (path.split_first(), fields.as_object_mut()) else {
        return;
    };
    if !rest.is_empty()
        && let Some(inner) = map.get_mut(first)
    {
        remove(inner, rest);
        // A set of nothing but itself is written empty.
        if *inner == json!({".": {}}) {
            *inner = json!({});
            return;
        }
        if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
            return;
        }
    }
    map.remove(first);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "spec.replicas";

    fn entry(manager: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": fields})
    }

    #[test]
    fn a_manager_that_lost_the_replicas_keeps_the_rest() {
        let entries = json!([entry(
            "a",
            json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})
        )]);
        let scale = json!([{"manager": "b", "operation": "Update", "subresource": "scale", "apiVersion": "autoscaling/v1",
                            "fieldsV1": {"f:spec": {"f:replicas": {}}}}]);
        let after = to_object(&entries, &scale, PATH, "apps/v1").unwrap();
        assert_eq!(after[0]["fieldsV1"], json!({"f:spec": {"f:paused": {}}}));
        assert_eq!(after[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(
            (&after[1]["apiVersion"], &after[1]["subresource"]),
            (&json!("apps/v1"), &json!("scale"))
        );
    }

    #[test]
    fn an_untouched_owner_stays_as_it_is() {
        let entries = json!([entry(
            "a",
            json!({"f:spec": {"f:replicas": {}, "f:paused": {}}})
        )]);
        let scale = to_scale(&entries, PATH).unwrap();
        assert_eq!(scale[0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
        assert_eq!(to_object(&entries, &scale, PATH, "apps/v1"), Some(entries));
    }

    #[test]
    fn nobody_may_be_left() {
        let entries = json!([entry("a", json!({"f:spec": {"f:replicas": {}}}))]);
        assert_eq!(to_object(&entries, &Value::Null, PATH, "apps/v1"), None);
    }
}
