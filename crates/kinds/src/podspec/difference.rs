//! Computes the unified diff of two texts like Python's difflib, and the Go port of it that kube-apiserver uses.
//!
//! The longest common block is found first, and then the blocks before and after it. The result is not the shortest diff, but it is
//! kube-apiserver's.

use std::{cell::Cell, collections::HashMap, ops::Range};

const CONTEXT: usize = 3;
/// In texts with at least this many lines, lines that make up more than a hundredth of the text are not used to find common blocks.
const POPULAR_FROM: usize = 200;

/// The most comparisons of lines; the rest of longer texts becomes a single change. A test that measures the work for two lengths of lists
/// uses a smaller number, so that both lengths reach it.
const MAX_STEPS: usize = if cfg!(any(test, feature = "small-bounds")) {
    20_000
} else {
    2_000_000
};

/// Returns hunks with three lines of context, without file names; empty if the texts are equal.
pub(super) fn unified(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut out = String::new();
    for hunk in hunks(&Matcher::new(&old, &new).changes(), old.len(), new.len()) {
        out.push_str(&format!(
            "@@ -{} +{} @@\n",
            range(&hunk.old),
            range(&hunk.new)
        ));
        let mut at = hunk.old.start;
        for change in &hunk.changes {
            lines(&mut out, ' ', &old[at..change.old.start]);
            lines(&mut out, '-', &old[change.old.clone()]);
            lines(&mut out, '+', &new[change.new.clone()]);
            at = change.old.end;
        }
        lines(&mut out, ' ', &old[at..hunk.old.end]);
    }
    out
}

fn lines(out: &mut String, mark: char, lines: &[&str]) {
    for line in lines {
        out.push(mark);
        out.push_str(line);
        out.push('\n');
    }
}

fn range(range: &Range<usize>) -> String {
    match range.len() {
        1 => format!("{}", range.start + 1),
        // In a unified diff, an empty range names the line before it.
        0 => format!("{},0", range.start),
        length => format!("{},{length}", range.start + 1),
    }
}

#[derive(Clone)]
struct Change {
    old: Range<usize>,
    new: Range<usize>,
}

struct Hunk {
    old: Range<usize>,
    new: Range<usize>,
    changes: Vec<Change>,
}

fn hunks(changes: &[Change], old_len: usize, new_len: usize) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = Vec::new();
    for change in changes {
        let (old_end, new_end) = (
            (change.old.end + CONTEXT).min(old_len),
            (change.new.end + CONTEXT).min(new_len),
        );
        match hunks.last_mut() {
            Some(hunk)
                if change.old.start
                    <= hunk.changes.last().map_or(0, |last| last.old.end) + 2 * CONTEXT =>
            {
                (hunk.old.end, hunk.new.end) = (old_end, new_end);
                hunk.changes.push(change.clone());
            }
            _ => hunks.push(Hunk {
                old: change.old.start.saturating_sub(CONTEXT)..old_end,
                new: change.new.start.saturating_sub(CONTEXT)..new_end,
                changes: vec![change.clone()],
            }),
        }
    }
    hunks
}

/// Where a common block ends in the new text, and how many lines it has; lists of them are in the order of the text.
type BlockEnd = (usize, usize);

struct Matcher<'a> {
    old: &'a [&'a str],
    new: &'a [&'a str],
    /// The positions of each line in the new text, without popular lines.
    positions: HashMap<&'a str, Vec<usize>>,
    /// The number of line comparisons that are still allowed.
    steps_left: Cell<usize>,
    /// The common blocks that end at the line before the current line of the old text, and at the current line. They are kept from search
    /// to search, so that a search allocates nothing.
    ends: Cell<(Vec<BlockEnd>, Vec<BlockEnd>)>,
}

