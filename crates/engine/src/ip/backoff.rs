//! When a call that failed may be made again.

use super::event::Failure;

/// The longest wait.
const MAX_MS: u64 = 120_000;

/// The wait after a failure: it doubles from one failure to the next, and a success ends it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    wait_ms: u64,
    /// No call before this time.
    pub(super) until: u64,
}

impl Backoff {
    /// Waits after a failure: 2 s at first if the subnet is full, else 600 ms, and at most 2 min.
    pub(super) fn fail(&mut self, failure: Failure, now: u64) {
        let first_ms = match failure {
            Failure::NoAddress | Failure::NoPrefix => 2_000,
            Failure::Throttled | Failure::Other | Failure::NoAnswer => 600,
        };
        self.wait_ms = (self.wait_ms * 2).clamp(first_ms, MAX_MS);
        self.until = now + self.wait_ms;
    }

    /// Ends the wait, and forgets how long it was.
    pub(super) fn end(&mut self) {
        *self = Backoff::default();
    }
}
