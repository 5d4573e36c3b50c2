//! What goes wrong with calls: throttling and denials, by the name of the action.
//!
//! Invariant: a call that is refused here has changed nothing. Shortages of capacity and addresses are the simulated EC2's own faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Any action.
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
}

impl Faults {
    /// Refuses an action from now on, as IAM does where no policy allows it.
    pub fn deny(&self, action: &str) {
        self.lock().denied.insert(action.to_owned());
    }

    /// Takes [`Faults::deny`] back.
    pub fn allow(&self, action: &str) {
        self.lock().denied.remove(action);
    }

    /// Refuses the next `calls` calls of an action because there are too many of them.
    pub fn throttle(&self, action: &str, calls: u32) {
        self.lock().throttled.insert(action.to_owned(), calls);
    }

    pub(crate) fn denies(&self, action: &str) -> bool {
        let state = self.lock();
        [action, ANY].iter().any(|own| state.denied.contains(*own))
    }

    /// Whether this call is one too many; counts it.
    pub(crate) fn throttles(&self, action: &str) -> bool {
        let state = &mut *self.lock();
        [action, ANY].iter().any(|own| {
            let left = state.throttled.get_mut(*own);
            left.is_some_and(|left| {
                let is_over = *left > 0;
                *left = left.saturating_sub(1);
                is_over
            })
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left at worst a fault not counted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
