//! Injected faults of calls about addresses: throttling, lost responses, partial success, and outdated listings.
//!
//! Invariant: the fault of a call follows from the seed and the number of calls before it.

use std::{fmt, str::FromStr, time::Duration};

use tokio::time::Instant;

use super::Random;

/// The default of the longest time for which listings are outdated; EC2's answers are consistent after about a second.
const LAG: Duration = Duration::from_secs(1);
/// The longest lag that can be configured: address pools assume that a listing shows all older changes.
const LONGEST_LAG: Duration = Duration::from_millis(mullion_engine::ip::SETTLE_MS);

/// The faults of calls about addresses, in text form terms with commas between them: `throttle=10%,lost=5%,lag=10s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressFaults {
    /// The percentage of calls that are answered with `RequestLimitExceeded`.
    pub throttle: u32,
    /// The percentage of changing calls whose response is lost.
    pub lost: u32,
    /// The percentage of assignments of several blocks that get fewer.
    pub partial: u32,
    /// The number of calls per second, and in a burst, that EC2 accepts; `None` means no limit.
    pub rate: Option<u32>,
    /// The longest time for which a listing does not show a change, at speed 1.
    pub lag: Duration,
    /// The seed of all faults.
    pub seed: u64,
}

impl Default for AddressFaults {
    fn default() -> Self {
        Self {
            throttle: 0,
            lost: 0,
            partial: 0,
            rate: None,
            lag: LAG,
            seed: 0,
        }
    }
}

impl fmt::Display for AddressFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [
            ("throttle", self.throttle),
            ("lost", self.lost),
            ("partial", self.partial),
        ];
        for (name, share) in shares.into_iter().filter(|(_, share)| *share > 0) {
            write!(f, "{name}={share}%,")?;
        }
        if let Some(rate) = self.rate {
            write!(f, "rate={rate}/s,")?;
        }
        write!(f, "lag={}ms,seed={}", self.lag.as_millis(), self.seed)
    }
}

/// The error for a text that is not a term of [`AddressFaults`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{term:?} {why}")]
pub struct ParseFaultsError {
    term: String,
    why: &'static str,
}

impl ParseFaultsError {
    pub(crate) fn new(term: &str, why: &'static str) -> Self {
        ParseFaultsError {
            term: term.to_owned(),
            why,
        }
    }
}

impl FromStr for AddressFaults {
    type Err = ParseFaultsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut faults = Self::default();
        for term in text.split(',') {
            let set = faults.set(term);
            set.map_err(|why| ParseFaultsError::new(term, why))?;
        }
        Ok(faults)
    }
}

impl AddressFaults {
    pub(crate) fn set(&mut self, term: &str) -> Result<(), &'static str> {
        let (name, value) = term.split_once('=').unwrap_or((term, ""));
        match name {
            "throttle" => self.throttle = share(value)?,
            "lost" => self.lost = share(value)?,
            "partial" => self.partial = share(value)?,
            "rate" => {
                let number = value
                    .strip_suffix("/s")
                    .and_then(|value| value.parse().ok());
                let rate = number.filter(|rate| *rate > 0);
                self.rate = Some(rate.ok_or("must be a number of calls such as rate=5/s")?);
            }
            "lag" => {
                let lag: Option<jiff::SignedDuration> = value.parse().ok();
                let lag = lag.and_then(|lag| Duration::try_from(lag).ok());
                self.lag = lag
                    .filter(|lag| *lag <= LONGEST_LAG)
                    .ok_or("must be a time of at most 20s such as lag=5s")?;
            }
            "seed" => {
                self.seed = value
                    .parse()
                    .map_err(|_| "must be a whole number such as seed=7")?
            }
            _ => {
                return Err(
                    "is none of throttle=N%, lost=N%, partial=N%, rate=N/s, lag=TIME and seed=N",
                );
            }
        }
        Ok(())
    }
}

fn share(value: &str) -> Result<u32, &'static str> {
    let number = value.strip_suffix('%').and_then(|value| value.parse().ok());
    number
        .filter(|share| *share <= 100)
        .ok_or("must be a share from 0% to 100% such as 10%")
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    /// EC2 carries out the call and responds.
    Answered,
    /// EC2 refuses the call because of its rate, and does nothing.
    Throttled,
    /// EC2 carries out the call, and the response is lost.
    DoneUnheard,
    /// The response is lost, and EC2 carries out the call after the caller has given up.
    DoneLate,
    /// The call never reaches EC2.
    NeverDone,
}

/// The configured faults, and their state.
#[derive(Debug)]
pub(crate) struct FaultyCalls {
    pub(super) faults: AddressFaults,
    random: Random,
    /// The number of calls that EC2 accepts at once, and the time of that number.
    tokens: Option<(f64, Instant)>,
}

