//! What pods are worth: the linear program over patterns, by column generation.
//!
//! A pattern is one machine with so many pods of each item. The program buys fractions of patterns so that every pod has a place, at the least
//! price; its dual values say what one more pod of an item costs. Patterns are found as they are needed: the one whose pods are worth most
//! beyond its price comes in. A revised simplex with a dense inverse: there are as many rows as items.

use super::fill::{ALIKE, Filler, Weights};
use super::whole::pods;
use super::{DIMENSIONS, Offer, Problem};

/// Rounds of looking for patterns, at most.
const ROUNDS: usize = 400;
/// Patterns that come in after one round.
const PER_ROUND: usize = 12;
pub(super) const EPSILON: f64 = 1e-9;
/// What sums of numbers may be off by.
const ROUNDING: f64 = 1e-10;
/// Patterns that are all worth so little beyond their price end the search.
const ENOUGH: f64 = 0.001;
/// A machine whose pods are worth less of its price is not looked at again.
const NEARLY: f64 = 0.9;

/// The solution of the linear program.
pub(crate) struct Relaxation {
    /// Micro-dollars an hour that a pod of each item is worth.
    pub(super) values: Vec<f64>,
    /// The dual values: no less than nothing, and nothing for items that no machine is bought for.
    pub(super) duals: Vec<f64>,
    /// Patterns that are bought, and how often.
    pub(super) patterns: Vec<(Pattern, f64)>,
    /// Offers by what the pods on them are worth for the price, the best first.
    pub(super) offers: Vec<usize>,
    /// No plan costs less: micro-dollars an hour.
    pub(super) bound: u64,
}

/// One machine, and how many pods of each item are on it.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(super) offer: usize,
    pub(super) pods: Vec<(usize, u32)>,
}

impl Relaxation {
    /// Items that no offer holds are worth nothing and left out.
    pub(super) fn solve(problem: &Problem, filler: &mut Filler<'_>) -> Self {
        let items = problem.items.len();
        let mut simplex = Simplex::new(items);
        let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
        let demand = pods(&demand);
        // What a pod costs that has its machines to itself.
        let mut alone: Vec<Option<f64>> = Vec::with_capacity(items);
        for item in 0..items {
            let first = first_pattern(problem, item);
            alone.push(first.as_ref().map(|first| {
                problem.offers[first.offer].price as f64 / f64::from(first.pods[0].1)
            }));
            simplex.start(item, first, problem);
        }
        let mixes = mixes(filler.shortage);
        for _ in 0..ROUNDS {
            let positive: Vec<f64> = simplex.values().iter().map(|own| own.max(0.0)).collect();
            let mut found: Vec<(f64, Pattern)> = Vec::new();
            for (index, offer) in problem.offers.iter().enumerate() {
                let price = offer.price as f64;
                let value = best_pattern(offer, &demand, &positive, &mixes, filler);
                if value > price * (1.0 + EPSILON) {
                    let pods = filler.taken.clone();
                    found.push((value / price, Pattern { offer: index, pods }));
                }
            }
            found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.offer.cmp(&b.1.offer)));
            found.truncate(PER_ROUND);
            let most = found.first().map_or(0.0, |found| found.0);
            let mut moved = false;
            for (_, pattern) in found {
                moved |= simplex.enter(Column::of(pattern, problem));
            }
            moved |= simplex.drop_surplus();
            if !moved || most < 1.0 + ENOUGH {
                break;
            }
        }
        let positive: Vec<f64> = simplex.values().iter().map(|own| own.max(0.0)).collect();
        let mut best_ratio: f64 = 1.0 + EPSILON;
        for offer in &problem.offers {
            let price = offer.price as f64;
            let (most, _) = filler.most(offer, &demand, &positive, price * best_ratio);
            best_ratio = best_ratio.max(most / price);
        }
        let worth: f64 = demand
            .iter()
            .map(|(item, count)| positive[*item] * f64::from(*count))
            .sum();
        // Prices are whole numbers, so what is beyond the last one counts as another.
        let bound = (worth / best_ratio * (1.0 - ROUNDING)).ceil();
        let mut values: Vec<f64> = simplex.values().to_vec();
        let dearest = problem
            .offers
            .last()
            .map_or(1.0, |offer| offer.price as f64);
        for (value, alone) in values.iter_mut().zip(&alone) {
            *value = match alone {
                // A pod that only ever rides along is worth something all the same, or nobody would take it along.
                Some(alone) => value.max(alone / 1000.0),
                // No machine is bought for it: it has to find room.
                None => dearest,
            };
        }
        let mut offers: Vec<(f64, usize)> = problem
            .offers
            .iter()
            .enumerate()
            .map(|(index, offer)| {
                let value = filler.fill(offer, &demand, &values, &ALIKE);
                (value / offer.price as f64, index)
            })
            .collect();
        offers.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        Relaxation {
            offers: offers.into_iter().map(|offer| offer.1).collect(),
            values,
            duals: positive,
            patterns: simplex.bought(),
            bound: bound as u64,
        }
    }
}

