//! Detects drains that make no progress. An informer that lost an event shows an old pod for ever, so a drain that
//! stands still asks the API server now and then.
//!
//! Invariant: these are only hints; without them the API server is asked a minute later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use tokio::time::Instant;

/// A drain that has waited for the same pods for this long stands still.
const STANDSTILL: Duration = Duration::from_secs(60);

/// The pods that each drained node waits for. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Mutex<BTreeMap<String, Waiting>>>);

/// The uids of pods that are waited for, and since when.
type Waiting = (BTreeSet<String>, Instant);

impl Progress {
    /// Notes the pods that a node waits for. Returns whether they have been the same for a minute, at most once per
    /// minute.
    pub(super) fn stands_still<'a>(
        &self,
        node: &str,
        waiting: impl Iterator<Item = &'a Arc<Pod>>,
    ) -> bool {
        let waiting: BTreeSet<_> = waiting.filter_map(|pod| pod.uid()).collect();
        let now = Instant::now();
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A drained node is forgotten at once, since it may wait for its volumes for long.
        if waiting.is_empty() {
            nodes.remove(node);
            return false;
        }
        match nodes.get(node) {
            Some((last, since)) if *last == waiting && now.duration_since(*since) < STANDSTILL => {
                false
            }
            last => {
                let is_same = last.is_some_and(|(last, _)| *last == waiting);
                nodes.insert(node.to_owned(), (waiting, now));
                is_same
            }
        }
    }

    /// Forgets a node that is gone.
    pub(super) fn forget(&self, node: &str) {
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_waits_for_the_same_pods_for_a_minute_stands_still() {
        let progress = Progress::default();
        let (a, b) = (pod("a"), pod("b"));
        let both = [&a, &b];
        assert!(!progress.stands_still("n", both.into_iter()));
        tokio::time::sleep(Duration::from_secs(59)).await;
        assert!(!progress.stands_still("n", both.into_iter()));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(progress.stands_still("n", both.into_iter()));
        assert!(
            !progress.stands_still("n", both.into_iter()),
            "once a minute"
        );
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert!(
            !progress.stands_still("n", [&a].into_iter()),
            "one has gone"
        );
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert!(!progress.stands_still("n", [&a].into_iter()));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(progress.stands_still("n", [&a].into_iter()));
        assert!(!progress.stands_still("n", [].into_iter()));
    }
}