impl FaultyCalls {
    pub(crate) fn new(faults: AddressFaults) -> Self {
        Self {
            random: Random::new(faults.seed),
            faults,
            tokens: None,
        }
    }

    /// Decides the outcome of the next call; only changing calls lose their response.
    pub(crate) fn outcome(&mut self, changes: bool) -> CallOutcome {
        // The rate comes first, so that a call over the limit draws no random number: the faults of the
        // others stay the same.
        if !self.takes_a_token() || self.happens(self.faults.throttle) {
            return CallOutcome::Throttled;
        }
        if !changes || !self.happens(self.faults.lost) {
            return CallOutcome::Answered;
        }
        match self.random.below(4) {
            0 => CallOutcome::NeverDone,
            1 => CallOutcome::DoneLate,
            _ => CallOutcome::DoneUnheard,
        }
    }

    /// Returns the number of blocks, out of `count`, that are assigned.
    pub(super) fn part_of(&mut self, count: u32) -> u32 {
        if count > 1 && self.happens(self.faults.partial) {
            1 + self.random.below(u64::from(count) - 1) as u32
        } else {
            count
        }
    }

    /// Returns the time for which listings do not show a change that is made now, at speed 1.
    pub(super) fn lag(&mut self) -> Duration {
        let most = self.faults.lag.as_millis() as u64;
        Duration::from_millis(self.random.below(most + 1))
    }

    fn happens(&mut self, share: u32) -> bool {
        // Without such a fault no number is drawn, so setting one fault does not change the others of a seed.
        share > 0 && self.random.below(100) < u64::from(share)
    }

    fn takes_a_token(&mut self) -> bool {
        let Some(rate) = self.faults.rate.map(f64::from) else {
            return true;
        };
        let now = Instant::now();
        let (left, at) = self.tokens.unwrap_or((rate, now));
        let left = rate.min(left + rate * now.duration_since(at).as_secs_f64());
        // A refused call takes no token, so a caller that keeps trying gets the full rate.
        let taken = left >= 1.0;
        self.tokens = Some((if taken { left - 1.0 } else { left }, now));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_and_read() {
        let text = "throttle=10%,lost=5%,partial=1%,rate=8/s,lag=5000ms,seed=7";
        let faults: AddressFaults = text.parse().unwrap();
        assert_eq!(faults.to_string(), text);
        assert_eq!(
            "lost=5%".parse(),
            Ok(AddressFaults {
                lost: 5,
                ..AddressFaults::default()
            })
        );
    }

    #[test]
    fn a_term_that_is_wrong_is_named_with_what_is_right() {
        let refused = |text: &str| text.parse::<AddressFaults>().unwrap_err().to_string();
        for (text, why) in [
            (
                "throttle=10%,lost=200%",
                "\"lost=200%\" must be a share from 0% to 100% such as 10%",
            ),
            (
                "throttle",
                "\"throttle\" must be a share from 0% to 100% such as 10%",
            ),
            (
                "rate=0/s",
                "\"rate=0/s\" must be a number of calls such as rate=5/s",
            ),
            (
                "lag=1m",
                "\"lag=1m\" must be a time of at most 20s such as lag=5s",
            ),
            ("seed=x", "\"seed=x\" must be a whole number such as seed=7"),
            (
                "",
                "\"\" is none of throttle=N%, lost=N%, partial=N%, rate=N/s, lag=TIME and seed=N",
            ),
        ] {
            assert_eq!(refused(text), why);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_seed_gives_the_same_faults() {
        let faults: AddressFaults = "throttle=20%,lost=40%,partial=50%,seed=3".parse().unwrap();
        let outcomes = |faults: &AddressFaults| {
            let mut calls = FaultyCalls::new(faults.clone());
            let outcomes: Vec<_> = (0..200)
                .map(|_| (calls.outcome(true), calls.part_of(5), calls.lag()))
                .collect();
            outcomes
        };
        let first = outcomes(&faults);
        assert_eq!(outcomes(&faults), first);
        for outcome in [
            CallOutcome::Answered,
            CallOutcome::Throttled,
            CallOutcome::DoneUnheard,
            CallOutcome::DoneLate,
            CallOutcome::NeverDone,
        ] {
            assert!(first.iter().any(|(met, ..)| *met == outcome), "{outcome:?}");
        }
        let other = AddressFaults { seed: 4, ..faults };
        assert_ne!(outcomes(&other), first);
    }

    #[tokio::test(start_paused = true)]
    async fn ec2_takes_so_many_calls_a_second() {
        let mut calls = FaultyCalls::new("rate=3/s".parse().unwrap());
        let taken = |calls: &mut FaultyCalls| {
            let outcomes = (0..10).map(|_| calls.outcome(false));
            outcomes
                .filter(|outcome| *outcome == CallOutcome::Answered)
                .count()
        };
        assert_eq!(taken(&mut calls), 3);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(taken(&mut calls), 2);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(taken(&mut calls), 3);
    }
}
