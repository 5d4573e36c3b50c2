//! The admission of one write: the built-in plugins, then the webhooks.

use std::{cell::RefCell, sync::Arc};

use futures::future::join_all;
use mullion_kinds::{Resource, SubresourceHandler, request::Ctx};
use mullion_kube_text::status::Status;
use mullion_schema::Type;
use serde_json::Value;

use crate::{
    admission::{
        Operation, Plugin, Request,
        webhook::{self, Form, Hooks, Reinvocation, Subject},
    },
    http::call::{Call, WriteOptions},
    object::scale,
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
        self.await_lookups(name, object, old).await?;
        self.mutate_by_plugins(name, object, old)?;
        match self.hooks() {
            // Boxed because the future is large and most clusters have no webhook.
            Some(hooks) => Box::pin(self.mutate_by_webhooks(hooks, name, object, old)).await,
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
            Some(hooks) => Box::pin(self.judge_by_webhooks(hooks, name, object, old)).await,
            None => Ok(()),
        }
    }

    /// Returns whether a plugin or a webhook may want to see this write.
    pub(super) fn is_wanted(&self) -> bool {
        let call = self.call;
        let action = call.action(self.operation);
        let mut plugins = call.server.plugins().iter();
        plugins.any(|plugin| plugin.handles(&action))
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
        let evicts = self.operation == Operation::Delete && self.call.subresource.is_some();
        self.hooks.as_deref().filter(|_| !evicts)
    }

    /// Lets every plugin start the lookups that it must wait for, and waits for them.
    async fn await_lookups(
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

    fn mutate_by_plugins(
        &self,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        self.admit(name, object, old, |plugin, ctx, request| {
            plugin.mutate(ctx, request)
        })
    }

    async fn mutate_by_webhooks(
        &self,
        hooks: &Hooks,
        name: &str,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<bool, Status> {
        // The options and the user are the same in every review of this write, so both are made once.
        let review = ReviewContext::new(self);
        let warn = |text| self.call.warn(text);
        let subject = self.subject(&review, name, &warn)?;
        let mut rounds = Reinvocation::default();
        let calls = webhook::mutate(hooks, &subject, object, old, &mut rounds);
        self.call.without_turn(calls).await?;
        if rounds.changed {
            // kube-apiserver's reinvocation: the plugins run again on the object that a webhook has changed, but only once, so that
            // two mutators that undo each other cannot loop for ever.
            rounds.repeat();
            self.await_lookups(name, object, old).await?;
            self.mutate_by_plugins(name, object, old)?;
            let calls = webhook::mutate(hooks, &subject, object, old, &mut rounds);
            self.call.without_turn(calls).await?;
        }
        Ok(rounds.changed)
    }

    async fn judge_by_webhooks(
        &self,
        hooks: &Hooks,
        name: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let review = ReviewContext::new(self);
        let warn = |text| self.call.warn(text);
        let subject = self.subject(&review, name, &warn)?;
        let calls = webhook::judge(hooks, &subject, object, old);
        self.call.without_turn(calls).await
    }

    fn subject<'s>(
        &'s self,
        review: &'s ReviewContext,
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
            options: &review.options,
            user_info: &review.user,
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

    /// Asks each plugin that handles the request, until one refuses.
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
        let mut admitted = Ok(());
        for plugin in call.server.plugins() {
            if plugin.handles(&request.action) {
                admitted = ask(&**plugin, &ctx, &mut request);
                if admitted.is_err() {
                    break;
                }
            }
        }
        call.warn_all(warnings);
        admitted
    }
}

/// Runs admission for a CONNECT to a subresource, with the connection's options in the place of an object.
pub(crate) async fn admit_connection(call: &Call, mut options: Value) -> Result<(), Status> {
    let write_options = WriteOptions::without_query("");
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