/// How much shares of cpu and memory may count in the size of a pod, beside the other resources.
const MIXES: [(f64, f64); 6] = [
    (1.0, 0.0),
    (1.0, 0.1),
    (1.0, 0.3),
    (0.3, 1.0),
    (0.1, 1.0),
    (0.0, 1.0),
];

/// Weights by which a machine is filled, each time with other pods first.
fn mixes(shortage: Weights) -> Vec<Weights> {
    let mixed = MIXES.iter().map(|(cpu, memory)| {
        let mut weights = [0.05; DIMENSIONS];
        (weights[0], weights[1]) = (*cpu, *memory);
        weights
    });
    [ALIKE, shortage].into_iter().chain(mixed).collect()
}

/// Fills a machine by the best of some weights, then exchanges pods on it; gives the value of what is in `taken`.
fn best_pattern(
    offer: &Offer,
    demand: &[(usize, u32)],
    values: &[f64],
    mixes: &[Weights],
    filler: &mut Filler<'_>,
) -> f64 {
    let mut best: Option<(f64, &Weights)> = None;
    for weights in mixes {
        let value = filler.fill(offer, demand, values, weights);
        if best.is_none_or(|best| value > best.0) {
            best = Some((value, weights));
        }
    }
    // Exchanges do not make more of it than this.
    let Some((_, weights)) = best.filter(|best| best.0 > NEARLY * offer.price as f64) else {
        return 0.0;
    };
    let value = filler.fill(offer, demand, values, weights);
    filler.exchange(offer, values, value)
}

/// The cheapest way to have a pod of an item: a machine with nothing else on it.
fn first_pattern(problem: &Problem, item: usize) -> Option<Pattern> {
    let wanted = &problem.items[item];
    let mut best: Option<(f64, Pattern)> = None;
    for (index, offer) in problem.offers.iter().enumerate() {
        if wanted.demand == 0 || !offer.fits.contains(item) || !offer.opens.contains(item) {
            continue;
        }
        let mut count = i64::from(wanted.demand);
        for (request, room) in wanted.request.iter().zip(&offer.room) {
            if *request > 0 {
                count = count.min(room / request);
            }
        }
        count = count.min(problem.most_alone(item));
        if count <= 0 {
            continue;
        }
        let each = offer.price as f64 / count as f64;
        if best.as_ref().is_none_or(|best| each < best.0) {
            let pods = vec![(item, count as u32)];
            best = Some((each, Pattern { offer: index, pods }));
        }
    }
    best.map(|best| best.1)
}

/// A variable of the program.
struct Column {
    cost: f64,
    entries: Vec<(usize, f64)>,
    /// None of a surplus: more places than pods.
    pattern: Option<Pattern>,
}

impl Column {
    fn of(pattern: Pattern, problem: &Problem) -> Self {
        Column {
            cost: problem.offers[pattern.offer].price as f64,
            entries: pattern
                .pods
                .iter()
                .map(|(item, count)| (*item, f64::from(*count)))
                .collect(),
            pattern: Some(pattern),
        }
    }
}

/// A basis: one column for each row, the inverse of their matrix, and how much of each is bought.
struct Simplex {
    rows: usize,
    inverse: Vec<f64>,
    basis: Vec<Column>,
    bought: Vec<f64>,
    values: Vec<f64>,
    is_stale: bool,
}

impl Simplex {
    fn new(rows: usize) -> Self {
        Simplex {
            rows,
            inverse: vec![0.0; rows * rows],
            basis: Vec::with_capacity(rows),
            bought: Vec::with_capacity(rows),
            values: vec![0.0; rows],
            is_stale: true,
        }
    }

