//! `metav1.Status`: the error type of the whole server, with the reasons, codes, details and messages that clients depend on.

use std::{borrow::Cow, sync::Arc};

use serde_json::{Map, Value, json};

use crate::{
    field::{ErrorType, Errors, FieldError},
    golang::quote,
};

/// The names of a resource that error responses mention.
pub trait ResourceNames {
    /// Returns the API group, empty for the core group.
    fn group(&self) -> &str;
    /// Returns the plural, for example `pods`.
    fn plural(&self) -> &str;
    /// Returns the kind, for example `Pod`.
    fn kind(&self) -> &str;
}

/// Returns `name.group`, and only the name for the core group.
fn qualified(group: &str, name: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

impl<T: ResourceNames + ?Sized> ResourceNames for Arc<T> {
    fn group(&self) -> &str {
        (**self).group()
    }

    fn plural(&self) -> &str {
        (**self).plural()
    }

    fn kind(&self) -> &str {
        (**self).kind()
    }
}

/// An error response.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, for example `NotFound`.
    pub reason: Cow<'static, str>,
    /// The human-readable message.
    pub message: String,
    /// Details for programs.
    pub details: Option<Box<Details>>,
    /// The metadata: the `continue` token of an expired list, or what a webhook set.
    pub metadata: Map<String, Value>,
}

/// The `details` of a Status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// The object's name.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The resource's plural, or the kind for `Invalid`.
    pub kind: String,
    /// The object's uid.
    pub uid: String,
    /// The individual errors.
    pub causes: Vec<Cause>,
    /// The seconds after which to retry; 0 is omitted.
    pub retry_after_seconds: u32,
}

/// One error among the causes of a refusal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cause {
    /// The machine-readable reason, for example `FieldValueInvalid`.
    pub reason: String,
    /// The human-readable message.
    pub message: String,
    /// The field's path.
    pub field: String,
}

impl Status {
    /// Creates an error with code, reason and message only.
    pub fn new(
        code: u16,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Status {
            code,
            reason: reason.into(),
            message: message.into(),
            details: None,
            metadata: Map::new(),
        }
    }

