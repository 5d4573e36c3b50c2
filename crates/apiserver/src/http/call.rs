//! One request for an object or a collection: its target, its user, its options, and the warnings that go with its response.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use http::{HeaderMap, header::USER_AGENT};
use jiff::Timestamp;
use mullion_kinds::{
    Resource,
    request::{Ctx, User, warnings::Warnings},
};
use mullion_kube_text::{
    field::{Emptied, Errors, Path},
    status::Status,
    validation::metadata,
};
use mullion_schema::{Type, tree::Tree};
use mullion_store::{Key, Object};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    apply, arrival::Patience, delete::DeleteOptions, negotiate::Form, path::ObjectPath,
    subresource::streams::Upgrade,
};
use crate::{
    admission::{Action, Operation},
    limits::{MemoryPermit, SeatPermit, Worker},
    registry::Row,
    request::query::Query,
    state::ApiServer,
};

/// The time that all webhooks together have for one request without a deadline of its own (kube-apiserver: --request-timeout).
const WEBHOOKS: Duration = Duration::from_secs(60);

/// A routed and authenticated request.
pub(crate) struct Call {
    pub server: Arc<ApiServer>,
    pub row: Arc<Row>,
    pub namespace: Option<String>,
    /// The object's name; empty for a collection.
    pub name: String,
    pub subresource: Option<String>,
    /// The part of the path after `proxy` ([`ObjectPath::proxied`]).
    pub proxied: String,
    pub user: User,
    pub now: Timestamp,
    pub query: Query,
    pub headers: HeaderMap,
    pub form: Form,
    /// Whether the request came over a socket, and not from a client in this process.
    pub on_network: bool,
    /// Whether the request is a PATCH.
    pub patches: bool,
    /// The deadline of the response, and whether the client still waits for it.
    pub patience: Patience,
    /// The request's seat among the requests that run at once, if it needs one.
    turn: Mutex<Option<SeatPermit>>,
    /// The permit of a large request to occupy a thread.
    worker: Mutex<Option<Worker>>,
    /// The permit for the memory that the request's body takes.
    pub room: Option<MemoryPermit>,
    /// Whether the request skips all queues: an administrator's, or one of a client in this process.
    pub is_exempt: bool,
    /// The time by which webhooks must have answered: the request's own deadline, or for a client in this process a fixed time after the
    /// first webhook was called.
    deadline: OnceLock<Instant>,
    /// The connection, if it can be upgraded to another protocol.
    pub upgrade: Option<Upgrade>,
    warnings: Mutex<Warnings>,
    sent: Mutex<Sent>,
}

/// What the object that is being written was sent with, and its JSON does not show.
#[derive(Clone, Debug, Default)]
struct Sent {
    /// The fields that were sent as empty values.
    emptied: Emptied,
    /// Whether the object was sent without labels.
    is_unlabelled: bool,
}

/// The options of a write, from the query.
#[derive(Clone, Debug)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    pub manager: String,
    pub validation: FieldValidation,
    /// Whether the write is a server-side apply, which has set managedFields already.
    pub applies: bool,
    /// The DeleteOptions of a deletion, as admission webhooks see them.
    pub deletion: Option<DeleteOptions>,
}

impl WriteOptions {
    /// Returns the options of a write without a query: a deletion, a connection, or a write of the server itself.
    pub(crate) fn without_query(manager: &str) -> Self {
        WriteOptions {
            dry_run: false,
            manager: manager.to_owned(),
            validation: FieldValidation::Ignore,
            applies: false,
            deletion: None,
        }
    }
}

