//! Creation: sets the server's metadata and the first status, generates a name if needed, validates, and stores the object.

use mullion_kinds::{Check, StatusOnCreate, request::Ctx};
use mullion_kube_text::{
    field::{Errors, Path},
    golang::number,
    names::NameRule,
    status::Status,
    validation::metadata as check_metadata,
};
use mullion_schema::{self as schema, ownership};
use mullion_store::{Change, EventType, Object};
use serde_json::Value;

use super::{Admission, claims, companions, dedup_owners, draft_from, own, remove, stored_outcome};
use crate::{
    admission::Operation,
    http::{
        call::{Call, WriteOptions},
        reply::Outcome,
    },
    object::metadata,
};

/// How many generated names are tried before the request is refused.
pub(crate) const NAME_TRIES: usize = 8;

/// Creates a decoded object. If `generateName` is used and another client takes the generated name at the last moment, the result is
/// AlreadyExists and the caller may retry.
pub(crate) async fn create(
    call: &Call,
    options: &WriteOptions,
    mut object: Value,
) -> Result<Outcome, Status> {
    let resource = call.resource();
    super::request_limit::check_growth(&call.row, &object)?;
    metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
    dedup_owners(call, &mut object, false);
    // Before admission, so that fields that plugins set are not recorded as the client's.
    own(call, options, super::Part::Main, &mut object, None);
    ownership::fold(&mut object);
    let mut name = metadata::text(&object, "name").to_owned();
    let admission = Admission::new(call, options, Operation::Create);
    if admission.mutate(&name, &mut object, None).await? {
        // Admission encoded and decoded the object again, which loses the difference between empty and absent fields.
        call.note_recoded();
        metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
        metadata::text(&object, "name").clone_into(&mut name);
    }
    call.go_on()?;
    let behaviour = &resource.behaviour;
    behaviour.permit(&call.ctx(options.dry_run), &name, &object, None)?;
    dedup_owners(call, &mut object, true);
    // After admission, as in kube-apiserver's BeforeCreate: webhooks see a new object without a uid and without a creation time.
    metadata::begin(&mut object, resource, call.now);
    let base = metadata::text(&object, "generateName").to_owned();
    if !name.is_empty() || base.is_empty() {
        return create_named(call, options, &admission, object).await;
    }
    let mut tries = 0;
    loop {
        tries += 1;
        // A taken name is looked for before the checks and the quota, so that a retry costs no more than a lookup.
        let name = metadata::generate_name(&base);
        match call.row.collection.get(call.key(&name).as_str()) {
            None => {
                metadata::of(&mut object).insert("name".into(), name.into());
                return create_named(call, options, &admission, object).await;
            }
            Some(existing) if tries == NAME_TRIES => {
                return Err(already_exists(call, &existing, &base));
            }
            Some(_) => {}
        }
    }
}

