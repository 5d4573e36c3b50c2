//! The part of an object that a write may change: its fields, its metadata, and what the writer comes to own of them.

use mullion_kinds::StatusMetadata;
use mullion_schema::ownership;
use serde_json::{Map, Value};

use crate::{
    http::call::{Call, WriteOptions},
    object::metadata,
};

/// The fields that a write of the status reads.
pub(crate) const STATUS_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "status"];

/// The part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The whole object, except a status that has an endpoint of its own.
    Main,
    /// Only the status, and the metadata that the rule permits.
    Status(StatusMetadata),
    /// The fields that the kind lets the call's subresource change
    /// ([`SubresourceHandler::Part`](mullion_kinds::SubresourceHandler::Part)), and the metadata that the rule permits.
    Piece(StatusMetadata),
}

/// Restores the fields that this endpoint does not change. Most clients send them unchanged, and then nothing is copied.
pub(super) fn put_back(call: &Call, part: Part, object: &mut Value, old: &Value) {
    match part {
        Part::Piece(rule) => keep_metadata(metadata::of(object), old, rule),
        Part::Main if call.row.has_status_subresource() => {
            keep_fields(object, old, |field| field == "status");
        }
        Part::Main => {}
        Part::Status(rule) => {
            keep_fields(object, old, |field| {
                !["metadata", "status"].contains(&field)
            });
            if let Some(sent) = object["metadata"].as_object_mut() {
                keep_metadata(sent, old, rule);
            }
        }
    }
}

/// Sets some fields of the object to their stored values.
pub(crate) fn keep_fields(object: &mut Value, old: &Value, is_kept: impl Fn(&str) -> bool) {
    let (Some(object), Some(old)) = (object.as_object_mut(), old.as_object()) else {
        return;
    };
    object.retain(|field, _| !is_kept(field) || old.contains_key(field));
    for (field, value) in old.iter().filter(|(field, _)| is_kept(field)) {
        if object.get(field) != Some(value) {
            object.insert(field.clone(), value.clone());
        }
    }
}

/// Restores the metadata that a write to a part of an object does not change.
fn keep_metadata(sent: &mut Map<String, Value>, old: &Value, rule: StatusMetadata) {
    let kept: &[&str] = match rule {
        StatusMetadata::All => &[],
        StatusMetadata::KeepLabels => &["labels"],
        StatusMetadata::KeepOwnerReferences => &["ownerReferences", "deletionTimestamp"],
        StatusMetadata::KeepMost => &["labels", "annotations", "finalizers", "ownerReferences"],
        StatusMetadata::KeepAll => {
            // These two stay as sent even here: one records the write itself, and the other is its precondition.
            let owned: Vec<(String, Value)> = ["managedFields", "resourceVersion"]
                .into_iter()
                .filter_map(|field| Some((field.to_owned(), sent.remove(field)?)))
                .collect();
            *sent = old["metadata"].as_object().cloned().unwrap_or_default();
            // A write that names no version must not get the stored one as its precondition.
            sent.remove("resourceVersion");
            sent.extend(owned);
            return;
        }
    };
    for field in kept {
        metadata::keep(sent, &old["metadata"], field);
    }
}

/// Returns the managedFields entry that a write to this part of the object belongs to.
pub(crate) fn writer<'a>(call: &'a Call, manager: &'a str, part: Part) -> ownership::Writer<'a> {
    ownership::Writer {
        manager,
        api_version: call.row.api_version(),
        subresource: call.subresource.as_deref(),
        resets_status: call.row.has_status_subresource(),
        resets: match part {
            // A status write to a custom resource restores all metadata, but an apply still owns the metadata that it names.
            Part::Status(rule) if !call.schema().is_custom() => rule.resets(),
            Part::Main => call.resource().rules.resets,
            Part::Status(_) | Part::Piece(_) => &[],
        },
        now: call.now,
    }
}

/// Records in managedFields which fields the write set. A server-side apply has done so itself.
pub(crate) fn track_ownership(
    call: &Call,
    options: &WriteOptions,
    part: Part,
    object: &mut Value,
    old: Option<&Value>,
) {
    if options.applies {
        return;
    }
    let writer = writer(call, &options.manager, part);
    ownership::track(call.schema(), &writer, object, old);
}
