//! Limits the evaluation of expressions, and the reasons why they end without a result.

use std::fmt;

use super::error::EvalError;

/// The most steps of one expression (k8s.io/apiserver/pkg/apis/cel: PerCallLimit).
pub(super) const STEPS_OF_A_CALL: u64 = 1_000_000;
/// The most steps of all expressions for one object (RuntimeCELCostBudget).
const STEPS_OF_AN_OBJECT: u64 = 10_000_000;

/// The steps that expressions may still take.
#[derive(Debug)]
pub struct Budget {
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
    /// Takes steps from the budget, or fails if too few are left.
    pub(super) fn take(&mut self, steps: u64) -> Result<(), Failure> {
        // The call's own limit first, because its message is the one a user can act on.
        self.of_call = self.of_call.checked_sub(steps).ok_or(Failure::TooLong)?;
        self.left = self.left.checked_sub(steps).ok_or(Failure::Exhausted)?;
        Ok(())
    }
}

/// The reason why an expression has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// An evaluation error.
    Error(EvalError),
    /// The expression takes more steps than one expression may.
    TooLong,
    /// The expressions for the object together take more steps than allowed.
    Exhausted,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Failure::Error(why) => return write!(f, "{why}"),
            Failure::TooLong => "operation cancelled: actual cost limit exceeded",
            Failure::Exhausted => "running out of cost budget",
        })
    }
}

impl std::error::Error for Failure {}
