//! DELETE of one object: options, preconditions, grace period, finalizers, and the response.

use std::{collections::HashSet, sync::Arc};

use axum::body::Body;
use http::Response;
use jiff::{SignedDuration, Timestamp};
use mullion_kinds::Propagation;
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
};
use mullion_schema::Type;
use mullion_store::{Change, EventType, Key, Object};
use serde_json::{Map, Value, json};

use super::{
    body,
    call::{Call, FieldValidation, WriteOptions, check_dry_run},
    reply::{self, Outcome},
    write::{self, Admission},
};
use crate::{admission::Operation, object::metadata};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// The validated `metav1.DeleteOptions`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub policy: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Parses the options from the body, or from the query if there is no body.
    pub(crate) async fn read(call: &Call, body: Body) -> Result<Self, Status> {
        let bytes = body::read(body).await?;
        let options = if bytes.is_empty() {
            from_query(call)?
        } else {
            from_body(call, &bytes)?
        };
        // The default policy of Jobs keeps their pods. kubectl always sends a policy, so only other clients see the warning.
        if options.policy.is_none() && options.orphan_dependents.is_none() {
            call.warn(call.resource().rules.deletion_warning.unwrap_or_default());
        }
        Ok(options)
    }

    /// Parses the options from the body of a deletion or an eviction.
    pub(crate) fn of(tree: &Value) -> Result<Self, Status> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let preconditions = &tree["preconditions"];
        let options = DeleteOptions {
            grace: tree["gracePeriodSeconds"].as_i64(),
            uid: text(&preconditions["uid"]),
            resource_version: text(&preconditions["resourceVersion"]),
            orphan_dependents: tree["orphanDependents"].as_bool(),
            policy: text(&tree["propagationPolicy"]),
            // Set by `checked` below, together with its validation.
            dry_run: false,
        };
        let dry_run = tree["dryRun"].as_array().into_iter().flatten();
        options.checked(dry_run.filter_map(Value::as_str))
    }

    /// Returns the options as admission webhooks see them.
    pub(crate) fn shown(&self) -> Value {
        let mut shown = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let mut preconditions = Map::new();
        for (field, value) in [
            ("uid", &self.uid),
            ("resourceVersion", &self.resource_version),
        ] {
            if let Some(value) = value {
                preconditions.insert(field.into(), value.as_str().into());
            }
        }
        if !preconditions.is_empty() {
            shown["preconditions"] = preconditions.into();
        }
        if let Some(grace) = self.grace {
            shown["gracePeriodSeconds"] = grace.into();
        }
        if let Some(orphan) = self.orphan_dependents {
            shown["orphanDependents"] = orphan.into();
        }
        if let Some(policy) = &self.policy {
            shown["propagationPolicy"] = policy.as_str().into();
        }
        if self.dry_run {
            shown["dryRun"] = json!(["All"]);
        }
        shown
    }

    /// Sets `dry_run` and validates the options; returns all their errors at once.
    fn checked<'a>(mut self, dry_run: impl Iterator<Item = &'a str>) -> Result<Self, Status> {
        let mut errors = Errors::default();
        let path = &Path::new("propagationPolicy");
        if let Some(policy) = &self.policy {
            if self.orphan_dependents.is_some() {
                errors.invalid(
                    path,
                    policy.as_str(),
                    "orphanDependents and deletionPropagation cannot be both set",
                );
            }
            if !matches!(policy.as_str(), "Foreground" | "Background" | "Orphan") {
                errors.not_supported(
                    path,
                    policy.as_str(),
                    &["Foreground", "Background", "Orphan", "nil"],
                );
            }
        }
        self.dry_run = check_dry_run(dry_run, &mut errors);
        if errors.is_empty() {
            Ok(self)
        } else {
            Err(Status::invalid_kind(
                "meta.k8s.io",
                "DeleteOptions",
                "",
                &errors,
            ))
        }
    }

    /// Returns the propagation policy: from the options, else from a finalizer that the object has already, else the kind's default.
    fn propagation(&self, call: &Call, object: &Value) -> Propagation {
        let has = |finalizer: &str| finalizers(object).any(|name| name == finalizer);
        // kube-apiserver (shouldOrphanDependents) ignores the options for kinds without garbage collection, such as events.
        let default = call.resource().rules.default_propagation;
        if default == Propagation::Unsupported {
            return default;
        }
        match (self.orphan_dependents, self.policy.as_deref()) {
            (Some(true), _) | (_, Some("Orphan")) => Propagation::Orphan,
            (_, Some("Foreground")) => Propagation::Foreground,
            (Some(false), _) | (_, Some(_)) => Propagation::Background,
            _ if has(ORPHAN) => Propagation::Orphan,
            _ if has(FOREGROUND) => Propagation::Foreground,
            _ => default,
        }
    }
}

