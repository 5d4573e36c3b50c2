//! What a user is told when a command cannot do its work: one line that names the thing and the cause, a hint, an exit code.

use std::fmt::{self, Display};

/// A failure that ends the program.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// Wrong input or set-up: exit code 2.
    pub(crate) fn input(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: 2,
        }
    }

    /// The answer is no, or the work went wrong on the way: exit code 1.
    pub(crate) fn run(message: impl Display) -> Self {
        Failure {
            message: message.to_string(),
            hint: None,
            code: 1,
        }
    }

    /// Adds what to do about it.
    pub(crate) fn hint(mut self, hint: impl Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }

    /// The process's exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\nhint:  {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
