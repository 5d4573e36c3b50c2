//! The objects: an ordered in-memory index per kind, one revision counter, and a window of past events.
//!
//! Invariants: revisions are strictly increasing over all kinds and never reused; a collection's index, log and revision
//! change together under its lock, so a list at revision R followed by the events after R is the store itself; an object is
//! serialized before any lock is taken ([`object`]). Watchers read the log at their own pace ([`Cursor`]), writers never wait
//! for one. [`Collection::commit`] is asynchronous because a durable writer would make the change permanent before it is
//! published here; in memory it never waits.

mod expiry;
mod json;
mod list;
mod log;
pub mod object;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use rustc_hash::FxHashMap;

use self::{expiry::Expiry, log::Log};
pub use self::{
    list::{ListError, Page, PageRequest, Snapshot},
    log::{Event, Window},
    object::{Draft, EventType, Key, Meta, Object},
    watch::{Cursor, Expired},
};

/// All objects of the cluster.
pub struct Store {
    revision: Arc<AtomicU64>,
    window: Window,
    collections: RwLock<FxHashMap<Arc<str>, Arc<Collection>>>,
}

impl Store {
    /// An empty store that keeps past events for as long as `window` says.
    pub fn new(window: Window) -> Self {
        Store {
            revision: Arc::new(AtomicU64::new(1)),
            window,
            collections: RwLock::default(),
        }
    }

    /// The objects stored under a name, as `pods` or `deployments.apps`; made when first asked for.
    pub fn collection(&self, storage: &str) -> Arc<Collection> {
        if let Some(found) = self.find(storage) {
            return found;
        }
        let mut collections = self
            .collections
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let make = || Arc::new(Collection::new(self.revision.clone(), self.window));
        collections
            .entry(storage.into())
            .or_insert_with(make)
            .clone()
    }

    /// The objects stored under a name, if that name was ever used.
    pub fn find(&self, storage: &str) -> Option<Arc<Collection>> {
        self.collections
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .get(storage)
            .cloned()
    }

    /// Drops the past events that are too old by now, also of collections that nobody writes to any more.
    pub fn compact(&self, now: Timestamp) {
        for collection in self.collections() {
            let dropped = collection.write().log.compact(now);
            drop(dropped);
        }
    }

    /// Deletes the objects that have lived as long as they may. Answers when the next one will have.
    pub fn expire(&self, now: Timestamp) -> Option<Timestamp> {
        let collections = self.collections();
        collections
            .iter()
            .filter_map(|collection| collection.expire(now))
            .min()
    }

    fn collections(&self) -> Vec<Arc<Collection>> {
        self.collections
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .values()
            .cloned()
            .collect()
    }

    /// The last revision given out.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }
}

/// A write that the caller has prepared against a state it has seen.
#[derive(Debug)]
pub enum Change {
    /// There must be no object under the key.
    Create(Key, Draft),
    /// The given version must still be the current one.
    Update(Arc<Object>, Draft),
    /// The given version must still be the current one.
    Delete(Arc<Object>),
}

/// A change came too late: somebody else has written in between.
#[derive(Debug, thiserror::Error)]
#[error("the object has been modified")]
pub struct Stale;

/// All objects of one kind.
pub struct Collection {
    revision: Arc<AtomicU64>,
    state: RwLock<State>,
    published: tokio::sync::watch::Sender<u64>,
}

struct State {
    objects: BTreeMap<Key, Arc<Object>>,
    log: Log,
    expiry: Expiry,
}

impl Collection {
    fn new(revision: Arc<AtomicU64>, window: Window) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            log: Log::new(window),
            expiry: Expiry::default(),
        };
        Collection {
            revision,
            state: RwLock::new(state),
            published: tokio::sync::watch::Sender::new(0),
        }
    }

    /// Lets every object live that long after its last write and no longer; [`Store::expire`] deletes it, which watches see as any
    /// other deletion.
    pub fn live_for(&self, ttl: SignedDuration) {
        self.write().expiry.live_for(ttl);
    }

    fn expire(&self, now: Timestamp) -> Option<Timestamp> {
        loop {
            let over = {
                let mut state = self.write();
                match state.expiry.take_over(now) {
                    Some(end) => end,
                    None => return state.expiry.next(),
                }
            };
            let current = self.get(over.key.as_str());
            if let Some(current) = current.filter(|object| object.revision() == over.revision)
                && let Ok(deleted) = self.apply(Change::Delete(current), now)
            {
                self.published.send_replace(deleted.revision());
            }
        }
    }

    /// The current version of an object.
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.read().objects.get(key).cloned()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// A revision at which this collection looks as it does now.
    pub fn revision(&self) -> u64 {
        let _unchanged = self.read();
        self.revision.load(Ordering::Acquire)
    }

    /// The revision the next write will probably get: how wide a [`Draft`] should leave its slot.
    pub fn next_revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed) + 1
    }

    /// Makes a change if its expectation still holds, and publishes it. Answers with the new version, for a deletion with the
    /// last content under the deletion's revision.
    pub async fn commit(&self, change: Change, now: Timestamp) -> Result<Arc<Object>, Stale> {
        let object = self.apply(change, now)?;
        self.published.send_replace(object.revision());
        Ok(object)
    }

    fn apply(&self, change: Change, now: Timestamp) -> Result<Arc<Object>, Stale> {
        let mut state = self.write();
        let key = match &change {
            Change::Create(key, _) => key,
            Change::Update(seen, _) | Change::Delete(seen) => seen.key(),
        };
        let current = state.objects.get(key);
        let holds = match (&change, current) {
            (Change::Create(..), current) => current.is_none(),
            (Change::Update(seen, _) | Change::Delete(seen), Some(current)) => {
                seen.revision() == current.revision()
            }
            (Change::Update(..) | Change::Delete(_), None) => false,
        };
        if !holds {
            return Err(Stale);
        }
        let revision = self.revision.fetch_add(1, Ordering::AcqRel) + 1;
        let (event_type, object) = match change {
            Change::Create(key, draft) => (EventType::Added, Arc::new(draft.seal(key, revision))),
            Change::Update(seen, draft) => (
                EventType::Modified,
                Arc::new(draft.seal(seen.key().clone(), revision)),
            ),
            Change::Delete(seen) => (EventType::Deleted, Arc::new(seen.deleted_at(revision))),
        };
        let previous = match event_type {
            EventType::Deleted => state.objects.remove(object.key()),
            _ => state.objects.insert(object.key().clone(), object.clone()),
        };
        if let Some(previous) = &previous {
            previous.forget_tree();
        }
        if event_type != EventType::Deleted {
            state.expiry.written(&object, now);
        }
        state.log.push(
            Event {
                event_type,
                object: object.clone(),
                previous,
            },
            now,
        );
        Ok(object)
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