fn from_query(call: &Call) -> Result<DeleteOptions, Status> {
    let options = DeleteOptions {
        grace: call.query.integer("gracePeriodSeconds")?,
        uid: None,
        resource_version: None,
        orphan_dependents: call.query.flag("orphanDependents"),
        policy: call.query.get("propagationPolicy").map(str::to_owned),
        dry_run: false,
    };
    options.checked(call.query.all("dryRun"))
}

fn from_body(call: &Call, bytes: &[u8]) -> Result<DeleteOptions, Status> {
    let media = body::media(&call.headers)?;
    let schema = Type::builtin("apimachinery.pkg.apis.meta.v1.DeleteOptions")
        .ok_or_else(|| Status::internal("DeleteOptions are not in the schema table"))?;
    let tree = body::options(&schema, media, bytes)?;
    DeleteOptions::of(&tree)
}

pub(crate) async fn delete(call: &Call, body: Body) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::read(call, body).await?;
    let deletion = call.resource().behaviour.deletion();
    if let Some(why) = deletion.and_then(|deletion| deletion.refuses_deletion(&call.name)) {
        return Err(Status::forbidden(call.resource(), &call.name, why));
    }
    let (code, outcome) = delete_named(call, &call.name, &options).await?;
    reply::outcome(call, code, outcome)
}

/// Deletes an object of the call's namespace by name. Returns when it is removed, or marked for deletion.
pub(crate) async fn delete_named(
    call: &Call,
    name: &str,
    options: &DeleteOptions,
) -> Result<(u16, Outcome), Status> {
    delete_key(call, &call.key(name), options).await
}

/// Deletes an object of the call's kind by key, and retries when another write came in between.
pub(crate) async fn delete_key(
    call: &Call,
    key: &Key,
    options: &DeleteOptions,
) -> Result<(u16, Outcome), Status> {
    loop {
        let found = call.row.collection.get(key.as_str());
        let stored = found.ok_or_else(|| Status::not_found(call.resource(), key.name()))?;
        if let Some(done) = delete_once(call, options, &stored).await? {
            return Ok(done);
        }
    }
}

async fn delete_once(
    call: &Call,
    options: &DeleteOptions,
    stored: &Arc<Object>,
) -> Result<Option<(u16, Outcome)>, Status> {
    let name = stored.key().name();
    let revision = stored.revision().to_string();
    check_preconditions(call, options, name, &stored.meta().uid, &revision)?;
    // Preconditions come before admission, so that webhooks never see a deletion that is refused anyway.
    let old = call.row.served_folded(stored);
    let write_options = WriteOptions {
        dry_run: options.dry_run,
        manager: String::new(),
        validation: FieldValidation::Ignore,
        applies: false,
        deletion: Some(options.clone()),
    };
    let mut nothing = Value::Null;
    let admission = Admission::new(call, &write_options, Operation::Delete);
    admission.mutate(name, &mut nothing, Some(&old)).await?;
    admission.judge(name, &mut nothing, Some(&old)).await?;
    let Verdict {
        mut object,
        changed,
        gone,
    } = verdict(call, options, old);
    // kube-apiserver (DeleteResource) answers 202 only here: the code for every deletion that is not immediate would break old clients.
    let stays_code = if options.orphan_dependents == Some(false) {
        202
    } else {
        200
    };
    if options.dry_run {
        let code = if gone { 200 } else { stays_code };
        let outcome = match gone {
            true if !call.resource().rules.delete_returns_object => success(call, stored),
            _ => Outcome::unfolded(object),
        };
        return Ok(Some((code, outcome)));
    }
    let mut stored = stored.clone();
    // Watchers must see the marked object before it is removed, so mark and removal are two commits.
    if changed {
        let draft = write::draft(&call.row, EventType::Modified, &mut object);
        let change = Change::Update(stored, draft);
        write::request_limit::check(&call.row, &change)?;
        match write::in_time(call.row.collection.commit(change, call.now).await)? {
            Some(marked) => stored = marked,
            None => return Ok(None),
        }
    }
    if !gone {
        return Ok(Some((stays_code, Outcome::Stored(stored))));
    }
    let change = Change::Delete(stored);
    let Some(last) = write::in_time(call.row.collection.commit(change, call.now).await)? else {
        return Ok(None);
    };
    write::release(call, &object).await;
    let outcome = match call.resource().rules.delete_returns_object {
        true => Outcome::Stored(last),
        false => success(call, &last),
    };
    Ok(Some((200, outcome)))
}

