//! The objects of one kind: their index, their log and the two ways a write gets there.
//!
//! Invariant: index, log and the store's revision change together under the collection's lock. In memory the writer itself takes the
//! lock; in a durable store only the journal's thread does, in the order of the revisions, after the group of a write is permanent.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};

use super::{
    durable::{StoreError, Writer},
    expiry::Expiry,
    log::{Event, Log, Window},
    object::{Draft, EventType, Key, Object},
};

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

impl Change {
    /// Returns the object that is written.
    pub(super) fn key(&self) -> &Key {
        match self {
            Change::Create(key, _) => key,
            Change::Update(seen, _) | Change::Delete(seen) => seen.key(),
        }
    }

    /// Returns whether the change still applies when the object under its key has this current revision (`None`: no object).
    pub(super) fn holds(&self, current: Option<u64>) -> bool {
        match self {
            Change::Create(..) => current.is_none(),
            Change::Update(seen, _) | Change::Delete(seen) => current == Some(seen.revision()),
        }
    }

    /// Turns the change into an object version and event with this revision.
    pub(super) fn seal(self, revision: u64) -> UnpublishedChange {
        let (event_type, object) = match self {
            Change::Create(key, draft) => (EventType::Added, draft.seal(key, revision)),
            Change::Update(seen, draft) => (
                EventType::Modified,
                draft.seal(seen.key().clone(), revision),
            ),
            Change::Delete(seen) => (EventType::Deleted, seen.deleted_at(revision)),
        };
        UnpublishedChange {
            event_type,
            object: Arc::new(object),
        }
    }
}

/// A change that has its revision, and is not published yet.
#[derive(Clone, Debug)]
pub(super) struct UnpublishedChange {
    pub(super) event_type: EventType,
    pub(super) object: Arc<Object>,
}

/// The error of a change that was not made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// Another write has changed the object since it was read.
    #[error("the object has been modified")]
    Stale,
    /// The change could not be made permanent. A restart may or may not bring it back.
    #[error("the write cannot be made permanent: {0}")]
    NotStored(Arc<StoreError>),
}

/// All objects of one kind.
pub struct Collection {
    name: Arc<str>,
    pub(super) revision: Arc<AtomicU64>,
    state: RwLock<State>,
    pub(super) published: tokio::sync::watch::Sender<u64>,
    writer: Option<Writer>,
}

pub(super) struct State {
    pub(super) objects: BTreeMap<Key, Arc<Object>>,
    pub(super) log: Log,
    expiry: Expiry,
}

impl State {
    /// Makes a change visible to readers. Returns the events that the window drops, so that the caller can free them without holding a
    /// lock.
    pub(super) fn publish(&mut self, sealed: UnpublishedChange, now: Timestamp) -> Vec<Event> {
        let UnpublishedChange { event_type, object } = sealed;
        let previous = match event_type {
            EventType::Deleted => self.objects.remove(object.key()),
            _ => self.objects.insert(object.key().clone(), object.clone()),
        };
        if let Some(previous) = &previous {
            previous.forget_tree();
        }
        if event_type != EventType::Deleted {
            self.expiry.written(&object, now);
        }
        let event = Event {
            event_type,
            object,
            previous,
        };
        self.log.push(event, now)
    }
}

impl Collection {
    pub(super) fn new(
        name: Arc<str>,
        revision: Arc<AtomicU64>,
        window: Window,
        writer: Option<Writer>,
    ) -> Self {
        let state = State {
            objects: BTreeMap::new(),
            log: Log::new(window),
            expiry: Expiry::default(),
        };
        Collection {
            name,
            revision,
            state: RwLock::new(state),
            published: tokio::sync::watch::Sender::new(0),
            writer,
        }
    }

    /// Returns the name under which the collection is stored.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Sets how long objects live after their last write. [`super::Store::expire`] deletes them, which watches see like
    /// any other deletion.
    pub fn live_for(&self, ttl: SignedDuration) {
        let mut state = self.write();
        // With an earlier duration every object's end is queued already.
        if !state.expiry.live_for(ttl) {
            return;
        }
        // What a restart has brought back was written before anybody could say how long it lives.
        if let Some(writer) = &self.writer {
            let mut known: Vec<Arc<Object>> = state.objects.values().cloned().collect();
            // The queue of ends must be in the order of the writes.
            known.sort_unstable_by_key(|object| object.revision());
            let revisions: Vec<u64> = known.iter().map(|object| object.revision()).collect();
            for (object, at) in known.iter().zip(writer.written_at(&revisions)) {
                state.expiry.written(object, at);
            }
        }
    }

