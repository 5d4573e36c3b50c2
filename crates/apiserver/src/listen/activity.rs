//! Which connections are in use: one is while a request of it is being answered, up to the last byte of the answer.
//!
//! Counting costs a request a few atomic operations and no wake-up: the task of a connection looks when it could be over at the earliest,
//! and again when it is not.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

use super::places::Place;

/// What a connection has done so far.
pub(super) struct Activity {
    since: Instant,
    /// Requests that are being answered.
    requests: AtomicUsize,
    /// When the last of them was answered, in milliseconds after `since`; 0 if there was none yet.
    answered_ms: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Activity {
            since: Instant::now(),
            requests: AtomicUsize::new(0),
            answered_ms: AtomicU64::new(0),
        }
    }

    /// Returns since when there is no request; `None` while there is one.
    pub(super) fn quiet_since(&self) -> Option<Instant> {
        let answered = Duration::from_millis(self.answered_ms.load(Relaxed));
        (self.requests.load(Relaxed) == 0).then(|| self.since + answered)
    }

    /// Waits until the connection was without a request for as long as it may be.
    ///
    /// `first` is how long the first request may take to come, `idle` every later one.
    pub(super) async fn until_over(&self, first: Duration, idle: Duration) {
        loop {
            let due = match self.quiet_since() {
                Some(since) if self.answered_ms.load(Relaxed) == 0 => since + first,
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
pub(crate) struct Busy(Arc<Place>);

impl Busy {
    pub(super) fn new(place: &Arc<Place>) -> Self {
        place.activity().requests.fetch_add(1, Relaxed);
        Busy(place.clone())
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        Busy::new(&self.0)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = self.0.activity();
        let now_ms = activity.since.elapsed().as_millis() as u64;
        activity.answered_ms.store(now_ms.max(1), Relaxed);
        activity.requests.fetch_sub(1, Relaxed);
    }
}

/// The body of an answer, which keeps its connection in use until it is sent.
pub(super) struct Counted {
    pub(super) body: Body,
    #[expect(dead_code, reason = "it counts while it is there")]
    pub(super) busy: Busy,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
