//! The path of a write after its body is decoded: defaults, managedFields, admission, metadata, allocation, validation, storage.
//!
//! Everything is prepared against the version that was read, and committed only if that version is still the current one. A write that
//! lost the race starts again from the current version, so that kinds and plugins always judge the object that will be stored. Other
//! handlers (bindings, evictions, controllers' subresources) change objects through [`modify`].

mod change;
mod claims;
pub(crate) mod companions;
mod creation;
pub(crate) mod request_limit;

use std::{cell::RefCell, sync::Arc};

use futures::future::join_all;
use jiff::Timestamp;
use mullion_kinds::{Resource, SubresourceHandler, request::Ctx};
use mullion_kube_text::status::Status;
use mullion_schema::{self as schema, Type, ownership, raw_field::RawField};
use mullion_store::{Change, CommitError, Draft, EventType, Key, Object, RawFieldText};
use serde_json::Value;

pub(crate) use self::{
    change::{Part, STATUS_FIELDS, Source, keep_fields, update},
    creation::{NAME_TRIES, create},
};
use super::{
    call::{Call, FieldValidation, WriteOptions},
    reply::Outcome,
};
use crate::{
    admission::{
        Operation, Plugin, Request,
        webhook::{self, Form, Hooks, Reinvocation, Subject},
    },
    object::{metadata, scale},
    registry::Row,
};

/// The admission of one write: the built-in plugins, and the webhooks that were configured when the write began.
pub(crate) struct Admission<'a> {
    call: &'a Call,
    options: &'a WriteOptions,
    operation: Operation,
    hooks: Option<Arc<Hooks>>,
}

impl<'a> Admission<'a> {
    pub(crate) fn new(call: &'a Call, options: &'a WriteOptions, operation: Operation) -> Self {
        Admission {
            call,
            options,
            operation,
            hooks: call.server.webhooks().current(),
        }
    }

    /// Runs the mutating plugins, then the mutating webhooks. Returns whether a webhook changed the object.
    pub(crate) async fn mutate(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        // First the lookups: the plugins below are synchronous, so everything they may have to wait for must be there already.
        self.prepare(name, object, old).await?;
        self.mutate_in_house(name, object, old)?;
        match self.hooks() {
            // Boxed because the future is large and most clusters have no webhook.
            Some(hooks) => Box::pin(self.mutate_by(hooks, name, object, old)).await,
            None => Ok(false),
        }
    }

    /// Runs the validating plugins, then the validating webhooks.
    pub(crate) async fn judge(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.admit(name, object, old, |plugin, ctx, request| {
            plugin.validate(ctx, request)
        })?;
        match self.hooks() {
            Some(hooks) => Box::pin(self.judge_by(hooks, name, object, old)).await,
            None => Ok(()),
        }
    }

    /// Returns whether a plugin or a webhook may want to see this write.
    fn is_wanted(&self) -> bool {
        let call = self.call;
        let action = call.action(self.operation);
        let mut plugins = call.server.plugins().iter();
        let of_plugins = plugins.any(|plugin| plugin.handles(&action));
        of_plugins
            || self.hooks.as_ref().is_some_and(|hooks| {
                let table = call.server.registry().table();
                let rows = table.rows().iter().map(|row| &*row.resource);
                // A webhook may name the same storage in another group or version (`matchPolicy: Equivalent`), so all its rows count.
                let same: Vec<&Resource> = rows
                    .filter(|other| other.storage == action.resource.storage)
                    .collect();
                hooks.may_want(
                    action.operation,
                    &same,
                    action.subresource.unwrap_or_default(),
                )
            })
    }

    /// Returns the webhooks to call. An eviction deletes the pod in the server's own name, which kube-apiserver does without admission.
    fn hooks(&self) -> Option<&Hooks> {
        let own = self.operation == Operation::Delete && self.call.subresource.is_some();
        self.hooks.as_deref().filter(|_| !own)
    }

    /// Lets every plugin start the lookups that it must wait for, and waits for them.
    async fn prepare(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let waits = RefCell::new(Vec::new());
        self.admit(name, object, old, |plugin, ctx, request| {
            waits.borrow_mut().extend(plugin.prepare(ctx, request));
            Ok(())
        })?;
        let waits = waits.into_inner();
        if !waits.is_empty() {
            // Boxed because hardly any write waits.
            Box::pin(self.call.without_turn(join_all(waits))).await;
        }
        Ok(())
    }

    fn mutate_in_house(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.admit(name, object, old, |plugin, ctx, request| {
            plugin.mutate(ctx, request)
        })
    }

