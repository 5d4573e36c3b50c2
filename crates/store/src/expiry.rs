//! When the objects of a collection come to the end of their time to live, counted from their last write.
//!
//! All of a collection live equally long and the clock does not go back, so what is written last ends last: a queue in the order of the
//! writes is in the order of the ends. An entry whose object was written again since is worth nothing; that write has its own.

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
    /// Lets what is written from now on live that long. Answers whether it was for good before.
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
