//! Updates: restores the fields that the endpoint must not change, then admits, validates and stores the object against the version it
//! was read at.

use std::sync::Arc;

use mullion_kinds::{
    Check, StatusMetadata,
    request::attributes::{self, Attributes, Target},
};
use mullion_kube_text::{
    field::{Errors, Path},
    golang::number,
    names::NameRule,
    status::Status,
    validation::metadata as check_metadata,
};
use mullion_schema::{self as schema, ownership, raw_field::RawField};
use mullion_store::{Change, EventType, Object, RawFieldText};
use serde_json::{Map, Value};

use super::{
    Admission, claims, companions, create, dedup_owners, draft_from, in_time, own, release,
    request_limit, stored_outcome,
};
use crate::{
    admission::Operation,
    http::{
        call::{Call, WriteOptions},
        list,
        reply::Outcome,
    },
    object::metadata,
};

/// The fields that a write of the status reads.
pub(crate) const STATUS_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "status"];

/// The part of an object that an update may change.
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

/// Makes the new object of an update from the stored one, which is in served form and folded ([`ownership::fold`]).
pub(crate) trait Source: Sync {
    /// Returns the new object, decoded and defaulted, folded or not.
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status>;

    /// Returns the object to create where none exists; `None` refuses with 404.
    fn make_new(&self, call: &Call) -> Result<Option<Value>, Status> {
        let _ = call;
        Ok(None)
    }

    /// Returns whether the update must still record the changed fields in managedFields.
    fn tracks_ownership(&self) -> bool {
        true
    }

    /// Returns whether the source reads and writes only metadata and status, so that the rest of the stored object need not be parsed.
    fn is_status_alone(&self) -> bool {
        false
    }
}

impl<F: Fn(&Call, &Value) -> Result<Value, Status> + Sync> Source for F {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        self(call, old)
    }
}

/// Updates the object that the call names. The response code is 200, or 201 if the object had to be created.
pub(crate) async fn update(
    call: &Call,
    options: &WriteOptions,
    part: Part,
    source: &dyn Source,
) -> Result<(u16, Outcome), Status> {
    let key = call.key(&call.name);
    loop {
        let Some(stored) = call.row.collection.get(key.as_str()) else {
            // In kube-apiserver the status endpoint of a kind whose objects a PUT may create (services) creates them too.
            let creates = match part {
                Part::Main => true,
                Part::Status(_) => call.resource().rules.create_on_update,
                Part::Piece(_) => false,
            };
            let new = match creates {
                true => source.make_new(call)?,
                false => None,
            };
            let Some(new) = new else {
                return Err(Status::not_found(call.resource(), &call.name));
            };
            // kube-apiserver (withAuthorization) also asks this late: only now it is known that the write creates an object.
            permit_creation(call)?;
            match create(call, options, new).await {
                // Another client created the object first, so retry as an update. Admission may also answer AlreadyExists; without a
                // stored object that error is returned.
                Err(status)
                    if status.reason == "AlreadyExists"
                        && call.row.collection.get(key.as_str()).is_some() =>
                {
                    continue;
                }
                created => return created.map(|outcome| (201, outcome)),
            }
        };
        if let Some(outcome) = update_once(call, options, part, source, &stored).await? {
            return Ok((200, outcome));
        }
    }
}

/// Checks that the user may create the object: permission to update or patch does not include that.
fn permit_creation(call: &Call) -> Result<(), Status> {
    let resource = call.resource();
    let attributes = Attributes {
        verb: "create".into(),
        target: Target::Resource(attributes::Resource {
            group: &resource.group,
            resource: &resource.plural,
            subresource: call.subresource.as_deref().unwrap_or_default(),
            namespace: call.namespace.as_deref().unwrap_or_default(),
            name: call.name.as_str().into(),
        }),
    };
    call.server.authorizer().require(&call.user, &attributes)
}

