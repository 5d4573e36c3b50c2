//! Records the pod creations and deletions that a controller has requested but not yet seen in its informer.
//!
//! Invariant: while an owner has unmet expectations, its controller neither creates nor deletes pods for it, so it
//! never creates pods twice because the informer lags. Expectations that stay unmet for five minutes are given up:
//! the watch must have missed something.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Instant;

use crate::Key;

const GIVE_UP_AFTER: Duration = Duration::from_secs(300);

/// Pending creations and deletions of pods, by owner.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    owners: Mutex<FxHashMap<Key, Pending>>,
}

#[derive(Debug)]
struct Pending {
    creations: usize,
    deletions: FxHashSet<Key>,
    since: Instant,
}

impl Expectations {
    /// Records that `owner` is about to create `creations` pods and delete the pods `deletions`.
    pub(super) fn expect(
        &self,
        owner: &Key,
        creations: usize,
        deletions: impl IntoIterator<Item = Key>,
    ) {
        let pending = Pending {
            creations,
            deletions: deletions.into_iter().collect(),
            since: Instant::now(),
        };
        // Overwriting is safe, because a controller acts only while nothing is expected.
        self.owners().insert(owner.clone(), pending);
    }

    /// Records that a creation was seen, or failed. Returns whether it was the last one expected.
    pub(super) fn created(&self, owner: &Key) -> bool {
        self.settle(owner, |pending| {
            let expected = pending.creations > 0;
            // Pods created by others for this owner are observed, too, so the count may already be zero.
            pending.creations = pending.creations.saturating_sub(1);
            expected
        })
    }

    /// Records that the deletion of `pod` was seen, or failed. Returns whether it was the last one expected.
    pub(super) fn deleted(&self, owner: &Key, pod: &Key) -> bool {
        self.settle(owner, |pending| pending.deletions.remove(pod))
    }

    /// Returns whether everything expected of `owner` was seen or was requested too long ago.
    pub(super) fn are_met(&self, owner: &Key) -> bool {
        self.owners()
            .get(owner)
            .is_none_or(|pending| pending.is_met() || pending.since.elapsed() > GIVE_UP_AFTER)
    }

    /// Removes all expectations of `owner`.
    pub(super) fn forget(&self, owner: &Key) {
        self.owners().remove(owner);
    }

    fn settle(&self, owner: &Key, observe: impl FnOnce(&mut Pending) -> bool) -> bool {
        let mut owners = self.owners();
        owners
            .get_mut(owner)
            .is_some_and(|pending| observe(pending) && pending.is_met())
    }

    fn owners(&self) -> MutexGuard<'_, FxHashMap<Key, Pending>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn is_met(&self) -> bool {
        self.creations == 0 && self.deletions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expectations_are_met_once_everything_was_seen() {
        let (expectations, owner) = (Expectations::default(), Key::new("ns", "owner"));
        let pod = Key::new("ns", "pod");
        assert!(expectations.are_met(&owner));
        expectations.expect(&owner, 2, [pod.clone()]);
        assert!(!expectations.created(&owner));
        assert!(!expectations.deleted(&owner, &pod));
        assert!(!expectations.are_met(&owner));
        assert!(expectations.created(&owner), "the last observation says so");
        assert!(expectations.are_met(&owner));
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_nobody_asked_for_settle_nothing() {
        let (expectations, owner) = (Expectations::default(), Key::new("ns", "owner"));
        expectations.expect(&owner, 0, [Key::new("ns", "pod")]);
        assert!(!expectations.created(&owner));
        assert!(!expectations.deleted(&owner, &Key::new("ns", "stranger")));
        assert!(!expectations.are_met(&owner));
    }

    #[tokio::test(start_paused = true)]
    async fn unmet_expectations_are_given_up_after_five_minutes() {
        let (expectations, owner) = (Expectations::default(), Key::new("ns", "owner"));
        expectations.expect(&owner, 1, []);
        tokio::time::advance(GIVE_UP_AFTER).await;
        assert!(!expectations.are_met(&owner));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(expectations.are_met(&owner));
    }
}
