//! The one clock: wall time that advances with tokio's time.
//!
//! Invariant: under `tokio::time::pause` a stamp and a timer never disagree, so an hour of cluster
//! life costs no time and is the same on every run.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time that follows tokio's. Cheap to clone; all clones tell the same time.
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

    /// A clock that reads the machine's time now. The one place that asks the machine.
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// The present moment.
    pub fn now(&self) -> Timestamp {
        let (epoch, start) = *self.start;
        let elapsed = SignedDuration::try_from(start.elapsed()).unwrap_or(SignedDuration::MAX);
        epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn stamps_follow_paused_time() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::starting_at(epoch);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now(), "2026-01-01T01:00:00Z".parse().unwrap());
    }
}