/// Tries an update once against the version that was read. Returns `None` if another write came in between.
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
    // A status write does not parse the fields that it leaves alone, unless admission wants to see them.
    let admission = Admission::new(call, options, Operation::Update);
    let raw_field = raw_field(call, part, source, &admission);
    let (mut old, mut raw) = match raw_field {
        Some(raw_field) => {
            let (old, raw) = stored.parse_with_raw_field(raw_field);
            (old, Some(raw))
        }
        None => (call.row.served_folded(stored), None),
    };
    call.go_on()?;
    let mut object = match source.make(call, &old) {
        // The error message shows the whole object, so parse all of it and try again.
        Err(_) if raw.take().is_some() => {
            old = call.row.served_folded(stored);
            source.make(call, &old)?
        }
        made => made?,
    };
    // Before admission and validation spend memory on an object that cannot be stored.
    request_limit::check_growth(&call.row, &object)?;
    // Before managedFields are computed: the client must not come to own fields that this endpoint does not let it change.
    put_back(call, part, &mut object, &old);
    if source.tracks_ownership() {
        own(call, options, part, &mut object, Some(&old));
    }
    ownership::fold(&mut object);
    if admission.mutate(name, &mut object, Some(&old)).await? {
        // Admission encoded and decoded the object again, which loses the difference between empty and absent fields.
        call.note_recoded();
        // A webhook is bound to the endpoint's fields like the client, so what it changed beyond them is restored too.
        put_back(call, part, &mut object, &old);
    }
    call.go_on()?;
    // kube-apiserver compares resourceVersion only after mutating admission, which may have changed it.
    check_version(call, &object, stored)?;
    if part == Part::Main {
        behaviour.permit(&ctx, name, &object, Some(&old))?;
    }
    // A second time, because admission may have added a reference that the client sent as well.
    dedup_owners(call, &mut object, true);
    metadata::of(&mut object).insert(
        "resourceVersion".into(),
        stored.revision().to_string().into(),
    );
    // The generation, the creation time and the deletion marks belong to the server, whatever the client sent.
    metadata::carry_over(&mut object, &old);
    // Only the main endpoint changes the fields that hold addresses and ports.
    let mut allocation = if part == Part::Main {
        Some(resource.allocate(&ctx, &mut object, Some(&old))?)
    } else {
        None
    };
    match part {
        Part::Status(_) => behaviour.prepare_status(&ctx, &mut object, &old),
        Part::Piece(_) => behaviour.prepare_part(&ctx, subresource, &mut object, &old),
        Part::Main => behaviour.prepare_update(&ctx, &mut object, &old),
    }
    match &raw {
        Some(raw) => raw.normalise_around(&resource.schema, &mut object),
        None => schema::normalise(&resource.schema, &mut object),
    }
    // kube-apiserver's status strategies never raise the generation, not even where a status write changes annotations (the Deployment
    // controller's revision).
    if !matches!(part, Part::Status(_)) {
        metadata::count_generation(
            &mut object,
            &old,
            &call.emptied(),
            resource.rules.generation,
            call.row.has_status_subresource(),
        );
    }
    let mut errors = Errors::about(call.emptied());
    let path = Path::new("metadata");
    let (sent, kept) = (&object["metadata"], &old["metadata"]);
    // kube-apiserver validates metadata for every kind and again in the kind's own validation, so a cause is listed once for each check.
    check_metadata::object_meta(
        &mut errors,
        &path,
        sent,
        resource.namespaced,
        NameRule::PathSegment,
    );
    check_metadata::object_meta_update(&mut errors, &path, sent, kept);
    let checks: &[Check] = match part {
        Part::Status(_) => behaviour.status_checks(),
        Part::Piece(_) | Part::Main => behaviour.update_checks(subresource),
    };
    let errors_of_finalizers = |errors: &mut Errors| {
        if !call.row.custom && resource.rules.core_finalizers {
            check_metadata::kube_finalizers(errors, &path, sent);
        }
    };
    for check in checks {
        match (check, part) {
            (Check::Metadata, _) => {
                let (namespaced, rule) = (resource.namespaced, resource.rules.name);
                check_metadata::object_meta(&mut errors, &path, sent, namespaced, rule);
                errors_of_finalizers(&mut errors);
            }
            (Check::MetadataChange, _) => {
                check_metadata::object_meta_update(&mut errors, &path, sent, kept);
                errors_of_finalizers(&mut errors);
            }
            (Check::Object, _) => {
                behaviour.validate_against(&ctx, &object, Some(&old), &mut errors);
            }
            (Check::Change, Part::Main) => {
                behaviour.validate_update(&ctx, &object, &old, &mut errors);
            }
            (Check::Change, Part::Piece(_)) => {
                behaviour.validate_part(&ctx, subresource, &object, &old, &mut errors);
            }
            (Check::Change, Part::Status(_)) => {
                behaviour.validate_status(&ctx, &object, &old, &mut errors);
            }
        }
    }
    if !errors.is_empty() {
        return Err(call.invalid(name, &errors));
    }
    // Only after the refusal: what validation forgives is worth a warning only where the write goes on.
    call.warn_all(errors.forgiven());
    call.warn_all(match part {
        Part::Status(_) if !call.row.custom => behaviour.status_warnings(&object),
        _ => behaviour.warnings(&object, Some(&old)),
    });
    // Validating admission runs last, on the object that would be stored.
    call.go_on()?;
    admission.judge(name, &mut object, Some(&old)).await?;
    call.go_on()?;
    if call.row.custom {
        number::settle(&mut object);
    }
    // Otherwise a repeated write would differ from the stored object by the times in managedFields alone, and be stored.
    ownership::settle_times(&mut object, &old);
    // Nothing changed: kube-apiserver skips the write, so the resourceVersion stays and no watcher sees an event.
    if object == old && is_stored(call, &object, stored) {
        return Ok(Some(Outcome::Stored(stored.clone())));
    }
    if options.dry_run {
        return Ok(Some(shown(object, raw.as_ref())));
    }
    // The last finalizer is gone: delete the object instead of storing it.
    if is_released(call, &object) {
        let change = Change::Delete(stored.clone());
        return Ok(
            match in_time(call.row.collection.commit(change, call.now).await)? {
                Some(_) => {
                    // After the deletion is stored: an address that is free too early could go to another Service meanwhile.
                    release(call, &object).await;
                    Some(shown(object, raw.as_ref()))
                }
                None => None,
            },
        );
    }
    let taken = claims::take(call, Operation::Update, name, &mut object, Some(&old)).await?;
    let draft = draft_from(&call.row, EventType::Modified, &mut object, raw.as_ref());
    let change = Change::Update(stored.clone(), draft);
    let companions = allocation
        .as_mut()
        .map(|allocation| allocation.companions());
    let committed = companions::commit(call, change, companions.unwrap_or_default()).await;
    let Ok(Some(new)) = committed else {
        // The quota was charged before the commit; without this the usage would stay too high until the quota controller's next sync.
        taken.give_back(call).await;
        return committed.map(|_| None);
    };
    if let Some(allocation) = allocation {
        allocation.commit();
    }
    Ok(Some(stored_outcome(&call.row, new, object)))
}

