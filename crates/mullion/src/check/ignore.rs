//! Reads comments that silence findings: `# mullion:ignore MUL050 the job ends before it grows`.
//!
//! Such a comment applies to the field on its line, including everything in that field. On a line of its own it applies to the field below;
//! above the first field of a document, it applies to the whole document. It has no effect without a reason.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    table,
    yaml::tree::{Comment, Location},
};

/// The `mullion:ignore` comments of a text.
#[derive(Default)]
pub(super) struct Ignores {
    /// The lines that have only a comment.
    alone: BTreeSet<usize>,
    /// The rule IDs that a comment names, by its line.
    ids: BTreeMap<usize, Vec<String>>,
    /// Invalid comments: the line, and what is wrong.
    pub(super) faults: Vec<(usize, String)>,
}

impl Ignores {
    /// Parses the comments of a text.
    pub(super) fn of(comments: &[Comment]) -> Self {
        let mut ignores = Ignores::default();
        for comment in comments {
            if comment.alone {
                ignores.alone.insert(comment.line);
            }
            let Some(rest) = comment.text.trim().strip_prefix("mullion:ignore") else {
                continue;
            };
            let (ids, reason) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            let ids: Vec<_> = ids.split(',').map(str::to_owned).collect();
            if let Some(unknown) = ids.iter().find(|id| table::rule(id).is_none()) {
                ignores.faults.push((
                    comment.line,
                    format!(
                        "mullion:ignore names no rule: {unknown:?} is not an id such as MUL050"
                    ),
                ));
                continue;
            }
            if reason.trim().is_empty() {
                let ids = ids.join(",");
                ignores.faults.push((
                    comment.line,
                    format!("mullion:ignore {ids} does not count: it gives no reason"),
                ));
                continue;
            }
            ignores.ids.entry(comment.line).or_default().extend(ids);
        }
        ignores
    }

    /// Returns whether a comment silences a rule at a place.
    pub(super) fn silence(&self, id: &str, location: &Location) -> bool {
        let names = |line: &usize| {
            self.ids
                .get(line)
                .is_some_and(|ids| ids.iter().any(|own| own.eq_ignore_ascii_case(id)))
        };
        location.lines.iter().any(|line| {
            let above = (1..*line)
                .rev()
                .take_while(|line| self.alone.contains(line));
            // A comment on a field's own line does not apply to the field below.
            (names(line) && !self.alone.contains(line))
                || above.into_iter().any(|line| names(&line))
        })
    }
}
