//! GET of one object.

use axum::body::Body;
use http::Response;
use mullion_kube_text::status::Status;

use super::{
    call::Call,
    list,
    reply::{self, Outcome},
};

pub(crate) async fn get(call: &Call) -> Result<Response<Body>, Status> {
    refuse_export(call)?;
    if let Some(text) = call.query.text("resourceVersion") {
        let revision = list::parse_revision(text).map_err(|error| {
            Status::new(
                500,
                "",
                format!("resourceVersion: Invalid value: {text:?}: {error}"),
            )
        })?;
        list::wait_for(call, revision).await?;
    }
    reply::outcome(call, 200, Outcome::Stored(call.stored()?))
}

/// Returns 400 for `export=true`, which Kubernetes supported until 1.20.
pub(crate) fn refuse_export(call: &Call) -> Result<(), Status> {
    match call.query.flag("export") {
        Some(true) => Err(Status::bad_request(
            "the export parameter, deprecated since v1.14, is no longer supported",
        )),
        _ => Ok(()),
    }
}
