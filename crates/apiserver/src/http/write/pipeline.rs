//! One attempt to write an object, and the order of its stages.
//!
//! A creation and an update run the same stages. Each stage says where the two differ by a `match` on [`Target`] or [`Part`].

use std::{borrow::Cow, sync::Arc};

use mullion_kinds::Allocation;
use mullion_kube_text::{golang::number, status::Status};
use mullion_schema::{ownership, raw_field::RawField};
use mullion_store::{Object, RawFieldText};
use serde_json::Value;

use super::{Admission, Part, Source, dedup_owners, part, request_limit, track_ownership};
use crate::{
    admission::Operation,
    http::{
        call::{Call, WriteOptions},
        reply::Outcome,
    },
    object::metadata,
};

/// An object on its way to the store, with what the stages have found out about it.
pub(super) struct Attempt<'a> {
    pub(super) call: &'a Call,
    pub(super) options: &'a WriteOptions,
    /// The part of the object that the write may change. A creation writes all of it.
    pub(super) part: Part,
    pub(super) target: Target<'a>,
    /// The object's name; empty until [`Attempt::prepare`] for a new object that is named by the server.
    pub(super) name: Cow<'a, str>,
    /// The new object in served form. It is folded ([`ownership::fold`]) from mutating admission on.
    pub(super) object: Value,
    admission: Admission<'a>,
    /// Whether the stages must record the changed fields in managedFields.
    tracks_ownership: bool,
    /// The cluster-wide values that the object got. Dropping them frees them.
    pub(super) allocation: Option<Box<dyn Allocation>>,
}

/// What a write replaces.
pub(super) enum Target<'a> {
    /// Nothing: the object is created.
    New,
    /// A version of the object.
    Existing {
        stored: &'a Arc<Object>,
        /// The stored object in served form and folded, except the unparsed rest of the raw field.
        old: Value,
        /// The text of the field that the write neither reads nor changes, if it has one.
        raw: Option<RawFieldText<'a>>,
    },
}

impl Target<'_> {
    /// Returns the object that is replaced.
    pub(super) fn old(&self) -> Option<&Value> {
        match self {
            Target::New => None,
            Target::Existing { old, .. } => Some(old),
        }
    }

    pub(super) fn operation(&self) -> Operation {
        match self {
            Target::New => Operation::Create,
            Target::Existing { .. } => Operation::Update,
        }
    }
}

impl<'a> Attempt<'a> {
    /// Begins to create an object that is decoded and defaulted.
    pub(super) fn creation(call: &'a Call, options: &'a WriteOptions, object: Value) -> Self {
        Attempt {
            call,
            options,
            part: Part::Main,
            target: Target::New,
            name: metadata::text(&object, "name").to_owned().into(),
            object,
            admission: Admission::new(call, options, Operation::Create),
            tracks_ownership: true,
            allocation: None,
        }
    }

    /// Begins an update of the stored object: parses it, and lets the source decode and default the new one.
    pub(super) fn update(
        call: &'a Call,
        options: &'a WriteOptions,
        part: Part,
        source: &dyn Source,
        stored: &'a Arc<Object>,
    ) -> Result<Self, Status> {
        let admission = Admission::new(call, options, Operation::Update);
        let (mut old, mut raw) = match raw_field(call, part, source, &admission) {
            Some(raw_field) => {
                let (old, raw) = stored.parse_with_raw_field(raw_field);
                (old, Some(raw))
            }
            None => (call.row.served_folded(stored), None),
        };
        call.go_on()?;
        let object = match source.make(call, &old) {
            // The error message shows the whole object, so parse all of it and try again.
            Err(_) if raw.take().is_some() => {
                old = call.row.served_folded(stored);
                source.make(call, &old)?
            }
            made => made?,
        };
        Ok(Attempt {
            call,
            options,
            part,
            target: Target::Existing { stored, old, raw },
            name: stored.key().name().into(),
            object,
            admission,
            tracks_ownership: source.tracks_ownership(),
            allocation: None,
        })
    }

    /// Runs the stages after decoding, in kube-apiserver's order. Returns `None` if another write to the object came in between.
    pub(super) async fn run(&mut self) -> Result<Option<Outcome>, Status> {
        self.mutate().await?;
        self.prepare()?;
        self.validate()?;
        self.judge().await?;
        self.store().await
    }

    /// Runs mutating admission on what the client may write.
    ///
    /// managedFields are recorded before admission, so that fields that plugins and webhooks set are not recorded as the client's.
    async fn mutate(&mut self) -> Result<(), Status> {
        let call = self.call;
        // Before admission and validation spend memory on an object that cannot be stored.
        request_limit::check_growth(&call.row, &self.object)?;
        // Before managedFields are computed: the client must not come to own fields that this endpoint does not let it change.
        self.confine()?;
        // `http/update.rs` has removed the duplicates of a PUT's body already, and of a patch kube-apiserver looks only at the result
        // (`prepare`).
        if let Target::New = self.target {
            dedup_owners(call, &mut self.object, false);
        }
        if self.tracks_ownership {
            let old = self.target.old();
            track_ownership(call, self.options, self.part, &mut self.object, old);
        }
        ownership::fold(&mut self.object);
        let old = self.target.old();
        let mutated = self.admission.mutate(&self.name, &mut self.object, old);
        if mutated.await? {
            // Admission encoded and decoded the object again, which loses the difference between empty and absent fields.
            call.note_recoded();
            // A webhook may change only what the endpoint lets the client change, so what it changed beyond that is restored.
            self.confine()?;
            self.take_name();
        }
        call.go_on()
    }

    /// Restores the fields that the endpoint does not change. A new object has none, but its namespace is the path's.
    fn confine(&mut self) -> Result<(), Status> {
        let call = self.call;
        match &self.target {
            Target::New => metadata::settle_namespace(&mut self.object, call.namespace.as_deref()),
            Target::Existing { old, .. } => {
                part::put_back(call, self.part, &mut self.object, old);
                Ok(())
            }
        }
    }

    /// Returns the subresource that the write goes through; empty for the main endpoint.
    pub(super) fn subresource(&self) -> &'a str {
        self.call.subresource.as_deref().unwrap_or_default()
    }

    /// Takes over the name of a new object, which webhooks, `generateName` and the kind may set.
    pub(super) fn take_name(&mut self) {
        let name = metadata::text(&self.object, "name");
        if matches!(self.target, Target::New) && *name != *self.name {
            self.name = name.to_owned().into();
        }
    }

    /// Runs validating admission, which kube-apiserver runs last: it sees the object as it would be stored.
    async fn judge(&mut self) -> Result<(), Status> {
        // Before and after: a webhook may take longer than the client waits, and then nothing should be stored.
        self.call.go_on()?;
        let old = self.target.old();
        self.admission
            .judge(&self.name, &mut self.object, old)
            .await?;
        self.call.go_on()?;
        if self.call.row.custom {
            number::settle(&mut self.object);
        }
        Ok(())
    }
}

/// Returns the fields that may stay unparsed: none unless the source, the plugins and the webhooks all ignore them. A status write does
/// not parse the fields that it leaves alone, unless admission wants to see them.
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
