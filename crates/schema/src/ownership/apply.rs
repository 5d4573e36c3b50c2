//! Server-side apply: merges a configuration into the live object, and makes its manager the owner of the fields that it names.
//!
//! The steps are those of structured-merge-diff's updater: merge; prune the fields that the manager applied before, does not apply now,
//! and that nobody else owns; compare; refuse changes to other managers' fields unless forced. Decoding and defaulting follow, as for a
//! patch.

use std::fmt;

use mullion_kube_text::status::{Cause, Details, Status};
use mullion_kube_text::validation::metadata::MAX_ANNOTATIONS_BYTES;
use serde_json::Value;

use super::{
    Changes, Comparison, Entry, Manager, Managers, Writer, compare, fields_of, ignored_fields,
    merge_ancient, parse, reconcile, set::FieldSet, store, take_entries, update, without_nobodys,
};
use crate::{Type, time, zero};

mod merge;
mod typed;
mod unowned;

pub(super) use typed::fits;
pub use typed::{Misfit, MisfitReason, Misfits};
pub use unowned::{UnownedError, merge_unowned};

const BEFORE_FIRST_APPLY: &str = "before-first-apply";
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager for which the annotation of client-side apply is respected and updated.
const KUBECTL: &str = "kubectl";

/// Applies a configuration to the stored object, or to nothing. Returns a tree that still has to be decoded, with updated managedFields.
///
/// # Errors
/// 400 for a configuration with managedFields, 409 for fields that others own unless `force`, 500 for a configuration that does not fit
/// its type.
pub fn apply(
    kind: &Type,
    writer: &Writer<'_>,
    force: bool,
    config: &Value,
    old: Option<&Value>,
) -> Result<Value, Status> {
    if config
        .pointer("/metadata/managedFields")
        .is_some_and(|entries| !entries.is_null())
    {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    // A new object is merged into the zero value of its Go type.
    let mut live = old
        .cloned()
        .unwrap_or_else(|| zero::zero(kind.arena(), kind.id()));
    let mut managers = take_entries(&mut live)
        .as_ref()
        .and_then(parse)
        .unwrap_or_default();
    reconcile(kind, &mut managers);
    // An object that was stored without managedFields: its fields get an owner, so that the apply can conflict with it.
    if managers.is_empty() && old.is_some() {
        let blank = zero::zero(kind.arena(), kind.id());
        let before = Writer {
            manager: BEFORE_FIRST_APPLY,
            ..*writer
        };
        if let Some(comparison) = compare(kind, &blank, &live) {
            update(
                &mut managers,
                &before,
                Changes::new(comparison, &ignored_fields(writer, &live)),
            );
        }
    }
    managers.retain(|manager, _| !manager.is_obsolete(kind, writer, &live));
    let mut applied = match attempt(kind, writer, force, config, &live, managers.clone())? {
        Ok(applied) => applied,
        // kubectl may take over the fields that its client-side apply set, as recorded in the annotation.
        Err(conflicts) => {
            let forgiven = if writer.manager == KUBECTL {
                client_side_fields(kind, &live)
            } else {
                FieldSet::default()
            };
            let left: Vec<(Manager, FieldSet)> = conflicts
                .into_iter()
                .map(|(manager, fields)| (manager, fields.difference(&forgiven)))
                .filter(|(_, fields)| !fields.is_empty())
                .collect();
            if !left.is_empty() {
                return Err(conflict(&left));
            }
            match attempt(kind, writer, true, config, &live, managers)? {
                Ok(applied) => applied,
                Err(conflicts) => return Err(conflict(&conflicts)),
            }
        }
    };
    if writer.manager == KUBECTL {
        update_last_applied(&mut applied, config);
    }
    Ok(applied)
}

/// Updates the annotation of client-side apply, if the object has one, as if a client had applied the configuration. The annotation is
/// removed if the annotations would become too large.
fn update_last_applied(applied: &mut Value, config: &Value) {
    let annotations = applied.pointer_mut("/metadata/annotations");
    let Some(annotations) = annotations.and_then(Value::as_object_mut) else {
        return;
    };
    let present = annotations.get(LAST_APPLIED).and_then(Value::as_str);
    if present.is_none_or(str::is_empty) {
        return;
    }
    let mut config = config.clone();
    if let Some(applied) = config.pointer_mut("/metadata/annotations")
        && let Some(applied) = applied.as_object_mut()
    {
        // The annotation does not contain itself.
        applied.remove(LAST_APPLIED);
    }
    annotations.insert(LAST_APPLIED.to_owned(), format!("{config}\n").into());
    let size = |(name, text): (&String, &Value)| name.len() + text.as_str().map_or(0, str::len);
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATIONS_BYTES {
        annotations.remove(LAST_APPLIED);
    }
}

type Conflicts = Vec<(Manager, FieldSet)>;

fn attempt(
    kind: &Type,
    writer: &Writer<'_>,
    force: bool,
    config: &Value,
    live: &Value,
    mut managers: Managers,
) -> Result<Result<Value, Conflicts>, Status> {
    let untyped = |why: &dyn fmt::Display| {
        Status::new(
            500,
            "",
            format!(
                "failed to create typed patch object ({}): {why}",
                described(config)
            ),
        )
    };
    let ignored = ignored_fields(writer, config);
    // The steps below follow structured-merge-diff's updater in its order.
    typed::check(kind, config).map_err(|misfits| untyped(&misfits))?;
    let set = fields_of(kind, config).without_below(&ignored);
    let mut merged = merge::merge(kind, live, config);
    let me = Manager {
        operation: "Apply".to_owned(),
        name: writer.manager.to_owned(),
        api_version: writer.api_version.to_owned(),
        subresource: writer.subresource.unwrap_or_default().to_owned(),
    };
    // The same manager may have applied in another version of the kind; that is its entry as well.
    let in_another_version = managers
        .keys()
        .find(|manager| {
            Manager {
                api_version: me.api_version.clone(),
                ..(*manager).clone()
            } == me
        })
        .cloned();
    let before = in_another_version.and_then(|manager| managers.remove(&manager));
    let last = managers.insert(
        me.clone(),
        Entry {
            fields: set,
            time: None,
        },
    );
    let last = last.or(before);
    let last_time = last.as_ref().and_then(|last| last.time.clone());
    if let Some(last) = last.filter(|last| !last.fields.is_empty()) {
        merged = prune(kind, merged, &managers, &last.fields);
    }
    let comparison = compare(kind, live, &merged)
        .ok_or_else(|| untyped(&"an item of a list has none of its keys"))?;
    let changed = comparison
        .modified
        .union(&comparison.added)
        .without_below(&ignored);
    let removed = comparison.removed.without_below(&ignored);
    // A field that is applied with the value that it has is no conflict: it gets another owner.
    let conflicts: Conflicts = managers
        .iter()
        .filter(|(manager, _)| **manager != me)
        .map(|(manager, entry)| (manager.clone(), entry.fields.intersection(&changed)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    if !force && !conflicts.is_empty() {
        return Ok(Err(conflicts));
    }
    // The apply is forced or has no conflicts, so the others lose what it changes.
    for (manager, entry) in &mut managers {
        if *manager != me {
            entry.fields = entry.fields.difference(&changed).difference(&removed);
        } else {
            entry.fields = without_nobodys(std::mem::take(&mut entry.fields));
            // An apply that changes nothing keeps its time, and a new manager gets none.
            entry.time = if merged == *live {
                last_time.clone()
            } else {
                Some(time::format_seconds(&writer.now))
            };
        }
    }
    managers.retain(|_, entry| !entry.fields.is_empty());
    merge_ancient(&mut managers);
    store(&mut merged, &managers);
    Ok(Ok(merged))
}

/// Returns `namespace/name; group/version, Kind=kind`; for the core group nothing precedes the slash.
pub fn described(config: &Value) -> String {
    let text = |value: &Value, field: &str| {
        value
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let metadata = config.get("metadata").cloned().unwrap_or_default();
    let api_version = text(config, "apiVersion");
    let core = if api_version.contains('/') { "" } else { "/" };
    format!(
        "{}/{}; {core}{api_version}, Kind={}",
        text(&metadata, "namespace"),
        text(&metadata, "name"),
        text(config, "kind")
    )
}

/// Removes the fields that the manager applied last time and does not apply now, unless another manager owns them.
fn prune(kind: &Type, merged: Value, managers: &Managers, last: &FieldSet) -> Value {
    let named = |set: &FieldSet| merge::with_named_fields(kind, set);
    let all = |value: &Value| fields_of(kind, value);
    let last = named(last);
    let pruned = merge::without(kind, &merged, &last);
    // Put back what somebody owns: another manager, or this one by its new configuration.
    let owned = managers.values().fold(FieldSet::default(), |owned, entry| {
        owned.union(&entry.fields)
    });
    let kept = named(&all(&pruned)).union(&named(&owned));
    let pruned = merge::without(kind, &merged, &named(&all(&merged)).difference(&kept));
    // Put back what the manager did not apply either (structured-merge-diff: addBackDanglingItems).
    let gone = named(&all(&merged))
        .difference(&named(&all(&pruned)))
        .intersection(&last);
    merge::without(kind, &merged, &gone)
}

/// Returns the fields that client-side apply set and that have not changed since.
fn client_side_fields(kind: &Type, live: &Value) -> FieldSet {
    let text = live
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(LAST_APPLIED))
        .and_then(Value::as_str);
    let last = text.and_then(|text| serde_json::from_str::<Value>(text).ok());
    let fits = |last: &Value| {
        last.get("apiVersion") == live.get("apiVersion") && typed::check(kind, last).is_ok()
    };
    let Some(last) = last.filter(fits) else {
        return FieldSet::default();
    };
    let Some(differences) = compare(kind, &last, live) else {
        return FieldSet::default();
    };
    let Comparison {
        added,
        modified,
        removed,
    } = differences;
    let differs = added.union(&modified).union(&removed);
    fields_of(kind, &last).difference(&differs)
}

fn conflict(conflicts: &[(Manager, FieldSet)]) -> Status {
    // kube-apiserver sorts managers by their identifiers as text, which begin with the name.
    let mut conflicts: Vec<_> = conflicts.iter().collect();
    conflicts.sort_by_key(|(manager, _)| {
        let Manager {
            operation,
            name,
            api_version,
            subresource,
        } = manager;
        (name, operation, api_version, subresource)
    });
    let all: Vec<(String, String)> = conflicts
        .iter()
        .flat_map(|(manager, fields)| {
            fields
                .paths()
                .into_iter()
                .map(|path| (manager.to_string(), path))
        })
        .collect();
    let message = match all.as_slice() {
        [(manager, path)] => {
            format!("Apply failed with 1 conflict: conflict with {manager}: {path}")
        }
        all => {
            let lists = conflicts.iter().map(|(manager, fields)| {
                let paths: Vec<String> = fields
                    .paths()
                    .iter()
                    .map(|path| format!("- {path}"))
                    .collect();
                format!("conflicts with {manager}:\n{}", paths.join("\n"))
            });
            format!(
                "Apply failed with {} conflicts: {}",
                all.len(),
                lists.collect::<Vec<_>>().join("\n")
            )
        }
    };
    let mut status = Status::new(409, "Conflict", message);
    let cause = |(manager, field): (String, String)| Cause {
        reason: "FieldManagerConflict".to_owned(),
        message: format!("conflict with {manager}"),
        field,
    };
    status.details = Some(Box::new(Details {
        causes: all.into_iter().map(cause).collect(),
        ..Details::default()
    }));
    status
}

impl std::fmt::Display for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.name)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        if self.operation == "Update" {
            write!(f, " using {}", self.api_version)?;
        }
        Ok(())
    }
}
