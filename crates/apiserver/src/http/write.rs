//! Writes. Create, update and patch are one pipeline of stages, whose order is the order of kube-apiserver's checks:
//!
//! | stage | what it does | where |
//! | --- | --- | --- |
//! | decode, default | makes a complete object of the body, or of the stored object and a patch | `http/create.rs`, [`Source`] |
//! | mutate | restores what the endpoint does not change, records managedFields, runs mutating admission | `pipeline.rs` |
//! | prepare | compares the resourceVersion, asks for the right to write the content, sets the server's metadata and a generated name, allocates, drops what the kind does not let a client set | `prepare.rs` |
//! | validate | checks the metadata and the object, collects warnings | `validate.rs` |
//! | judge | runs validating admission | `pipeline.rs` |
//! | store | finds the name free, leaves out a write without a change, ends a dry run, deletes an object that lost its last finalizer, or books claims and commits | `store.rs` |
//! | answer | makes the outcome, which [`reply`](super::reply) encodes | `store.rs` |
//!
//! Everything is prepared against the version that was read, and committed only if that version is still the current one. A write that
//! lost the race starts again from the current version, so that kinds and plugins always judge the object that will be stored. Other
//! handlers (bindings, evictions, controllers' subresources) change objects through [`modify()`].

mod admission;
mod claims;
mod commit;
pub(crate) mod companions;
mod modify;
mod part;
mod pipeline;
mod prepare;
pub(crate) mod request_limit;
mod store;
mod validate;

use mullion_kinds::request::attributes::{self, Attributes, Target};
use mullion_kube_text::status::Status;
use serde_json::Value;

use self::pipeline::Attempt;
pub(crate) use self::{
    admission::{Admission, admit_connection},
    commit::{draft, in_time, release},
    modify::{modify, modify_with_raw_field},
    part::{Part, STATUS_FIELDS, keep_fields, track_ownership, writer},
    prepare::{NAME_TRIES, dedup_owners},
};
use super::{
    call::{Call, WriteOptions},
    reply::Outcome,
};

/// The stages decode and default of an update: makes the new object from the stored one, which is in served form and folded
/// ([`mullion_schema::ownership::fold`]).
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

/// Creates a decoded and defaulted object. If `generateName` is used and another client takes the generated name at the last moment, the
/// result is AlreadyExists and the caller may retry.
pub(crate) async fn create(
    call: &Call,
    options: &WriteOptions,
    object: Value,
) -> Result<Outcome, Status> {
    let mut attempt = Attempt::creation(call, options, object);
    match attempt.run().await? {
        Some(outcome) => Ok(outcome),
        None => Err(attempt.name_was_taken()),
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
            let Some(new) = new_object(call, part, source)? else {
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
        let mut attempt = Attempt::update(call, options, part, source, &stored)?;
        // Another write came first: the next attempt starts from its version.
        if let Some(outcome) = attempt.run().await? {
            return Ok((200, outcome));
        }
    }
}

/// Returns the object that an update creates where none exists, or `None` if the endpoint or the source creates none.
fn new_object(call: &Call, part: Part, source: &dyn Source) -> Result<Option<Value>, Status> {
    if may_create(call, part) {
        source.make_new(call)
    } else {
        Ok(None)
    }
}

/// Returns whether the endpoint creates an object that does not exist, if the [`Source`] makes one.
///
/// In kube-apiserver the status endpoint of a kind whose objects a PUT may create (services) creates them too. That of
/// ValidatingAdmissionPolicies lets an apply create them; others never allow it.
pub(crate) fn may_create(call: &Call, part: Part) -> bool {
    let rules = &call.resource().rules;
    match part {
        Part::Main => true,
        Part::Status(_) => rules.create_on_update || rules.create_on_status_apply,
        Part::Piece(_) => false,
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
