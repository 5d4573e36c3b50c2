//! PATCH: applies a JSON patch, merge patch or strategic merge patch to the stored object, and retries when another write came in
//! between.

use std::fmt::Display;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use mullion_kube_text::status::Status;
use mullion_schema::{
    Type,
    decode::{self, Problem},
    merge, ownership,
};
use serde_json::{Map, Value};

use super::{
    apply, body,
    call::{Call, FieldValidation},
    reply, update,
    write::{self, Part, STATUS_FIELDS, Source},
};
use crate::object::{metadata, type_meta::Expected};

/// The types of patches, from the Content-Type; server-side apply is handled elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchKind {
    Json,
    Merge,
    Strategic,
}

impl PatchKind {
    /// Returns the patch type of a request, or 415. Custom resources have no strategic merge patch.
    pub(crate) fn of(headers: &HeaderMap, custom: bool) -> Result<Self, Status> {
        let given = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        match given.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(PatchKind::Json),
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/strategic-merge-patch+json" if !custom => Ok(PatchKind::Strategic),
            _ => Err(unsupported(custom)),
        }
    }
}

/// A parsed patch, and the problems that strict field validation reports in it.
pub(crate) struct Patch {
    form: Form,
    problems: Vec<Problem>,
}

enum Form {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

impl Patch {
    /// Parses a patch. The caller reports an error only once the object to patch has been found, as kube-apiserver does: 404 comes first.
    pub(crate) fn parse(
        kind: PatchKind,
        validation: FieldValidation,
        bytes: &Bytes,
    ) -> Result<Self, Status> {
        let is_read_twice = validation != FieldValidation::Ignore;
        let told = |why: &str| {
            Status::bad_request(match kind {
                PatchKind::Json | PatchKind::Merge if is_read_twice => {
                    format!("error decoding patch: {why}")
                }
                PatchKind::Merge => "Invalid JSON Patch".to_owned(),
                PatchKind::Json | PatchKind::Strategic => why.to_owned(),
            })
        };
        let (patch, mut problems) =
            decode::untyped_json(bytes).map_err(|error| told(&error.to_string()))?;
        if !is_read_twice && kind == PatchKind::Json {
            no_json_patch(&patch).map_or(Ok(()), |why| Err(Status::bad_request(why)))?;
        }
        let form = match kind {
            PatchKind::Json => {
                let misfit = merge::json_patch_misfit(&patch);
                // With `fieldValidation=Ignore` kube-apiserver decodes the patch without types.
                let misfit =
                    misfit.filter(|_| validation != FieldValidation::Ignore || !patch.is_array());
                if let Some(why) = misfit {
                    return Err(told(&why));
                }
                problems.extend(unknown_members(&patch));
                let in_patch = |problem| Problem::InPatch(Box::new(problem));
                problems = problems.into_iter().map(in_patch).collect();
                Form::Json(patch)
            }
            PatchKind::Merge if patch.is_object() => Form::Merge(patch),
            // With `fieldValidation=Ignore` a list may replace the whole document.
            PatchKind::Merge if !is_read_twice && patch.is_array() => Form::Merge(patch),
            PatchKind::Merge if patch.is_null() => {
                return Err(Status::bad_request("Invalid JSON Patch"));
            }
            PatchKind::Strategic if patch.is_object() => Form::Strategic(patch),
            // Go decodes null into an empty map, which changes nothing.
            PatchKind::Strategic if patch.is_null() => Form::Strategic(Value::Object(Map::new())),
            PatchKind::Merge | PatchKind::Strategic => {
                let found = decode::json_kind(&patch);
                return Err(told(&format!(
                    "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
                )));
            }
        };
        Ok(Patch { form, problems })
    }

    /// Returns whether this is a strategic merge patch, whose result kube-apiserver does not decode from JSON.
    pub(crate) fn is_strategic(&self) -> bool {
        matches!(self.form, Form::Strategic(_))
    }

    /// Returns the problems that strict field validation reports in the patch itself.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Converts the numbers of a patched tree as kube-apiserver does for a strategic merge, which goes into Go's struct without JSON in
    /// between.
    pub(crate) fn settle(&self, schema: &Type, tree: &mut Value) {
        if matches!(self.form, Form::Strategic(_)) {
            decode::convert_numbers(schema, tree);
        }
    }

    /// Applies the patch and returns the tree, not decoded yet.
    pub(crate) fn apply(&self, schema: &Type, old: Value) -> Result<Value, Status> {
        match &self.form {
            Form::Json(patch) => Ok(merge::json_patch(&old, patch)?),
            Form::Merge(patch) => Ok(merge::json_merge(&old, patch)),
            Form::Strategic(patch) => merge::strategic(schema, old, patch),
        }
    }

    /// Returns whether the patch names no top-level fields but these. A JSON patch may name any.
    fn is_limited_to(&self, fields: &[&str]) -> bool {
        match &self.form {
            Form::Json(_) => false,
            Form::Merge(patch) | Form::Strategic(patch) => patch
                .as_object()
                .is_some_and(|patch| patch.keys().all(|field| fields.contains(&&**field))),
        }
    }

    /// Returns whether the patch leaves managedFields alone. A JSON patch may not.
    fn spares_owners(&self) -> bool {
        match &self.form {
            Form::Json(_) => false,
            Form::Merge(patch) | Form::Strategic(patch) => patch
                .get("metadata")
                .is_none_or(|metadata| metadata.get("managedFields").is_none()),
        }
    }

