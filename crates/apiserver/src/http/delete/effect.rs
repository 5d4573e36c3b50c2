//! The effect of a deletion on an object: the grace period, the finalizers of garbage collection, and whether the object goes now.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use mullion_kinds::Propagation;
use serde_json::Value;

use super::DeleteOptions;
use crate::{http::call::Call, object::metadata};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The effect of a deletion on an object.
pub(super) struct Effect {
    /// The object after the deletion: its new state, or its last.
    pub(super) object: Value,
    /// Whether the object changed and watchers must see the change before the object is removed.
    pub(super) changed: bool,
    /// Whether the object is removed now.
    pub(super) gone: bool,
}

/// Returns the effect of a deletion on a stored object.
pub(super) fn effect(call: &Call, options: &DeleteOptions, mut object: Value) -> Effect {
    let resource = call.resource();
    let was_marked = is_marked(&object);
    let grace = apply_grace(call, options, &mut object);
    let changed_grace = grace == Grace::Changed;
    let is_in_first_step =
        resource.rules.two_step_deletion && was_marked && resource.holds_deletion(&object);
    if grace == Grace::Runs || is_in_first_step {
        return Effect {
            object,
            changed: changed_grace,
            gone: false,
        };
    }
    // The propagation policy becomes a finalizer (kube-apiserver: deletionFinalizersForGarbageCollection), which then holds the object.
    let stored_finalizers = object["metadata"].get("finalizers").cloned();
    let propagation = propagation(call, options, &object);
    // The first deletion of a definition only starts the removal of its custom objects, and kube-apiserver does not read the policy.
    let ignores_policy = resource.rules.two_step_deletion && !was_marked && !is_namespace(call);
    let is_changed = !ignores_policy && set_propagation(&mut object, propagation);
    let mut changed = is_changed || changed_grace;
    let held = (resource.rules.two_step_deletion && !was_marked)
        || finalizers(&object).next().is_some()
        || resource.holds_deletion(&object);
    // Held objects of kinds without a grace period are marked, and removed when the last finalizer goes.
    if held && !was_marked && !resource.rules.graceful_deletion {
        mark(&mut object, call.now, 0);
        if let Some(deletion) = resource.behaviour.deletion() {
            deletion.prepare_delete(&call.ctx(options.dry_run), &mut object);
        }
        changed = true;
    }
    let gone = !held && grace_seconds(&object) == 0;
    // kube-apiserver removes an object without a grace period as it is stored, and does not write first that the last finalizers go.
    if gone && !changed_grace {
        changed = false;
        if let Some(finalizers) = stored_finalizers {
            metadata::of(&mut object).insert("finalizers".into(), finalizers);
        }
    }
    Effect {
        object,
        changed,
        gone,
    }
}

/// What a deletion does to the grace period of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grace {
    /// The object's kind has no grace period, or it is over: only finalizers hold the object, as for other kinds.
    Over,
    /// The deletion began or shortened it.
    Changed,
    /// It began with an earlier deletion and goes on.
    Runs,
}

/// Begins or shortens the grace period of an object whose kind has one.
fn apply_grace(call: &Call, options: &DeleteOptions, object: &mut Value) -> Grace {
    if !call.resource().rules.graceful_deletion {
        return Grace::Over;
    }
    if !is_marked(object) {
        let grace = grace(options, object);
        mark(object, call.now, grace);
        return Grace::Changed;
    }
    let stored_grace = grace_seconds(object);
    if stored_grace == 0 {
        return Grace::Over;
    }
    // kube-apiserver (BeforeDelete): a second deletion may only shorten the grace period, or its object would never go.
    let asked = options.grace.map(|asked| if asked < 0 { 1 } else { asked });
    match asked.filter(|grace| *grace < stored_grace) {
        Some(grace) => {
            shorten(object, call.now, stored_grace, grace);
            Grace::Changed
        }
        None => Grace::Runs,
    }
}

fn is_namespace(call: &Call) -> bool {
    let resource = call.resource();
    resource.group.is_empty() && resource.plural == "namespaces"
}

fn is_marked(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_some()
}

/// Returns the grace period of an object that is being deleted, in seconds.
fn grace_seconds(object: &Value) -> i64 {
    let grace = &object["metadata"]["deletionGracePeriodSeconds"];
    grace.as_i64().unwrap_or(0)
}

