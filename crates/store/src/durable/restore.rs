//! Rebuilds the index from the records: they are read in the order of their revisions, and each repeats the effect of
//! its write.
//!
//! A collection's past events are there from the revision on that is noted with it, as far as the window still holds them, so watches
//! resume where they were. Records that nobody needs, which a crash may have left, are given to the writer to remove.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use redb::ReadableTable;
use rustc_hash::FxHashMap;

use super::{
    super::{
        collection::{Collection, UnpublishedChange},
        log::Window,
        object::EventType,
    },
    Writer,
    error::{StoreError, database_error},
    record::{self, Effect},
    tables::{COLLECTIONS, RECORDS, REVISION, STATE, Tables},
};

/// The data restored from a directory.
pub(super) struct Restored {
    pub(super) revision: Arc<AtomicU64>,
    pub(super) collections: FxHashMap<Arc<str>, Arc<Collection>>,
}

/// A collection while its records are read.
struct LoadingCollection {
    collection: Arc<Collection>,
    /// Up to this revision events are missing.
    compacted: u64,
}

/// Reads everything.
pub(super) fn restore(
    tables: &Tables,
    window: Window,
    now: Timestamp,
    writer: &Writer,
) -> Result<Restored, StoreError> {
    let path = tables.path();
    let failed = |error: redb::Error| database_error(&path, error);
    let read = tables.begin().ok_or(StoreError::Closed)?;
    let revision = {
        let state = read
            .open_table(STATE)
            .map_err(|error| failed(error.into()))?;
        let value = state.get(REVISION).map_err(|error| failed(error.into()))?;
        value.map_or(0, |value| value.value())
    };
    let revision = Arc::new(AtomicU64::new(revision));
    let mut filling: FxHashMap<u32, LoadingCollection> = FxHashMap::default();
    let collections = read
        .open_table(COLLECTIONS)
        .map_err(|error| failed(error.into()))?;
    for row in collections.iter().map_err(|error| failed(error.into()))? {
        let (number, collection) = row.map_err(|error| failed(error.into()))?;
        let (name, compacted) = collection.value();
        let revision = revision.clone();
        let collection = Collection::new(name.into(), revision, window, Some(writer.clone()));
        // Set before the records are read, which add only later events to the log.
        collection.write().log.begin_after(compacted);
        let collection = Arc::new(collection);
        filling.insert(
            number.value(),
            LoadingCollection {
                collection,
                compacted,
            },
        );
    }
    let records = read
        .open_table(RECORDS)
        .map_err(|error| failed(error.into()))?;
    for row in records.iter().map_err(|error| failed(error.into()))? {
        let (revision, bytes) = row.map_err(|error| failed(error.into()))?;
        fill(&filling, revision.value(), bytes.value(), &path, writer)?;
    }
    let last = revision.load(Ordering::Acquire);
    let collections = filling.into_values().map(|filling| {
        filling.collection.compact(now);
        // A restored collection has content, so its last change is not 0.
        filling.collection.published.send_replace(last);
        (filling.collection.name().clone(), filling.collection)
    });
    Ok(Restored {
        revision,
        collections: collections.collect(),
    })
}

fn fill(
    filling: &FxHashMap<u32, LoadingCollection>,
    revision: u64,
    bytes: &[u8],
    path: &Path,
    writer: &Writer,
) -> Result<(), StoreError> {
    let damaged = |why: String| StoreError::Damaged {
        path: path.to_owned(),
        why,
    };
    let record = record::decode(revision, bytes).map_err(|error| damaged(error.to_string()))?;
    let Some(LoadingCollection {
        collection,
        compacted,
    }) = filling.get(&record.collection)
    else {
        return Err(damaged(format!("record {revision} is of no collection")));
    };
    let mut state = collection.write();
    let sealed = match record.effect {
        Effect::Put(event_type, object) => UnpublishedChange {
            event_type,
            object: Arc::new(object),
        },
        Effect::Deleted(key) => match state.objects.get(&key) {
            Some(last) => UnpublishedChange {
                event_type: EventType::Deleted,
                object: Arc::new(last.deleted_at(revision)),
            },
            // The window has let go of the deletion; the version before went first.
            None => {
                drop(state);
                writer.discard_records(collection.name(), *compacted, &[revision]);
                return Ok(());
            }
        },
    };
    // Up to `compacted` some events are missing, so older records only build the index and not the log.
    if revision > *compacted {
        let at = Timestamp::from_second(record.at).unwrap_or(Timestamp::UNIX_EPOCH);
        let dropped = state.publish(sealed, at);
        let compacted = state.log.compacted();
        drop(state);
        if !dropped.is_empty() {
            writer.discard(collection.name(), compacted, &dropped);
        }
        return Ok(());
    }
    let UnpublishedChange { event_type, object } = sealed;
    let previous = match event_type {
        EventType::Deleted => state.objects.remove(object.key()),
        _ => state.objects.insert(object.key().clone(), object),
    };
    drop(state);
    let mut unneeded: Vec<u64> = previous.iter().map(|object| object.revision()).collect();
    if event_type == EventType::Deleted {
        unneeded.push(revision);
    }
    if !unneeded.is_empty() {
        writer.discard_records(collection.name(), *compacted, &unneeded);
    }
    Ok(())
}
