//! Server-side apply: a PATCH with the configuration that its field manager wants, merged according to the schema.
//!
//! [`ownership::apply`] does the merge; from there on an apply is like any other update, or a creation if the object does not exist.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use mullion_kube_text::status::Status;
use mullion_schema::{
    decode::{self, DecodeError, Decoded, Problem},
    ownership,
};
use serde_json::Value;

use super::{
    call::{Call, FieldValidation},
    reply, update,
    write::{self, Part, Source},
};
use crate::object::metadata;

/// Returns whether a PATCH is a server-side apply.
pub(crate) fn is_apply(headers: &HeaderMap) -> bool {
    let given = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim() == "application/apply-patch+yaml"
}

/// Parses the configuration of an apply, which must have this apiVersion and kind. Also returns a problem for each duplicate key.
pub(crate) fn configuration(
    bytes: &Bytes,
    api_version: &str,
    kind: &str,
) -> Result<(Value, Vec<Problem>), Status> {
    let (config, duplicates) = decode::untyped_yaml(bytes).map_err(|error| {
        let step = match error {
            DecodeError::Yaml(_) => "error converting YAML to JSON: ",
            _ => "",
        };
        Status::bad_request(format!("error decoding YAML: {step}{error}"))
    })?;
    if !config.is_object() && !config.is_null() {
        let kind = decode::json_kind(&config);
        return Err(Status::bad_request(format!(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"
        )));
    }
    let text = |field: &str| {
        config
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    if text("apiVersion") != api_version || text("kind") != kind {
        let given = text("apiVersion");
        let (group, version, kind) = match given.split_once('/') {
            // kube-apiserver takes neither from a version that it cannot parse.
            Some((_, rest)) if rest.contains('/') => ("", "", ""),
            Some((group, version)) => (group, version, text("kind")),
            None => ("", given, text("kind")),
        };
        return Err(Status::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    Ok((config, duplicates))
}

/// Returns whether the apply takes over fields that other managers own (`force=true`).
pub(crate) fn is_forced(call: &Call) -> bool {
    call.query.flag("force").unwrap_or(false)
}

pub(crate) async fn apply(
    call: &Call,
    part: Part,
    bytes: &Bytes,
) -> Result<Response<Body>, Status> {
    let mut options = call.write_options("PatchOptions")?;
    options.applies = true;
    if !write::may_create(call, part) {
        // kube-apiserver looks for the object before it reads the configuration.
        call.stored()?;
    }
    let (config, duplicates) = configuration(bytes, call.row.api_version(), &call.resource().kind)?;
    let source = ApplySource {
        config,
        duplicates,
        manager: options.manager.clone(),
        part,
        validation: options.validation,
        force: is_forced(call),
        dry_run: options.dry_run,
    };
    let (code, outcome) = write::update(call, &options, part, &source).await?;
    reply::outcome(call, code, outcome)
}

struct ApplySource {
    config: Value,
    /// The duplicate keys of the configuration.
    duplicates: Vec<Problem>,
    manager: String,
    part: Part,
    validation: FieldValidation,
    force: bool,
    dry_run: bool,
}

impl ApplySource {
    fn merged(&self, call: &Call, old: Option<&Value>) -> Result<Value, Status> {
        let writer = write::writer(call, &self.manager, self.part);
        // Conflicts are found before the configuration is decoded, so they are reported first.
        let tree = ownership::apply(call.schema(), &writer, self.force, &self.config, old)?;
        self.report_duplicates(call)?;
        let decoded = self.decoded(call, &writer, old, tree)?;
        call.note_sent(&decoded.value, decoded.emptied);
        let mut object = decoded.value;
        call.resource().behaviour.default_applied(&mut object);
        // A uid means one particular object, so an apply that names one must not create another.
        let uid = metadata::text(&object, "uid");
        if old.is_none() && !uid.is_empty() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(call.resource(), &call.name, &why));
        }
        metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
        update::check_name(call, &object)?;
        if old.is_none() {
            update::settle_new_revision(&mut object, self.dry_run)?;
        }
        // A resourceVersion is a precondition only if the configuration itself names one and the object exists.
        let names_version = self.config.pointer("/metadata/resourceVersion").is_some();
        if old.is_some() && !names_version && call.resource().rules.unconditional_update {
            metadata::of(&mut object).remove("resourceVersion");
        }
        Ok(object)
    }

    /// Decodes the merged object as apimachinery's `FromUnstructured` does.
    fn decoded(
        &self,
        call: &Call,
        writer: &ownership::Writer<'_>,
        old: Option<&Value>,
        mut tree: Value,
    ) -> Result<Decoded, Status> {
        let schema = call.schema();
        if !call.row.custom {
            decode::convert_numbers(schema, &mut tree);
        }
        decode::value(schema, tree).or_else(|error| {
            if error == DecodeError::TooLarge {
                return Err(write::request_limit::too_large());
            }
            // Decoding consumes the merged tree, but the error message shows it, so the rare failure merges again.
            let tree = ownership::apply(schema, writer, self.force, &self.config, old)?;
            let object = ownership::described(&self.config);
            let (_, kind) = object.split_once("; ").unwrap_or_default();
            let why = match (decode::unconvertible(schema, &tree), &error) {
                (Some(why), _) => why,
                (None, DecodeError::Base64(_)) => format!("error decoding from json: {error}"),
                (None, _) => error.to_string(),
            };
            let why = format!(
                "failed to convert new object ({object}) to proper version: unable to convert unstructured object to {kind}: {why}"
            );
            Err(Status::new(500, "", why))
        })
    }

    fn report_duplicates(&self, call: &Call) -> Result<(), Status> {
        match (self.duplicates.first(), self.validation) {
            (Some(problem), FieldValidation::Strict) => Err(Status::bad_request(format!(
                "error strict decoding YAML: error converting YAML to JSON: {problem}"
            ))),
            (Some(_), FieldValidation::Warn) => {
                call.warn_all(self.duplicates.iter().flat_map(Problem::warnings));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl Source for ApplySource {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        // The merge works on managedFields in their served form, while stored trees hold them folded.
        let mut old = old.clone();
        ownership::unfold(&mut old);
        self.merged(call, Some(&old))
    }

    fn make_new(&self, call: &Call) -> Result<Option<Value>, Status> {
        self.merged(call, None).map(Some)
    }
}
