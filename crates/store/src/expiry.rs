//! Keeps the times at which the objects of a collection expire, counted from their last write.
//!
//! All objects of a collection live equally long and the clock does not go back, so the queue in the order of the
//! writes is also in the order of the ends. An entry whose object was written again is ignored; the later write has an
//! entry of its own.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use super::object::{Key, Object};

/// The ends to come of one collection; empty as long as its objects stay for good.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    ttl: Option<SignedDuration>,
    ends: VecDeque<End>,
}

/// The end of one version of an object.
#[derive(Debug)]
pub(super) struct End {
    at: Timestamp,
    pub(super) key: Key,
    pub(super) revision: u64,
}

impl Expiry {
    /// Sets how long objects live that are written from now on. Returns whether they lived without limit before.
    pub(super) fn live_for(&mut self, ttl: SignedDuration) -> bool {
        self.ttl.replace(ttl).is_none()
    }

    /// Notes a write.
    pub(super) fn written(&mut self, object: &Object, now: Timestamp) {
        if let Some(at) = self.ttl.and_then(|ttl| now.checked_add(ttl).ok()) {
            self.ends.push_back(End {
                at,
                key: object.key().clone(),
                revision: object.revision(),
            });
        }
    }

    /// Removes and returns an expired version, which may no longer be the current one.
    pub(super) fn take_over(&mut self, now: Timestamp) -> Option<End> {
        self.ends.pop_front_if(|end| end.at <= now)
    }

    /// Returns when the next version comes to its end.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.ends.front().map(|end| end.at)
    }
}