    async fn mutate_by(
        &self,
        hooks: &Hooks,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        // The options and the user are the same in every review of this write, so both are made once.
        let said = ReviewContext::new(self);
        let warn = |text| self.call.warn(text);
        let subject = self.subject(&said, name, &warn)?;
        let mut rounds = Reinvocation::default();
        let asked = webhook::mutate(hooks, &subject, object, old, &mut rounds);
        self.call.without_turn(asked).await?;
        if rounds.changed {
            // kube-apiserver's reinvocation: the plugins run again on the object that a webhook has changed, but only once, so that
            // two mutators that undo each other cannot loop for ever.
            rounds.repeat();
            self.prepare(name, object, old).await?;
            self.mutate_in_house(name, object, old)?;
            let asked = webhook::mutate(hooks, &subject, object, old, &mut rounds);
            self.call.without_turn(asked).await?;
        }
        Ok(rounds.changed)
    }

    async fn judge_by(
        &self,
        hooks: &Hooks,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let said = ReviewContext::new(self);
        let warn = |text| self.call.warn(text);
        let subject = self.subject(&said, name, &warn)?;
        let asked = webhook::judge(hooks, &subject, object, old);
        self.call.without_turn(asked).await
    }

    fn subject<'s>(
        &'s self,
        said: &'s ReviewContext,
        name: &'s str,
        warn: &'s (dyn Fn(String) + Sync),
    ) -> Result<Subject<'s>, Status> {
        let call = self.call;
        let resource = call.resource();
        let is_namespace = resource.group.is_empty() && resource.plural == "namespaces";
        Ok(Subject {
            clients: call.server.webhooks().clients(),
            registry: call.server.registry(),
            authorizer: call.server.authorizer(),
            row: &call.row,
            user: &call.user,
            operation: self.operation,
            subresource: call.subresource.as_deref().unwrap_or_default(),
            form: self.form()?,
            namespace: match &call.namespace {
                Some(namespace) => namespace,
                None if is_namespace => name,
                None => "",
            },
            // Admission sees the deletion of a collection without a name.
            name: if self.operation == Operation::Delete {
                &call.name
            } else {
                name
            },
            dry_run: self.options.dry_run,
            options: &said.options,
            user_info: &said.user,
            deadline: call.deadline(),
            warn,
        })
    }

    /// Returns the type of the body that the call's endpoint takes.
    fn form(&self) -> Result<Form<'_>, Status> {
        let call = self.call;
        let name = call.subresource.as_deref();
        let mut parts = call.resource().subresources.iter();
        let part = name.and_then(|name| parts.find(|part| part.name == name));
        let Some(part) = part else {
            return Ok(Form::Whole);
        };
        match &part.handler {
            SubresourceHandler::Scale { .. } => scale::Paths::of(&part.handler)
                .map(Form::Scale)
                .ok_or_else(Status::no_such_path),
            SubresourceHandler::Named if self.operation == Operation::Connect => Ok(Form::Options),
            SubresourceHandler::Named => {
                let resource = call.resource();
                let version = part.version.unwrap_or(&resource.version);
                let api_version = match part.group.unwrap_or(&resource.group) {
                    "" => version.to_owned(),
                    group => format!("{group}/{version}"),
                };
                let schema = Type::builtin_kind(&api_version, &part.kind);
                let kind = &part.kind;
                schema
                    .map(Form::Body)
                    .ok_or_else(|| Status::internal(format!("{kind} is not in the schema table")))
            }
            SubresourceHandler::Status(_) | SubresourceHandler::Part(_) => Ok(Form::Whole),
        }
    }

    fn admit(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
        ask: impl Fn(&dyn Plugin, &Ctx<'_>, &mut Request<'_>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let call = self.call;
        let ctx = call.ctx(self.options.dry_run);
        let mut warnings = Vec::new();
        let mut request = Request {
            action: call.action(self.operation),
            namespace: call.namespace.as_deref(),
            name,
            object,
            old,
            warnings: &mut warnings,
        };
        // A refusal ends the loop but not the function: the warnings of the plugins before it still belong in the response.
        let mut asked = Ok(());
        for plugin in call.server.plugins() {
            if plugin.handles(&request.action) {
                asked = ask(&**plugin, &ctx, &mut request);
                if asked.is_err() {
                    break;
                }
            }
        }
        call.warn_all(warnings);
        asked
    }
}

/// Runs admission for a CONNECT to a subresource, with the connection's options in the place of an object.
pub(crate) async fn admit_connection(call: &Call, mut options: Value) -> Result<(), Status> {
    let write_options = WriteOptions {
        dry_run: false,
        manager: String::new(),
        validation: FieldValidation::Ignore,
        applies: false,
        deletion: None,
    };
    let admission = Admission::new(call, &write_options, Operation::Connect);
    admission.mutate(&call.name, &mut options, None).await?;
    admission.judge(&call.name, &mut options, None).await
}

