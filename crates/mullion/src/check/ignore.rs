//! Comments that silence findings: `# mullion:ignore MUL050 the job ends before it grows`.
//!
//! Such a comment speaks of the field on its line or, on a line of its own, of the field below it, with everything in that field; above the
//! first field of a document, of the whole document. It counts only with a reason.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    table,
    yaml::tree::{Comment, Location},
};

/// The comments of a text.
#[derive(Default)]
pub(super) struct Ignores {
    /// Lines with a comment and nothing else.
    alone: BTreeSet<usize>,
    /// The ids that a line's comment names.
    ids: BTreeMap<usize, Vec<String>>,
    /// What is wrong with a comment, and its line.
    pub(super) faults: Vec<(usize, String)>,
}

impl Ignores {
    /// Reads comments.
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

    /// Whether a comment silences a rule at a place.
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
            // A comment behind a field speaks of that field, not of the one below.
            (names(line) && !self.alone.contains(line))
                || above.into_iter().any(|line| names(&line))
        })
    }
}
