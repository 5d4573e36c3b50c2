//! Remembers how the last launches of each pool ended, for the condition `NodeRegistrationHealthy`.
//!
//! Invariant: four launches are remembered; two failed ones among them make a pool unhealthy. What is remembered is lost
//! with the process, and begun again from what the pool's condition says.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustc_hash::FxHashMap;

/// Launches that are remembered.
const REMEMBERED: usize = 4;
/// Failed launches that make a pool unhealthy.
const THRESHOLD: usize = 2;

/// Why a launch did not end in a registered node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, in one word.
    pub reason: String,
    /// The reason, in one sentence.
    pub message: String,
}

/// The health of a pool, judged by its last launches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing was launched yet.
    #[default]
    Unknown,
    /// Enough of the last launches ended in registered nodes.
    Healthy,
    /// Too many of them did not; the last failure says why.
    Unhealthy(Failure),
}

#[derive(Default)]
struct Launches {
    /// The oldest first; `None` ended well.
    last: VecDeque<Option<Failure>>,
}

impl Launches {
    fn push(&mut self, launch: Option<Failure>) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(launch);
    }

    fn health(&self) -> Health {
        let mut failed = self.last.iter().flatten();
        match (failed.clone().count() >= THRESHOLD, self.last.is_empty()) {
            (_, true) => Health::Unknown,
            (false, _) => Health::Healthy,
            (true, _) => failed
                .next_back()
                .map_or(Health::Unknown, |last| Health::Unhealthy(last.clone())),
        }
    }
}

/// The last launches of all pools, by the pools' uids. Cheap to clone; all clones share the same launches.
#[derive(Clone, Default)]
pub struct Registrations {
    pools: Arc<Mutex<FxHashMap<String, Launches>>>,
}

impl Registrations {
    /// Notes that a launch ended in a registered node.
    pub fn succeeded(&self, pool_uid: &str) {
        self.of(pool_uid, |launches| launches.push(None));
    }

    /// Notes that a launch was given up.
    pub fn failed(&self, pool_uid: &str, failure: Failure) {
        self.of(pool_uid, |launches| launches.push(Some(failure)));
    }

    /// Forgets the launches of a pool, because those of its new version, or of its class's, may end differently.
    pub fn reset(&self, pool_uid: &str) {
        self.lock().remove(pool_uid);
    }

    /// Returns the health that the last launches show. Before the first launch of this process, `known` says what an
    /// earlier one found, and launches with that result are recorded, so that the next launch is weighed against them.
    pub fn health(&self, pool_uid: &str, known: impl FnOnce() -> Health) -> Health {
        self.of(pool_uid, |launches| {
            if launches.last.is_empty() {
                match known() {
                    Health::Unknown => {}
                    Health::Healthy => launches.push(None),
                    Health::Unhealthy(failure) => {
                        // As many failures as made the pool unhealthy, so that a single success does not make
                        // it healthy at once.
                        (0..THRESHOLD).for_each(|_| launches.push(Some(failure.clone())));
                    }
                }
            }
            launches.health()
        })
    }

    fn of<T>(&self, pool_uid: &str, work: impl FnOnce(&mut Launches) -> T) -> T {
        work(self.lock().entry(pool_uid.to_owned()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Launches>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(message: &str) -> Failure {
        Failure {
            reason: "RegistrationFailed".into(),
            message: message.into(),
        }
    }

    fn health(of: &Registrations) -> Health {
        of.health("p", || Health::Unknown)
    }

    #[test]
    fn two_failed_launches_of_the_last_four_make_a_pool_unhealthy() {
        let launches = Registrations::default();
        assert_eq!(health(&launches), Health::Unknown);
        launches.failed("p", failure("1"));
        assert_eq!(health(&launches), Health::Healthy);
        launches.succeeded("p");
        launches.failed("p", failure("2"));
        assert_eq!(health(&launches), Health::Unhealthy(failure("2")));
        launches.succeeded("p");
        launches.succeeded("p");
        assert_eq!(health(&launches), Health::Healthy);
        launches.reset("p");
        assert_eq!(health(&launches), Health::Unknown);
    }

    #[test]
    fn a_new_process_goes_on_from_what_the_condition_says() {
        let launches = Registrations::default();
        let unhealthy = Health::Unhealthy(failure("before"));
        assert_eq!(launches.health("p", || unhealthy.clone()), unhealthy);
        launches.succeeded("p");
        assert_eq!(launches.health("p", || Health::Unknown), unhealthy);
        assert_eq!(
            launches.health("q", || Health::Healthy),
            Health::Healthy,
            "pools do not share launches"
        );
    }
}
