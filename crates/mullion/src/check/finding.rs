//! A finding: which rule, where, what is wrong as data, and the fix that a file can be given.

use super::{
    path::Path,
    problem::Problem,
    table::{self, Rule, Severity},
    yaml::edit::Edit,
};

/// Something that a rule found.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) rule: &'static Rule,
    pub(super) severity: Severity,
    /// Which object.
    pub(super) object: usize,
    /// Where in the object.
    pub(super) at: Path,
    pub(super) problem: Problem,
    pub(super) fix: Option<Fix>,
}

/// A change of the object that removes the finding.
#[derive(Clone, Debug)]
pub(super) struct Fix {
    /// `--fix` writes it; otherwise `--fix --unsafe` does.
    pub(super) safe: bool,
    pub(super) edits: Vec<Edit>,
}

/// The findings of all rules.
#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    /// Adds a finding with its rule's severity and returns it, to be given a fix.
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
    /// Gives it another severity than its rule's.
    pub(super) fn as_a(&mut self, severity: Severity) -> &mut Self {
        self.severity = severity;
        self
    }

    /// Gives it changes that `--fix` writes.
    pub(super) fn safe(&mut self, edits: impl IntoIterator<Item = Edit>) -> &mut Self {
        self.fix = Some(Fix {
            safe: true,
            edits: edits.into_iter().collect(),
        });
        self
    }

    /// Gives it changes that `--fix --unsafe` writes.
    pub(super) fn not_safe(&mut self, edits: impl IntoIterator<Item = Edit>) -> &mut Self {
        self.fix = Some(Fix {
            safe: false,
            edits: edits.into_iter().collect(),
        });
        self
    }
}
