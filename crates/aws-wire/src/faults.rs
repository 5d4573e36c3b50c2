//! Injects faults into calls: throttling and denials, by the name of the action.
//!
//! Invariant: a call that is refused here has no effect. Shortages of capacity and addresses are faults of the simulated EC2.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

/// The name that stands for every action.
const ANY: &str = "*";

/// Faults of calls. An action is written as in IAM policies, `ec2:CreateFleet`; `*` means all.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    denied: BTreeSet<String>,
    throttled: BTreeMap<String, u32>,
    rates: BTreeMap<String, Bucket>,
}

/// A token bucket of calls; its burst is one second's worth.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    left: f64,
    filled: Instant,
}

impl Bucket {
    fn takes_one(&mut self, now: Instant) -> bool {
        let gained = self.per_second * now.duration_since(self.filled).as_secs_f64();
        self.left = self.per_second.min(self.left + gained);
        self.filled = now;
        let taken = self.left >= 1.0;
        if taken {
            self.left -= 1.0;
        }
        taken
    }
}

impl Faults {
    /// Refuses an action from now on, as IAM does without a policy that allows it.
    pub fn deny(&self, action: &str) {
        self.lock().denied.insert(action.to_owned());
    }

    /// Ends the effect of [`Faults::deny`] for an action.
    pub fn allow(&self, action: &str) {
        self.lock().denied.remove(action);
    }

    /// Throttles the next `calls` calls of an action.
    pub fn throttle(&self, action: &str, calls: u32) {
        self.lock().throttled.insert(action.to_owned(), calls);
    }

    /// Throttles the calls of an action beyond this number per second; `None` ends the limit. With `*` all actions share one limit.
    pub fn limit(&self, action: &str, calls_a_second: Option<NonZeroU32>) {
        let rates = &mut self.lock().rates;
        match calls_a_second {
            None => drop(rates.remove(action)),
            Some(calls) => {
                let per_second = f64::from(calls.get());
                let bucket = Bucket {
                    per_second,
                    left: per_second,
                    filled: Instant::now(),
                };
                rates.insert(action.to_owned(), bucket);
            }
        }
    }

    pub(crate) fn denies(&self, action: &str) -> bool {
        let state = self.lock();
        [action, ANY].iter().any(|own| state.denied.contains(*own))
    }

    /// Counts a call, and returns whether it must be throttled.
    pub(crate) fn throttles(&self, action: &str) -> bool {
        let state = &mut *self.lock();
        let now = Instant::now();
        let is_counted = [action, ANY].iter().any(|own| {
            let left = state.throttled.get_mut(*own);
            left.is_some_and(|left| {
                let is_over = *left > 0;
                *left = left.saturating_sub(1);
                is_over
            })
        });
        is_counted
            || [action, ANY].iter().any(|own| {
                let rate = state.rates.get_mut(*own);
                rate.is_some_and(|rate| !rate.takes_one(now))
            })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic while the lock was held, at worst one call was not counted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
