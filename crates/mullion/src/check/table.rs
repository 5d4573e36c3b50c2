//! Lists the rules: one table of IDs, severities, titles, explanations and sources. IDs are stable and are never reused.
//!
//! `docs/check.md` and `mullion check --explain` are generated from it.

mod groups;

use std::fmt;

pub(super) use groups::GROUPS;

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// It is good to know, but not a problem.
    Info,
    /// It will cause trouble.
    Warn,
    /// The object will not run, or will run in the wrong place.
    Error,
}

impl Severity {
    pub(super) fn label(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

/// How a finding can be fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FixKind {
    /// `--fix` writes it: where the object worked before, the result means the same.
    Safe,
    /// `--fix --unsafe` writes it.
    Unsafe,
    /// The fix is only described in words.
    Words,
}

impl FixKind {
    /// Returns what the documentation says about a rule's fix.
    pub(super) fn description(self) -> &'static str {
        match self {
            FixKind::Safe => "written by `--fix` where it is certain",
            FixKind::Unsafe => "written by `--fix --unsafe` only",
            FixKind::Words => "said in words",
        }
    }
}

/// An entry of the table: a rule with its texts.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    /// The severity of the rule's findings, unless a finding sets another one.
    pub(super) severity: Severity,
    pub(super) title: &'static str,
    pub(super) explanation: &'static str,
    pub(super) source: &'static str,
    pub(super) fix: FixKind,
}

/// Rules about one topic.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) rules: &'static [Rule],
}

/// Returns the rule with this ID, ignoring case.
pub(super) fn rule(id: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.id.eq_ignore_ascii_case(id))
}

/// Returns all rules in the order of their IDs.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    GROUPS.iter().flat_map(|group| group.rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_in_order() {
        let ids: Vec<_> = all().map(|rule| rule.id).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
    }
}
