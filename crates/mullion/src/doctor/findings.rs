//! Defines the findings of a check: problems with their remedies, facts that could not be read, or that all is well.

use super::{change::Change, snapshot::Unknown};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    Failed,
    Warning,
    /// A permission or an AWS call was missing.
    Unknown,
    /// The check does not apply to the cluster.
    NotNeeded,
}

impl Outcome {
    /// Returns the word that is printed for the result.
    pub(super) fn label(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::Warning => "warning",
            Outcome::Unknown => "unknown",
            Outcome::NotNeeded => "not needed",
        }
    }
}

/// Everything that a check found.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// A short description of the cluster's state, for a reader who sees no problem.
    pub(super) state: String,
    pub(super) problems: Vec<Problem>,
    /// The permissions and AWS calls that were missing.
    pub(super) missing: Vec<String>,
    needed: Option<bool>,
}

/// A problem that a check found.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// Whether the problem keeps Windows pods from running; otherwise it is a warning.
    pub(super) fails: bool,
    pub(super) text: String,
    /// What the user can do if no change of the doctor fixes the problem: one line each, with commands indented by two spaces.
    pub(super) advice: Vec<String>,
    /// The changes that fix the problem, in this order.
    pub(super) changes: Vec<Change>,
}

impl Findings {
    /// Starts with a description of the cluster's state.
    pub(super) fn state(text: impl Into<String>) -> Self {
        Findings {
            state: text.into(),
            ..Findings::default()
        }
    }

    /// Creates the result of a check that does not apply; `text` says why.
    pub(super) fn not_needed(text: impl Into<String>) -> Self {
        Findings {
            state: text.into(),
            needed: Some(false),
            ..Findings::default()
        }
    }

    /// Adds a problem that keeps Windows pods from running.
    pub(super) fn fail(&mut self, text: impl Into<String>) -> &mut Problem {
        self.add(true, text.into())
    }

    /// Adds a problem that will cause trouble later.
    pub(super) fn warn(&mut self, text: impl Into<String>) -> &mut Problem {
        self.add(false, text.into())
    }

    fn add(&mut self, fails: bool, text: String) -> &mut Problem {
        self.problems.push(Problem {
            fails,
            text,
            advice: Vec::new(),
            changes: Vec::new(),
        });
        self.problems.last_mut().expect("it was just added")
    }

    /// Returns the changes that fix the problems, without duplicates.
    pub(super) fn changes(&self) -> Vec<&Change> {
        let mut changes: Vec<&Change> = Vec::new();
        for change in self.problems.iter().flat_map(|own| &own.changes) {
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        changes
    }

    /// Returns the overall result.
    pub(super) fn outcome(&self) -> Outcome {
        let fails = |problem: &Problem| problem.fails;
        match self {
            // A known problem counts before what could not be read: it stays one whatever the missing answer
            // is.
            _ if self.problems.iter().any(fails) => Outcome::Failed,
            _ if !self.problems.is_empty() => Outcome::Warning,
            _ if !self.missing.is_empty() => Outcome::Unknown,
            _ if self.needed == Some(false) => Outcome::NotNeeded,
            _ => Outcome::Ok,
        }
    }
}

impl From<Unknown> for Findings {
    fn from(Unknown(missing): Unknown) -> Self {
        Findings {
            missing: vec![missing],
            ..Findings::default()
        }
    }
}

impl Problem {
    /// Adds a change that fixes the problem.
    pub(super) fn with_fix(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// Adds a sentence about what the user can do.
    pub(super) fn advise(&mut self, text: impl Into<String>) -> &mut Self {
        self.advice.push(text.into());
        self
    }

    /// Adds a command that the user can run.
    pub(super) fn command(&mut self, command: impl AsRef<str>) -> &mut Self {
        self.advice.push(format!("  {}", command.as_ref()));
        self
    }
}