/// The `fieldValidation` option: how to treat fields that the schema does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl Call {
    pub(crate) fn new(
        server: Arc<ApiServer>,
        row: Arc<Row>,
        path: &ObjectPath<'_>,
        user: User,
        query: Query,
        headers: HeaderMap,
        form: Form,
    ) -> Self {
        Call {
            now: server.now(),
            server,
            row,
            namespace: path.namespace.map(str::to_owned),
            name: path.name.unwrap_or_default().to_owned(),
            subresource: path.subresource.map(str::to_owned),
            proxied: path.proxied.clone(),
            user,
            query,
            headers,
            form,
            on_network: false,
            patches: false,
            patience: Patience::default(),
            turn: Mutex::default(),
            worker: Mutex::default(),
            room: None,
            is_exempt: true,
            deadline: OnceLock::new(),
            upgrade: None,
            warnings: Mutex::default(),
            sent: Mutex::default(),
        }
    }

    pub(crate) fn resource(&self) -> &Resource {
        &self.row.resource
    }

    pub(crate) fn schema(&self) -> &Type {
        &self.row.resource.schema
    }

    /// Returns the 422 for an object of the call's kind. kube-apiserver validates the stored form, so the error names that form's group.
    pub(crate) fn invalid(&self, name: &str, errors: &Errors) -> Status {
        let group = self
            .row
            .stored_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        Status::invalid_kind(group, &self.resource().kind, name, errors)
    }

    /// Returns the key of an object in the request's namespace.
    pub(crate) fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.as_deref(), name)
    }

    /// Returns the stored object that the path names, or 404.
    pub(crate) fn stored(&self) -> Result<Arc<Object>, Status> {
        let found = self.row.collection.get(self.key(&self.name).as_str());
        found.ok_or_else(|| Status::not_found(self.resource(), &self.name))
    }

    /// Builds the context that kinds and admission plugins get.
    pub(crate) fn ctx(&self, dry_run: bool) -> Ctx<'_> {
        Ctx {
            now: self.now,
            user: &self.user,
            lookup: &**self.server.registry(),
            authorizer: &**self.server.authorizer(),
            namespace: self.namespace.as_deref().unwrap_or_default(),
            path_name: &self.name,
            patches: self.patches,
            dry_run,
            warnings: &self.warnings,
            emptied: self.emptied(),
            is_unlabelled: self.sent().is_unlabelled,
        }
    }

    /// Returns the fields that the object being written was sent with as empty values.
    pub(crate) fn emptied(&self) -> Emptied {
        self.sent().emptied
    }

    fn sent(&self) -> Sent {
        let sent = self.sent.lock();
        sent.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records what an object was sent with, once it is decoded and before it gets its defaults.
    pub(crate) fn note_sent(&self, object: &Value, emptied: Emptied) {
        let is_unlabelled = object["metadata"].entries("labels").next().is_none();
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Sent {
            emptied,
            is_unlabelled,
        };
    }

    /// Records that the object was encoded and decoded again, which loses the difference between empty and absent fields.
    pub(crate) fn note_recoded(&self) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner) = Sent::default();
    }

    /// Describes the request to admission plugins.
    pub(crate) fn action(&self, operation: Operation) -> Action<'_> {
        Action {
            operation,
            resource: self.resource(),
            subresource: self.subresource.as_deref(),
        }
    }

    /// Adds a `Warning` header; a repeated text is added only once.
    pub(crate) fn warn(&self, text: impl Into<String>) {
        self.warnings().add(text.into());
    }

    /// Adds several warnings, as far as they fit into headers.
    pub(crate) fn warn_all(&self, texts: impl IntoIterator<Item = String>) {
        self.warnings().extend(texts);
    }

    /// Takes the warnings that were added so far.
    pub(crate) fn take_warnings(&self) -> Warnings {
        std::mem::take(&mut *self.warnings())
    }

    fn warnings(&self) -> MutexGuard<'_, Warnings> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parses the options of a write from the query; `kind` names the options in errors.
    pub(crate) fn write_options(&self, kind: &str) -> Result<WriteOptions, Status> {
        let mut errors = Errors::default();
        // kube-apiserver (ValidatePatchOptions): only an apply can take fields over from other managers.
        if kind == "PatchOptions"
            && !apply::is_apply(&self.headers)
            && self.query.get("force").is_some()
        {
            errors.forbidden(
                &Path::new("force"),
                "may not be specified for non-apply patch",
            );
        }
        let (given, at) = (
            self.query.get("fieldManager").unwrap_or_default(),
            &Path::new("fieldManager"),
        );
        if given.is_empty() && kind == "PatchOptions" && apply::is_apply(&self.headers) {
            errors.required(at, "is required for apply patch");
        }
        metadata::field_manager(&mut errors, at, given);
        let dry_run = check_dry_run(self.query.all("dryRun"), &mut errors);
        let validation = match self.query.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.not_supported_text(
                    &Path::new("fieldValidation"),
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                );
                // Any value, because the error above ends the request.
                FieldValidation::Warn
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid_kind("meta.k8s.io", kind, "", &errors));
        }
        // kube-apiserver names a writer without a fieldManager by its User-Agent, or managedFields could not tell clients apart.
        let manager = if given.is_empty() {
            self.user_agent_prefix()
        } else {
            given.to_owned()
        };
        Ok(WriteOptions {
            dry_run,
            manager,
            validation,
            applies: false,
            deletion: None,
        })
    }

    /// Returns an error if the deadline has passed or the client no longer waits for the response.
    pub(crate) fn go_on(&self) -> Result<(), Status> {
        self.patience.check()
    }

    /// Gives the call its seat, which it keeps until the response is made.
    pub(crate) fn take_turn(&self, turn: SeatPermit) {
        *self.turn() = Some(turn);
    }

    /// Waits for a large request's permit to occupy a thread.
    pub(crate) async fn take_worker(&self) {
        let worker = self.server.gate().worker().await;
        *self.worker.lock().unwrap_or_else(PoisonError::into_inner) = worker;
    }

    /// Waits for memory among the large responses that are being sent. Returns `None` for exempt requests, and when the deadline passes.
    pub(crate) async fn answer_room(&self, bytes: usize) -> Option<MemoryPermit> {
        if self.is_exempt {
            return None;
        }
        let gate = self.server.gate().clone();
        // Without the seat: small requests must go on while large responses wait for memory.
        let room = self.without_turn(async move { gate.answer_room(bytes).await });
        let room = self.patience.bound(async { Ok(room.await) }).await;
        room.ok().flatten()
    }

    fn turn(&self) -> MutexGuard<'_, Option<SeatPermit>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, which waits for a party outside this request, and releases the seat and the thread meanwhile: that party may be a
    /// client of this server and need them. The seat is kept where too many requests wait already.
    pub(crate) async fn without_turn<T>(&self, work: impl Future<Output = T>) -> T {
        let worker = self
            .worker
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let is_large = worker.is_some();
        // Another large request may have the thread while this one waits.
        drop(worker);
        // The thread is taken before the seat, in the same order as when the call began: a request with a seat must be able to run.
        let work = async {
            let done = work.await;
            if is_large {
                self.take_worker().await;
            }
            done
        };
        self.between_turns(work).await
    }

    async fn between_turns<T>(&self, work: impl Future<Output = T>) -> T {
        let gate = self.server.gate();
        let Some(turn) = self.turn().take() else {
            return work.await;
        };
        // The queue is full, so a released seat could not be had back in time; waiting with the seat is the lesser harm.
        let Ok(place) = gate.place() else {
            self.take_turn(turn);
            return work.await;
        };
        drop(turn);
        let done = work.await;
        drop(place);
        // A call that gets no seat back goes on all the same: its webhooks have run, and refusing it now would waste their work.
        if let Ok(turn) = gate.turn().await {
            self.take_turn(turn);
        }
        done
    }

    /// Returns the time by which webhooks must have answered.
    pub(crate) fn deadline(&self) -> Instant {
        let of_webhooks = || Instant::now() + WEBHOOKS;
        let deadline = || self.patience.deadline().unwrap_or_else(of_webhooks);
        *self.deadline.get_or_init(deadline)
    }

    /// Returns the options of an operation as admission webhooks see them. A patch shows the options of the create or update that it
    /// results in.
    pub(crate) fn shown_options(&self, operation: Operation, options: &WriteOptions) -> Value {
        let kind = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => {
                let deletion = options.deletion.as_ref();
                return deletion.map(DeleteOptions::shown).unwrap_or_default();
            }
            Operation::Connect => return Value::Null,
        };
        let mut shown = Map::new();
        shown.insert("kind".into(), kind.into());
        shown.insert("apiVersion".into(), "meta.k8s.io/v1".into());
        if options.dry_run {
            shown.insert("dryRun".into(), json!(["All"]));
        }
        for field in ["fieldManager", "fieldValidation"] {
            let given = self.query.get(field).unwrap_or_default();
            if !given.is_empty() {
                shown.insert(field.into(), given.into());
            }
        }
        shown.into()
    }

    /// Returns the default field manager: the User-Agent up to the first slash, at most 128 characters.
    fn user_agent_prefix(&self) -> String {
        let agent = self
            .headers
            .get(USER_AGENT)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let prefix = agent.split('/').next().unwrap_or_default();
        if prefix.is_empty() {
            "unknown".to_owned()
        } else {
            prefix.chars().take(128).collect()
        }
    }
}

/// Parses `dryRun`; the only valid value is `All`.
pub(crate) fn check_dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
    errors: &mut Errors,
) -> bool {
    let values: Vec<&str> = values.collect();
    if values.iter().any(|value| *value != "All") {
        errors.not_supported(&Path::new("dryRun"), values.clone(), &["All"]);
    }
    !values.is_empty()
}
