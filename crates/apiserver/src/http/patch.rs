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
    write::{self, Part, Source},
};
use crate::{
    schema::{Type, decode, merge},
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
        let undecodable = |why: String| Status::bad_request(format!("error decoding patch: {why}"));
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
    pub(crate) fn apply(&self, schema: &Type, old: &Value) -> Result<Value, Status> {
        match self {
            Patch::Json(patch) => merge::json_patch(old, patch),
            Patch::Merge(patch) => Ok(merge::json_merge(old, patch)),
            Patch::Strategic(patch) => merge::strategic(schema, old, patch),
        }
    }

    /// The refusal of a result that does not fit the type.
    pub(crate) fn unfit(&self, tree: &Value, why: &dyn Display) -> Status {
        match self {
            Patch::Strategic(patch) => merge::unfit(&merge::go_text(patch), &why),
            _ => merge::unfit(&tree.to_string(), &why),
        }
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
        patch,
        validation: options.validation,
    };
    let (code, outcome) = write::update(call, &options, part, &source).await?;
    reply::outcome(call, code, outcome)
}

struct Patched {
    patch: Patch,
    validation: FieldValidation,
}

impl Source for Patched {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        let mut object = body::patched(
            call,
            &body::Expected::object(&call.row),
            &self.patch,
            old,
            self.validation,
        )?;
        call.resource().behaviour.default(&mut object);
        update::check_name(call, &object)?;
        metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
        Ok(object)
    }
}
