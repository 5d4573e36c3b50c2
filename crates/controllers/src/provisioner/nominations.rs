//! Nominated nodes: pending pods are expected to be bound to them, so disruption must not remove them.
//!
//! Invariant: a nomination is a hint and expires by itself; losing all of them costs at most a node that was bought
//! in vain.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustc_hash::FxHashMap;
use tokio::time::Instant;

/// How long a nomination lasts: twice the longest batch.
pub const WINDOW: Duration = Duration::from_secs(20);

/// The nominated nodes and claims by name, with the time at which each nomination expires. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Nominations {
    until: Arc<Mutex<FxHashMap<String, Instant>>>,
}

impl Nominations {
    /// Nominates a node or claim from now on.
    pub fn nominate(&self, name: &str) {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else removes entries, so each nomination sweeps those that expired.
        until.retain(|_, end| *end > now);
        until.insert(name.to_owned(), now + WINDOW);
    }

    /// Returns whether a node or claim is nominated.
    pub fn is_nominated(&self, name: &str) -> bool {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        until.get(name).is_some_and(|end| *end > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_nomination_ends_by_itself() {
        let nominations = Nominations::default();
        nominations.nominate("a");
        assert!(nominations.is_nominated("a") && !nominations.is_nominated("b"));
        tokio::time::sleep(WINDOW).await;
        assert!(!nominations.is_nominated("a"));
    }
}
