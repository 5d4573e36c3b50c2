//! The path of a write after its body is decoded: defaults, ownership, admission, metadata, allocation, validation, store.
//!
//! Everything is prepared against the version that was read and committed only if that is still the current one; a write that
//! came too late starts again from the current version, so that hooks and plugins always judge what will be stored. Other
//! handlers (bindings, evictions, controllers' subresources) change objects through [`modify`].

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    call::{Call, WriteOptions},
    metadata,
    reply::Outcome,
};
use crate::{
    admission::{Operation, Plugin, Request},
    field::{Errors, Path},
    kinds::{NameRule, StatusMetadata, StatusOnCreate},
    registry::Row,
    schema::{self, ownership},
    status::Status,
    store::{Change, Draft, EventType, Key, Object},
    validation::metadata as check_metadata,
};

/// How often a generated name is tried.
const NAME_TRIES: usize = 8;

/// What an update changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but a status that has an endpoint of its own.
    Main,
    /// Only the status and what the rule leaves of the metadata.
    Status(StatusMetadata),
    /// What the kind lets the call's subresource change ([`SubresourceHandler::Part`](crate::kinds::SubresourceHandler::Part)).
    Piece,
}

/// Where an update gets its new object from, given the stored one in served form.
pub(crate) trait Source: Sync {
    /// The new object, decoded and defaulted.
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status>;

    /// The object to create where there is none; `None` refuses with 404.
    fn make_new(&self, call: &Call) -> Result<Option<Value>, Status> {
        let _ = call;
        Ok(None)
    }

    /// Whether who owns the changed fields is still to be written down.
    fn tracks_ownership(&self) -> bool {
        true
    }
}

impl<F: Fn(&Call, &Value) -> Result<Value, Status> + Sync> Source for F {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        self(call, old)
    }
}

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
    ask: impl Fn(&dyn Plugin, &crate::admission::Ctx<'_>, &mut Request<'_>) -> Result<(), Status>,
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

/// Creates a decoded object.
pub(crate) async fn create(
    call: &Call,
    options: &WriteOptions,
    mut object: Value,
) -> Result<Outcome, Status> {
    let resource = call.resource();
    metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
    metadata::wipe(&mut object);
    dedup_owners(call, &mut object, false);
    own(call, options, &mut object, None);
    let name = metadata::text(&object, "name").to_owned();
    mutate(call, options, Operation::Create, &name, &mut object, None)?;
    dedup_owners(call, &mut object, true);
    metadata::begin(&mut object, resource, call.now);
    let base = metadata::text(&object, "generateName").to_owned();
    if !name.is_empty() || base.is_empty() {
        return create_named(call, options, object).await;
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let mut attempt = object.clone();
        metadata::of(&mut attempt).insert("name".into(), metadata::generate_name(&base).into());
        match create_named(call, options, attempt).await {
            Err(status) if status.reason == "AlreadyExists" && tries < NAME_TRIES => {}
            Err(mut status) if status.reason == "AlreadyExists" => {
                status
                    .message
                    .push_str(", the server was not able to generate a unique name for the object");
                if let Some(details) = &mut status.details {
                    details.retry_after_seconds = 1;
                }
                return Err(status);
            }
            done => return done,
        }
    }
}

