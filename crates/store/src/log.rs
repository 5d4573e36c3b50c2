//! The window of past events of one collection: what watches replay and what lists at a past revision are rebuilt from.
//!
//! Events are in revision order without gaps from the oldest kept one on; `compacted` is the revision from which on all of them are there.
//! What an event costs is what would be freed without it: the version it replaced, and for a deletion the last content as well; the
//! current versions belong to the index.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;

use super::object::{EventType, Object};

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind of the change.
    pub event_type: EventType,
    /// The object as it is now; for a deletion its last content under the deletion's revision.
    pub object: Arc<Object>,
    /// The version before.
    pub previous: Option<Arc<Object>>,
}

impl Event {
    /// Returns the revision of the change.
    pub fn revision(&self) -> u64 {
        self.object.revision()
    }

    /// Returns the bytes that only the window holds because of this event.
    fn held_bytes(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |object| object.size());
        match self.event_type {
            EventType::Deleted => previous + self.object.size(),
            EventType::Added | EventType::Modified => previous,
        }
    }
}

/// The bounds on the events that a collection keeps. The newest events are kept, as many as all bounds allow.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The most events kept.
    pub events: usize,
    /// The most bytes of versions that are not current any more.
    pub bytes: usize,
    /// The time that an event is kept, in seconds.
    pub seconds: i64,
}

impl Default for Window {
    fn default() -> Self {
        Window {
            events: 100_000,
            bytes: 48 << 20,
            seconds: 300,
        }
    }
}

/// An event with what is asked of many of them, so that looking for one reads this queue alone.
struct Logged {
    revision: u64,
    /// When it happened, in seconds.
    at: i64,
    event: Event,
}

pub(super) struct Log {
    window: Window,
    events: VecDeque<Logged>,
    held_bytes: usize,
    compacted: u64,
}

impl Log {
    pub(super) fn new(window: Window) -> Self {
        Log {
            window,
            events: VecDeque::new(),
            held_bytes: 0,
            compacted: 0,
        }
    }

    /// Appends an event. Returns the events that the window no longer keeps, for the caller to drop when it holds no
    /// lock.
    #[must_use]
    pub(super) fn push(&mut self, event: Event, now: Timestamp) -> Vec<Event> {
        self.held_bytes += event.held_bytes();
        self.events.push_back(Logged {
            revision: event.revision(),
            at: now.as_second(),
            event,
        });
        self.compact(now)
    }

    /// Forgets every event, and says that none up to a revision is there.
    pub(super) fn begin_after(&mut self, revision: u64) {
        self.events.clear();
        self.held_bytes = 0;
        // Never lower: a revision that was reported as compacted stays so.
        self.compacted = self.compacted.max(revision);
    }

    /// Removes and returns the events beyond the window, so that the caller can free them without holding a lock.
    #[must_use]
    pub(super) fn compact(&mut self, now: Timestamp) -> Vec<Event> {
        let mut dropped = Vec::new();
        while let Some(Logged { at, .. }) = self.events.front() {
            let fits = self.events.len() <= self.window.events
                && self.held_bytes <= self.window.bytes
                && now.as_second() - at <= self.window.seconds;
            if fits {
                break;
            }
            if let Some(Logged {
                event, revision, ..
            }) = self.events.pop_front()
            {
                self.held_bytes -= event.held_bytes();
                self.compacted = revision;
                dropped.push(event);
            }
        }
        dropped
    }

    /// Returns the revision after which every event is still there.
    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns the events after a revision, oldest first; all of them only if `revision >= compacted()`.
    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &Event> {
        let from = self
            .events
            .partition_point(|logged| logged.revision <= revision);
        self.events.range(from..).map(|logged| &logged.event)
    }
}
