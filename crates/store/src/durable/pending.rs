//! The state outside of the writer's queue that is not permanent yet: changed notes, and records that are no longer needed.
//!
//! The writer takes the waiting notes with the next group of writes, so they are permanent no later than any write that begins after them.
//! All notes are in memory. Unneeded records are taken when the journal is folded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::tables::Discarded;

/// A changed note with the number of its change.
pub(super) type Waiting = (String, (u64, Option<Bytes>));

/// The changed notes and the unneeded records that the writer has not stored or removed yet.
#[derive(Debug, Default)]
pub(super) struct PendingState {
    notes: Mutex<Notes>,
    discarded: Mutex<FxHashMap<Arc<str>, Discarded>>,
}

#[derive(Debug, Default)]
struct Notes {
    /// All notes with their current values, permanent or not.
    all: BTreeMap<String, Bytes>,
    changes: u64,
    /// The changed notes that are not permanent yet, by key; `None` for a removed one.
    waiting: BTreeMap<String, (u64, Option<Bytes>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PendingState {
    /// Creates the state with the notes that were read at start.
    pub(super) fn new(notes: BTreeMap<String, Bytes>) -> Self {
        PendingState {
            notes: Mutex::new(Notes {
                all: notes,
                ..Notes::default()
            }),
            discarded: Mutex::default(),
        }
    }

    /// Sets the note under a key, or removes it if the value is `None`.
    pub(super) fn note(&self, key: String, value: Option<Bytes>) {
        let mut notes = lock(&self.notes);
        match &value {
            Some(value) => notes.all.insert(key.clone(), value.clone()),
            None => notes.all.remove(&key),
        };
        notes.changes += 1;
        let change = notes.changes;
        notes.waiting.insert(key, (change, value));
    }

    /// Returns the notes whose keys begin with `prefix`.
    pub(super) fn notes(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        let notes = lock(&self.notes);
        let from = notes.all.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Returns the notes that are not permanent yet.
    pub(super) fn waiting_notes(&self) -> Vec<Waiting> {
        let notes = lock(&self.notes);
        let waiting = notes.waiting.iter();
        waiting
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Marks notes as permanent, except those that have changed again since `stored` was taken.
    pub(super) fn settled(&self, stored: &[Waiting]) {
        let mut notes = lock(&self.notes);
        for (key, (change, _)) in stored {
            // A note that changed while the group was being written is still waiting with its newer value.
            if notes
                .waiting
                .get(key)
                .is_some_and(|(last, _)| last == change)
            {
                notes.waiting.remove(key);
            }
        }
    }

    /// Adds records to be removed, and the revision up to which a collection's events are missing.
    pub(super) fn discard(&self, name: &Arc<str>, compacted: u64, revisions: &[u64]) {
        let mut all = lock(&self.discarded);
        let discarded = all.entry(name.clone()).or_default();
        discarded.compacted = discarded.compacted.max(compacted);
        discarded.revisions.extend_from_slice(revisions);
    }

    /// Takes the records to be removed, sorted by revision, so that neighbouring rows are removed together.
    pub(super) fn take_discarded(&self) -> FxHashMap<Arc<str>, Discarded> {
        let mut all = std::mem::take(&mut *lock(&self.discarded));
        for discarded in all.values_mut() {
            discarded.revisions.sort_unstable();
        }
        all
    }
}