/// Returns the Status with which most deletions answer.
fn success(call: &Call, gone: &Object) -> Outcome {
    let resource = call.resource();
    let mut details = Map::new();
    details.insert("name".into(), gone.key().name().into());
    if !resource.group.is_empty() {
        details.insert("group".into(), (*resource.group).into());
    }
    // kube-apiserver (finalizeDelete), too, puts the plural in the place of the kind.
    details.insert("kind".into(), (*resource.plural).into());
    details.insert("uid".into(), (*gone.meta().uid).into());
    Outcome::Plain(
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}),
    )
}

/// Checks the UID and resourceVersion preconditions of a deletion; 409 if one does not match.
pub(crate) fn check_preconditions(
    call: &Call,
    options: &DeleteOptions,
    name: &str,
    uid: &str,
    revision: &str,
) -> Result<(), Status> {
    let resource = call.resource();
    // Namespaces and CustomResourceDefinitions have a storage of their own in kube-apiserver, which words conflicts differently.
    if resource.rules.two_step_deletion {
        let refuse = |what: &str, wanted: &str, found: &str| {
            let why = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"
            );
            Err(Status::conflict(resource, name, &why))
        };
        return match (&options.uid, &options.resource_version) {
            (Some(wanted), _) if wanted != uid => refuse("UID", wanted, uid),
            (_, Some(wanted)) if wanted != revision => refuse("ResourceVersion", wanted, revision),
            _ => Ok(()),
        };
    }
    let refuse = |why: String| {
        // kube-apiserver names the stored form's group: events are stored as the core group's.
        let stored = call.row.stored_version.split_once('/');
        let group = stored.map_or("", |(group, _)| group);
        Err(Status::conflict_kind(group, &resource.kind, name, &why))
    };
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return refuse(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        ));
    }
    if let Some(wanted) = options
        .resource_version
        .as_deref()
        .filter(|wanted| *wanted != revision)
    {
        return refuse(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({revision}). The object might have been modified"
        ));
    }
    Ok(())
}

/// The effect of a deletion on an object.
struct Verdict {
    /// The object after the deletion: its new state, or its last.
    object: Value,
    /// Whether the object changed and watchers must see the change before the object is removed.
    changed: bool,
    /// Whether the object is removed now.
    gone: bool,
}

fn verdict(call: &Call, options: &DeleteOptions, mut object: Value) -> Verdict {
    let resource = call.resource();
    let graceful = resource.rules.graceful_deletion;
    let marked = object["metadata"].get("deletionTimestamp").is_some();
    let stored_grace = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    let mut changed = false;
    let mut is_graceful_now = false;
    // Once the grace period is over only finalizers hold the object, as for other kinds.
    if graceful && marked && stored_grace != 0 {
        // kube-apiserver (BeforeDelete): a second deletion may only shorten the grace period, or its object would never go.
        let asked = options.grace.map(|asked| if asked < 0 { 1 } else { asked });
        match asked.filter(|grace| *grace < stored_grace) {
            Some(grace) => shorten(&mut object, call.now, stored_grace, grace),
            None => {
                return Verdict {
                    object,
                    changed,
                    gone: false,
                };
            }
        }
        (changed, is_graceful_now) = (true, true);
    } else if graceful && !marked {
        let grace = grace(options, &object);
        mark(&mut object, call.now, grace);
        (changed, is_graceful_now) = (true, true);
    }
    if resource.rules.two_step_deletion && marked && resource.holds_deletion(&object) {
        return Verdict {
            object,
            changed,
            gone: false,
        };
    }
    // The propagation policy becomes a finalizer (kube-apiserver: deletionFinalizersForGarbageCollection), which then holds the object.
    let propagation = options.propagation(call, &object);
    let stored_finalizers = object["metadata"].get("finalizers").cloned();
    changed |= set_propagation(&mut object, propagation);
    let held = (resource.rules.two_step_deletion && !marked)
        || finalizers(&object).next().is_some()
        || resource.holds_deletion(&object);
    // Held objects of kinds without a grace period are marked, and removed when the last finalizer goes.
    if held && !marked && !graceful {
        mark(&mut object, call.now, 0);
        if let Some(deletion) = resource.behaviour.deletion() {
            deletion.prepare_delete(&call.ctx(options.dry_run), &mut object);
        }
        changed = true;
    }
    let remaining = object["metadata"]["deletionGracePeriodSeconds"]
        .as_i64()
        .unwrap_or(0);
    let gone = !held && remaining == 0;
    // kube-apiserver removes an object without a grace period as it is stored, and does not write first that the last finalizers go.
    if gone && !is_graceful_now {
        changed = false;
        if let Some(finalizers) = stored_finalizers {
            metadata::of(&mut object).insert("finalizers".into(), finalizers);
        }
    }
    Verdict {
        object,
        changed,
        gone,
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
        fields.insert("generation".into(), (generation + 1).into());
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
