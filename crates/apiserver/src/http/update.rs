//! PUT of an object or of its status.

use axum::body::Body;
use http::Response;
use mullion_kube_text::{golang::integer, status::Status};
use serde_json::Value;

use super::{
    body,
    call::Call,
    reply,
    write::{self, Part, Source},
};
use crate::object::{metadata, type_meta::Expected};

pub(crate) async fn update(call: &Call, part: Part, body: Body) -> Result<Response<Body>, Status> {
    // Unlike for a creation, kube-apiserver checks the options before the media type.
    let bytes = body::read(body).await?;
    let options = call.write_options("UpdateOptions")?;
    let media = body::media(&call.headers)?;
    let mut object = body::object(
        call,
        &Expected::object(&call.row),
        media,
        &bytes,
        options.validation,
    )?;
    call.resource().behaviour.default(&mut object);
    metadata::settle_namespace(&mut object, call.namespace.as_deref())?;
    check_name(call, &object)?;
    write::dedup_owners(call, &mut object, false);
    let source = Replacement {
        object,
        dry_run: options.dry_run,
    };
    let (code, outcome) = write::update(call, &options, part, &source).await?;
    reply::outcome(call, code, outcome)
}

/// Returns 400 unless the object's name is the one in the path.
pub(crate) fn check_name(call: &Call, object: &Value) -> Result<(), Status> {
    let (name, wanted) = (metadata::text(object, "name"), &call.name);
    if name.is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
        )));
    }
    if name != wanted {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({wanted})"
        )));
    }
    Ok(())
}

/// Returns 409 if the client sent a uid that is not the stored object's.
pub(crate) fn check_uid(
    call: &Call,
    given: &str,
    stored: &str,
    dry_run: bool,
) -> Result<(), Status> {
    if given.is_empty() || given == stored {
        return Ok(());
    }
    let resource = call.resource();
    let key = call.key(&call.name);
    // A dry run fails before kube-apiserver's storage adds its prefix.
    let prefix = if dry_run { "" } else { "/registry" };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {prefix}/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {given}, UID in object meta: {stored}",
        call.row.etcd_folder(),
        key.as_str()
    );
    Err(Status::conflict(resource, &call.name, &why))
}

/// Removes the resourceVersion of an object that an update creates; a dry run shows the version as sent.
///
/// # Errors
/// 500 for a version that is no number: kube-apiserver parses the version before it validates the object.
pub(crate) fn settle_new_revision(object: &mut Value, dry_run: bool) -> Result<(), Status> {
    let given = metadata::text(object, "resourceVersion");
    let is_digits = given.bytes().all(|byte| byte.is_ascii_digit());
    let is_number = is_digits && given.parse::<u64>().is_ok();
    if !given.is_empty() && !is_number {
        return Err(Status::new(500, "", integer::fault("ParseUint", given)));
    }
    if given.is_empty() || !dry_run {
        metadata::of(object).remove("resourceVersion");
    }
    Ok(())
}

/// The source of a PUT: its body, the same for every attempt.
struct Replacement {
    object: Value,
    dry_run: bool,
}

impl Replacement {
    /// Returns 409 if the body's uid is not that of the stored object, or if there is none.
    fn check_uid(&self, call: &Call, stored: &str) -> Result<(), Status> {
        check_uid(
            call,
            metadata::text(&self.object, "uid"),
            stored,
            self.dry_run,
        )
    }
}

impl Source for Replacement {
    fn make(&self, call: &Call, old: &Value) -> Result<Value, Status> {
        self.check_uid(call, metadata::text(old, "uid"))?;
        Ok(self.object.clone())
    }

    fn make_new(&self, call: &Call) -> Result<Option<Value>, Status> {
        if !call.resource().rules.create_on_update {
            return Ok(None);
        }
        self.check_uid(call, "")?;
        let mut new = self.object.clone();
        settle_new_revision(&mut new, self.dry_run)?;
        Ok(Some(new))
    }
}
