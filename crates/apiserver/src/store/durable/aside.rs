//! What waits beside the writer's queue: notes that have changed, and records that nobody needs any more.
//!
//! Notes are taken with the next group, so they are permanent no later than any write that is begun after them; all of them are in memory.
//! Unneeded records are taken when the journal is folded.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::tables::Discarded;

/// A changed note with the number of its change.
pub(super) type Waiting = (String, (u64, Option<Bytes>));

#[derive(Debug, Default)]
pub(super) struct Aside {
    notes: Mutex<Notes>,
    discarded: Mutex<FxHashMap<Arc<str>, Discarded>>,
}

#[derive(Debug, Default)]
struct Notes {
    /// All of them as they are now, permanent or not.
    all: BTreeMap<String, Bytes>,
    changes: u64,
    /// Those that are not permanent yet.
    waiting: BTreeMap<String, (u64, Option<Bytes>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Aside {
    /// With the notes that a start has found.
    pub(super) fn new(notes: BTreeMap<String, Bytes>) -> Self {
        Aside {
            notes: Mutex::new(Notes {
                all: notes,
                ..Notes::default()
            }),
            discarded: Mutex::default(),
        }
    }

    /// Notes a value, or that there is none any more.
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

    /// The notes whose keys begin so.
    pub(super) fn notes(&self, prefix: &str) -> BTreeMap<String, Bytes> {
        let notes = lock(&self.notes);
        let from = notes.all.range(prefix.to_owned()..);
        from.take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// The notes that are not permanent yet.
    pub(super) fn waiting_notes(&self) -> Vec<Waiting> {
        let notes = lock(&self.notes);
        let waiting = notes.waiting.iter();
        waiting
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Forgets that notes were not permanent, unless they have changed again.
    pub(super) fn settled(&self, stored: &[Waiting]) {
        let mut notes = lock(&self.notes);
        for (key, (change, _)) in stored {
            if notes
                .waiting
                .get(key)
                .is_some_and(|(last, _)| last == change)
            {
                notes.waiting.remove(key);
            }
        }
    }

    /// Remembers records that nobody needs, now that a collection's events are missing up to a revision.
    pub(super) fn discard(&self, name: &Arc<str>, compacted: u64, revisions: &[u64]) {
        let mut all = lock(&self.discarded);
        let discarded = all.entry(name.clone()).or_default();
        discarded.compacted = discarded.compacted.max(compacted);
        discarded.revisions.extend_from_slice(revisions);
    }

    /// Takes what is not needed, neighbours beside each other.
    pub(super) fn take_discarded(&self) -> FxHashMap<Arc<str>, Discarded> {
        let mut all = std::mem::take(&mut *lock(&self.discarded));
        for discarded in all.values_mut() {
            discarded.revisions.sort_unstable();
        }
        all
    }
}
