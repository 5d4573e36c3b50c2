//! The back-off before a failed daemon pod on a node is replaced: 1 s, doubling up to 15 minutes.
//!
//! An entry is forgotten after twice the longest wait without a failure.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustc_hash::FxHashMap;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The back-off by DaemonSet UID and node: the current wait and when it began.
#[derive(Debug, Default)]
pub(super) struct FailureBackoff {
    nodes: Mutex<FxHashMap<(String, String), (Duration, Instant)>>,
}

impl FailureBackoff {
    /// Returns `None` if the failed pod may be replaced now, and counts the failure. Otherwise returns the time to
    /// wait.
    pub(super) fn admit(&self, set_uid: &str, node: &str) -> Option<Duration> {
        let now = Instant::now();
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        // client-go forgets entries after the same time, so a node that recovered starts with the shortest
        // wait again.
        nodes.retain(|_, (_, since)| now - *since <= 2 * LONGEST);
        let entry = nodes.entry((set_uid.to_owned(), node.to_owned()));
        match entry {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert((FIRST, now));
                None
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => {
                let (delay, since) = *occupied.get();
                let waited = now - since;
                if waited < delay {
                    return Some(delay - waited);
                }
                occupied.insert(((delay * 2).min(LONGEST), now));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_failures_wait_ever_longer() {
        let backoff = FailureBackoff::default();
        assert_eq!(backoff.admit("set", "node"), None);
        for wait in [1, 2, 4, 8] {
            assert_eq!(
                backoff.admit("set", "node"),
                Some(Duration::from_secs(wait))
            );
            advance(Duration::from_secs(wait)).await;
            assert_eq!(backoff.admit("set", "node"), None);
        }
        assert_eq!(backoff.admit("set", "other node"), None);
        advance(3 * LONGEST).await;
        assert_eq!(backoff.admit("set", "node"), None);
        assert_eq!(backoff.admit("set", "node"), Some(FIRST));
    }
}
