//! Formats text for people: paragraphs and rows, wrapped at the width of the terminal, or not wrapped if there is no terminal.

use std::fmt::Write;

/// The smallest width that text is wrapped to.
const NARROWEST: usize = 40;

/// The escape sequences for colours; all are empty if colours are off.
#[derive(Clone, Copy, Default)]
pub(crate) struct Colours {
    pub(crate) bold: &'static str,
    pub(crate) dim: &'static str,
    pub(crate) good: &'static str,
    pub(crate) bad: &'static str,
    pub(crate) end: &'static str,
}

impl Colours {
    pub(crate) fn new(colours: bool) -> Self {
        if colours {
            Colours {
                bold: "\x1b[1m",
                dim: "\x1b[2m",
                good: "\x1b[32m",
                bad: "\x1b[31m",
                end: "\x1b[0m",
            }
        } else {
            Colours::default()
        }
    }
}

/// A row of a table: its lead, its statement, and in a column of its own the names that the statement is about.
pub(crate) struct Row {
    pub(crate) lead: String,
    pub(crate) what: String,
    pub(crate) aside: String,
}

/// A text that is being written. Results of `writeln!` are ignored, because writing to a String cannot fail.
pub(crate) struct Page {
    pub(crate) colours: Colours,
    text: String,
    width: Option<usize>,
}

impl Page {
    pub(crate) fn new(colours: bool, width: Option<usize>) -> Self {
        Page {
            colours: Colours::new(colours),
            text: String::new(),
            width: width.map(|width| width.max(NARROWEST)),
        }
    }

    /// Returns the whole text, without a newline at its end.
    pub(crate) fn end(mut self) -> String {
        self.text.truncate(self.text.trim_end().len());
        self.text
    }

    /// Adds an empty line, unless the last line is empty.
    pub(crate) fn blank(&mut self) {
        if !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    pub(crate) fn paragraph(&mut self, text: &str) {
        for line in text.lines() {
            self.wrapped(line, 0);
        }
    }

    pub(crate) fn dimmed(&mut self, text: &str) {
        let Colours { dim, end, .. } = self.colours;
        self.wrapped(&format!("{dim}{text}{end}"), 0);
    }

    pub(crate) fn title(&mut self, text: &str) {
        let Colours { bold, end, .. } = self.colours;
        let _ = writeln!(self.text, "  {bold}{text}{end}");
    }

    /// Adds rows. The names of all rows start in the same column: `column` characters after the start of the statement, or fewer if the
    /// terminal is too narrow for that.
    pub(crate) fn rows(&mut self, rows: &[Row], column: usize) {
        let column = self.width.map_or(column, |width| {
            // The column is chosen so that every row stays on one line, except those too long for that in any case.
            let least = |row: &Row| visible(&row.lead) + 2 + visible(&row.aside);
            let fits = |row: &&Row| least(row) + visible(&row.what) <= width;
            let said = rows.iter().filter(fits).map(|row| visible(&row.what)).max();
            let room = rows.iter().filter(fits).map(|row| width - least(row)).min();
            column.min(said.unwrap_or(0)).min(room.unwrap_or(0))
        });
        for row in rows {
            self.row(row, column);
        }
    }

    fn row(&mut self, row: &Row, column: usize) {
        let Colours { dim, end, .. } = self.colours;
        let Row { lead, what, aside } = row;
        let indent = visible(lead);
        if aside.is_empty() {
            return self.wrapped(&format!("{lead}{what}"), indent);
        }
        let whole = indent + visible(what).max(column) + 2 + visible(aside);
        if self.width.is_none_or(|width| whole <= width) {
            let _ = writeln!(self.text, "{lead}{what:column$}  {dim}{aside}{end}");
            return;
        }
        self.wrapped(&format!("{lead}{what}"), indent);
        let deeper = " ".repeat(indent + 2);
        self.wrapped(&format!("{deeper}{dim}{aside}{end}"), indent + 2);
    }

    /// Adds a line and wraps it at the page's width; continuation lines are indented by `hanging`.
    fn wrapped(&mut self, line: &str, hanging: usize) {
        let Some(width) = self.width else {
            let _ = writeln!(self.text, "{line}");
            return;
        };
        let indent = line.len() - line.trim_start().len();
        self.text.push_str(&line[..indent]);
        let (mut at, mut is_first) = (indent, true);
        for word in line[indent..].split(' ') {
            let long = visible(word);
            if is_first {
                at += long;
            } else if at + 1 + long > width && at > hanging {
                self.text.push('\n');
                self.text.extend(std::iter::repeat_n(' ', hanging));
                at = hanging + long;
            } else {
                self.text.push(' ');
                at += 1 + long;
            }
            is_first = false;
            self.text.push_str(word);
        }
        self.text.push('\n');
    }
}

/// Returns how many columns a text takes without its colour sequences.
fn visible(text: &str) -> usize {
    let mut columns = 0;
    let mut in_colour = false;
    for letter in text.chars() {
        match (in_colour, letter) {
            (false, '\x1b') => in_colour = true,
            (true, 'm') => in_colour = false,
            (true, _) => {}
            (false, _) => columns += 1,
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(colours: bool, width: Option<usize>) -> String {
        let mut page = Page::new(colours, width);
        page.paragraph(
            "pod shop/web is pending: 0 of 3 nodes fit, and no pool can buy one that does.",
        );
        let row = |count: &str, what: &str, aside: &str| Row {
            lead: format!("    {count:>5}  "),
            what: what.to_owned(),
            aside: aside.to_owned(),
        };
        page.title("nodes");
        page.rows(
            &[
                row("1", "host port 80 is taken", "ip-10-0-1-12, ip-10-0-2-40"),
                row(
                    "20",
                    "taint os=windows:NoSchedule is not tolerated",
                    "ip-10-0-3-7",
                ),
            ],
            56,
        );
        page.dimmed("That is all.");
        page.end()
    }

    #[test]
    fn a_page_is_as_wide_as_its_terminal() {
        insta::assert_snapshot!(
            [None, Some(100), Some(80), Some(20)]
                .map(|width| page(false, width))
                .join("\n\n")
        );
    }

    #[test]
    fn parts_without_text_leave_no_empty_lines() {
        let mut page = Page::new(false, None);
        page.paragraph("pod shop/web is pending: 0 of 0 nodes fit.");
        page.blank();
        page.blank();
        page.paragraph("No change to the pod places it.");
        assert_eq!(page.end().matches("\n\n").count(), 1);
    }

    #[test]
    fn colours_take_no_room() {
        let plain = page(true, Some(60));
        let words: Vec<_> = plain
            .split("\x1b[")
            .map(|part| part.split_once('m').map_or(part, |(_, text)| text))
            .collect();
        assert_eq!(words.concat(), page(false, Some(60)));
    }
}
