//! Serializes launches that ask for the same unproven offerings.
//!
//! Invariant: an offering that has not been sold lately is requested by one launch at a time. If EC2 has no capacity for
//! what 600 claims request, one launch finds out, and the others learn that before they ask. Once the offering is sold, the
//! others ask all at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mullion_cloud::{FleetError, LaunchOption};
use tokio::time::Instant;

use crate::Queue;

/// How long an offering counts as proven after it was sold.
const PROVEN_FOR: Duration = Duration::from_secs(60);

/// The launches that are under way. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct LaunchTurns {
    shared: Arc<Mutex<Inner>>,
    /// Wakes the claims that wait.
    queue: Queue<String>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Unproven offerings that a launch requests now.
    asked: BTreeSet<LaunchOption>,
    /// When an offering was last sold.
    proven: BTreeMap<LaunchOption, Instant>,
    /// Claims to be reconciled when a launch has ended.
    waiting: BTreeSet<String>,
}

impl LaunchTurns {
    /// Creates the state without any launch.
    pub(super) fn new(queue: Queue<String>) -> Self {
        Self {
            shared: Arc::default(),
            queue,
        }
    }

    /// Takes a turn for the unproven offerings among these options, best first; `None` if another launch requests one of
    /// them. The end of that launch wakes the claim.
    pub(super) fn take(&self, claim: &str, options: &[LaunchOption]) -> Option<LaunchPermit> {
        let now = Instant::now();
        self.with(|inner| {
            inner
                .proven
                .retain(|_, at| now.duration_since(*at) < PROVEN_FOR);
            let unproven = options
                .iter()
                // EC2 tries the options in this order, so what stands behind a proven option will not be
                // reached.
                .take_while(|option| !inner.proven.contains_key(option));
            let unproven_options: Vec<LaunchOption> = unproven.cloned().collect();
            // Noted under the same lock that the end of a launch takes, so the wake-up cannot be missed.
            if unproven_options
                .iter()
                .any(|option| inner.asked.contains(option))
            {
                inner.waiting.insert(claim.to_owned());
                return None;
            }
            inner.asked.extend(unproven_options.iter().cloned());
            Some(unproven_options)
        })
        .map(|unproven_options| LaunchPermit {
            turns: self.clone(),
            options: unproven_options,
        })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        work(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The permission to launch now. When it is dropped, the waiting claims are woken.
#[derive(Debug)]
pub(super) struct LaunchPermit {
    turns: LaunchTurns,
    options: Vec<LaunchOption>,
}

impl LaunchPermit {
    /// Records which options were refused and which was sold.
    pub(super) fn ended(&self, refused: &[FleetError], sold: Option<LaunchOption>) {
        let now = Instant::now();
        self.turns.with(|inner| {
            for error in refused {
                // A refusal ends the proof at once: the last of the capacity has been sold.
                inner.proven.remove(&error.option);
            }
            inner.proven.extend(sold.map(|option| (option, now)));
        });
    }
}

impl Drop for LaunchPermit {
    fn drop(&mut self) {
        let waiting = self.turns.with(|inner| {
            for option in &self.options {
                inner.asked.remove(option);
            }
            std::mem::take(&mut inner.waiting)
        });
        for claim in waiting {
            self.turns.queue.add(claim);
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_cloud::{CapacityType, Shortage};

    use super::*;

    fn options(zones: &[&str]) -> Vec<LaunchOption> {
        let option = |zone: &&str| LaunchOption {
            instance_type: "m5.large".to_owned(),
            zone: (*zone).to_owned(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
            placement: None,
        };
        zones.iter().map(option).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn one_launch_tries_and_the_others_follow_once_it_is_sold() {
        let queue = Queue::new("test");
        let turns = LaunchTurns::new(queue.clone());
        let first = turns.take("a", &options(&["x", "y"])).expect("it is free");
        assert!(turns.take("b", &options(&["y", "z"])).is_none());
        assert!(turns.take("c", &options(&["z"])).is_some(), "nobody asks");
        first.ended(&[], options(&["x"]).pop());
        drop(first);
        assert_eq!(queue.next().await.expect("it is woken").key(), "b");
        let more = [
            turns.take("b", &options(&["x", "y"])),
            turns.take("d", &options(&["x"])),
        ];
        assert!(
            more.iter().all(Option::is_some),
            "what was sold is to be had"
        );
        tokio::time::sleep(PROVEN_FOR).await;
        let one = turns.take("e", &options(&["x"]));
        assert!(one.is_some() && turns.take("f", &options(&["x"])).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_tried_by_one_again() {
        let turns = LaunchTurns::new(Queue::new("test"));
        let all = options(&["x"]);
        let refused = FleetError {
            option: all[0].clone(),
            shortage: Shortage::Spot,
            unavailable_for: Duration::ZERO,
        };
        let first = turns.take("a", &all).expect("it is free");
        first.ended(&[], all.first().cloned());
        first.ended(&[refused], None);
        drop(first);
        let second = turns.take("b", &all);
        assert!(second.is_some() && turns.take("c", &all).is_none());
    }
}
