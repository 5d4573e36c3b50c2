//! Keeps pods by kind and size, to find the one that fills a room best.

use super::{Item, Load, Problem, within};

/// The maximum number of rows of a grid by cpu, and as many by memory.
const MAX_ROWS: usize = 40;
/// A grid of few items has fewer rows, so that about this many items share a cell.
const ITEMS_PER_CELL: usize = 12;

/// Items that have pods without a place, in a grid for each kind: a machine admits all items of a kind or none, as far as they fit.
pub(super) struct Shelf<'a> {
    items: &'a [Item],
    /// The grids by kind.
    grids: Vec<Grid>,
}

/// Items of one kind by cpu and memory.
struct Grid {
    rows: usize,
    /// The least amounts of cpu and of memory of each row.
    starts: [Vec<i64>; 2],
    /// The largest amounts of each row.
    tops: [Vec<i64>; 2],
    /// The items by row of cpu, then of memory.
    cells: Vec<Vec<u32>>,
}

impl<'a> Shelf<'a> {
    /// Creates a shelf of the items that have pods left.
    pub(super) fn of(problem: &'a Problem, left: &[u32]) -> Self {
        let items = &problem.items[..];
        let mut kinds: Vec<Vec<u32>> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if left[index] > 0 {
                if kinds.len() <= item.kind {
                    kinds.resize(item.kind + 1, Vec::new());
                }
                kinds[item.kind].push(index as u32);
            }
        }
        let grids = kinds.iter().map(|own| Grid::of(items, own)).collect();
        Shelf { items, grids }
    }

    /// Removes an item that has no pods left.
    pub(super) fn forget(&mut self, item: usize) {
        let Item { request, kind, .. } = &self.items[item];
        let grid = &mut self.grids[*kind];
        let cell = grid.cell(request);
        grid.cells[cell].retain(|own| *own as usize != item);
    }

    /// Returns the item of some kinds whose pod is worth most among those that fit into a room and are `free`, and what it is worth, where a unit of cpu
    /// and one of memory are worth `rates`.
    pub(super) fn best(
        &self,
        kinds: &[usize],
        room: &Load,
        rates: [f64; 2],
        free: impl Fn(usize) -> bool,
    ) -> Option<(usize, f64)> {
        let mut best = None;
        for grid in kinds.iter().filter_map(|kind| self.grids.get(*kind)) {
            best = grid.best(self.items, room, rates, &free, best);
        }
        best
    }
}

impl Grid {
    fn of(all: &[Item], items: &[u32]) -> Self {
        let mut most = [0; 2];
        for item in items {
            let request = &all[*item as usize].request;
            most = std::array::from_fn(|dimension| most[dimension].max(request[dimension]));
        }
        let rows = (items.len() / ITEMS_PER_CELL).isqrt().clamp(1, MAX_ROWS);
        let tables = |table: fn(i128, i128, i128) -> i128| {
            // One more than the largest amount, so that it falls into the last row and not behind it.
            let most = most.map(|most| i128::from(most) + 1);
            let rows = rows as i128;
            most.map(|most| (0..rows).map(|row| table(row, most, rows) as i64).collect())
        };
        let mut grid = Grid {
            rows,
            starts: tables(|row, most, rows| (row * most + rows - 1) / rows),
            tops: tables(|row, most, rows| (row + 1) * most / rows),
            cells: vec![Vec::new(); rows * rows],
        };
        for item in items {
            let cell = grid.cell(&all[*item as usize].request);
            grid.cells[cell].push(*item);
        }
        grid
    }

    /// Returns the best item as [`Shelf::best`] does, or the `best` one known if none is better.
    fn best(
        &self,
        items: &[Item],
        room: &Load,
        rates: [f64; 2],
        free: impl Fn(usize) -> bool,
        mut best: Option<(usize, f64)>,
    ) -> Option<(usize, f64)> {
        let is_beaten =
            |best: Option<(usize, f64)>, value: f64| best.is_some_and(|own| own.1 >= value);
        let last: [usize; 2] =
            std::array::from_fn(|dimension| self.row(room[dimension], dimension));
        // No pod in a row that fits is worth more than this for its cpu, or its memory.
        let most = |row: usize, dimension: usize| {
            self.tops[dimension][row].min(room[dimension]) as f64 * rates[dimension]
        };
        // From the largest down: the first rows give a value that ends the search in most of the smaller ones.
        for cpu in (0..=last[0]).rev() {
            if is_beaten(best, most(cpu, 0) + most(last[1], 1)) {
                break;
            }
            for memory in (0..=last[1]).rev() {
                if is_beaten(best, most(cpu, 0) + most(memory, 1)) {
                    break;
                }
                let cell = self.cells[cpu * self.rows + memory].iter();
                for item in cell.map(|item| *item as usize) {
                    let request = &items[item].request;
                    let value = worth(request, rates);
                    if !is_beaten(best, value) && within(request, room) && free(item) {
                        best = Some((item, value));
                    }
                }
            }
        }
        best
    }

    fn cell(&self, request: &Load) -> usize {
        self.row(request[0], 0) * self.rows + self.row(request[1], 1)
    }

    /// Returns the row of an amount; amounts beyond the grid are in its last row.
    fn row(&self, amount: i64, dimension: usize) -> usize {
        let starts = &self.starts[dimension];
        starts[1..].partition_point(|start| *start <= amount)
    }
}

/// Returns what a pod's cpu and memory are worth at these rates.
pub(super) fn worth(request: &Load, rates: [f64; 2]) -> f64 {
    request[0] as f64 * rates[0] + request[1] as f64 * rates[1]
}