/// Returns the propagation policy: from the options, else from a finalizer that the object has already, else the kind's default.
fn propagation(call: &Call, options: &DeleteOptions, object: &Value) -> Propagation {
    let has = |finalizer: &str| finalizers(object).any(|name| name == finalizer);
    // kube-apiserver (shouldOrphanDependents) ignores the options for kinds without garbage collection, such as events.
    let default = call.resource().rules.default_propagation;
    if default == Propagation::Unsupported {
        return default;
    }
    match (options.orphan_dependents, options.policy.as_deref()) {
        (Some(true), _) | (_, Some("Orphan")) => Propagation::Orphan,
        (_, Some("Foreground")) => Propagation::Foreground,
        (_, Some(_)) => Propagation::Background,
        // Only kube-apiserver's storage of namespaces reads this option as the opposite of orphaning.
        (Some(false), None) if is_namespace(call) => Propagation::Foreground,
        (Some(false), None) => Propagation::Background,
        _ if has(ORPHAN) => Propagation::Orphan,
        _ if has(FOREGROUND) => Propagation::Foreground,
        _ => default,
    }
}

/// The longest grace period in seconds that a Go duration can hold.
const MAX_GRACE: i64 = i64::MAX / 1_000_000_000;

/// Returns the grace period of a deletion in seconds; zero for pods that are not scheduled or have finished.
fn grace(options: &DeleteOptions, object: &Value) -> i64 {
    let spec = &object["spec"];
    let asked = options
        .grace
        .or_else(|| spec["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(0);
    let unscheduled = spec["nodeName"].as_str().unwrap_or_default().is_empty();
    let finished = matches!(
        object["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    match asked {
        _ if unscheduled || finished => 0,
        negative if negative < 0 => 1,
        asked => asked.min(MAX_GRACE),
    }
}

fn mark(object: &mut Value, now: Timestamp, grace: i64) {
    let until = now + SignedDuration::from_secs(grace);
    let fields = metadata::of(object);
    fields.insert("deletionTimestamp".into(), metadata::stamp(until).into());
    fields.insert("deletionGracePeriodSeconds".into(), grace.into());
    // kube-apiserver (BeforeDelete) counts the mark as a change of the desired state, which controllers compare with observedGeneration.
    if let Some(generation) = fields
        .get("generation")
        .and_then(Value::as_i64)
        .filter(|generation| *generation > 0)
    {
        // The client chose the generation of a kind that does not count: after the largest number, Go begins at the smallest.
        fields.insert("generation".into(), generation.wrapping_add(1).into());
    }
}

/// Moves the end of a grace period to an earlier time, but not into the past.
fn shorten(object: &mut Value, now: Timestamp, stored_grace: i64, grace: i64) {
    let end: Timestamp = metadata::text(object, "deletionTimestamp")
        .parse()
        .unwrap_or(now);
    // The grace period counts from the first deletion, not from this one.
    let moved = end - SignedDuration::from_secs(stored_grace) + SignedDuration::from_secs(grace);
    let (moved, grace) = if moved < now && grace != 0 {
        (now, 1)
    } else {
        (moved.max(now), grace)
    };
    let fields = metadata::of(object);
    fields.insert("deletionTimestamp".into(), metadata::stamp(moved).into());
    fields.insert("deletionGracePeriodSeconds".into(), grace.into());
}

fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    object["metadata"]["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Sets the finalizers for the propagation policy. Returns whether they changed.
fn set_propagation(object: &mut Value, propagation: Propagation) -> bool {
    let before: Vec<String> = finalizers(object).map(str::to_owned).collect();
    let mut after: Vec<String> = before
        .iter()
        .filter(|name| *name != ORPHAN && *name != FOREGROUND)
        .cloned()
        .collect();
    match propagation {
        Propagation::Background | Propagation::Unsupported => {}
        Propagation::Foreground => after.push(FOREGROUND.into()),
        Propagation::Orphan => after.push(ORPHAN.into()),
    }
    let kept: HashSet<&String> = after.iter().collect();
    // Compared as sets: a mere change of the order must not cause a write and an event.
    let same = before.len() == after.len() && before.iter().all(|name| kept.contains(name));
    if same {
        return false;
    }
    let metadata = metadata::of(object);
    if after.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".into(), after.into());
    }
    true
}
