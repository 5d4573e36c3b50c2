//! The stage that completes an object before it is validated (kube-apiserver: `BeforeCreate` and `BeforeUpdate`, which call the strategy's
//! `PrepareForCreate` and `PrepareForUpdate`).

use mullion_kinds::{StatusOnCreate, request::Ctx};
use mullion_kube_text::{
    field::{Errors, Path},
    status::Status,
};
use mullion_schema as schema;
use mullion_store::Object;
use serde_json::Value;

use super::{
    Part,
    pipeline::{Attempt, Target},
    store::already_exists,
};
use crate::{
    http::{call::Call, list},
    object::metadata,
};

/// How many generated names are tried before the request is refused.
pub(crate) const NAME_TRIES: usize = 8;

impl Attempt<'_> {
    /// Completes the object: checks the version that it replaces and the right to write its content, then sets the server's metadata,
    /// allocates, and lets the kind set its own fields.
    ///
    /// The order is kube-apiserver's. Whoever writes content without the right to it gets a 403 before any 422, and allocated values are
    /// there before validation, which refuses a Service without its addresses.
    pub(super) fn prepare(&mut self) -> Result<(), Status> {
        let call = self.call;
        let ctx = call.ctx(self.options.dry_run);
        // Not earlier: mutating admission may have changed the resourceVersion.
        if let Target::Existing { stored, .. } = &self.target {
            check_version(call, &self.object, stored)?;
        }
        // Only the main endpoint changes the fields that grant rights or hold addresses and ports.
        let writes_whole = self.part == Part::Main;
        if writes_whole {
            let behaviour = &call.resource().behaviour;
            behaviour.permit(&ctx, &self.name, &self.object, self.target.old())?;
        }
        // A second time, because admission may have added a reference that the client sent as well.
        dedup_owners(call, &mut self.object, true);
        self.set_metadata()?;
        if writes_whole {
            let (resource, old) = (call.resource(), self.target.old());
            self.allocation = Some(resource.allocate(&ctx, &mut self.object, old)?);
        }
        self.set_kinds_fields(&ctx);
        self.normalise();
        self.count_generation();
        self.take_name();
        Ok(())
    }

    /// Sets the metadata that belongs to the server, whatever the client sent.
    fn set_metadata(&mut self) -> Result<(), Status> {
        match &self.target {
            Target::New => {
                // After admission: webhooks see a new object without a uid and without a creation time.
                metadata::begin(&mut self.object, self.call.resource(), self.call.now);
                self.generate_name()
            }
            Target::Existing { stored, old, .. } => {
                let revision = stored.revision().to_string();
                metadata::of(&mut self.object).insert("resourceVersion".into(), revision.into());
                metadata::carry_over(&mut self.object, old);
                Ok(())
            }
        }
    }

    /// Names an object that has a `generateName` but no name.
    fn generate_name(&mut self) -> Result<(), Status> {
        let base = metadata::text(&self.object, "generateName");
        if !self.name.is_empty() || base.is_empty() {
            return Ok(());
        }
        let mut tries = 0;
        let name = loop {
            tries += 1;
            let name = metadata::generate_name(base);
            // A taken name is looked for before the checks and the quota, so that a retry costs no more than a lookup.
            match self.call.row.collection.get(self.call.key(&name).as_str()) {
                None => break name,
                Some(existing) if tries == NAME_TRIES => {
                    return Err(already_exists(self.call, &existing, base));
                }
                Some(_) => {}
            }
        };
        metadata::of(&mut self.object).insert("name".into(), name.into());
        Ok(())
    }

    /// Lets the kind set fields that belong to it, and restore those that this write may not change.
    fn set_kinds_fields(&mut self, ctx: &Ctx<'_>) {
        let (row, resource) = (&self.call.row, self.call.resource());
        let subresource = self.subresource();
        let (behaviour, object) = (&resource.behaviour, &mut self.object);
        match (&self.target, self.part) {
            (Target::New, _) => {
                if row.has_status_subresource()
                    && resource.rules.status_on_create == StatusOnCreate::Clear
                    && let Some(fields) = object.as_object_mut()
                {
                    fields.remove("status");
                }
                behaviour.prepare_create(ctx, object);
            }
            (Target::Existing { old, .. }, Part::Main) => {
                behaviour.prepare_update(ctx, object, old);
            }
            (Target::Existing { old, .. }, Part::Status(_)) => {
                behaviour.prepare_status(ctx, object, old);
            }
            (Target::Existing { old, .. }, Part::Piece(_)) => {
                behaviour.prepare_part(ctx, subresource, object, old);
            }
        }
    }

    /// Brings the object into the form in which Go encodes it.
    fn normalise(&mut self) {
        let schema = self.call.schema();
        match &self.target {
            Target::Existing { raw: Some(raw), .. } => {
                raw.normalise_around(schema, &mut self.object);
            }
            _ => schema::normalise(schema, &mut self.object),
        }
    }

    /// Increments the generation of a changed object. A new object has got its first one with its metadata.
    ///
    /// kube-apiserver's status strategies never raise the generation, not even where a status write changes annotations (the Deployment
    /// controller's revision).
    fn count_generation(&mut self) {
        let call = self.call;
        if let (Target::Existing { old, .. }, Part::Main | Part::Piece(_)) =
            (&self.target, self.part)
        {
            metadata::count_generation(
                &mut self.object,
                old,
                &call.emptied(),
                call.resource().rules.generation,
                call.row.has_status_subresource(),
            );
        }
    }
}

/// Removes duplicate owner references and adds a warning, whose text depends on whether they appeared `after` admission.
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
        Err(why) => Err(Status::new(500, "", why.to_string())),
    }
}

/// Returns the 409 for an update against an outdated resourceVersion.
fn modified(call: &Call, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Status::conflict(call.resource(), name, why)
}
