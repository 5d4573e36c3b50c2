//! A revised simplex with a dense inverse, for programs whose columns come one after the other: each row demands an
//! amount, and columns that hold some of it are bought at the least price.

/// Amounts below this count as nothing beside a price.
pub(super) const EPSILON: f64 = 1e-9;
/// Dual values below this count as negative.
const BELOW: f64 = -1e-6;

/// A variable of the program.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) cost: f64,
    /// Row and how much of it.
    pub(super) entries: Vec<(u32, f64)>,
}

impl Column {
    /// Returns the worth of what it holds at these values of a unit of each row.
    pub(super) fn worth(&self, values: &[f64]) -> f64 {
        let entries = self.entries.iter();
        entries
            .map(|(row, holds)| values[*row as usize] * holds)
            .sum()
    }
}

/// The columns so far, and a basis of them: one for each row, the inverse of their matrix, and how much of each is bought.
pub(super) struct Simplex {
    rows: usize,
    inverse: Vec<f64>,
    columns: Vec<Column>,
    basis: Vec<Basic>,
    bought: Vec<f64>,
    /// The dual values.
    values: Vec<f64>,
    direction: Vec<f64>,
}

/// The variable of the basis in a row.
#[derive(Clone, Copy, Debug)]
enum Basic {
    Column(usize),
    /// The amount of the row beyond what is wanted.
    Surplus,
    /// Nothing, because nothing of the row is wanted.
    Nothing,
}

impl Simplex {
    pub(super) fn new(rows: usize) -> Self {
        Simplex {
            rows,
            inverse: vec![0.0; rows * rows],
            columns: Vec::new(),
            basis: vec![Basic::Nothing; rows],
            bought: vec![0.0; rows],
            values: vec![0.0; rows],
            direction: vec![0.0; rows],
        }
    }

    /// Sets the first column of a row, which holds an amount of that row and nothing else. Without one, nothing of
    /// the row is wanted.
    pub(super) fn start(&mut self, row: usize, first: Option<(f64, f64)>, wanted: f64) {
        let at = row * self.rows + row;
        match first {
            Some((cost, holds)) => {
                self.inverse[at] = 1.0 / holds;
                self.bought[row] = wanted / holds;
                self.basis[row] = Basic::Column(self.columns.len());
                let entries = vec![(row as u32, holds)];
                self.columns.push(Column { cost, entries });
            }
            None => self.inverse[at] = 1.0,
        }
    }

    /// Returns the columns in the order in which they were added.
    pub(super) fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Adds a column.
    pub(super) fn add(&mut self, column: Column) {
        self.columns.push(column);
    }

    /// Returns what one more of each row costs, at least 0.
    pub(super) fn duals(&self) -> Vec<f64> {
        self.values.iter().map(|value| value.max(0.0)).collect()
    }

    /// Returns the price of everything that is bought.
    pub(super) fn price(&self) -> f64 {
        let pairs = self.basis.iter().zip(&self.bought);
        pairs
            .map(|(basic, bought)| self.cost(*basic) * bought)
            .sum()
    }

    /// Returns the columns that are bought, with their amounts.
    pub(super) fn bought(&self) -> Vec<(usize, f64)> {
        let pairs = self.basis.iter().zip(&self.bought);
        let columns = pairs.filter_map(|(basic, bought)| match basic {
            Basic::Column(column) if *bought > EPSILON => Some((*column, *bought)),
            _ => None,
        });
        columns.collect()
    }

    /// Finds the least price that these columns allow, within a number of steps.
    pub(super) fn optimise(&mut self, most_steps: usize) {
        self.find_values();
        for _ in 0..most_steps {
            if !self.step() {
                break;
            }
        }
        // Steps only correct the values, and errors add up, so they are computed from the inverse again.
        self.find_values();
    }

    fn cost(&self, basic: Basic) -> f64 {
        match basic {
            Basic::Column(column) => self.columns[column].cost,
            Basic::Surplus | Basic::Nothing => 0.0,
        }
    }

