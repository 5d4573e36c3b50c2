//! The waits after failed calls to EC2.

use super::event::Failure;

/// The longest wait.
const MAX_MS: u64 = 120_000;
/// The longest wait after EC2 throttled a call. All interfaces of the account share the rate, and the caller limits how often they call
/// together, so an interface that was throttled often must not wait much longer than the others.
const MAX_THROTTLED_MS: u64 = 4_800;

/// The wait after failures: it doubles with each failure, and a success ends it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    wait_ms: u64,
    /// The time before which no call may be made.
    pub(super) until: u64,
}

impl Backoff {
    /// Starts the wait after a failure. It is at least 2 s if the subnet is full and otherwise at least 600 ms; it is at most 4.8 s if
    /// EC2 throttled the call and otherwise at most 2 min.
    pub(super) fn fail(&mut self, failure: Failure, now: u64) {
        let (first_ms, max_ms) = match failure {
            Failure::NoAddress | Failure::NoPrefix => (2_000, MAX_MS),
            Failure::Throttled => (600, MAX_THROTTLED_MS),
            Failure::Other | Failure::NoAnswer => (600, MAX_MS),
        };
        // The clamp applies the minimum after the first failure, when the wait is still 0, and the maximum later.
        self.wait_ms = (self.wait_ms * 2).clamp(first_ms, max_ms);
        self.until = now + self.wait_ms;
    }

    /// Ends the wait and resets its length.
    pub(super) fn end(&mut self) {
        *self = Backoff::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_two_minutes_and_to_less_than_five_seconds_after_throttling() {
        let waits = |failure| {
            let mut backoff = Backoff::default();
            let mut next = || {
                backoff.fail(failure, 0);
                backoff.until
            };
            [0; 9].map(|_| next())
        };
        let refused = [600, 1_200, 2_400, 4_800, 4_800, 4_800, 4_800, 4_800, 4_800];
        assert_eq!(waits(Failure::Throttled), refused);
        let full = [2, 4, 8, 16, 32, 64, 120, 120, 120].map(|seconds| seconds * 1000);
        assert_eq!(waits(Failure::NoAddress), full);
    }
}