    /// The first column of a row, which holds that row's item only. Without one the row asks for nothing.
    fn start(&mut self, row: usize, pattern: Option<Pattern>, problem: &Problem) {
        let (column, count, demand) = match pattern {
            Some(pattern) => {
                let count = f64::from(pattern.pods[0].1);
                (
                    Column::of(pattern, problem),
                    count,
                    f64::from(problem.items[row].demand),
                )
            }
            None => {
                let nothing = Column {
                    cost: 0.0,
                    entries: vec![(row, 1.0)],
                    pattern: None,
                };
                (nothing, 1.0, 0.0)
            }
        };
        self.inverse[row * self.rows + row] = 1.0 / count;
        self.basis.push(column);
        self.bought.push(demand / count);
    }

    /// The dual values: costs of the basis times its inverse.
    fn values(&mut self) -> &[f64] {
        if self.is_stale {
            self.values.iter_mut().for_each(|value| *value = 0.0);
            for (row, column) in self.basis.iter().enumerate() {
                if column.cost != 0.0 {
                    let inverse = &self.inverse[row * self.rows..(row + 1) * self.rows];
                    for (value, inverse) in self.values.iter_mut().zip(inverse) {
                        *value += column.cost * inverse;
                    }
                }
            }
            self.is_stale = false;
        }
        &self.values
    }

    /// Takes a column in if it lowers the price; whether it did.
    fn enter(&mut self, column: Column) -> bool {
        let rows = self.rows;
        let values = self.values();
        let worth: f64 = column
            .entries
            .iter()
            .map(|(row, count)| values[*row] * count)
            .sum();
        if worth <= column.cost + EPSILON * column.cost.max(1.0) {
            return false;
        }
        let mut direction = vec![0.0; rows];
        for (row, direction) in direction.iter_mut().enumerate() {
            let inverse = &self.inverse[row * rows..(row + 1) * rows];
            *direction = column
                .entries
                .iter()
                .map(|(at, count)| inverse[*at] * count)
                .sum();
        }
        let mut leaving: Option<(f64, usize)> = None;
        for (row, pivot) in direction
            .iter()
            .enumerate()
            .filter(|(_, pivot)| **pivot > 1e-9)
        {
            let ratio = (self.bought[row] / pivot).max(0.0);
            // Of equals the one with the largest pivot, for the sake of the numbers.
            let is_better = leaving.is_none_or(|(least, at): (f64, usize)| {
                ratio < least - 1e-12 || (ratio <= least + 1e-12 && *pivot > direction[at])
            });
            if is_better {
                leaving = Some((ratio, row));
            }
        }
        let Some((ratio, leaving)) = leaving else {
            return false;
        };
        let pivot = direction[leaving];
        let (before, rest) = self.inverse.split_at_mut(leaving * rows);
        let (own, after) = rest.split_at_mut(rows);
        own.iter_mut().for_each(|entry| *entry /= pivot);
        let others = before
            .chunks_exact_mut(rows)
            .chain(after.chunks_exact_mut(rows));
        let directions = direction[..leaving].iter().chain(&direction[leaving + 1..]);
        for (row, direction) in others.zip(directions) {
            if direction.abs() > 1e-14 {
                for (entry, own) in row.iter_mut().zip(own.iter()) {
                    *entry -= direction * own;
                }
            }
        }
        for (row, direction) in direction.iter().enumerate() {
            self.bought[row] = (self.bought[row] - ratio * direction).max(0.0);
        }
        self.bought[leaving] = ratio;
        self.basis[leaving] = column;
        self.is_stale = true;
        true
    }

    /// Lets rows have more places than pods where that is cheaper: a pod whose value is below zero.
    fn drop_surplus(&mut self) -> bool {
        let mut moved = false;
        for row in 0..self.rows {
            if self.values()[row] < -1e-6 {
                let surplus = Column {
                    cost: 0.0,
                    entries: vec![(row, -1.0)],
                    pattern: None,
                };
                moved |= self.enter(surplus);
            }
        }
        moved
    }

    fn bought(self) -> Vec<(Pattern, f64)> {
        let columns = self.basis.into_iter().zip(self.bought);
        let patterns = columns.filter_map(|(column, bought)| Some((column.pattern?, bought)));
        patterns.filter(|(_, bought)| *bought > 1e-9).collect()
    }
}
