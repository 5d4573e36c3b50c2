//! Formats a table for people: each column is as wide as its widest cell, and numbers are right-aligned.

/// The alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    Left,
    Right,
}

/// The space before each column.
const GAP: &str = "  ";

/// A table with a header line.
pub(super) struct Columns<const N: usize> {
    alignments: [Alignment; N],
    left_out: [bool; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Columns<N> {
    pub(super) fn new(titles: [(&str, Alignment); N]) -> Self {
        Columns {
            alignments: titles.map(|(_, side)| side),
            left_out: [false; N],
            rows: vec![titles.map(|(title, _)| title.to_owned())],
        }
    }

    pub(super) fn row(&mut self, row: [String; N]) {
        self.rows.push(row);
    }

    /// Leaves out columns until a line takes at most `width` characters: those with the titles in `spare`, in their order. Returns the titles
    /// of the columns that are left out.
    pub(super) fn narrow<'a>(&mut self, width: usize, spare: &[&'a str]) -> Vec<&'a str> {
        let mut gone = Vec::new();
        for title in spare {
            let columns = self.used();
            let whole: usize = columns.iter().map(|(_, width)| width + GAP.len()).sum();
            if whole <= width {
                break;
            }
            let mut columns = columns.into_iter().map(|(column, _)| column);
            if let Some(column) = columns.find(|column| self.rows[0][*column] == *title) {
                self.left_out[column] = true;
                gone.push(*title);
            }
        }
        gone
    }

    /// Returns the columns that are shown, with their widths.
    fn used(&self) -> Vec<(usize, usize)> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let is_used = |column: &usize| {
            !self.left_out[*column] && self.rows[1..].iter().any(|row| !row[*column].is_empty())
        };
        (0..N)
            .filter(is_used)
            .map(|column| (column, width(column)))
            .collect()
    }

    /// Returns the lines, the header first, each indented by two spaces. Columns whose cells are all empty are left out.
    pub(super) fn lines(&self) -> Vec<String> {
        let used = self.used();
        let line = |row: &[String; N]| {
            let cells = used
                .iter()
                .map(|&(column, width)| match self.alignments[column] {
                    Alignment::Left => format!("{:width$}", row[column]),
                    Alignment::Right => format!("{:>width$}", row[column]),
                });
            let cells: Vec<_> = cells.collect();
            format!("{GAP}{}", cells.join(GAP)).trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_wide_as_its_widest_cell_and_left_out_if_it_is_empty() {
        let titles = [
            ("pool", Alignment::Left),
            ("x", Alignment::Left),
            ("pods", Alignment::Right),
        ];
        let mut table = Columns::new(titles);
        let row = |name: &str, pods: &str| [name.to_owned(), String::new(), pods.to_owned()];
        table.row(row("windows", "3"));
        table.row(row("a", "12345"));
        let expected = ["  pool      pods", "  windows      3", "  a        12345"];
        assert_eq!(table.lines(), expected);
    }

    #[test]
    fn a_narrow_table_leaves_out_what_matters_least() {
        let titles = [
            ("nodes", Alignment::Right),
            ("pool", Alignment::Left),
            ("os", Alignment::Left),
            ("zone", Alignment::Left),
            ("USD/h", Alignment::Right),
        ];
        let shown = |width: usize| {
            let mut table = Columns::new(titles);
            table.row(["3", "linux", "", "us-west-2a", "0.5"].map(str::to_owned));
            let gone = table.narrow(width, &["os", "zone", "pool"]);
            (gone, table.lines().remove(0))
        };
        let whole = "  nodes  pool   zone        USD/h";
        assert_eq!(shown(whole.len()), (Vec::new(), whole.to_owned()));
        // A column without cells takes no room, so leaving it out would not help.
        let less = "  nodes  pool   USD/h".to_owned();
        assert_eq!(shown(whole.len() - 1), (vec!["zone"], less));
        let least = "  nodes  USD/h".to_owned();
        assert_eq!(shown(1), (vec!["zone", "pool"], least));
    }
}