/// Returns the fields that may stay unparsed: none unless the source, the plugins and the webhooks all ignore them.
fn raw_field(
    call: &Call,
    part: Part,
    source: &dyn Source,
    admission: &Admission<'_>,
) -> Option<&'static RawField> {
    let raw_field = call.resource().behaviour.raw_field()?;
    let fits = matches!(part, Part::Status(_))
        && source.is_status_alone()
        && call.row.serves_stored_bytes()
        && !admission.is_wanted();
    fits.then_some(raw_field)
}

/// Returns the complete object as a response, for an object that is not stored in this form.
fn shown(mut object: Value, raw: Option<&RawFieldText<'_>>) -> Outcome {
    if let Some(raw) = raw {
        raw.restore(&mut object);
    }
    Outcome::unfolded(object)
}

/// Returns whether the stored object has every field of the served one, that is, reading filled in no defaults.
fn is_stored(call: &Call, object: &Value, stored: &Object) -> bool {
    if !call.resource().rewrites_stored() {
        return true;
    }
    // A read that filled in defaults must be stored once: kube-apiserver, too, rewrites an object whose stored bytes would differ.
    let mut form = object.clone();
    call.row.to_stored(&mut form);
    form == stored.parse_folded()
}

/// Returns the 409 for an update against an outdated resourceVersion.
fn modified(call: &Call, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Status::conflict(call.resource(), name, why)
}

/// Compares the resourceVersion that the client sent, if any, with the stored one.
fn check_version(call: &Call, object: &Value, stored: &Object) -> Result<(), Status> {
    let given = metadata::text(object, "resourceVersion");
    // kube-apiserver (Store.Update) takes zero like no version at all: an unconditional update, if the kind allows one.
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
    match list::parse_revision(given) {
        Ok(revision) if revision == stored.revision() => Ok(()),
        Ok(_) => Err(modified(call, stored.key().name())),
        Err(why) => Err(Status::new(500, "", why)),
    }
}

/// Restores the fields that this endpoint does not change. Most clients send them unchanged, and then nothing is copied.
fn put_back(call: &Call, part: Part, object: &mut Value, old: &Value) {
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
            sent.extend(owned);
            return;
        }
    };
    for field in kept {
        metadata::keep(sent, &old["metadata"], field);
    }
}

/// Returns whether an update removes the last finalizer of an object that is being deleted, so that the object goes.
fn is_released(call: &Call, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let no_finalizers = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
    let no_grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0;
    metadata.get("deletionTimestamp").is_some()
        && no_finalizers
        && no_grace
        && !call.resource().holds_deletion(object)
}
