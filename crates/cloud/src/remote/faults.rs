//! Injected faults of calls on their way to the cloud: throttling, and lost responses.
//!
//! Invariant: the fault of a call follows from the seed and the number of calls before it.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use super::{Call, answer};
use crate::{
    Addresses, CloudError, CloudProvider,
    sim::address_faults::{AddressFaults, CallOutcome, FaultyCalls, ParseFaultsError},
};

/// The time between a caller's timeout and the late execution of its call.
const LATE: Duration = Duration::from_secs(5);

/// The faults of calls from other processes, in text form terms with commas between them: `throttle=20%,lost=5%,rate=10/s,seed=7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallFaults(AddressFaults);

impl fmt::Display for CallFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = &self.0;
        write!(f, "throttle={}%,lost={}%", own.throttle, own.lost)?;
        if let Some(rate) = own.rate {
            write!(f, ",rate={rate}/s")?;
        }
        write!(f, ",seed={}", own.seed)
    }
}

impl FromStr for CallFaults {
    type Err = ParseFaultsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Self::default();
        for term in text.split(',') {
            let set = match term.split_once('=') {
                Some(("throttle" | "lost" | "rate" | "seed", _)) => faults.0.set(term),
                _ => Err("is none of throttle=N%, lost=N%, rate=N/s and seed=N"),
            };
            set.map_err(|why| ParseFaultsError::new(term, why))?;
        }
        Ok(faults)
    }
}

/// A cloud with injected faults for callers in other processes.
#[derive(Debug)]
pub struct Unreliable<C> {
    cloud: Arc<C>,
    calls: Mutex<FaultyCalls>,
}

impl<C: CloudProvider + Addresses> Unreliable<C> {
    /// Adds faults to a cloud; the default has none.
    pub fn new(cloud: C, faults: CallFaults) -> Self {
        Unreliable {
            cloud: Arc::new(cloud),
            calls: Mutex::new(FaultyCalls::new(faults.0)),
        }
    }

    /// Answers a call of a [`super::Remote`], like [`answer`]. Returns `None` if the response is lost; the call may then be carried out
    /// now, later or never.
    ///
    /// # Errors
    /// The bytes are not a call, because the other process has another version.
    pub async fn answer(&self, call: &[u8]) -> Result<Option<Vec<u8>>, serde_json::Error> {
        let changes = match serde_json::from_slice(call)? {
            // A client knows its region without a call.
            Call::Region => return answer(&*self.cloud, call).await.map(Some),
            Call::Launch(_)
            | Call::Terminate(_)
            | Call::Assign { .. }
            | Call::GiveBack { .. }
            | Call::DeleteMessage(_) => true,
            _ => false,
        };
        let outcome = {
            // After a panic while the lock was held, at worst a fault is not counted.
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            // Drawn under the lock, so that the n-th call has the n-th fault of the seed.
            calls.outcome(changes)
        };
        match outcome {
            CallOutcome::Answered => answer(&*self.cloud, call).await.map(Some),
            // The errors of both traits have the same form in JSON.
            CallOutcome::Throttled => {
                serde_json::to_vec(&Err::<(), _>(CloudError::Throttled)).map(Some)
            }
            CallOutcome::DoneUnheard => answer(&*self.cloud, call).await.map(|_| None),
            CallOutcome::DoneLate => {
                let (cloud, call) = (Arc::clone(&self.cloud), call.to_vec());
                tokio::spawn(async move {
                    sleep(LATE).await;
                    // The result is dropped, because no caller waits for it.
                    let _ = answer(&*cloud, &call).await;
                });
                Ok(None)
            }
            CallOutcome::NeverDone => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_and_read() {
        let text = "throttle=20%,lost=5%,rate=10/s,seed=7";
        let faults: CallFaults = text.parse().unwrap();
        assert_eq!(faults.to_string(), text);
        let refused = |text: &str| text.parse::<CallFaults>().unwrap_err().to_string();
        assert_eq!(
            refused("throttle=20%,lag=5s"),
            "\"lag=5s\" is none of throttle=N%, lost=N%, rate=N/s and seed=N"
        );
        assert_eq!(
            refused("lost=200%"),
            "\"lost=200%\" must be a share from 0% to 100% such as 10%"
        );
    }
}
