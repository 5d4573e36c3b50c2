//! What goes wrong with calls about addresses: throttling, lost answers, partial success, and listings that lag behind.
//!
//! Invariant: what a call meets follows from the seed and the number of calls before it.

use std::{fmt, str::FromStr, time::Duration};

use tokio::time::Instant;

use super::Random;

/// How long a listing lags behind at most, where nothing else is said: EC2's answers agree after a second or so.
const LAG: Duration = Duration::from_secs(1);
/// The longest lag that can be asked for: address pools take it that a listing shows everything that is older.
const LONGEST_LAG: Duration = Duration::from_millis(mullion_engine::ip::SETTLE_MS);

/// Faults of calls about addresses. Written as terms with commas between: `throttle=10%,lost=5%,lag=10s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressFaults {
    /// Per cent of all calls that are answered with `RequestLimitExceeded`.
    pub throttle: u32,
    /// Per cent of changing calls whose answer is lost.
    pub lost: u32,
    /// Per cent of assignments of several blocks that get fewer.
    pub partial: u32,
    /// Calls a second that EC2 takes, and as many at once; `None` takes all.
    pub rate: Option<u32>,
    /// How long at most a listing does not show a change, at speed 1.
    pub lag: Duration,
    /// Seed of all of it.
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

/// A term of [`AddressFaults`] that cannot be understood.
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

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// EC2 does it and answers.
    Answered,
    /// EC2 refuses the rate and does nothing.
    Throttled,
    /// EC2 does it, and the answer is lost.
    DoneUnheard,
    /// The answer is lost, and EC2 does it after the caller has given up.
    DoneLate,
    /// EC2 never hears of it.
    NeverDone,
}

/// The faults and how far they have come.
#[derive(Debug)]
pub(crate) struct FaultyCalls {
    pub(super) faults: AddressFaults,
    random: Random,
    /// Calls that EC2 takes at once, and when that was so.
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

    /// Decides what becomes of the next call; only changing ones lose their answer.
    pub(crate) fn fate(&mut self, changes: bool) -> Fate {
        if !self.takes_a_token() || self.happens(self.faults.throttle) {
            return Fate::Throttled;
        }
        if !changes || !self.happens(self.faults.lost) {
            return Fate::Answered;
        }
        match self.random.below(4) {
            0 => Fate::NeverDone,
            1 => Fate::DoneLate,
            _ => Fate::DoneUnheard,
        }
    }

    /// Returns how many of `count` blocks are assigned.
    pub(super) fn part_of(&mut self, count: u32) -> u32 {
        match count > 1 && self.happens(self.faults.partial) {
            true => 1 + self.random.below(u64::from(count) - 1) as u32,
            false => count,
        }
    }

    /// Returns for how long listings do not show a change that is made now, at speed 1.
    pub(super) fn lag(&mut self) -> Duration {
        let most = self.faults.lag.as_millis() as u64;
        Duration::from_millis(self.random.below(most + 1))
    }

    fn happens(&mut self, share: u32) -> bool {
        share > 0 && self.random.below(100) < u64::from(share)
    }

    fn takes_a_token(&mut self) -> bool {
        let Some(rate) = self.faults.rate.map(f64::from) else {
            return true;
        };
        let now = Instant::now();
        let (left, at) = self.tokens.unwrap_or((rate, now));
        let left = rate.min(left + rate * now.duration_since(at).as_secs_f64());
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
        let fates = |faults: &AddressFaults| {
            let mut calls = FaultyCalls::new(faults.clone());
            let fates: Vec<_> = (0..200)
                .map(|_| (calls.fate(true), calls.part_of(5), calls.lag()))
                .collect();
            fates
        };
        let first = fates(&faults);
        assert_eq!(fates(&faults), first);
        for fate in [
            Fate::Answered,
            Fate::Throttled,
            Fate::DoneUnheard,
            Fate::DoneLate,
            Fate::NeverDone,
        ] {
            assert!(first.iter().any(|(met, ..)| *met == fate), "{fate:?}");
        }
        let other = AddressFaults { seed: 4, ..faults };
        assert_ne!(fates(&other), first);
    }

    #[tokio::test(start_paused = true)]
    async fn ec2_takes_so_many_calls_a_second() {
        let mut calls = FaultyCalls::new("rate=3/s".parse().unwrap());
        let taken = |calls: &mut FaultyCalls| {
            let fates = (0..10).map(|_| calls.fate(false));
            fates.filter(|fate| *fate == Fate::Answered).count()
        };
        assert_eq!(taken(&mut calls), 3);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!(taken(&mut calls), 2);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(taken(&mut calls), 3);
    }
}
