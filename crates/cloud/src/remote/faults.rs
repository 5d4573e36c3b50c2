//! What goes wrong with calls on their way to the cloud: throttling, and answers that are lost.
//!
//! Invariant: what a call meets follows from the seed and the number of calls before it.

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
    sim::address_faults::{AddressFaults, Fate, FaultyCalls, ParseFaultsError},
};

/// How long after its caller has given up a call is carried out late.
const LATE: Duration = Duration::from_secs(5);

/// Faults of calls from other processes. Written as terms with commas between: `throttle=20%,lost=5%,rate=10/s,seed=7`.
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

/// A cloud whose callers in other processes meet faults.
#[derive(Debug)]
pub struct Unreliable<C> {
    cloud: Arc<C>,
    calls: Mutex<FaultyCalls>,
}

impl<C: CloudProvider + Addresses> Unreliable<C> {
    /// A cloud with these faults; the default ones are none.
    pub fn new(cloud: C, faults: CallFaults) -> Self {
        Unreliable {
            cloud: Arc::new(cloud),
            calls: Mutex::new(FaultyCalls::new(faults.0)),
        }
    }

    /// Answers a call that a [`super::Remote`] sent, as [`answer`] does. `None`: the answer is lost, and the call may have been carried out, or may be
    /// yet.
    ///
    /// # Errors
    /// The bytes are no call: the other process is of another version.
    pub async fn answer(&self, call: &[u8]) -> Result<Option<Vec<u8>>, serde_json::Error> {
        let changes = match serde_json::from_slice(call)? {
            // Where a client is, it knows without asking.
            Call::Region => return answer(&*self.cloud, call).await.map(Some),
            Call::Launch(_)
            | Call::Terminate(_)
            | Call::Assign { .. }
            | Call::GiveBack { .. }
            | Call::DeleteMessage(_) => true,
            _ => false,
        };
        let fate = {
            // A panic while the lock was held left at worst a fault not counted.
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.fate(changes)
        };
        match fate {
            Fate::Answered => answer(&*self.cloud, call).await.map(Some),
            // Both kinds of errors are written alike.
            Fate::Throttled => serde_json::to_vec(&Err::<(), _>(CloudError::Throttled)).map(Some),
            Fate::DoneUnheard => answer(&*self.cloud, call).await.map(|_| None),
            Fate::DoneLate => {
                let (cloud, call) = (Arc::clone(&self.cloud), call.to_vec());
                tokio::spawn(async move {
                    sleep(LATE).await;
                    // Nobody learns of it.
                    let _ = answer(&*cloud, &call).await;
                });
                Ok(None)
            }
            Fate::NeverDone => Ok(None),
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