impl<'a> Matcher<'a> {
    fn new(old: &'a [&'a str], new: &'a [&'a str]) -> Self {
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, line) in new.iter().enumerate() {
            positions.entry(line).or_default().push(index);
        }
        if new.len() >= POPULAR_FROM {
            positions.retain(|_, at| at.len() <= new.len() / 100 + 1);
        }
        Matcher {
            old,
            new,
            positions,
            steps_left: Cell::new(MAX_STEPS),
            ends: Cell::default(),
        }
    }

    fn changes(&self) -> Vec<Change> {
        let mut blocks = Vec::new();
        self.blocks(0..self.old.len(), 0..self.new.len(), &mut blocks);
        blocks.push((self.old.len(), self.new.len(), 0));
        let (mut old_at, mut new_at) = (0, 0);
        let mut changes = Vec::new();
        for (old, new, length) in blocks {
            if old_at < old || new_at < new {
                changes.push(Change {
                    old: old_at..old,
                    new: new_at..new,
                });
            }
            (old_at, new_at) = (old + length, new + length);
        }
        changes
    }

    /// Adds the common blocks of two ranges in order.
    fn blocks(&self, old: Range<usize>, new: Range<usize>, out: &mut Vec<(usize, usize, usize)>) {
        let (old_at, new_at, length) = self.longest(&old, &new);
        if length == 0 {
            return;
        }
        self.blocks(old.start..old_at, new.start..new_at, out);
        out.push((old_at, new_at, length));
        self.blocks(old_at + length..old.end, new_at + length..new.end, out);
    }

    /// Returns the longest common block: the earliest one in the old text, and then in the new text.
    fn longest(&self, old: &Range<usize>, new: &Range<usize>) -> (usize, usize, usize) {
        let mut best = (old.start, new.start, 0);
        let (mut before, mut ending) = self.ends.take();
        before.clear();
        for i in old.clone() {
            let positions = self.positions.get(self.old[i]);
            let steps = 1 + positions.map_or(0, Vec::len);
            let Some(left) = self.steps_left.get().checked_sub(steps) else {
                // Nothing is compared any more, so the lists need not come back.
                return (old.start, new.start, 0);
            };
            self.steps_left.set(left);
            ending.clear();
            let mut earlier = before.iter().peekable();
            for &j in positions.into_iter().flatten().filter(|j| new.contains(j)) {
                // Positions ascend, so one pass over the earlier blocks finds those that line `j` continues.
                while earlier.next_if(|(end, _)| end + 1 < j).is_some() {}
                let continued = earlier.next_if(|(end, _)| end + 1 == j);
                let length = 1 + continued.map_or(0, |&(_, length)| length);
                ending.push((j, length));
                if length > best.2 {
                    best = (i + 1 - length, j + 1 - length, length);
                }
            }
            std::mem::swap(&mut before, &mut ending);
        }
        self.ends.set((before, ending));
        let (mut old_at, mut new_at, mut length) = best;
        // A popular line starts no block, but may extend one.
        while old_at > old.start
            && new_at > new.start
            && self.old[old_at - 1] == self.new[new_at - 1]
        {
            (old_at, new_at, length) = (old_at - 1, new_at - 1, length + 1);
        }
        while old_at + length < old.end
            && new_at + length < new.end
            && self.old[old_at + length] == self.new[new_at + length]
        {
            length += 1;
        }
        (old_at, new_at, length)
    }
}

#[cfg(test)]
mod tests {
    use super::unified;

    #[test]
    fn one_changed_line_has_three_lines_around_it() {
        let old: Vec<String> = (1..=9).map(|n| n.to_string()).collect();
        let mut new = old.clone();
        new[4] = "five".into();
        let expected = "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n";
        assert_eq!(unified(&old.join("\n"), &new.join("\n")), expected);
        assert_eq!(unified("a", "a"), "");
    }

    #[test]
    fn texts_of_many_equal_lines_are_compared_for_so_long_and_no_longer() {
        let of = |marker: &str| {
            let line = |index: usize| format!("{marker}\n{}\n", index % 200);
            (0..20_000).map(line).collect::<String>()
        };
        let shown = unified(&of("a"), &of("b"));
        assert!(shown.lines().count() <= 80_001);
    }

    #[test]
    fn near_changes_share_a_hunk_and_far_ones_do_not() {
        let old: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
        let mut new = old.clone();
        new[1] = "two".into();
        new[8] = "nine".into();
        new[19] = "twenty".into();
        let text = unified(&old.join("\n"), &new.join("\n"));
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(text.starts_with("@@ -1,12 +1,12 @@\n 1\n-2\n+two\n 3\n"));
    }
}