    pub(super) async fn expire(self: &Arc<Self>, now: Timestamp) -> Option<Timestamp> {
        let mut over = Vec::new();
        let next = {
            let mut state = self.write();
            while let Some(end) = state.expiry.take_over(now) {
                let current = state.objects.get(end.key.as_str());
                over.extend(
                    current
                        .filter(|object| object.revision() == end.revision)
                        .cloned(),
                );
            }
            // The lock is released before the deletions, which take it again.
            state.expiry.next()
        };
        // All at once, so that a durable store makes one group of them. One that was written in between has an end of its own.
        let deletions = over
            .into_iter()
            .map(|object| self.commit(Change::Delete(object), now));
        futures::future::join_all(deletions).await;
        next
    }

    /// Returns the current version of an object.
    pub fn get(&self, key: &str) -> Option<Arc<Object>> {
        self.read().objects.get(key).cloned()
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Returns whether the collection has no objects.
    pub fn is_empty(&self) -> bool {
        self.read().objects.is_empty()
    }

    /// Returns a revision at which this collection has its present content.
    pub fn revision(&self) -> u64 {
        let _unchanged = self.read();
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the revision of the last published change; 0 before the first.
    pub fn last_change(&self) -> u64 {
        *self.published.borrow()
    }

    /// Returns the revision that the next write will probably get, from which a [`Draft`] knows how
    /// many digits to leave for it.
    pub fn next_revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed) + 1
    }

    /// Makes a change if its precondition still holds, and publishes it. Returns the new version; for a deletion, the last content with the
    /// deletion's revision. If the future of a durable store's commit is dropped, the change may or may not be made.
    ///
    /// # Errors
    /// [`CommitError::Stale`] if the expectation does not hold, [`CommitError::NotStored`] if the disk did not take it.
    pub async fn commit(
        self: &Arc<Self>,
        change: Change,
        now: Timestamp,
    ) -> Result<Arc<Object>, CommitError> {
        match &self.writer {
            Some(writer) => writer.commit(self.clone(), change, now).await,
            None => self.commit_in_memory(change, now),
        }
    }

    fn commit_in_memory(&self, change: Change, now: Timestamp) -> Result<Arc<Object>, CommitError> {
        let mut state = self.write();
        let current = state.objects.get(change.key());
        if !change.holds(current.map(|object| object.revision())) {
            return Err(CommitError::Stale);
        }
        // A revision is taken only for a change that is made, and under the collection's lock: a list under
        // the same lock never shows a revision whose change is missing.
        let revision = self.revision.fetch_add(1, Ordering::AcqRel) + 1;
        let sealed = change.seal(revision);
        let object = sealed.object.clone();
        let dropped = state.publish(sealed, now);
        // Readers need not wait while dropped objects are freed.
        drop(state);
        drop(dropped);
        // Watchers are woken after the lock is free, so that they do not wait for it at once.
        self.published.send_replace(revision);
        Ok(object)
    }

    /// Drops the past events that are too old.
    pub(super) fn compact(&self, now: Timestamp) {
        let (dropped, compacted) = {
            let mut state = self.write();
            (state.log.compact(now), state.log.compacted())
        };
        if let Some(writer) = &self.writer {
            writer.discard(&self.name, compacted, &dropped);
        }
    }

    /// Recomputes the selectable fields of every object, and drops the event log, whose versions have the old fields.
    pub fn select_by(&self, fields: impl Fn(&serde_json::Value) -> Box<[Box<str>]>) {
        let mut state = self.write();
        // Watches at an older revision get Expired and list again, because their events would be filtered by
        // the old fields.
        state.log.begin_after(self.revision.load(Ordering::Acquire));
        for object in state.objects.values_mut() {
            *object = Arc::new(object.with_fields(fields(&object.parse())));
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
