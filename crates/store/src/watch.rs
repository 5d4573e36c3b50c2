//! Following a collection: a [`Cursor`] remembers the last revision it has seen and reads on from the log.
//!
//! A watcher holds no queue of its own: a writer publishes one number and goes on, however many watchers there are and however
//! slow they read. One that is overtaken by the end of the window gets [`Expired`] and is closed.

use std::sync::Arc;

use super::{Collection, Event};

/// The number of events that are taken from the log at once, so that a reader never holds the lock for long.
const BATCH: usize = 256;

/// Some events after this revision have been dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {revision} ({oldest})")]
pub struct Expired {
    /// The revision asked for.
    pub revision: u64,
    /// The revision before the oldest event that is kept.
    pub oldest: u64,
}

/// A place in a collection's log.
pub struct Cursor {
    collection: Arc<Collection>,
    published: tokio::sync::watch::Receiver<u64>,
    revision: u64,
}

impl Cursor {
    /// Follows a collection from the events after `revision` on.
    pub fn new(collection: Arc<Collection>, revision: u64) -> Result<Self, Expired> {
        // Subscribed before the log is read, so that an event in between wakes the cursor.
        let published = collection.published.subscribe();
        let oldest = collection.read().log.compacted();
        if revision < oldest {
            return Err(Expired { revision, oldest });
        }
        Ok(Cursor {
            collection,
            published,
            revision,
        })
    }

    /// Returns the next events, waiting until there is one. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Vec<Event>, Expired> {
        loop {
            // Before the read: a change published after it must still wake the wait below.
            self.published.mark_unchanged();
            let batch = self.poll()?;
            if !batch.is_empty() {
                return Ok(batch);
            }
            // The sender lives in the collection that this cursor holds.
            let _ = self.published.changed().await;
        }
    }

    /// Returns the events that are there already.
    pub fn poll(&mut self) -> Result<Vec<Event>, Expired> {
        let state = self.collection.read();
        let oldest = state.log.compacted();
        if self.revision < oldest {
            return Err(Expired {
                revision: self.revision,
                oldest,
            });
        }
        let batch: Vec<Event> = state
            .log
            .after(self.revision)
            .take(BATCH)
            .cloned()
            .collect();
        if let Some(last) = batch.last() {
            self.revision = last.revision();
        }
        Ok(batch)
    }

    /// Returns a revision such that every event up to it has been returned: what a bookmark may say.
    pub fn progress(&mut self) -> u64 {
        let state = self.collection.read();
        // With unread events the revision must not pass them, or a bookmark would make the client skip them.
        if state.log.after(self.revision).next().is_none() {
            let current = self
                .collection
                .revision
                .load(std::sync::atomic::Ordering::Acquire);
            self.revision = self.revision.max(current);
        }
        self.revision
    }
}