    /// Returns the error for a patched tree that does not fit the type; `old` is the object before the patch.
    pub(crate) fn unfit(
        &self,
        schema: &Type,
        tree: &Value,
        old: &Value,
        why: &dyn Display,
    ) -> Status {
        let text = match &self.form {
            Form::Strategic(patch) => {
                let shown = merge::without_spent_directives(patch, tree);
                let text = merge::go_text(&merge::without_unmatched_nulls(&shown, old));
                return match decode::unconvertible(schema, tree) {
                    Some(why) => merge::unfit(&text, &why),
                    // Errors of Go's own JSON decoder have a prefix here.
                    None if why.to_string().starts_with("illegal base64") => {
                        merge::unfit(&text, &format!("error decoding from json: {why}"))
                    }
                    None => merge::unfit(&text, &why),
                };
            }
            Form::Merge(patch) => merge::document(schema, tree, patch),
            Form::Json(patch) => merge::document(schema, tree, &merge::json_patch_visits(patch)),
        };
        merge::unfit(&text, &why)
    }
}

/// Returns the error that Go's jsonpatch library gives for a document that is not a list of operations.
fn no_json_patch(patch: &Value) -> Option<String> {
    let unfit =
        |value: &Value, wanted| Some(decode::json_of_another_type(value, wanted).to_string());
    match patch {
        Value::Null => None,
        Value::Array(operations) => {
            let is_none = |operation: &&Value| !operation.is_object() && !operation.is_null();
            let wrong = operations.iter().find(is_none)?;
            unfit(wrong, "jsonpatch.Operation")
        }
        other => unfit(other, "jsonpatch.Patch"),
    }
}

/// Returns a problem for each unknown member of an operation.
fn unknown_members(operations: &Value) -> impl Iterator<Item = Problem> {
    let operations = operations.as_array().into_iter().flatten().enumerate();
    operations.flat_map(|(index, operation)| {
        let members = operation.as_object().into_iter().flat_map(|map| map.keys());
        members
            .filter(|member| !merge::JSON_PATCH_MEMBERS.contains(&&***member))
            .map(move |member| Problem::Unknown(format!("[{index}].{member}")))
    })
}

/// Returns the 415 for another media type. kube-apiserver serves custom resources without its router, so their message differs.
fn unsupported(custom: bool) -> Status {
    if custom {
        let why = "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
                   application/merge-patch+json, application/apply-patch+yaml";
        return Status::new(415, "UnsupportedMediaType", why);
    }
    let mut status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
    status.details = Some(Box::default());
    status
}

/// Returns 415 unless the Content-Type is that of a patch.
pub(crate) fn is_supported(headers: &HeaderMap, custom: bool) -> Result<(), Status> {
    if apply::is_apply(headers) {
        Ok(())
    } else {
        PatchKind::of(headers, custom).map(|_| ())
    }
}

pub(crate) async fn patch(call: &Call, part: Part, body: Body) -> Result<Response<Body>, Status> {
    if apply::is_apply(&call.headers) {
        return apply::apply(call, part, &body::read(body).await?).await;
    }
    // Before the body is read: a client with the wrong Content-Type learns so even if its body is broken.
    let kind = PatchKind::of(&call.headers, call.row.custom)?;
    let bytes = body::read(body).await?;
    let options = call.write_options("PatchOptions")?;
    let source = Patched {
        only_status: matches!(part, Part::Status(_)) && !call.row.custom,
        patch: Patch::parse(kind, options.validation, &bytes),
        validation: options.validation,
    };
    let (code, outcome) = write::update(call, &options, part, &source).await?;
    reply::outcome(call, code, outcome)
}

struct Patched {
    /// The parsed patch, or the error in it.
    patch: Result<Patch, Status>,
    /// Whether the update keeps only the status of the result ([`Part::Status`]).
    only_status: bool,
    validation: FieldValidation,
}

impl Source for Patched {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        let patch = self.patch.as_ref().map_err(Clone::clone)?;
        // A small patch spends most of its time on copying and decoding fields that the update restores anyway, so leave them out. An
        // error message shows the whole object, so a patch that fails is tried again on all of it.
        let only_status = self.is_status_alone();
        let is_part = |field: &str| !only_status || STATUS_FIELDS.contains(&field);
        if patch.spares_owners()
            && let Ok(mut object) = self.patched(call, patch, || without_owners(old, is_part))
        {
            if only_status {
                write::keep_fields(&mut object, old, |field| !is_part(field));
            }
            return complete(call, object);
        }
        // managedFields are folded in stored trees, and a patch that names them must see them as a client does.
        let mut whole = old.clone();
        ownership::unfold(&mut whole);
        complete(call, self.patched(call, patch, || whole.clone())?)
    }

    fn is_status_alone(&self) -> bool {
        let is_limited = |patch: &Patch| patch.is_limited_to(STATUS_FIELDS);
        self.only_status && self.patch.as_ref().is_ok_and(is_limited)
    }
}

impl Patched {
    fn patched(
        &self,
        call: &Call,
        patch: &Patch,
        old: impl Fn() -> Value,
    ) -> Result<Value, Status> {
        body::patched(
            call,
            &Expected::object(&call.row),
            patch,
            old,
            self.validation,
        )
    }
}

/// Defaults a patched object and checks that its name and namespace are still those of the request.
fn complete(call: &Call, mut object: Value) -> Result<Value, Status> {
    call.resource().behaviour.default(&mut object);
    metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
    update::check_name(call, &object)?;
    Ok(object)
}

/// Copies the selected fields of an object, without its managedFields.
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