/// The parts of an AdmissionReview besides the objects: the operation's options and the user.
struct ReviewContext {
    options: Value,
    user: Value,
}

impl ReviewContext {
    fn new(admission: &Admission<'_>) -> Self {
        let call = admission.call;
        ReviewContext {
            options: call.shown_options(admission.operation, admission.options),
            user: call.user.to_user_info(),
        }
    }
}

/// Releases what was allocated for a deleted object (IP addresses, ports), after its companion objects are gone.
pub(crate) async fn release(call: &Call, old: &Value) {
    let ctx = call.ctx(false);
    let released = call.resource().allocate(&ctx, &mut Value::Null, Some(old));
    if let Ok(mut allocation) = released {
        companions::settle(&call.server, allocation.companions(), call.now).await;
        allocation.commit();
    }
}

/// Returns the managedFields entry that a write to this part of the object belongs to.
pub(crate) fn writer<'a>(call: &'a Call, manager: &'a str, part: Part) -> ownership::Writer<'a> {
    ownership::Writer {
        manager,
        api_version: call.row.api_version(),
        subresource: call.subresource.as_deref(),
        resets_status: call.row.has_status_subresource(),
        resets: match part {
            // A status write to a custom resource restores all metadata, but an apply still owns the metadata that it names.
            Part::Status(rule) if !call.schema().is_custom() => rule.resets(),
            Part::Main => call.resource().rules.resets,
            Part::Status(_) | Part::Piece(_) => &[],
        },
        now: call.now,
    }
}

/// Records in managedFields which fields the write set. A server-side apply has done so itself.
pub(crate) fn own(
    call: &Call,
    options: &WriteOptions,
    part: Part,
    object: &mut Value,
    old: Option<&Value>,
) {
    if options.applies {
        return;
    }
    let writer = writer(call, &options.manager, part);
    ownership::track(call.schema(), &writer, object, old);
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

/// Serializes an object for the store and leaves it in stored form. The object may be folded.
pub(crate) fn draft(row: &Row, event: EventType, object: &mut Value) -> Draft {
    draft_from(row, event, object, None)
}

/// Serializes an object like [`draft`], and copies the raw field from the stored text.
fn draft_from(
    row: &Row,
    event: EventType,
    object: &mut Value,
    raw: Option<&RawFieldText<'_>>,
) -> Draft {
    row.to_stored(object);
    let fields = row.selectable_values(object);
    Draft::with_raw_field(event, object, raw, fields, row.collection.next_revision())
}

/// Builds the outcome for an object that was just stored, from the tree in stored form that it was serialized from.
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

/// Changes a stored object of any kind without validation and admission, and retries until no other write comes between. `change` gets
/// the object in served form and folded ([`ownership::fold`]); it may refuse, and returns `Ok(false)` if nothing has to change. Returns
/// the object as it is afterwards.
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
        request_limit::check(row, &change)?;
        if let Some(stored) = in_time(row.collection.commit(change, now).await)? {
            return Ok(Outcome::Stored(stored));
        }
    }
}

/// Maps the result of a commit: `None` if another write came first, a 500 if the change could not be persisted.
pub(crate) fn in_time<T>(committed: Result<T, CommitError>) -> Result<Option<T>, Status> {
    match committed {
        Ok(made) => Ok(Some(made)),
        Err(CommitError::Stale) => Ok(None),
        Err(error @ CommitError::NotStored(_)) => Err(Status::internal(error.to_string())),
    }
}

/// Does the same as [`modify`] without parsing all of the kind's raw field, of which `change` may set only `field`.
pub(crate) async fn modify_with_raw_field(
    row: &Row,
    now: Timestamp,
    key: &Key,
    raw_field: &'static RawField,
    field: &str,
    mut change: impl FnMut(&mut Value) -> Result<(), Status>,
) -> Result<(), Status> {
    loop {
        let stored = current(row, key)?;
        // Read again in every round: the text that is copied must be that of the version that the commit replaces.
        let (mut object, mut raw) = stored.parse_with_raw_field(raw_field);
        change(&mut object)?;
        raw.set(field, &object[raw_field.field][field]);
        raw.normalise_around(&row.resource.schema, &mut object);
        let draft = draft_from(row, EventType::Modified, &mut object, Some(&raw));
        let change = Change::Update(stored.clone(), draft);
        request_limit::check(row, &change)?;
        if in_time(row.collection.commit(change, now).await)?.is_some() {
            return Ok(());
        }
    }
}

fn current(row: &Row, key: &Key) -> Result<Arc<Object>, Status> {
    let found = row.collection.get(key.as_str());
    found.ok_or_else(|| Status::not_found(&row.resource, key.name()))
}
