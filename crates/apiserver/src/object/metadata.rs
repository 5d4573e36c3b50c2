//! The fields of `metadata` that the server sets on creation and on update, and those that it lets clients set.

use std::collections::HashSet;

use jiff::{Timestamp, Unit};
use mullion_kinds::{Generation, Resource};
use mullion_kube_text::{field::Emptied, golang::quote, names, status::Status};
use mullion_schema::time;
use rand::seq::IndexedRandom;
use serde_json::{Map, Value};

/// The letters of generated names (apimachinery: `rand.String`): no vowels and no letters that look alike.
const NAME_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
const GENERATED_SUFFIX: usize = 5;
const GENERATED_BASE: usize = 63 - GENERATED_SUFFIX;

/// Returns the object's metadata, and creates it if it is absent.
pub(crate) fn of(object: &mut Value) -> &mut Map<String, Value> {
    if !object["metadata"].is_object() {
        object["metadata"] = Value::Object(Map::new());
    }
    match &mut object["metadata"] {
        Value::Object(metadata) => metadata,
        _ => unreachable!("it was made an object above"),
    }
}

/// Returns a text field of the metadata, empty if it is absent.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// Formats a time as objects carry it, in whole seconds.
pub(crate) fn stamp(now: Timestamp) -> String {
    time::format_seconds(&now.round(Unit::Second).unwrap_or(now))
}

/// Returns 400 unless a name from a body can be used in a path.
pub(crate) fn check_key(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Err(Status::bad_request("Name parameter required."));
    }
    match names::path_segment(name).as_slice() {
        [] => Ok(()),
        why => {
            let why = why.join(";");
            Err(Status::bad_request(format!(
                "Name parameter invalid: {}: {why}",
                quote(name)
            )))
        }
    }
}

/// Sets the request's namespace in the object, or returns 400 if the object names another one.
pub(crate) fn settle_namespace(object: &mut Value, namespace: Option<&str>) -> Result<(), Status> {
    let metadata = of(object);
    let given = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    match namespace {
        // kube-apiserver drops the namespace of a cluster-scoped object instead of refusing it.
        None => {
            metadata.remove("namespace");
        }
        Some(namespace) if given.is_empty() => {
            metadata.insert("namespace".into(), namespace.into());
        }
        Some(namespace) if given == namespace => {}
        Some(_) => {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(why));
        }
    }
    Ok(())
}

/// Removes the fields that only the server may set.
pub(crate) fn wipe(object: &mut Value) {
    let metadata = of(object);
    for field in [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "selfLink",
        "uid",
    ] {
        metadata.remove(field);
    }
}

/// Sets the fields that the server gives to a new object.
pub(crate) fn begin(object: &mut Value, resource: &Resource, now: Timestamp) {
    let metadata = of(object);
    metadata.remove("selfLink");
    // Random enough for a uid, and cheaper than `Uuid::new_v4`, which makes a system call.
    let uid = uuid::Builder::from_random_bytes(rand::random()).into_uuid();
    metadata.insert("uid".into(), uid.to_string().into());
    metadata.insert("creationTimestamp".into(), stamp(now).into());
    if !matches!(
        resource.rules.generation,
        Generation::Never | Generation::CountsChanges(_)
    ) {
        metadata.insert("generation".into(), 1.into());
    }
}

/// Returns a name that starts with `base` and ends with random letters, at most 63 bytes long.
pub(crate) fn generate_name(base: &str) -> String {
    let mut cut = base.len().min(GENERATED_BASE);
    while !base.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut rng = rand::rng();
    let suffix = (0..GENERATED_SUFFIX).filter_map(|_| NAME_LETTERS.choose(&mut rng));
    let mut name = base[..cut].to_owned();
    name.extend(suffix.map(|letter| *letter as char));
    name
}

/// Copies the server's fields from the stored object, whatever the client sent. An update can neither begin nor undo a deletion: a stored
/// deletion timestamp stays, and a new one is left for validation to refuse.
pub(crate) fn carry_over(object: &mut Value, old: &Value) {
    let kept = &old["metadata"];
    let metadata = of(object);
    for field in ["generation", "creationTimestamp", "selfLink"] {
        keep(metadata, kept, field);
    }
    if kept.get("deletionTimestamp").is_some() {
        keep(metadata, kept, "deletionTimestamp");
    }
    if !metadata.contains_key("deletionGracePeriodSeconds") {
        keep(metadata, kept, "deletionGracePeriodSeconds");
    }
    if metadata
        .get("uid")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .is_empty()
    {
        keep(metadata, kept, "uid");
    }
}

