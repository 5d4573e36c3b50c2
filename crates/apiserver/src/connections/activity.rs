//! Tracks which connections are in use. A connection is in use while a request of it is answered, up to the last byte of the response. A
//! client that does not read its response keeps the connection in use no longer than a request may take; watches have no such limit.
//!
//! Tracking costs a request a few atomic operations and wakes no task: a connection's task sleeps until the connection could be idle too
//! long at the earliest, and then checks again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::places::Place;

/// The activity of a connection.
pub(super) struct Activity {
    since: Instant,
    /// The longest time that a request may take, except for long-running ones.
    limit: Duration,
    /// The requests that are being answered.
    requests: AtomicUsize,
    /// The long-running ones among them.
    long: AtomicUsize,
    /// The time of the last request or response, in milliseconds after `since`; 0 before the first request.
    spoke_ms: AtomicU64,
}

impl Activity {
    /// Creates the activity of a new connection whose requests may take `limit`, except for long-running ones.
    pub(super) fn new(limit: Duration) -> Self {
        Activity {
            since: Instant::now(),
            limit,
            requests: AtomicUsize::new(0),
            long: AtomicUsize::new(0),
            spoke_ms: AtomicU64::new(0),
        }
    }

    /// Returns the time since which the connection is idle; `None` while it is in use.
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
        // At least 1, because 0 means that no request has come yet.
        self.spoke_ms.store(now_ms.max(1), Relaxed);
    }

    /// Waits until the connection has been idle for too long.
    ///
    /// `first` is the limit before the first request, `idle` the limit after later ones.
    pub(super) async fn until_over(&self, first: Duration, idle: Duration) {
        loop {
            let due = match self.quiet_since() {
                Some(since) if self.spoke_ms.load(Relaxed) == 0 => since + first,
                Some(since) => since + idle,
                // Whatever request is running now, the connection cannot have been idle for too long before this time.
                None => Instant::now() + idle,
            };
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

/// Marks the connection as in use until the response is sent. Each clone marks it as well.
pub(crate) struct ActivityGuard {
    place: Arc<Place>,
    is_long: bool,
}

impl ActivityGuard {
    pub(crate) fn new(place: &Arc<Place>) -> Self {
        let activity = place.activity();
        activity.speak();
        activity.requests.fetch_add(1, Relaxed);
        ActivityGuard {
            place: place.clone(),
            is_long: false,
        }
    }

    /// Marks the request as long-running.
    pub(crate) fn goes_on(mut self) -> Self {
        if !std::mem::replace(&mut self.is_long, true) {
            self.place.activity().long.fetch_add(1, Relaxed);
        }
        self
    }
}

impl Clone for ActivityGuard {
    fn clone(&self) -> Self {
        let clone = ActivityGuard::new(&self.place);
        if self.is_long { clone.goes_on() } else { clone }
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        let activity = self.place.activity();
        activity.speak();
        activity.requests.fetch_sub(1, Relaxed);
        if self.is_long {
            activity.long.fetch_sub(1, Relaxed);
        }
    }
}