async fn create_named(
    call: &Call,
    options: &WriteOptions,
    mut object: Value,
) -> Result<Outcome, Status> {
    let resource = call.resource();
    let behaviour = &resource.behaviour;
    let ctx = call.ctx(options.dry_run);
    let name = metadata::text(&object, "name").to_owned();
    let allocation = behaviour.allocate(&ctx, &mut object, None)?;
    if call.row.has_status_subresource() && resource.rules.status_on_create == StatusOnCreate::Clear
    {
        remove(&mut object, "status");
    }
    behaviour.prepare_create(&ctx, &mut object);
    schema::normalise(&resource.schema, &mut object);
    let mut errors = Errors::default();
    let path = Path::new("metadata");
    check_metadata::object_meta(
        &mut errors,
        &path,
        &object["metadata"],
        resource.namespaced,
        resource.rules.name,
    );
    if !call.row.custom {
        check_metadata::kube_finalizers(&mut errors, &path, &object["metadata"]);
    }
    behaviour.validate(&ctx, &object, &mut errors);
    behaviour.validate_creation(&ctx, &object, &mut errors);
    if !errors.is_empty() {
        return Err(call.invalid(&name, &errors));
    }
    call.warn_all(behaviour.warnings(&object, None));
    judge(call, options, Operation::Create, &name, &mut object, None)?;
    if !metadata::text(&object, "resourceVersion").is_empty() {
        return Err(Status::new(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    let key = call.key(&name);
    if let Some(existing) = call.row.collection.get(key.as_str()) {
        return Err(already_exists(call, &existing));
    }
    if options.dry_run {
        return Ok(Outcome::Object(object));
    }
    let draft = draft(call, EventType::Added, object);
    match call
        .row
        .collection
        .commit(Change::Create(key.clone(), draft), call.now)
        .await
    {
        Ok(stored) => {
            allocation.commit();
            Ok(Outcome::Stored(stored))
        }
        Err(_) => match call.row.collection.get(key.as_str()) {
            Some(existing) => Err(already_exists(call, &existing)),
            None => Err(Status::already_exists(resource, &name)),
        },
    }
}

fn already_exists(call: &Call, existing: &Object) -> Status {
    let mut status = Status::already_exists(call.resource(), existing.key().name());
    if existing.parse()["metadata"]
        .get("deletionTimestamp")
        .is_some()
    {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}

/// Updates the object the call names. The answer's code is 201 if it had to be created.
pub(crate) async fn update(
    call: &Call,
    options: &WriteOptions,
    part: Part,
    source: &dyn Source,
) -> Result<(u16, Outcome), Status> {
    let key = call.key(&call.name);
    loop {
        let Some(stored) = call.row.collection.get(key.as_str()) else {
            let new = if part == Part::Main {
                source.make_new(call)?
            } else {
                None
            };
            let Some(new) = new else {
                return Err(Status::not_found(call.resource(), &call.name));
            };
            match create(call, options, new).await {
                // Somebody else was faster: it is an update now.
                Err(status) if status.reason == "AlreadyExists" => continue,
                created => return created.map(|outcome| (201, outcome)),
            }
        };
        if let Some(outcome) = update_once(call, options, part, source, &stored).await? {
            return Ok((200, outcome));
        }
    }
}

/// One attempt against a version; `None` if another write came in between.
async fn update_once(
    call: &Call,
    options: &WriteOptions,
    part: Part,
    source: &dyn Source,
    stored: &Arc<Object>,
) -> Result<Option<Outcome>, Status> {
    let resource = call.resource();
    let behaviour = &resource.behaviour;
    let ctx = call.ctx(options.dry_run);
    let name = stored.key().name();
    let subresource = call.subresource.as_deref().unwrap_or_default();
    let old = call.row.served(stored);
    let mut object = source.make(call, &old)?;
    check_version(call, &object, stored)?;
    put_back(call, part, &mut object, &old);
    if source.tracks_ownership() {
        own(call, options, &mut object, Some(&old));
    }
    mutate(
        call,
        options,
        Operation::Update,
        name,
        &mut object,
        Some(&old),
    )?;
    dedup_owners(call, &mut object, true);
    metadata::of(&mut object).insert(
        "resourceVersion".into(),
        stored.revision().to_string().into(),
    );
    metadata::carry_over(&mut object, &old);
    let allocation = if part == Part::Main {
        Some(behaviour.allocate(&ctx, &mut object, Some(&old))?)
    } else {
        None
    };
    match part {
        Part::Status(_) => behaviour.prepare_status(&ctx, &mut object, &old),
        Part::Piece => behaviour.prepare_part(&ctx, subresource, &mut object, &old),
        Part::Main => behaviour.prepare_update(&ctx, &mut object, &old),
    }
    schema::normalise(&resource.schema, &mut object);
    metadata::count_generation(
        &mut object,
        &old,
        resource.rules.generation,
        call.row.has_status_subresource(),
    );
    let mut errors = Errors::default();
    let path = Path::new("metadata");
    let (sent, kept) = (&object["metadata"], &old["metadata"]);
    // Upstream checks metadata for every kind, and again as part of the kind: each cause is there for every check.
    check_metadata::object_meta(
        &mut errors,
        &path,
        sent,
        resource.namespaced,
        NameRule::PathSegment,
    );
    check_metadata::object_meta_update(&mut errors, &path, sent, kept);
    check_metadata::object_meta_update(&mut errors, &path, sent, kept);
    if !call.row.custom {
        check_metadata::kube_finalizers(&mut errors, &path, sent);
    }
    match part {
        Part::Status(_) => behaviour.validate_status(&ctx, &object, &old, &mut errors),
        Part::Piece => {
            behaviour.validate(&ctx, &object, &mut errors);
            behaviour.validate_part(&ctx, subresource, &object, &old, &mut errors);
        }
        Part::Main => {
            behaviour.validate(&ctx, &object, &mut errors);
            behaviour.validate_update(&ctx, &object, &old, &mut errors);
        }
    }
    if !errors.is_empty() {
        return Err(call.invalid(name, &errors));
    }
    call.warn_all(behaviour.warnings(&object, Some(&old)));
    judge(
        call,
        options,
        Operation::Update,
        name,
        &mut object,
        Some(&old),
    )?;
    ownership::settle_times(&mut object, &old);
    if object == old {
        return Ok(Some(Outcome::Stored(stored.clone())));
    }
    if options.dry_run {
        return Ok(Some(Outcome::Object(object)));
    }
    if is_released(call, &object) {
        let change = Change::Delete(stored.clone());
        return Ok(match call.row.collection.commit(change, call.now).await {
            Ok(_) => {
                release(call, &object);
                Some(Outcome::Object(object))
            }
            Err(_) => None,
        });
    }
    let change = Change::Update(stored.clone(), draft(call, EventType::Modified, object));
    let Ok(new) = call.row.collection.commit(change, call.now).await else {
        return Ok(None);
    };
    if let Some(allocation) = allocation {
        allocation.commit();
    }
    Ok(Some(Outcome::Stored(new)))
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

/// The 409 of a write against another version.
pub(crate) fn modified(call: &Call, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Status::conflict(call.resource(), name, why)
}

/// Compares the version the client saw, if it names one, with the stored one.
fn check_version(call: &Call, object: &Value, stored: &Object) -> Result<(), Status> {
    let given = metadata::text(object, "resourceVersion");
    if given.is_empty() || given == "0" {
        if call.resource().rules.unconditional_update {
            return Ok(());
        }
        let mut errors = Errors::default();
        errors.invalid(
            &Path::new("metadata").child("resourceVersion"),
            0,
            "must be specified for an update",
        );
        return Err(Status::invalid_kind(
            &call.resource().group,
            &call.resource().plural,
            stored.key().name(),
            &errors,
        ));
    }
    match given.parse::<u64>() {
        Ok(revision) if revision == stored.revision() => Ok(()),
        Ok(_) => Err(modified(call, stored.key().name())),
        Err(_) => Err(Status::new(
            500,
            "",
            format!("strconv.ParseUint: parsing {given:?}: invalid syntax"),
        )),
    }
}

/// Puts back what this endpoint does not change.
fn put_back(call: &Call, part: Part, object: &mut Value, old: &Value) {
    let take = |object: &mut Value, field: &str| match old.get(field) {
        Some(value) => object[field] = value.clone(),
        None => remove(object, field),
    };
    match part {
        Part::Piece => keep_metadata(metadata::of(object), old, StatusMetadata::KeepMost),
        Part::Main if call.row.has_status_subresource() => take(object, "status"),
        Part::Main => {}
        Part::Status(rule) => {
            let status = object.get_mut("status").map(Value::take);
            let mut sent = object["metadata"].take();
            *object = old.clone();
            match status {
                Some(status) => object["status"] = status,
                None => remove(object, "status"),
            }
            if let Some(sent) = sent.as_object_mut() {
                keep_metadata(sent, old, rule);
            }
            object["metadata"] = sent;
        }
    }
}

/// Puts back the metadata that a write to a part of an object does not change.
fn keep_metadata(sent: &mut Map<String, Value>, old: &Value, rule: StatusMetadata) {
    let kept: &[&str] = match rule {
        StatusMetadata::All => &[],
        StatusMetadata::KeepLabels => &["labels"],
        StatusMetadata::KeepOwnerReferences => &["ownerReferences"],
        StatusMetadata::KeepMost => &["labels", "annotations", "finalizers", "ownerReferences"],
        StatusMetadata::KeepAll => {
            let owned: Vec<(String, Value)> = ["managedFields", "resourceVersion"]
                .into_iter()
                .filter_map(|field| Some((field.to_owned(), sent.remove(field)?)))
                .collect();
            *sent = old["metadata"].as_object().cloned().unwrap_or_default();
            sent.extend(owned);
            return;
        }
    };
    for field in kept {
        metadata::keep(sent, &old["metadata"], field);
    }
}

/// Whether an update leaves an object that was only waiting for its finalizers.
fn is_released(call: &Call, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let no_finalizers = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
    let no_grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    metadata.get("deletionTimestamp").is_some()
        && no_finalizers
        && no_grace
        && !call.resource().behaviour.holds_deletion(object)
}

/// Writes down in managedFields who has set what.
fn own(call: &Call, options: &WriteOptions, object: &mut Value, old: Option<&Value>) {
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
pub(crate) fn draft(call: &Call, event: EventType, object: Value) -> Draft {
    draft_of(&call.row, event, object)
}

fn draft_of(row: &Row, event: EventType, mut object: Value) -> Draft {
    row.to_stored(&mut object);
    let fields = row.selectable_values(&object);
    Draft::new(event, &object, fields, row.collection.next_revision())
}

fn remove(object: &mut Value, field: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(field);
    }
}

/// Changes a stored object of any kind outside the ordinary verbs: no validation, no admission, tried again until it fits. `change`
/// may refuse; `Ok(false)` means there is nothing to do. Answers with the object as it is then.
pub(crate) async fn modify(
    row: &Row,
    now: Timestamp,
    key: &Key,
    dry_run: bool,
    mut change: impl FnMut(&mut Value) -> Result<bool, Status>,
) -> Result<Outcome, Status> {
    loop {
        let stored = row
            .collection
            .get(key.as_str())
            .ok_or_else(|| Status::not_found(&row.resource, key.name()))?;
        let mut object = row.served(&stored);
        if !change(&mut object)? {
            return Ok(Outcome::Stored(stored));
        }
        schema::normalise(&row.resource.schema, &mut object);
        if dry_run {
            return Ok(Outcome::Object(object));
        }
        let draft = draft_of(row, EventType::Modified, object);
        if let Ok(stored) = row
            .collection
            .commit(Change::Update(stored, draft), now)
            .await
        {
            return Ok(Outcome::Stored(stored));
        }
    }
}