    fn about(mut self, resource: &dyn ResourceNames, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: resource.group().to_owned(),
            kind: resource.plural().to_owned(),
            ..Details::default()
        }));
        self
    }

    /// Returns a 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Status::new(400, "BadRequest", message)
    }

    /// Returns the 404 for an object.
    pub fn not_found(resource: &dyn ResourceNames, name: &str) -> Self {
        Status::new(
            404,
            "NotFound",
            format!(
                "{} {} not found",
                qualified(resource.group(), resource.plural()),
                quote(name)
            ),
        )
        .about(resource, name)
    }

    /// Returns the 404 for an object of the core group that a request refers to.
    pub fn core_not_found(plural: &str, name: &str) -> Self {
        let mut status = Status::new(
            404,
            "NotFound",
            format!("{plural} {} not found", quote(name)),
        );
        status.details = Some(Box::new(Details {
            name: name.to_owned(),
            kind: plural.to_owned(),
            ..Details::default()
        }));
        status
    }

    /// Returns the 404 for a path that nothing serves.
    pub fn no_such_path() -> Self {
        let mut status = Status::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        status.details = Some(Box::default());
        status
    }

    /// Returns the 405 for a verb that a custom resource or a subresource of it does not have.
    pub fn not_supported(resource: &dyn ResourceNames, verb: &str) -> Self {
        let (group, plural) = (resource.group(), resource.plural());
        let message = format!("{verb} is not supported on resources of kind \"{plural}.{group}\"");
        let mut status = Status::new(405, "MethodNotAllowed", message);
        status.details = Some(Box::new(Details {
            group: group.to_string(),
            kind: plural.to_string(),
            ..Details::default()
        }));
        status
    }

    /// Returns the 409 for a name that is taken.
    pub fn already_exists(resource: &dyn ResourceNames, name: &str) -> Self {
        Status::new(
            409,
            "AlreadyExists",
            format!(
                "{} {} already exists",
                qualified(resource.group(), resource.plural()),
                quote(name)
            ),
        )
        .about(resource, name)
    }

    /// Returns the 409 for a write that does not match the stored state.
    pub fn conflict(resource: &dyn ResourceNames, name: &str, why: &str) -> Self {
        Status::conflict_kind(resource.group(), resource.plural(), name, why)
    }

    /// Returns a 409 whose details name a kind instead of a resource.
    pub fn conflict_kind(group: &str, kind: &str, name: &str, why: &str) -> Self {
        let subject = qualified(group, kind);
        let message = format!(
            "Operation cannot be fulfilled on {subject} {}: {why}",
            quote(name)
        );
        let mut status = Status::new(409, "Conflict", message);
        status.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        }));
        status
    }

    /// Returns a 403.
    pub fn forbidden(resource: &dyn ResourceNames, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!(
                "{} is forbidden: {why}",
                qualified(resource.group(), resource.plural())
            )
        } else {
            format!(
                "{} {} is forbidden: {why}",
                qualified(resource.group(), resource.plural()),
                quote(name)
            )
        };
        Status::new(403, "Forbidden", message).about(resource, name)
    }

    /// Returns a 422 with one cause per error.
    pub fn invalid(resource: &dyn ResourceNames, name: &str, errors: &Errors) -> Self {
        Status::invalid_kind(resource.group(), resource.kind(), name, errors)
    }

    /// Returns a 422 for a kind that is not a resource (DeleteOptions, ListOptions).
    pub fn invalid_kind(group: &str, kind: &str, name: &str, errors: &Errors) -> Self {
        let qualified = qualified(group, kind);
        let all = errors.aggregate();
        let mut status = Status::new(
            422,
            "Invalid",
            format!("{qualified} {} is invalid: {all}", quote(name)),
        );
        status.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            causes: errors.0.iter().map(cause).collect(),
            ..Details::default()
        }));
        status
    }

    /// Returns a 500.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let mut status = Status::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        status.details = Some(Box::new(Details {
            causes: vec![Cause {
                message,
                ..Cause::default()
            }],
            ..Details::default()
        }));
        status
    }

    /// Returns the JSON body.
    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": self.metadata,
            "status": "Failure", "message": self.message, "reason": self.reason, "code": self.code,
        });
        if self.reason.is_empty() {
            body.as_object_mut().map(|body| body.remove("reason"));
        }
        if let Some(details) = &self.details {
            body["details"] = details.to_json();
        }
        body
    }
}

impl Details {
    fn to_json(&self) -> Value {
        let mut out = Map::new();
        for (key, value) in [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ] {
            if !value.is_empty() {
                out.insert(key.into(), value.as_str().into());
            }
        }
        if !self.causes.is_empty() {
            out.insert(
                "causes".into(),
                self.causes.iter().map(Cause::to_json).collect(),
            );
        }
        if self.retry_after_seconds > 0 {
            out.insert("retryAfterSeconds".into(), self.retry_after_seconds.into());
        }
        Value::Object(out)
    }
}

impl Cause {
    fn to_json(&self) -> Value {
        let mut out = Map::new();
        for (key, value) in [
            ("reason", &self.reason),
            ("message", &self.message),
            ("field", &self.field),
        ] {
            if !value.is_empty() {
                out.insert(key.into(), value.as_str().into());
            }
        }
        Value::Object(out)
    }
}

/// Returns the entry of a Status for a validation error.
fn cause(error: &FieldError) -> Cause {
    let reason = match error.error_type {
        ErrorType::Required => "FieldValueRequired",
        ErrorType::Invalid => "FieldValueInvalid",
        ErrorType::NotSupported => "FieldValueNotSupported",
        ErrorType::Duplicate => "FieldValueDuplicate",
        ErrorType::Forbidden => "FieldValueForbidden",
        ErrorType::TooLong => "FieldValueTooLong",
        ErrorType::TooMany => "FieldValueTooMany",
        ErrorType::NotFound => "FieldValueNotFound",
        ErrorType::TypeInvalid => "FieldValueTypeInvalid",
        ErrorType::Internal => "InternalError",
    };
    Cause {
        reason: reason.to_owned(),
        message: error.body(),
        field: error.field.clone(),
    }
}
