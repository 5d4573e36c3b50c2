//! The one clock that stamps objects.
//!
//! It follows tokio's time, so that under paused time a stamp and a timer never disagree.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time that advances with tokio's (possibly paused) time.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Arc<(Timestamp, Instant)>,
}

impl Clock {
    /// A clock that reads `epoch` now.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self {
            start: Arc::new((epoch, Instant::now())),
        }
    }

    /// The present moment.
    pub fn now(&self) -> Timestamp {
        let (epoch, start) = *self.start;
        let elapsed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
