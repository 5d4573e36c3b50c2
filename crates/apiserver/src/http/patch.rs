//! PATCH: JSON patch, merge patch and strategic merge patch against the stored object, tried again when another write comes between.

use std::fmt::Display;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use serde_json::Value;

use super::{
    apply, body,
    call::{Call, FieldValidation},
    metadata, reply, update,
    write::{self, Part, STATUS_FIELDS, Source},
};
use crate::{
    schema::{Type, decode, merge, ownership},
    status::Status,
};

/// A parsed patch.
pub(crate) enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Reads a patch by its media type. Custom resources have no strategic merge.
    pub(crate) fn parse(headers: &HeaderMap, custom: bool, bytes: &Bytes) -> Result<Self, Status> {
        let given = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let (wrap, go_type): (fn(Value) -> Patch, _) =
            match given.split(';').next().unwrap_or_default().trim() {
                "application/json-patch+json" => (Patch::Json, "[]handlers.jsonPatchOp"),
                "application/merge-patch+json" => (Patch::Merge, "map[string]interface {}"),
                "application/strategic-merge-patch+json" if !custom => {
                    (Patch::Strategic, "map[string]interface {}")
                }
                _ => return Err(unsupported()),
            };
        let strategic = given.starts_with("application/strategic-merge-patch+json");
        let undecodable = |why: String| {
            Status::bad_request(if strategic {
                why
            } else {
                format!("error decoding patch: {why}")
            })
        };
        let (patch, _) =
            decode::untyped_json(bytes).map_err(|error| undecodable(error.to_string()))?;
        let fits = if go_type.starts_with('[') {
            patch.is_array()
        } else {
            patch.is_object()
        };
        if !fits {
            let found = match &patch {
                Value::Null => "null",
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            return Err(undecodable(format!(
                "json: cannot unmarshal {found} into Go value of type {go_type}"
            )));
        }
        Ok(wrap(patch))
    }

    /// The patched tree, not decoded yet.
    pub(crate) fn apply(&self, schema: &Type, old: Value) -> Result<Value, Status> {
        match self {
            Patch::Json(patch) => merge::json_patch(&old, patch),
            Patch::Merge(patch) => Ok(merge::json_merge(&old, patch)),
            Patch::Strategic(patch) => merge::strategic(schema, old, patch),
        }
    }

    /// Whether it names no other fields of the object than these; a JSON patch can name anything.
    fn is_limited_to(&self, fields: &[&str]) -> bool {
        match self {
            Patch::Json(_) => false,
            Patch::Merge(patch) | Patch::Strategic(patch) => patch
                .as_object()
                .is_some_and(|patch| patch.keys().all(|field| fields.contains(&&**field))),
        }
    }

    /// Whether it says nothing of managedFields, so that they stay as they are.
    fn spares_owners(&self) -> bool {
        match self {
            Patch::Json(_) => false,
            Patch::Merge(patch) | Patch::Strategic(patch) => patch
                .get("metadata")
                .is_none_or(|metadata| metadata.get("managedFields").is_none()),
        }
    }

    /// The refusal of a result that does not fit the type.
    pub(crate) fn unfit(&self, schema: &Type, tree: &Value, why: &dyn Display) -> Status {
        let text = match self {
            Patch::Strategic(patch) => merge::go_text(patch),
            Patch::Merge(patch) => merge::document(schema, tree, patch),
            Patch::Json(patch) => merge::document(schema, tree, &merge::json_patch_visits(patch)),
        };
        merge::unfit(&text, &why)
    }
}

fn unsupported() -> Status {
    let mut status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    status.details = Some(Box::default());
    status
}

pub(crate) async fn patch(call: &Call, part: Part, body: Body) -> Result<Response<Body>, Status> {
    if apply::is_apply(&call.headers) {
        return apply::apply(call, part, &body::read(body).await?).await;
    }
    let options = call.write_options("PatchOptions")?;
    let bytes = body::read(body).await?;
    let patch = Patch::parse(&call.headers, call.row.custom, &bytes)?;
    let source = Patched {
        only_status: matches!(part, Part::Status(_)) && !call.row.custom,
        patch,
        validation: options.validation,
    };
    let (code, outcome) = write::update(call, &options, part, &source).await?;
    reply::outcome(call, code, outcome)
}

struct Patched {
    patch: Patch,
    /// Of the rest only what is stored will be left ([`Part::Status`]).
    only_status: bool,
    validation: FieldValidation,
}

impl Source for Patched {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        // Copying and decoding what is going to be put back is most of the work of a small patch. A refusal shows the whole object, so a
        // patch that is refused is tried again on all of it.
        let only_status = self.is_status_alone();
        let is_part = |field: &str| !only_status || STATUS_FIELDS.contains(&field);
        if self.patch.spares_owners()
            && let Ok(mut object) = self.patched(call, || without_owners(old, is_part))
        {
            if only_status {
                write::keep_fields(&mut object, old, |field| !is_part(field));
            }
            return complete(call, object);
        }
        let mut whole = old.clone();
        ownership::unfold(&mut whole);
        complete(call, self.patched(call, || whole.clone())?)
    }

    fn is_status_alone(&self) -> bool {
        self.only_status && self.patch.is_limited_to(STATUS_FIELDS)
    }
}

impl Patched {
    fn patched(&self, call: &Call, old: impl Fn() -> Value) -> Result<Value, Status> {
        body::patched(
            call,
            &body::Expected::object(&call.row),
            &self.patch,
            old,
            self.validation,
        )
    }
}

/// Defaults a patched object and checks that it still is the one that was asked for.
fn complete(call: &Call, mut object: Value) -> Result<Value, Status> {
    call.resource().behaviour.default(&mut object);
    update::check_name(call, &object)?;
    metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
    Ok(object)
}

/// Some fields of an object, without its managedFields.
fn without_owners(old: &Value, is_part: impl Fn(&str) -> bool) -> Value {
    let Some(old) = old.as_object() else {
        return Value::Null;
    };
    let fields = old.iter().filter(|(field, _)| is_part(field));
    let fields = fields.map(|(field, value)| {
        let value = match (&**field, value) {
            ("metadata", Value::Object(metadata)) => metadata
                .iter()
                .filter(|(key, _)| *key != "managedFields")
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            (_, value) => value.clone(),
        };
        (field.clone(), value)
    });
    Value::Object(fields.collect())
}
