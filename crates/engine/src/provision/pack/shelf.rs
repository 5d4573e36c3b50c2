//! Pods by size, to find the one that fills a room best.

use super::{Load, Problem, within};

/// The grid of sizes has so many rows by cpu, and so many by memory.
const SIDE: usize = 40;

/// Items that want a place, in a grid by cpu and memory.
pub(super) struct Shelf<'a> {
    problem: &'a Problem,
    /// The most cpu and memory that any pod asks for.
    most: [i64; 2],
    /// By row of cpu, then of memory.
    cells: Vec<Vec<u32>>,
}

impl<'a> Shelf<'a> {
    /// Creates a shelf of the items that have pods left.
    pub(super) fn of(problem: &'a Problem, left: &[u32]) -> Self {
        let mut most = [0; 2];
        for (item, _) in problem.items.iter().zip(left).filter(|own| *own.1 > 0) {
            most = std::array::from_fn(|dimension| most[dimension].max(item.request[dimension]));
        }
        let mut shelf = Shelf {
            problem,
            most,
            cells: vec![Vec::new(); SIDE * SIDE],
        };
        for (item, left) in left.iter().enumerate() {
            if *left > 0 {
                let cell = shelf.cell(item);
                shelf.cells[cell].push(item as u32);
            }
        }
        shelf
    }

    /// Removes an item that has no pods left.
    pub(super) fn forget(&mut self, item: usize) {
        let cell = self.cell(item);
        self.cells[cell].retain(|own| *own as usize != item);
    }

    /// Returns the item whose pod is worth most among those that fit into a room and are `free`, and what it is worth, where a unit of cpu and one of
    /// memory are worth `rates`.
    pub(super) fn best(
        &self,
        room: &Load,
        rates: [f64; 2],
        free: impl Fn(usize) -> bool,
    ) -> Option<(usize, f64)> {
        let mut best: Option<(usize, f64)> = None;
        let is_beaten =
            |best: Option<(usize, f64)>, value: f64| best.is_some_and(|own| own.1 >= value);
        let last: [usize; 2] =
            std::array::from_fn(|dimension| self.row(room[dimension], dimension));
        // No pod in a row that fits is worth more than this for its cpu, or its memory.
        let most = |row: usize, dimension: usize| {
            self.top(row, dimension).min(room[dimension]) as f64 * rates[dimension]
        };
        for cpu in (0..=last[0]).rev() {
            if is_beaten(best, most(cpu, 0) + most(last[1], 1)) {
                break;
            }
            for memory in (0..=last[1]).rev() {
                if is_beaten(best, most(cpu, 0) + most(memory, 1)) {
                    break;
                }
                for item in self.cells[cpu * SIDE + memory]
                    .iter()
                    .map(|item| *item as usize)
                {
                    let request = &self.problem.items[item].request;
                    let value = worth(request, rates);
                    if !is_beaten(best, value) && within(request, room) && free(item) {
                        best = Some((item, value));
                    }
                }
            }
        }
        best
    }

    fn cell(&self, item: usize) -> usize {
        let request = &self.problem.items[item].request;
        self.row(request[0], 0) * SIDE + self.row(request[1], 1)
    }

    /// Returns the row of an amount; amounts beyond the grid are in its last row.
    fn row(&self, amount: i64, dimension: usize) -> usize {
        let most = i128::from(self.most[dimension]) + 1;
        let row = i128::from(amount.max(0)) * SIDE as i128 / most;
        (row as usize).min(SIDE - 1)
    }

    /// Returns the largest amount of a row.
    fn top(&self, row: usize, dimension: usize) -> i64 {
        let most = i128::from(self.most[dimension]) + 1;
        ((row as i128 + 1) * most / SIDE as i128) as i64
    }
}

/// Returns what a pod's cpu and memory are worth at these rates.
pub(super) fn worth(request: &Load, rates: [f64; 2]) -> f64 {
    request[0] as f64 * rates[0] + request[1] as f64 * rates[1]
}
