//! Requests for custom resources in a version that needs a conversion webhook (apiextensions: `webhookConverter`).
//!
//! This server calls no conversion webhooks. In such a version it answers only requests that need no conversion: deletions, reads of
//! metadata alone, and reads that find nothing. Other requests get the error that kube-apiserver gives when it cannot reach the webhook,
//! and nothing is stored.

use http::Method;
use mullion_kube_text::status::Status;

use super::{call::Call, negotiate::Shape};

/// Checks that a request can be answered without a conversion webhook.
///
/// # Errors
/// 500 that names the version to use instead.
pub(super) fn check(call: &Call, method: &Method, watched: bool) -> Result<(), Status> {
    let row = &call.row;
    if !row.resource.rules.converted_by_webhook || method == Method::DELETE {
        return Ok(());
    }
    let reads = matches!(*method, Method::GET | Method::HEAD);
    if reads && (shows_metadata_alone(call) || (!watched && finds_nothing(call))) {
        return Ok(());
    }
    let from = if reads {
        &*row.stored_version
    } else {
        row.api_version()
    };
    Err(Status::internal(format!(
        "conversion webhook for {from}, Kind={} failed: this API server calls no conversion webhooks: use the stored version, {}",
        row.resource.kind, row.stored_version
    )))
}

fn shows_metadata_alone(call: &Call) -> bool {
    let of_whole = call.subresource.is_none();
    of_whole && matches!(call.form.shape, Shape::Metadata(_) | Shape::MetadataList(_))
}

fn finds_nothing(call: &Call) -> bool {
    let collection = &call.row.collection;
    if call.name.is_empty() {
        let namespace = call.namespace.as_deref();
        return collection.snapshot(namespace).objects.is_empty();
    }
    collection.get(call.key(&call.name).as_str()).is_none()
}
