//! The store of the API server: an ordered in-memory index per kind, one revision counter, and a window of past events.
//!
//! Invariants: revisions strictly increase over all kinds and are never reused; a collection's index, log and revision change together
//! under its lock, so a list at revision R followed by the events after R is the store itself; an object is serialized before any lock
//! is taken ([`object`]); watchers read the log at their own pace ([`Cursor`]), and writers never wait for one. In memory a write is made
//! at once ([`collection`]). With a directory it is made permanent first ([`durable`]), and a restart brings back objects, revisions and
//! the window.
//!
//! Layer: above `mullion-schema`, which is the only crate of Mullion that it imports. It knows no kinds, requests or users.
//!
//! Architecture invariant: the time of a write is an argument; deadlines for the disk follow a monotonic clock. Writes reach the disk on
//! threads of the store's own, so its futures need no runtime.

// Each `expect` names the invariant that holds; tests may use `unwrap`.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

mod collection;
mod durable;
mod expiry;
mod json;
mod list;
mod log;
mod notes;
pub mod object;
mod watch;

use std::{
    path::Path,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::Timestamp;
use rustc_hash::FxHashMap;

use self::durable::Writer;
pub use self::{
    collection::{Change, Collection, CommitError},
    durable::{CopyError, FolderState, StoreError, check_copy, erase, folder_state, restore_copy},
    json::RawFieldText,
    list::{ListError, Page, PageRequest, Snapshot},
    log::{Event, Window},
    notes::Notes,
    object::{Draft, EventType, Key, Meta, Object},
    watch::{Cursor, Expired},
};

/// All objects of the cluster.
pub struct Store {
    revision: Arc<AtomicU64>,
    window: Window,
    collections: RwLock<FxHashMap<Arc<str>, Arc<Collection>>>,
    writer: Option<Writer>,
    notes: Notes,
}

impl Store {
    /// Creates an empty store in memory that keeps past events for as long as `window` says.
    pub fn new(window: Window) -> Self {
        Store {
            revision: Arc::new(AtomicU64::new(1)),
            window,
            collections: RwLock::default(),
            writer: None,
            notes: Notes::in_memory(),
        }
    }

    /// Returns the store that a directory keeps; an empty one in a new directory. Nothing else may use the directory until the store
    /// is closed or dropped.
    ///
    /// # Errors
    /// The directory is in use, cannot be read or written, or what is in it is damaged.
    pub fn open(directory: &Path, window: Window, now: Timestamp) -> Result<Self, StoreError> {
        let opened = durable::open(directory, window, now)?;
        Ok(Store {
            revision: opened.revision,
            window,
            collections: RwLock::new(opened.collections),
            notes: Notes::in_journal(opened.writer.clone()),
            writer: Some(opened.writer),
        })
    }

    /// Returns the objects stored under a name, as `pods` or `deployments.apps`; made when first asked for.
    pub fn collection(&self, storage: &str) -> Arc<Collection> {
        if let Some(found) = self.find(storage) {
            return found;
        }
        let mut collections = self
            .collections
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let name: Arc<str> = storage.into();
        let make = || {
            let revision = self.revision.clone();
            let writer = self.writer.clone();
            Arc::new(Collection::new(name.clone(), revision, self.window, writer))
        };
        collections.entry(name.clone()).or_insert_with(make).clone()
    }

    /// Returns the objects stored under a name, if that name was ever used.
    pub fn find(&self, storage: &str) -> Option<Arc<Collection>> {
        self.collections
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .get(storage)
            .cloned()
    }

    /// Returns the notes: small values that are not objects and that a server must find again. They are as permanent as
    /// the objects.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Returns whether writes survive the process.
    pub fn is_durable(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns the error after which no write is accepted any more, if a sync of the disk has failed.
    pub fn failure(&self) -> Option<Arc<StoreError>> {
        self.writer.as_ref()?.failure()
    }

    /// Drops the events that are too old at `now`, also in collections without new writes.
    pub fn compact(&self, now: Timestamp) {
        for collection in self.collections() {
            collection.compact(now);
        }
        if let Some(writer) = &self.writer {
            writer.tidy();
        }
    }

    /// Deletes the objects that have lived as long as they may. Answers when the next one will have.
    pub async fn expire(&self, now: Timestamp) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for collection in self.collections() {
            // One collection after the other: the deletions of one are a group already, and expiry is not
            // urgent.
            let then = collection.expire(now).await;
            next = [next, then].into_iter().flatten().min();
        }
        next
    }

    /// Returns the last revision given out.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Writes a consistent copy of everything that is durable to `out`, while writes go on; [`restore_copy`] reads it.
    ///
    /// # Errors
    /// The store is in memory only, or something cannot be read or written.
    pub fn copy_to(&self, out: &mut dyn std::io::Write) -> Result<(), CopyError> {
        let writer = self.writer.as_ref().ok_or(CopyError::InMemory)?;
        writer.copy_to(out)
    }

    /// Makes all started writes permanent and releases the directory. Later writes are refused.
    pub async fn close(&self) {
        if let Some(writer) = &self.writer {
            writer.close().await;
        }
    }

    fn collections(&self) -> Vec<Arc<Collection>> {
        self.collections
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .values()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests;
