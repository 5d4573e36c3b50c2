//! How long expressions may run, and why they end without a result.

use std::fmt;

/// Steps one expression may take (k8s.io/apiserver/pkg/apis/cel: PerCallLimit).
pub(super) const STEPS_OF_A_CALL: u64 = 1_000_000;
/// Steps all expressions of one object may take (RuntimeCELCostBudget).
const STEPS_OF_AN_OBJECT: u64 = 10_000_000;

/// Steps that are left.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    pub(super) of_call: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget {
            left: STEPS_OF_AN_OBJECT,
            of_call: 0,
        }
    }
}

impl Budget {
    /// Takes steps, if there are as many.
    pub(super) fn take(&mut self, steps: u64) -> Result<(), Failure> {
        self.of_call = self.of_call.checked_sub(steps).ok_or(Failure::TooLong)?;
        self.left = self.left.checked_sub(steps).ok_or(Failure::Exhausted)?;
        Ok(())
    }
}

/// Why an expression has no result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// What went wrong.
    Error(String),
    /// It takes more steps than one expression may.
    TooLong,
    /// Together with those before it takes more steps than all may.
    Exhausted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Error(message) => message,
            Failure::TooLong => "operation cancelled: actual cost limit exceeded",
            Failure::Exhausted => "running out of cost budget",
        })
    }
}