    fn find_values(&mut self) {
        self.values.iter_mut().for_each(|value| *value = 0.0);
        for row in 0..self.rows {
            let cost = self.cost(self.basis[row]);
            if cost != 0.0 {
                let inverse = &self.inverse[row * self.rows..(row + 1) * self.rows];
                for (value, inverse) in self.values.iter_mut().zip(inverse) {
                    *value += cost * inverse;
                }
            }
        }
    }

    /// Brings in the column that holds most for its price. Returns `false` if none lowers the price.
    fn step(&mut self) -> bool {
        let mut best: Option<(f64, usize)> = None;
        for (index, column) in self.columns.iter().enumerate() {
            let gain = column.worth(&self.values) / column.cost.max(EPSILON);
            if gain > best.map_or(1.0 + 10.0 * EPSILON, |best| best.0) {
                best = Some((gain, index));
            }
        }
        if let Some((_, index)) = best {
            // Taken out for the call, which changes everything else of the program.
            let column = std::mem::take(&mut self.columns[index].entries);
            let entered = self.enter(Basic::Column(index), &column, self.columns[index].cost);
            self.columns[index].entries = column;
            return entered;
        }
        let rows = self.values.iter().enumerate();
        // A negative value means that less than all is dearer: buying more of that row lowers the price.
        let lowest = rows.min_by(|a, b| a.1.total_cmp(b.1));
        match lowest {
            Some((row, value)) if *value < BELOW => {
                self.enter(Basic::Surplus, &[(row as u32, -1.0)], 0.0)
            }
            _ => false,
        }
    }

    /// Brings a column into the basis. Returns `false` if rounding errors do not allow it.
    fn enter(&mut self, entering: Basic, entries: &[(u32, f64)], cost: f64) -> bool {
        let rows = self.rows;
        for (row, direction) in self.direction.iter_mut().enumerate() {
            let inverse = &self.inverse[row * rows..(row + 1) * rows];
            let parts = entries
                .iter()
                .map(|(at, holds)| inverse[*at as usize] * holds);
            *direction = parts.sum();
        }
        let mut leaving: Option<(f64, usize)> = None;
        for (row, pivot) in self.direction.iter().enumerate() {
            if *pivot <= EPSILON {
                continue;
            }
            let ratio = (self.bought[row] / pivot).max(0.0);
            // Of equals the one with the largest pivot, for the sake of the numbers.
            let is_better = leaving.is_none_or(|(least, at): (f64, usize)| {
                ratio < least - 1e-12 || (ratio <= least + 1e-12 && *pivot > self.direction[at])
            });
            if is_better {
                leaving = Some((ratio, row));
            }
        }
        let Some((ratio, leaving)) = leaving else {
            return false;
        };
        let worth: f64 = entries
            .iter()
            .map(|(row, holds)| self.values[*row as usize] * holds)
            .sum();
        let pivot = self.direction[leaving];
        let (before, rest) = self.inverse.split_at_mut(leaving * rows);
        let (own, after) = rest.split_at_mut(rows);
        own.iter_mut().for_each(|entry| *entry /= pivot);
        let others = before
            .chunks_exact_mut(rows)
            .chain(after.chunks_exact_mut(rows));
        let directions = self.direction[..leaving]
            .iter()
            .chain(&self.direction[leaving + 1..]);
        for (row, direction) in others.zip(directions) {
            if direction.abs() > 1e-14 {
                for (entry, own) in row.iter_mut().zip(own.iter()) {
                    *entry -= direction * own;
                }
            }
        }
        for (value, own) in self.values.iter_mut().zip(own.iter()) {
            *value += (cost - worth) * own;
        }
        for (bought, direction) in self.bought.iter_mut().zip(&self.direction) {
            *bought = (*bought - ratio * direction).max(0.0);
        }
        self.bought[leaving] = ratio;
        self.basis[leaving] = entering;
        true
    }
}
