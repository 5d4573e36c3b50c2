//! Changes of stored objects outside the pipeline, without validation and admission: bindings, evictions, claims, the server's own objects.

use std::sync::Arc;

use jiff::Timestamp;
use mullion_kube_text::status::Status;
use mullion_schema::{self as schema, raw_field::RawField};
use mullion_store::{Change, EventType, Key, Object};
use serde_json::Value;

use super::{
    commit::{draft_from, in_time},
    request_limit,
};
use crate::{http::reply::Outcome, registry::Row};

/// Changes a stored object of any kind without validation and admission, and retries until no other write comes between. `change` gets
/// the object in served form and folded ([`mullion_schema::ownership::fold`]); it may refuse, and returns `Ok(false)` if nothing has to change. Returns
/// the object as it is afterwards.
pub(crate) async fn modify(
    row: &Row,
    now: Timestamp,
    key: &Key,
    dry_run: bool,
    mut change: impl FnMut(&mut Value) -> Result<bool, Status>,
) -> Result<Outcome, Status> {
    loop {
        let stored = current(row, key)?;
        let mut object = row.served_folded(&stored);
        if !change(&mut object)? {
            return Ok(Outcome::Stored(stored));
        }
        schema::normalise(&row.resource.schema, &mut object);
        if dry_run {
            return Ok(Outcome::unfolded(object));
        }
        let draft = draft_from(row, EventType::Modified, &mut object, None);
        let change = Change::Update(stored, draft);
        request_limit::check(row, &change)?;
        if let Some(stored) = in_time(row.collection.commit(change, now).await)? {
            return Ok(Outcome::Stored(stored));
        }
    }
}

/// Does the same as [`modify()`] without parsing all of the kind's raw field, of which `change` may set only `field`.
pub(crate) async fn modify_with_raw_field(
    row: &Row,
    now: Timestamp,
    key: &Key,
    raw_field: &'static RawField,
    field: &str,
    mut change: impl FnMut(&mut Value) -> Result<(), Status>,
) -> Result<(), Status> {
    loop {
        let stored = current(row, key)?;
        // Read again in every round: the text that is copied must be that of the version that the commit replaces.
        let (mut object, mut raw) = stored.parse_with_raw_field(raw_field);
        change(&mut object)?;
        raw.set(field, &object[raw_field.field][field]);
        raw.normalise_around(&row.resource.schema, &mut object);
        let draft = draft_from(row, EventType::Modified, &mut object, Some(&raw));
        let change = Change::Update(stored.clone(), draft);
        request_limit::check(row, &change)?;
        if in_time(row.collection.commit(change, now).await)?.is_some() {
            return Ok(());
        }
    }
}

fn current(row: &Row, key: &Key) -> Result<Arc<Object>, Status> {
    let found = row.collection.get(key.as_str());
    found.ok_or_else(|| Status::not_found(&row.resource, key.name()))
}
