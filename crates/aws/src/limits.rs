//! Limits the rate of calls with a token bucket for each kind of call. The limits are below EC2's, so that a busy controller waits here
//! instead of using up the account's calls.
//!
//! The sizes are those that the EC2 API Reference documents for an account and region ("Request throttling for the Amazon EC2 API"). Calls
//! that are throttled anyway are repeated by the SDK's standard retries, after random delays that double.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// Kinds of calls that share a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Calls of EC2 that only read.
    Describe,
    /// Calls of EC2 that change something.
    Change,
    /// CreateFleet, whose launches count as RunInstances.
    Launch,
    /// TerminateInstances.
    Terminate,
    /// Calls of the other services: SSM, Pricing, IAM, EKS.
    Other,
}

impl Kind {
    /// Returns the size of the bucket, and the tokens that it gets per second.
    fn bucket(self) -> (f64, f64) {
        match self {
            Self::Describe => (100.0, 20.0),
            Self::Change => (50.0, 5.0),
            Self::Launch => (5.0, 2.0),
            Self::Terminate => (50.0, 5.0),
            Self::Other => (40.0, 10.0),
        }
    }
}

/// The tokens for calls of one kind.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    size: f64,
    per_second: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(kind: Kind, now: Instant) -> Self {
        let (size, per_second) = kind.bucket();
        Self {
            size,
            per_second,
            tokens: size,
            at: now,
        }
    }

    /// Takes a token, which may become available only later, and returns the time to wait for it.
    fn take(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        // The number may become negative: each waiting call takes its token in advance, which keeps the calls
        // in order.
        self.tokens = (self.tokens + passed * self.per_second).min(self.size) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.tokens).max(0.0) / self.per_second)
    }
}

/// The buckets of a process.
#[derive(Debug, Default)]
pub struct Limits {
    buckets: Mutex<BTreeMap<Kind, Bucket>>,
}

impl Limits {
    /// Waits until a call of this kind may be made. Calls are made in the order of their requests.
    pub async fn wait(&self, kind: Kind) {
        let now = Instant::now();
        let wait = {
            let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
            let bucket = buckets
                .entry(kind)
                .or_insert_with(|| Bucket::full(kind, now));
            bucket.take(now)
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_full_bucket_is_a_burst_and_then_calls_come_at_its_rate() {
        let limits = Limits::default();
        let start = Instant::now();
        for _ in 0..5 {
            limits.wait(Kind::Launch).await;
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..6 {
            limits.wait(Kind::Launch).await;
        }
        // Tokio's timer counts in milliseconds.
        assert_eq!(start.elapsed().as_millis().div_ceil(10), 300);
        limits.wait(Kind::Describe).await;
        assert!(start.elapsed() < Duration::from_millis(3010));
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_together_come_one_after_the_other() {
        let limits = Limits::default();
        let start = Instant::now();
        let waits = async || {
            limits.wait(Kind::Launch).await;
            start.elapsed().as_millis().div_ceil(500)
        };
        let (a, b, c, d, e, f, g) = tokio::join!(
            waits(),
            waits(),
            waits(),
            waits(),
            waits(),
            waits(),
            waits()
        );
        assert_eq!([a, b, c, d, e], [0; 5]);
        assert_eq!((f, g), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_never_holds_more_than_its_size() {
        let limits = Limits::default();
        limits.wait(Kind::Launch).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let start = Instant::now();
        for _ in 0..6 {
            limits.wait(Kind::Launch).await;
        }
        assert!(start.elapsed() >= Duration::from_millis(500));
    }
}
