//! The path of a write after its body is decoded: defaults, ownership, admission, metadata, allocation, validation, store.
//!
//! Everything is prepared against the version that was read and committed only if that is still the current one; a write that
//! came too late starts again from the current version, so that hooks and plugins always judge what will be stored. Other
//! handlers (bindings, evictions, controllers' subresources) change objects through [`modify`].

mod change;
mod claims;
mod creation;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

pub(crate) use self::{
    change::{Part, STATUS_FIELDS, Source, keep_fields, modified, update},
    creation::{NAME_TRIES, create},
};
use super::{
    call::{Call, WriteOptions},
    metadata,
    reply::Outcome,
};
use crate::{
    admission::{Ctx, Operation, Plugin, Request},
    registry::Row,
    schema::{self, ownership},
    status::Status,
    store::{Change, CommitError, Draft, EventType, Key, Lends, Lent, Object},
};

/// Runs the plugins that change objects.
pub(crate) fn mutate(
    call: &Call,
    options: &WriteOptions,
    operation: Operation,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    admit(
        call,
        options,
        operation,
        name,
        object,
        old,
        |plugin, ctx, request| plugin.mutate(ctx, request),
    )
}

/// Runs the plugins that only judge.
pub(crate) fn judge(
    call: &Call,
    options: &WriteOptions,
    operation: Operation,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
) -> Result<(), Status> {
    admit(
        call,
        options,
        operation,
        name,
        object,
        old,
        |plugin, ctx, request| plugin.validate(ctx, request),
    )
}

fn admit(
    call: &Call,
    options: &WriteOptions,
    operation: Operation,
    name: &str,
    object: &mut Value,
    old: Option<&Value>,
    ask: impl Fn(&dyn Plugin, &Ctx<'_>, &mut Request<'_>) -> Result<(), Status>,
) -> Result<(), Status> {
    let ctx = call.ctx(options.dry_run);
    let subresource = call.subresource.as_deref();
    let mut warnings = Vec::new();
    let mut request = Request {
        operation,
        resource: call.resource(),
        subresource,
        namespace: call.namespace.as_deref(),
        name,
        object,
        old,
        warnings: &mut warnings,
    };
    let mut asked = Ok(());
    for plugin in call.server.plugins() {
        if plugin.handles(operation, call.resource(), subresource) {
            asked = ask(&**plugin, &ctx, &mut request);
            if asked.is_err() {
                break;
            }
        }
    }
    call.warn_all(warnings);
    asked
}

/// Gives back what was allocated for a deleted object.
pub(crate) fn release(call: &Call, old: &Value) {
    let mut nothing = Value::Null;
    if let Ok(allocation) =
        call.resource()
            .behaviour
            .allocate(&call.ctx(false), &mut nothing, Some(old))
    {
        allocation.commit();
    }
}

/// Writes down in managedFields who has set what.
pub(crate) fn own(call: &Call, options: &WriteOptions, object: &mut Value, old: Option<&Value>) {
    if options.applies {
        return;
    }
    let writer = ownership::Writer {
        manager: &options.manager,
        api_version: call.row.api_version(),
        subresource: call.subresource.as_deref(),
        resets_status: call.row.has_status_subresource(),
        now: call.now,
    };
    ownership::track(call.schema(), &writer, object, old);
}

/// Removes owner references that are there twice and says so; `after` admission that is somebody else's fault.
pub(crate) fn dedup_owners(call: &Call, object: &mut Value, after: bool) {
    let repeated = metadata::dedup_owners(object);
    if repeated.is_empty() {
        return;
    }
    let when = if after {
        " after mutating admission happens"
    } else {
        ""
    };
    call.warn(format!(
        ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such \
         requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
        repeated.join(", ")
    ));
}

/// An object in served form, ready to be stored.
pub(crate) fn draft(call: &Call, event: EventType, mut object: Value) -> Draft {
    draft_from(&call.row, event, &mut object, None)
}

/// [`draft`] outside a request.
pub(crate) fn draft_of(row: &Row, event: EventType, mut object: Value) -> Draft {
    draft_from(row, event, &mut object, None)
}

/// [`draft`]; the object is in stored form then. `lent` is what the stored object keeps as text.
fn draft_from(row: &Row, event: EventType, object: &mut Value, lent: Option<&Lent<'_>>) -> Draft {
    row.to_stored(object);
    let fields = row.selectable_values(object);
    Draft::lending(event, object, lent, fields, row.collection.next_revision())
}

/// The answer about an object that was just stored, given the tree in stored form that it was serialized from.
fn stored_outcome(row: &Row, stored: Arc<Object>, mut object: Value) -> Outcome {
    if row.serves_stored_bytes() {
        return Outcome::Stored(stored);
    }
    row.to_served(&mut object);
    let revision = stored.revision().to_string();
    metadata::of(&mut object).insert("resourceVersion".into(), revision.into());
    Outcome::unfolded(object)
}

fn remove(object: &mut Value, field: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(field);
    }
}

/// Changes a stored object of any kind outside the ordinary verbs: no validation, no admission, tried again until it fits. `change`
/// is given the object in served form and folded ([`ownership::fold`]), and may refuse; `Ok(false)` means there is nothing to do. Answers
/// with the object as it is then.
pub(crate) async fn modify(
    row: &Row,
    now: Timestamp,
    key: &Key,
    dry_run: bool,
    mut change: impl FnMut(&mut Value) -> Result<bool, Status>,
) -> Result<Outcome, Status> {
    loop {
        let stored = current(row, key)?;
        let mut object = row.served_folded(&stored);
        if !change(&mut object)? {
            return Ok(Outcome::Stored(stored));
        }
        schema::normalise(&row.resource.schema, &mut object);
        if dry_run {
            return Ok(Outcome::unfolded(object));
        }
        let draft = draft_from(row, EventType::Modified, &mut object, None);
        let change = Change::Update(stored, draft);
        if let Some(stored) = in_time(row.collection.commit(change, now).await)? {
            return Ok(Outcome::Stored(stored));
        }
    }
}

/// What a write came to: nothing if another one was faster, a 500 if it could not be made permanent.
pub(crate) fn in_time<T>(committed: Result<T, CommitError>) -> Result<Option<T>, Status> {
    match committed {
        Ok(made) => Ok(Some(made)),
        Err(CommitError::Stale) => Ok(None),
        Err(error @ CommitError::NotStored(_)) => Err(Status::internal(error.to_string())),
    }
}

/// [`modify`] for a change that leaves alone what the kind lends, but for one field of it.
pub(crate) async fn modify_lending(
    row: &Row,
    now: Timestamp,
    key: &Key,
    lends: &'static Lends,
    field: &str,
    mut change: impl FnMut(&mut Value) -> Result<(), Status>,
) -> Result<(), Status> {
    loop {
        let stored = current(row, key)?;
        let (mut object, mut lent) = stored.parse_lending(lends);
        change(&mut object)?;
        lent.set(field, &object[lends.field][field]);
        lent.normalise_around(&row.resource.schema, &mut object);
        let draft = draft_from(row, EventType::Modified, &mut object, Some(&lent));
        let change = Change::Update(stored.clone(), draft);
        if in_time(row.collection.commit(change, now).await)?.is_some() {
            return Ok(());
        }
    }
}

fn current(row: &Row, key: &Key) -> Result<Arc<Object>, Status> {
    let found = row.collection.get(key.as_str());
    found.ok_or_else(|| Status::not_found(&row.resource, key.name()))
}
