//! Defines a finding: the rule, the place, what is wrong as data, and the fix that can be written to a file.

use super::{
    path::Path,
    problem::Problem,
    table::{self, Rule, Severity},
    yaml::edit::Edit,
};

/// A problem that a rule found.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) rule: &'static Rule,
    pub(super) severity: Severity,
    /// The index of the object.
    pub(super) object: usize,
    /// The path in the object.
    pub(super) at: Path,
    pub(super) problem: Problem,
    pub(super) fix: Option<Fix>,
}

/// A change of the object that removes the finding.
#[derive(Clone, Debug)]
pub(super) struct Fix {
    /// Whether `--fix` alone writes it; otherwise `--fix --unsafe` does.
    pub(super) safe: bool,
    pub(super) edits: Vec<Edit>,
}

/// The findings of all rules.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding with its rule's severity, and returns it so that a fix can be added.
    pub(super) fn add(
        &mut self,
        id: &str,
        object: usize,
        at: Path,
        problem: Problem,
    ) -> &mut Finding {
        let rule = table::rule(id).expect("rules of the code are in the table");
        self.0.push(Finding {
            rule,
            severity: rule.severity,
            object,
            at,
            problem,
            fix: None,
        });
        self.0.last_mut().expect("it was just added")
    }
}

impl Finding {
    /// Replaces the severity, which is the rule's by default.
    pub(super) fn as_a(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }

    /// Adds a fix that `--fix` writes.
    pub(super) fn safe(&mut self, edits: impl IntoIterator<Item = Edit>) -> &mut Self {
        self.fix = Some(Fix {
            safe: true,
            edits: edits.into_iter().collect(),
        });
        self
    }

    /// Adds a fix that only `--fix --unsafe` writes.
    pub(super) fn not_safe(&mut self, edits: impl IntoIterator<Item = Edit>) -> &mut Self {
        self.fix = Some(Fix {
            safe: false,
            edits: edits.into_iter().collect(),
        });
        self
    }
}