async fn create_named(
    call: &Call,
    options: &WriteOptions,
    admission: &Admission<'_>,
    mut object: Value,
) -> Result<Outcome, Status> {
    let resource = call.resource();
    let behaviour = &resource.behaviour;
    let ctx = call.ctx(options.dry_run);
    // Before validation, which refuses a Service without its addresses. Dropping the allocation on any error below frees what it took.
    let mut allocation = resource.allocate(&ctx, &mut object, None)?;
    if call.row.has_status_subresource() && resource.rules.status_on_create == StatusOnCreate::Clear
    {
        remove(&mut object, "status");
    }
    behaviour.prepare_create(&ctx, &mut object);
    let name = metadata::text(&object, "name").to_owned();
    schema::normalise(&resource.schema, &mut object);
    let errors = check(call, &ctx, &object);
    if !errors.is_empty() {
        return Err(call.invalid(&name, &errors));
    }
    call.warn_all(behaviour.warnings(&object, None));
    // Before and after validating admission: a webhook may take longer than the client waits, and then nothing should be stored.
    call.go_on()?;
    admission.judge(&name, &mut object, None).await?;
    call.go_on()?;
    if call.row.custom {
        number::settle(&mut object);
    }
    // Go's ParseUint takes no sign, while Rust's `parse` would accept a leading `+`.
    let told = metadata::text(&object, "resourceVersion");
    let told = told.parse::<u64>().ok().filter(|_| !told.starts_with('+'));
    if !options.dry_run && told.is_some_and(|revision| revision != 0) {
        return Err(Status::new(
            500,
            "",
            "resourceVersion should not be set on objects to be created",
        ));
    }
    // kube-apiserver clears a resourceVersion that is zero or no number; a dry run shows the object as sent.
    if !options.dry_run {
        metadata::of(&mut object).remove("resourceVersion");
    }
    let key = call.key(&name);
    let base = metadata::text(&object, "generateName").to_owned();
    // Checked before claims are booked, and also for dry runs, which commit nothing.
    if let Some(existing) = call.row.collection.get(key.as_str()) {
        return Err(already_exists(call, &existing, &base));
    }
    if options.dry_run {
        if resource.rewrites_stored() {
            behaviour.default(&mut object);
        }
        return Ok(Outcome::unfolded(object));
    }
    let taken = claims::take(call, Operation::Create, &name, &mut object, None).await?;
    let draft = draft_from(&call.row, EventType::Added, &mut object, None);
    let change = Change::Create(key.clone(), draft);
    match companions::commit(call, change, allocation.companions()).await {
        Ok(Some(stored)) => {
            allocation.commit();
            Ok(stored_outcome(&call.row, stored, object))
        }
        committed => {
            // Another client took the name after the check above, or the disk failed: nothing was stored, so nothing is charged.
            taken.give_back(call).await;
            committed?;
            match call.row.collection.get(key.as_str()) {
                Some(existing) => Err(already_exists(call, &existing, &base)),
                None => Err(Status::already_exists(resource, &name)),
            }
        }
    }
}

/// Validates a new object.
fn check(call: &Call, ctx: &Ctx<'_>, object: &Value) -> Errors {
    let (resource, metadata) = (call.resource(), &object["metadata"]);
    let (mut errors, path) = (Errors::about(call.emptied()), Path::new("metadata"));
    let of_metadata = |errors: &mut Errors, rule: NameRule| {
        check_metadata::object_meta(errors, &path, metadata, resource.namespaced, rule);
    };
    let checks = resource.behaviour.creation_checks();
    for check in checks {
        match check {
            Check::Metadata => {
                of_metadata(&mut errors, resource.rules.name);
                if !call.row.custom && resource.rules.core_finalizers {
                    check_metadata::kube_finalizers(&mut errors, &path, metadata);
                }
            }
            Check::Object => resource
                .behaviour
                .validate_against(ctx, object, None, &mut errors),
            Check::Change => resource
                .behaviour
                .validate_creation(ctx, object, &mut errors),
            // A new object has no old metadata to compare with.
            Check::MetadataChange => {}
        }
    }
    let is_named_by_kind =
        checks.contains(&Check::Metadata) && resource.rules.name != NameRule::Any;
    // kube-apiserver's BeforeCreate validates the metadata of every kind once more, but only an object whose own validation has passed.
    if errors.is_empty() && !is_named_by_kind {
        of_metadata(&mut errors, NameRule::PathSegment);
    }
    errors
}

/// Returns the error for an object whose name is taken; `base` is its `generateName`. kube-apiserver speaks of a generated name wherever
/// `generateName` is set, even if the name was given.
fn already_exists(call: &Call, existing: &Object, base: &str) -> Status {
    let mut status = Status::already_exists(call.resource(), existing.key().name());
    if !base.is_empty() {
        status
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        if let Some(details) = &mut status.details {
            details.retry_after_seconds = 1;
        }
    }
    if existing.parse()["metadata"]
        .get("deletionTimestamp")
        .is_some()
    {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}