/// Copies a field from other metadata, or removes it if it is absent there.
pub(crate) fn keep(metadata: &mut Map<String, Value>, from: &Value, field: &str) {
    match from.get(field) {
        Some(value) => metadata.insert(field.into(), value.clone()),
        None => metadata.remove(field),
    };
}

/// Increments the generation if a part of the object changed that the kind counts.
pub(crate) fn count_generation(
    object: &mut Value,
    old: &Value,
    emptied: &Emptied,
    rule: Generation,
    has_status: bool,
) {
    let changed = match rule {
        Generation::Never | Generation::OnceAtCreate => false,
        Generation::Counts(parts) | Generation::CountsChanges(parts) => {
            parts.iter().any(|part| at(object, part) != at(old, part))
        }
        Generation::CountsToTheLetter(part) => {
            // Defaults may have filled what was sent empty.
            let mut paths = emptied.within(part);
            object.get(part) != old.get(part) || paths.any(|path| !is_filled(object, path))
        }
        Generation::CountsAllButStatus => {
            let counted = |value: &Value| -> Map<String, Value> {
                let fields = value.as_object().into_iter().flatten();
                let skipped =
                    |field: &str| field == "metadata" || (has_status && field == "status");
                fields
                    .filter(|(field, _)| !skipped(field))
                    .map(|(field, value)| (field.clone(), value.clone()))
                    .collect()
            };
            counted(object) != counted(old)
        }
    };
    if changed {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
        // A kind that never counts stores what the client sent, up to the largest number, after which Go begins at the smallest.
        of(object).insert("generation".into(), generation.wrapping_add(1).into());
    }
}

/// Returns the value at a dotted path.
fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.')
        .try_fold(object, |value, segment| value.get(segment))
}

/// Returns whether the field at a path of [`Emptied`] has a value by now.
fn is_filled(object: &Value, path: &str) -> bool {
    let pointer = path.replace("].", "/").replace(['.', '['], "/");
    let pointer = format!("/{}", pointer.replace(']', ""));
    object.pointer(&pointer).is_some_and(|value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    })
}

/// Removes duplicate owner references and returns their uids.
pub(crate) fn dedup_owners(object: &mut Value) -> Vec<String> {
    let Some(Value::Array(owners)) = of(object).get_mut("ownerReferences") else {
        return Vec::new();
    };
    if owners.len() < 2 {
        return Vec::new();
    }
    let mut seen = HashSet::with_capacity(owners.len());
    let is_first: Vec<bool> = owners.iter().map(|owner| seen.insert(owner)).collect();
    let mut is_first = is_first.into_iter();
    let mut repeated = Vec::new();
    owners.retain(|owner| {
        let keeps = is_first.next().unwrap_or(true);
        if !keeps {
            repeated.push(owner["uid"].as_str().unwrap_or_default().to_owned());
        }
        keeps
    });
    repeated
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_generated_name_is_cut_to_leave_room() {
        let name = generate_name(&"x".repeat(80));
        assert_eq!(name.len(), 63);
        assert!(
            name[58..]
                .bytes()
                .all(|letter| NAME_LETTERS.contains(&letter))
        );
        assert!(generate_name("web-").starts_with("web-"));
    }

    #[test]
    fn the_generation_counts_only_what_the_kind_counts() {
        let old = json!({"metadata": {"generation": 3}, "spec": {"a": 1}, "status": {"b": 1}});
        let count = |rule, new: Value, has_status| {
            let mut new = new;
            carry_over(&mut new, &old);
            count_generation(&mut new, &old, &Emptied::default(), rule, has_status);
            new["metadata"]["generation"].clone()
        };
        let spec = json!({"metadata": {"generation": 9}, "spec": {"a": 2}, "status": {"b": 1}});
        let status = json!({"metadata": {}, "spec": {"a": 1}, "status": {"b": 2}});
        assert_eq!(count(Generation::Counts(&["spec"]), spec.clone(), true), 4);
        assert_eq!(
            count(Generation::Counts(&["spec"]), status.clone(), true),
            3
        );
        assert_eq!(
            count(Generation::CountsAllButStatus, status.clone(), true),
            3
        );
        assert_eq!(count(Generation::CountsAllButStatus, status, false), 4);
        assert_eq!(count(Generation::OnceAtCreate, spec, true), 3);
    }

    #[test]
    fn equal_owner_references_are_one() {
        let mut object =
            json!({"metadata": {"ownerReferences": [{"uid": "a"}, {"uid": "b"}, {"uid": "a"}]}});
        assert_eq!(dedup_owners(&mut object), ["a"]);
        assert_eq!(
            object["metadata"]["ownerReferences"],
            json!([{"uid": "a"}, {"uid": "b"}])
        );
        assert!(dedup_owners(&mut object).is_empty());
    }
}
