//! Commits to the store: drafts of objects, the results of commits, and what follows a deletion.

use mullion_kube_text::status::Status;
use mullion_store::{CommitError, Draft, EventType, RawFieldText};
use serde_json::Value;

use super::companions;
use crate::{http::call::Call, registry::Row};

/// Serializes an object for the store and leaves it in stored form. The object may be folded.
pub(crate) fn draft(row: &Row, event: EventType, object: &mut Value) -> Draft {
    draft_from(row, event, object, None)
}

/// Serializes an object like [`draft`], and copies the raw field from the stored text.
pub(super) fn draft_from(
    row: &Row,
    event: EventType,
    object: &mut Value,
    raw: Option<&RawFieldText<'_>>,
) -> Draft {
    row.to_stored(object);
    let fields = row.selectable_values(object);
    Draft::with_raw_field(event, object, raw, fields, row.collection.next_revision())
}

/// Maps the result of a commit: `None` if another write came first, a 500 if the change could not be persisted.
pub(crate) fn in_time<T>(committed: Result<T, CommitError>) -> Result<Option<T>, Status> {
    match committed {
        Ok(made) => Ok(Some(made)),
        Err(CommitError::Stale) => Ok(None),
        Err(error @ CommitError::NotStored(_)) => Err(Status::internal(error.to_string())),
    }
}

/// Releases what was allocated for a deleted object (IP addresses, ports), after its companion objects are gone.
pub(crate) async fn release(call: &Call, old: &Value) {
    let ctx = call.ctx(false);
    let released = call.resource().allocate(&ctx, &mut Value::Null, Some(old));
    if let Ok(mut allocation) = released {
        companions::settle(&call.server, allocation.companions(), call.now).await;
        allocation.commit();
    }
}
