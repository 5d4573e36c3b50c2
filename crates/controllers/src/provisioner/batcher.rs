//! Collects triggers into one plan: a batch ends when nothing came for a while (a second), or some time (ten seconds) after it began.
//!
//! Invariant: a trigger is never lost; one that comes while a plan is made opens the next batch. Triggers are told
//! apart by a key, and one that is in the batch already does not keep it open.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustc_hash::FxHashSet;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

/// Where triggers wait. Cheap to clone; all clones are one batcher.
#[derive(Clone, Debug)]
pub struct Batcher {
    shared: Arc<Shared>,
    idle: Duration,
    max: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<FxHashSet<String>>,
    added: Notify,
}

impl Batcher {
    /// Creates a batcher whose batches end when nothing came for `idle`, and at the latest `max`
    /// after they began.
    pub fn new(idle: Duration, max: Duration) -> Self {
        Self {
            shared: Arc::default(),
            idle,
            max,
        }
    }

    /// Adds a key to the open batch, or opens one.
    pub fn trigger(&self, key: impl Into<String>) {
        let mut waiting = self
            .shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A key that is known already must not notify, or a pod that is updated every second would
        // hold the batch open.
        if waiting.insert(key.into()) {
            self.shared.added.notify_one();
        }
    }

    /// Waits until a batch is open.
    pub async fn opened(&self) {
        // A permit may be left from the batch before, so the wait ends only when there really is a
        // key.
        while self.is_empty() {
            self.shared.added.notified().await;
        }
    }

    /// Waits for the next batch to be complete and empties it.
    pub async fn wait(&self) {
        self.opened().await;
        let start = Instant::now();
        let last = start + self.max;
        let mut end = (start + self.idle).min(last);
        loop {
            tokio::select! {
                () = self.shared.added.notified() => end = (Instant::now() + self.idle).min(last),
                () = sleep_until(end) => break,
            }
        }
        self.shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn is_empty(&self) -> bool {
        self.shared
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(10);

    async fn batch_after(batcher: &Batcher) -> Duration {
        let start = Instant::now();
        batcher.wait().await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lone_trigger_waits_for_a_second() {
        let batcher = Batcher::new(IDLE, MAX);
        batcher.trigger("a");
        let waited = batch_after(&batcher).await;
        assert!(waited >= IDLE && waited < IDLE * 2, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_of_triggers_is_cut_off_after_ten_seconds() {
        let batcher = Batcher::new(IDLE, MAX);
        let other = batcher.clone();
        let feeder = tokio::spawn(async move {
            for number in 0.. {
                other.trigger(number.to_string());
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
        let waited = batch_after(&batcher).await;
        feeder.abort();
        assert!(waited >= MAX && waited < MAX + IDLE, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn repeating_a_key_does_not_keep_the_batch_open() {
        let batcher = Batcher::new(IDLE, MAX);
        let other = batcher.clone();
        let feeder = tokio::spawn(async move {
            loop {
                other.trigger("same");
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        });
        let waited = batch_after(&batcher).await;
        feeder.abort();
        assert!(waited < IDLE * 2, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trigger_between_batches_opens_the_next() {
        let batcher = Batcher::new(IDLE, MAX);
        batcher.trigger("a");
        batcher.wait().await;
        batcher.trigger("a");
        batcher.wait().await;
        assert!(batcher.is_empty());
    }
}
