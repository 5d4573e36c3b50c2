//! What a check found: problems with what mends them, what could not be known, or that all is well.

use super::{change::Change, snapshot::Unknown};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    Failed,
    Warning,
    /// A permission or a call was missing.
    Unknown,
    /// The cluster has nothing that the check is about.
    NotNeeded,
}

impl Outcome {
    /// Returns the word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed => "failed",
            Outcome::Warning => "warning",
            Outcome::Unknown => "unknown",
            Outcome::NotNeeded => "not needed",
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    /// What is there, in a few words; for a reader who sees no problem.
    pub(super) state: String,
    pub(super) problems: Vec<Problem>,
    /// Permissions and calls that were missing.
    pub(super) missing: Vec<String>,
    needed: Option<bool>,
}

/// Something that is wrong.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// It keeps Windows pods from running; otherwise it will hurt.
    pub(super) fails: bool,
    pub(super) text: String,
    /// What to do, where no change of the doctor's mends it. A line each; commands are indented by two spaces.
    pub(super) advice: Vec<String>,
    /// What mends it, in this order.
    pub(super) changes: Vec<Change>,
}

impl Found {
    /// Says what is there.
    pub(super) fn state(text: impl Into<String>) -> Self {
        Found {
            state: text.into(),
            ..Found::default()
        }
    }

    /// Says why there is nothing to check.
    pub(super) fn not_needed(text: impl Into<String>) -> Self {
        Found {
            state: text.into(),
            needed: Some(false),
            ..Found::default()
        }
    }

    /// Adds something that keeps Windows pods from running.
    pub(super) fn fail(&mut self, text: impl Into<String>) -> &mut Problem {
        self.add(true, text.into())
    }

    /// Adds something that will hurt.
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

    /// Returns what mends the problems, each change once.
    pub(super) fn changes(&self) -> Vec<&Change> {
        let mut changes: Vec<&Change> = Vec::new();
        for change in self.problems.iter().flat_map(|own| &own.changes) {
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        changes
    }

    /// Returns the result.
    pub(super) fn outcome(&self) -> Outcome {
        let fails = |problem: &Problem| problem.fails;
        match self {
            _ if self.problems.iter().any(fails) => Outcome::Failed,
            _ if !self.problems.is_empty() => Outcome::Warning,
            _ if !self.missing.is_empty() => Outcome::Unknown,
            _ if self.needed == Some(false) => Outcome::NotNeeded,
            _ => Outcome::Ok,
        }
    }
}

impl From<Unknown> for Found {
    fn from(Unknown(missing): Unknown) -> Self {
        Found {
            missing: vec![missing],
            ..Found::default()
        }
    }
}

impl Problem {
    /// Adds a change that mends it.
    pub(super) fn mend(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    /// Adds a sentence about what to do.
    pub(super) fn advise(&mut self, text: impl Into<String>) -> &mut Self {
        self.advice.push(text.into());
        self
    }

    /// Adds a command that the user may run.
    pub(super) fn command(&mut self, command: impl AsRef<str>) -> &mut Self {
        self.advice.push(format!("  {}", command.as_ref()));
        self
    }
}
