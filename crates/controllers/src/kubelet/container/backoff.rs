//! How long a container waits before it is started, or its image pulled, once more: client-go's `flowcontrol.Backoff`.
//!
//! Invariant: whether a delay is forgotten is judged by the moment of the event it answers (the exit of a container, not
//! the end of the wait), so that a wait of five minutes is not followed by one of ten seconds.

use jiff::{SignedDuration, Timestamp};

const FIRST_S: u16 = 10;
const LONGEST_S: u16 = 300;

/// A delay that doubles from 10 s to 300 s and is forgotten after twice its maximum without use.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::kubelet) struct Backoff {
    delay_s: u16,
    renewed_at: Timestamp,
}

impl Backoff {
    /// The delay in force for what happened at `event`; zero if there is none, or if it is forgotten by then.
    pub(in crate::kubelet) fn delay(&self, event: Timestamp) -> SignedDuration {
        SignedDuration::from_secs(i64::from(self.in_force(event)))
    }

    /// Makes the delay in force for `event` longer and returns it.
    pub(in crate::kubelet) fn lengthen(
        &mut self,
        event: Timestamp,
        now: Timestamp,
    ) -> SignedDuration {
        self.delay_s = match self.in_force(event) {
            0 => FIRST_S,
            delay_s => (2 * delay_s).min(LONGEST_S),
        };
        self.renewed_at = now;
        SignedDuration::from_secs(i64::from(self.delay_s))
    }

    fn in_force(&self, event: Timestamp) -> u16 {
        let unused = event.duration_since(self.renewed_at);
        if unused > SignedDuration::from_secs(i64::from(2 * LONGEST_S)) {
            0
        } else {
            self.delay_s
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("within range")
    }

    #[test]
    fn a_backoff_doubles_to_five_minutes_and_is_forgotten_after_ten() {
        let mut backoff = Backoff::default();
        let delays = (1..=7).map(|n| backoff.lengthen(at(400 * n), at(400 * n)).as_secs());
        assert_eq!(delays.collect::<Vec<_>>(), [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.delay(at(2_800 + 600)).as_secs(), 300);
        assert!(backoff.delay(at(2_800 + 601)).is_zero());
    }

    #[test]
    fn a_long_wait_does_not_count_towards_forgetting_the_back_off() {
        let mut backoff = Backoff::default();
        for n in 1..=6 {
            backoff.lengthen(at(n), at(n));
        }
        // It ran for 500 s, ended, and waited for 300 s.
        assert_eq!(backoff.lengthen(at(506), at(806)).as_secs(), 300);
    }
}
