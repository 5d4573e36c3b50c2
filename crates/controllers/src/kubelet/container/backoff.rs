//! The back-off before a container is restarted or its image pulled again (client-go: `flowcontrol.Backoff`).
//!
//! Invariant: whether a back-off has expired is decided by the time of the event that causes the wait (a
//! container's exit, not the end of the wait), so a wait of five minutes is not followed by one of ten seconds.

use jiff::{SignedDuration, Timestamp};

const FIRST_S: u16 = 10;
const LONGEST_S: u16 = 300;

/// A back-off that doubles from 10 s to 300 s, and expires when it was not used for twice its maximum.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::kubelet) struct Backoff {
    delay_s: u16,
    renewed_at: Timestamp,
}

impl Backoff {
    /// Returns the back-off for an event at `event`; zero if there is none or it has expired by then.
    pub(in crate::kubelet) fn delay(&self, event: Timestamp) -> SignedDuration {
        SignedDuration::from_secs(i64::from(self.in_force(event)))
    }

    /// Lengthens the back-off for an event at `event`, and returns it.
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
        // The container ran for 500 s, exited, and waited for 300 s.
        assert_eq!(backoff.lengthen(at(506), at(806)).as_secs(), 300);
    }
}
