//! Companion objects of other kinds that are created or deleted with a write (the IPAddresses of Services). Their creation starts before
//! the write itself, so that a durable store persists all of them at once and in that order; it is undone if the write fails. After a
//! crash in between, the next start repairs the rest ([`crate::boot`]).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures::future;
use jiff::Timestamp;
use mullion_kinds::Companion;
use mullion_kube_text::status::Status;
use mullion_schema::{self as schema, ownership};
use mullion_store::{Change, CommitError, EventType, Key, Object};
use serde_json::Value;

use super::{
    commit::{draft_from, in_time},
    request_limit,
};
use crate::{http::call::Call, object::metadata, registry::Row, state::ApiServer};

/// Commits a change together with its companions: new companions are created first, obsolete ones are deleted afterwards. Returns `None`
/// if another write to the object came in between.
pub(super) async fn commit(
    call: &Call,
    change: Change,
    companions: Vec<Companion>,
) -> Result<Option<Arc<Object>>, Status> {
    request_limit::check(&call.row, &change)?;
    let main = call.row.collection.commit(change, call.now);
    if companions.is_empty() {
        return in_time(main.await);
    }
    let (server, now) = (&*call.server, call.now);
    let (coming, going): (Vec<Companion>, Vec<Companion>) = companions
        .into_iter()
        .partition(|companion| companion.object.is_some());
    let made = coming
        .into_iter()
        .map(|companion| make(server, companion, now));
    // All are begun before any is awaited: a durable store writes them to disk together.
    let (made, committed) = future::join(future::join_all(made), main).await;
    let committed = in_time(committed);
    match &committed {
        Ok(Some(_)) => settle(server, going, now).await,
        // The write failed, so its new companions must go too: an IPAddress without its Service would keep the address taken.
        _ => {
            for (row, object) in made.into_iter().flatten() {
                // A companion that another client has changed since is left alone.
                let _ = row.collection.commit(Change::Delete(object), now).await;
            }
        }
    }
    committed
}

/// Creates and deletes companion objects without a write that they belong to.
pub(crate) async fn settle(server: &ApiServer, companions: Vec<Companion>, now: Timestamp) {
    for companion in companions {
        if companion.object.is_some() {
            make(server, companion, now).await;
        } else {
            remove(server, &companion, now).await;
        }
    }
}

/// Creates a companion object. Returns `None` if it could not be created, for example because one with its name exists.
async fn make(
    server: &ApiServer,
    companion: Companion,
    now: Timestamp,
) -> Option<(Arc<Row>, Arc<Object>)> {
    let row = row(server, &companion)?;
    let mut object = companion.object?;
    metadata::begin(&mut object, &row.resource, now);
    let owners = owners(&row, &object, now);
    metadata::of(&mut object).insert("managedFields".into(), owners);
    schema::normalise(&row.resource.schema, &mut object);
    let draft = draft_from(&row, EventType::Added, &mut object, None);
    let change = Change::Create(Key::new(None, &companion.name), draft);
    let made = row.collection.commit(change, now).await.ok()?;
    Some((row, made))
}

/// Returns the folded managedFields of a companion. All companions of a kind have the same fields, so the set is computed once for each
/// kind.
fn owners(row: &Row, object: &Value, now: Timestamp) -> Value {
    static FOUND: Mutex<BTreeMap<(String, String), Value>> = Mutex::new(BTreeMap::new());
    let find = || {
        let mut object = object.clone();
        let writer = ownership::Writer {
            manager: "kube-apiserver",
            api_version: row.api_version(),
            subresource: None,
            resets_status: row.has_status_subresource(),
            resets: &[],
            now,
        };
        ownership::track(&row.resource.schema, &writer, &mut object, None);
        ownership::fold(&mut object);
        metadata::of(&mut object)
            .remove("managedFields")
            .unwrap_or_default()
    };
    let kind = (row.api_version().to_owned(), row.resource.kind.to_string());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    // Computing the set walks the schema, which a burst of Services should not pay for each of its addresses.
    let mut owners = found.entry(kind).or_insert_with(find).clone();
    drop(found);
    for owner in owners.as_array_mut().into_iter().flatten() {
        owner["time"] = schema::time::format_seconds(&now).into();
    }
    owners
}

async fn remove(server: &ApiServer, companion: &Companion, now: Timestamp) {
    let Some(row) = row(server, companion) else {
        return;
    };
    let key = Key::new(None, &companion.name);
    while let Some(object) = row.collection.get(key.as_str()) {
        let gone = row.collection.commit(Change::Delete(object), now).await;
        if !matches!(gone, Err(CommitError::Stale)) {
            return;
        }
    }
}

fn row(server: &ApiServer, companion: &Companion) -> Option<Arc<Row>> {
    let table = server.registry().table();
    table
        .find_plural(companion.group, companion.plural)
        .cloned()
}
