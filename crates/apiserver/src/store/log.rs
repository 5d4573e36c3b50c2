//! The window of past events of one collection: what watches replay and what lists at a past revision are rebuilt from.
//!
//! Events are in revision order without gaps from the oldest kept one on; `compacted` is the revision from which on all of them are there.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;

use super::object::{EventType, Object};

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub event_type: EventType,
    /// The object as it is now; for a deletion its last content under the deletion's revision.
    pub object: Arc<Object>,
    /// The version before.
    pub previous: Option<Arc<Object>>,
}

impl Event {
    /// The revision of the change.
    pub fn revision(&self) -> u64 {
        self.object.revision()
    }
}

/// How many events a collection keeps: the youngest, as far as both bounds allow.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The most events kept.
    pub events: usize,
    /// How long an event is kept, in seconds.
    pub seconds: i64,
}

impl Default for Window {
    fn default() -> Self {
        Window {
            events: 100_000,
            seconds: 300,
        }
    }
}

pub(super) struct Log {
    window: Window,
    events: VecDeque<(i64, Event)>,
    compacted: u64,
}

impl Log {
    pub(super) fn new(window: Window) -> Self {
        Log {
            window,
            events: VecDeque::new(),
            compacted: 0,
        }
    }

    pub(super) fn push(&mut self, event: Event, now: Timestamp) {
        self.events.push_back((now.as_second(), event));
        self.compact(now);
    }

    /// Takes out what the window does not keep, for the caller to drop when it holds no lock.
    pub(super) fn compact(&mut self, now: Timestamp) -> Vec<Event> {
        let now = now.as_second();
        let surplus = self.events.len().saturating_sub(self.window.events);
        let young = |(at, _): &(i64, Event)| now - at <= self.window.seconds;
        let expired = self
            .events
            .iter()
            .skip(surplus)
            .take_while(|entry| !young(entry))
            .count();
        let dropped: Vec<Event> = self
            .events
            .drain(..surplus + expired)
            .map(|(_, event)| event)
            .collect();
        if let Some(last) = dropped.last() {
            self.compacted = last.revision();
        }
        dropped
    }

    /// The revision after which every event is still there.
    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// The events after a revision, oldest first; all of them only if `revision >= compacted()`.
    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &Event> {
        let from = self
            .events
            .partition_point(|(_, event)| event.revision() <= revision);
        self.events.range(from..).map(|(_, event)| event)
    }
}
