//! Formats a table for people: each column is as wide as its widest cell, and numbers are right-aligned.

/// The alignment of the cells of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    Left,
    Right,
}

/// A table with a header line.
pub(super) struct Columns<const N: usize> {
    alignments: [Alignment; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Columns<N> {
    pub(super) fn new(titles: [(&str, Alignment); N]) -> Self {
        Columns {
            alignments: titles.map(|(_, side)| side),
            rows: vec![titles.map(|(title, _)| title.to_owned())],
        }
    }

    pub(super) fn row(&mut self, row: [String; N]) {
        self.rows.push(row);
    }

    /// Returns the lines, the header first, each indented by two spaces. Columns whose cells are all empty are left out.
    pub(super) fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let is_used = |column: &usize| self.rows[1..].iter().any(|row| !row[*column].is_empty());
        let used: Vec<(usize, usize)> = (0..N)
            .filter(is_used)
            .map(|column| (column, width(column)))
            .collect();
        let line = |row: &[String; N]| {
            let cells = used
                .iter()
                .map(|&(column, width)| match self.alignments[column] {
                    Alignment::Left => format!("{:width$}", row[column]),
                    Alignment::Right => format!("{:>width$}", row[column]),
                });
            let cells: Vec<_> = cells.collect();
            format!("  {}", cells.join("  ")).trim_end().to_owned()
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
}
