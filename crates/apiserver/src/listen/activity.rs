//! Which connections are in use: one is while a request of it is being answered, up to the last byte of the answer. A client that does not read
//! its answers keeps its connection in use for as long as a request may take, and no longer; watches may take as long as they want.
//!
//! Counting costs a request a few atomic operations and no wake-up: the task of a connection looks when it could be over at the earliest,
//! and again when it is not.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::places::Place;

/// What a connection has done so far.
pub(super) struct Activity {
    since: Instant,
    /// How long a request may take.
    limit: Duration,
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// Those of them that go on for as long as their client wants.
    long: AtomicUsize,
    /// When the last of them came or was answered, in milliseconds after `since`; 0 if there was none yet.
    spoke_ms: AtomicU64,
}

impl Activity {
    /// A new connection's, of which no request but long ones may take more than `limit`.
    pub(super) fn new(limit: Duration) -> Self {
        Activity {
            since: Instant::now(),
            limit,
            requests: AtomicUsize::new(0),
            long: AtomicUsize::new(0),
            spoke_ms: AtomicU64::new(0),
        }
    }

    /// Returns since when the connection is not in use; `None` while it is.
    pub(super) fn quiet_since(&self) -> Option<Instant> {
        let spoke = self.since + Duration::from_millis(self.spoke_ms.load(Relaxed));
        if self.requests.load(Relaxed) == 0 {
            return Some(spoke);
        }
        let over = spoke + self.limit;
        let is_over = self.long.load(Relaxed) == 0 && over <= Instant::now();
        is_over.then_some(over)
    }

    fn speak(&self) {
        let now_ms = self.since.elapsed().as_millis() as u64;
        self.spoke_ms.store(now_ms.max(1), Relaxed);
    }

    /// Waits until the connection was without a request for as long as it may be.
    ///
    /// `first` is how long the first request may take to come, `idle` every later one.
    pub(super) async fn until_over(&self, first: Duration, idle: Duration) {
        loop {
            let due = match self.quiet_since() {
                Some(since) if self.spoke_ms.load(Relaxed) == 0 => since + first,
                Some(since) => since + idle,
                None => Instant::now() + idle,
            };
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

/// One request of a connection, until its answer is sent. Clones count too.
pub(crate) struct Busy {
    place: Arc<Place>,
    is_long: bool,
}

impl Busy {
    pub(super) fn new(place: &Arc<Place>) -> Self {
        let activity = place.activity();
        activity.speak();
        activity.requests.fetch_add(1, Relaxed);
        Busy {
            place: place.clone(),
            is_long: false,
        }
    }

    /// The request goes on for as long as its client wants.
    pub(crate) fn goes_on(mut self) -> Self {
        if !std::mem::replace(&mut self.is_long, true) {
            self.place.activity().long.fetch_add(1, Relaxed);
        }
        self
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        let clone = Busy::new(&self.place);
        match self.is_long {
            true => clone.goes_on(),
            false => clone,
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = self.place.activity();
        activity.speak();
        activity.requests.fetch_sub(1, Relaxed);
        if self.is_long {
            activity.long.fetch_sub(1, Relaxed);
        }
    }
}
