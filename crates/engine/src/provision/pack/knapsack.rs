//! Bounds what the pods on one machine can be worth: a bounded knapsack in several resources.
//!
//! It is solved first with fractions of pods, by a small simplex with a row for each resource, whose dual values say
//! what the machine's room is worth; then with whole pods, by branch and bound with those values.

use super::search::{Search, Step};
use super::{DIMENSIONS, Load, Offer, Problem};

/// The maximum number of steps of the simplex. Its result is an upper bound however early it ends.
const MOST_STEPS: usize = 200;
/// The number of resources that suffices for most machines: cpu, memory, pods, and one more.
const FEW_ROWS: usize = 4;

/// An upper bound on the value of the pods on a machine, with the best filling that was found.
#[derive(Clone, Debug, Default)]
pub(super) struct FillingBound {
    /// An upper bound: no filling is worth more.
    pub(super) upper: f64,
    /// Whether `upper` is what the best filling is worth, or what was enough.
    pub(super) is_exact: bool,
    /// The best filling that was found, if one is worth more than enough: item and number.
    pub(super) pods: Vec<(usize, u32)>,
}

/// Scratch space of a search, used again for the next one.
#[derive(Default)]
pub(super) struct Knapsack {
    /// Resources that count, and how many there are.
    dimensions: [usize; DIMENSIONS],
    rows: usize,
    /// The factor that turns an amount into its share of the machine's room.
    scale: [f64; DIMENSIONS],
    choices: Vec<Choice>,
    /// The value of the whole room of each resource.
    duals: [f64; DIMENSIONS],
    /// The best filling with fractions of pods: item and number.
    pub(super) parts: Vec<(u32, f64)>,
    few: Vec<Step<FEW_ROWS>>,
    many: Vec<Step<DIMENSIONS>>,
    search: Search,
}

/// An item that a machine may hold.
#[derive(Clone, Debug)]
struct Choice {
    item: usize,
    value: f64,
    /// The maximum number that fits or is wanted.
    most: u32,
    /// The shares of the machine that a pod takes, by row.
    share: [f64; DIMENSIONS],
    /// The sum of these shares.
    extent: f64,
    request: Load,
    place: Place,
    /// The value of the room that it takes on the machine.
    size: f64,
}

/// Where a variable of the simplex is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    None,
    All,
    Basis,
}

/// A basis of the simplex: a variable for each row.
struct Basis {
    /// Choices, and behind them for each row what is free.
    variables: [usize; DIMENSIONS],
    inverse: [[f64; DIMENSIONS]; DIMENSIONS],
    amounts: [f64; DIMENSIONS],
    /// Rows whose free part is not in the basis.
    is_full: [bool; DIMENSIONS],
}

impl Knapsack {
    /// Searches the best filling of a machine with these pods (item and maximum, none more than fits). Fillings worth
    /// no more than `enough` do not count. Rules are not considered. `most_nodes` bounds the search among whole pods.
    pub(super) fn most(
        &mut self,
        problem: &Problem,
        offer: &Offer,
        (choices, values): (&[(u32, u32)], &[f64]),
        enough: f64,
        most_nodes: usize,
    ) -> FillingBound {
        self.choose(problem, offer, choices, values);
        let upper = self.solve();
        // The fractional bound already says that no filling is worth enough, which is the common case and needs no
        // search.
        if upper <= enough || most_nodes == 0 {
            return FillingBound {
                upper,
                is_exact: upper <= enough,
                pods: Vec::new(),
            };
        }
        self.rank(upper - enough);
        let limits = (enough, most_nodes);
        let is_exact = if self.rows <= FEW_ROWS {
            self.search_all(offer, limits, |own| &mut own.few)
        } else {
            self.search_all(offer, limits, |own| &mut own.many)
        };
        let best = self.search.best;
        let items = self
            .search
            .found
            .iter()
            .map(|place| self.choices[*place as usize].item);
        FillingBound {
            upper: if is_exact { best.min(upper) } else { upper },
            is_exact,
            pods: counted(items),
        }
    }

    /// Searches all fillings with whole pods; returns `false` if there are too many.
    fn search_all<const ROWS: usize>(
        &mut self,
        offer: &Offer,
        (enough, most_nodes): (f64, usize),
        steps: impl Fn(&mut Knapsack) -> &mut Vec<Step<ROWS>>,
    ) -> bool {
        let room = std::array::from_fn(|row| {
            if row < self.rows {
                offer.room[self.dimensions[row]]
            } else {
                0
            }
        });
        let left: f64 = self.duals[..self.rows].iter().sum();
        let mut own = std::mem::take(steps(self));
        own.clear();
        own.extend(self.choices.iter().map(Choice::step));
        let mut beyond = 0.0;
        let mut rates = [0.0_f64; ROWS];
        // From the end, because `beyond` and `rates` are about a step and all later ones.
        for step in own.iter_mut().rev() {
            beyond += step.excess * f64::from(step.most);
            step.beyond = beyond;
            for (rate, request) in rates.iter_mut().zip(step.request) {
                // Infinite for a pod that requests nothing of the resource: then it limits nothing.
                *rate = rate.max(step.value / request as f64);
            }
            step.rates = rates;
        }
        let is_exact = self.search.all(&own, (room, left), enough, most_nodes);
        *steps(self) = own;
        is_exact
    }

    /// Returns what a unit of each resource is worth on a machine that may hold fractions of these pods.
    pub(super) fn rates(
        &mut self,
        problem: &Problem,
        offer: &Offer,
        choices: &[(u32, u32)],
        values: &[f64],
    ) -> [f64; DIMENSIONS] {
        self.choose(problem, offer, choices, values);
        self.solve();
        let mut rates = [0.0; DIMENSIONS];
        for row in 0..self.rows {
            rates[self.dimensions[row]] = self.duals[row] * self.scale[row];
        }
        rates
    }

    fn choose(&mut self, problem: &Problem, offer: &Offer, choices: &[(u32, u32)], values: &[f64]) {
        let mut asked = Load::default();
        for (item, _) in choices {
            // Only whether some item asks for a resource matters; resources that none asks for need no row.
            for (asked, request) in asked.iter_mut().zip(problem.items[*item as usize].request) {
                *asked |= request;
            }
        }
        self.rows = 0;
        for (dimension, (asked, room)) in asked.iter().zip(offer.room).enumerate() {
            if *asked != 0 && room > 0 {
                self.dimensions[self.rows] = dimension;
                self.scale[self.rows] = 1.0 / room as f64;
                self.rows += 1;
            }
        }
        self.choices.clear();
        for (item, most) in choices.iter().copied() {
            let value = values[item as usize];
            if value <= 0.0 || most == 0 {
                continue;
            }
            let own = &problem.items[item as usize].request;
            let (mut request, mut share) = (Load::default(), [0.0; DIMENSIONS]);
            for row in 0..self.rows {
                request[row] = own[self.dimensions[row]];
                share[row] = request[row] as f64 * self.scale[row];
            }
            self.choices.push(Choice {
                item: item as usize,
                value,
                most,
                share,
                extent: share[..self.rows].iter().sum(),
                request,
                place: Place::None,
                size: 0.0,
            });
        }
    }

    /// Solves the problem with fractions of pods; returns an upper bound of what a filling is worth.
    fn solve(&mut self) -> f64 {
        let rows = self.rows;
        let mut basis = Basis::free(rows, self.choices.len());
        let mut steps = 0;
        loop {
            self.duals = basis.duals(rows, &self.choices);
            steps += 1;
            let entering = if steps < MOST_STEPS {
                self.entering(&basis)
            } else {
                None
            };
            let Some(entering) = entering else { break };
            basis.enter(entering, rows, &mut self.choices);
        }
        // Any duals that are not negative give an upper bound, so it holds even if the simplex ended early.
        self.duals.iter_mut().for_each(|dual| *dual = dual.max(0.0));
        self.parts.clear();
        let mut upper: f64 = self.duals[..rows].iter().sum();
        for choice in &mut self.choices {
            choice.size = dot(&self.duals, &choice.share, rows);
            upper += (choice.value - choice.size).max(0.0) * f64::from(choice.most);
            if choice.place == Place::All {
                self.parts
                    .push((choice.item as u32, f64::from(choice.most)));
            }
        }
        for row in 0..rows {
            if let Some(choice) = self.choices.get(basis.variables[row])
                && basis.amounts[row] > 1e-9
            {
                self.parts.push((choice.item as u32, basis.amounts[row]));
            }
        }
        upper
    }

    /// Returns the variable that gains most for the room it takes when it enters the basis, or when it leaves its
    /// upper bound.
    fn entering(&self, basis: &Basis) -> Option<usize> {
        let rows = self.rows;
        let mut best: Option<(f64, usize)> = None;
        let mut look = |score: f64, variable: usize| {
            if best.is_none_or(|best| score > best.0) {
                best = Some((score, variable));
            }
        };
        for (index, choice) in self.choices.iter().enumerate() {
            let gain = choice.value - dot(&self.duals, &choice.share, rows);
            let gain = match choice.place {
                Place::None => gain,
                Place::All => -gain,
                Place::Basis => continue,
            };
            if gain > 1e-9 * choice.value {
                look(gain / choice.extent.max(1e-12), index);
            }
        }
        for row in 0..rows {
            if basis.is_full[row] && self.duals[row] < -1e-9 {
                look(-self.duals[row], self.choices.len() + row);
            }
        }
        best.map(|best| best.1)
    }

    /// Prepares branch and bound: drops choices that lose more than `budget` against the value of their room, and
    /// sorts the others by what they make of it.
    fn rank(&mut self, budget: f64) {
        // One pod of such a choice takes the bound below what is enough, so no filling with it counts.
        self.choices
            .retain(|choice| choice.size - choice.value <= budget);
        self.choices.sort_unstable_by(|a, b| {
            let by_density = b.density().total_cmp(&a.density());
            by_density
                .then(b.size.total_cmp(&a.size))
                .then(a.item.cmp(&b.item))
        });
    }
}

impl Choice {
    /// Returns a pod's value for the value of its room.
    fn density(&self) -> f64 {
        self.value / self.size.max(1e-12)
    }

    /// Returns it as a step of a search, without what later ones can be worth.
    fn step<const ROWS: usize>(&self) -> Step<ROWS> {
        Step {
            request: std::array::from_fn(|row| self.request[row]),
            value: self.value,
            size: self.size,
            excess: (self.value - self.size).max(0.0),
            beyond: 0.0,
            density: self.density().min(1.0),
            most: self.most,
            rates: [0.0; ROWS],
        }
    }
}

/// Groups equal items that follow each other.
fn counted(items: impl Iterator<Item = usize>) -> Vec<(usize, u32)> {
    let mut pods: Vec<(usize, u32)> = Vec::new();
    for item in items {
        match pods.last_mut() {
            Some(last) if last.0 == item => last.1 += 1,
            _ => pods.push((item, 1)),
        }
    }
    pods
}

fn dot(a: &[f64; DIMENSIONS], b: &[f64; DIMENSIONS], rows: usize) -> f64 {
    let mut sum = 0.0;
    for row in 0..rows {
        sum += a[row] * b[row];
    }
    sum
}

impl Basis {
    /// Creates the basis of an empty machine: all room is free.
    fn free(rows: usize, choices: usize) -> Self {
        let mut basis = Basis {
            variables: [usize::MAX; DIMENSIONS],
            inverse: [[0.0; DIMENSIONS]; DIMENSIONS],
            amounts: [1.0; DIMENSIONS],
            is_full: [false; DIMENSIONS],
        };
        for row in 0..rows {
            basis.variables[row] = choices + row;
            basis.inverse[row][row] = 1.0;
        }
        basis
    }

    fn duals(&self, rows: usize, choices: &[Choice]) -> [f64; DIMENSIONS] {
        let mut duals = [0.0; DIMENSIONS];
        for row in 0..rows {
            if let Some(choice) = choices.get(self.variables[row]) {
                for (dual, inverse) in duals[..rows].iter_mut().zip(&self.inverse[row]) {
                    *dual += choice.value * inverse;
                }
            }
        }
        duals
    }

    /// Brings a variable into the basis, or moves it from one of its bounds to the other if no other variable stops
    /// it before.
    fn enter(&mut self, entering: usize, rows: usize, choices: &mut [Choice]) {
        let free = choices.len();
        let (column, most, sign) = match choices.get(entering) {
            Some(choice) => {
                let sign = if choice.place == Place::All {
                    -1.0
                } else {
                    1.0
                };
                (choice.share, f64::from(choice.most), sign)
            }
            None => {
                let mut column = [0.0; DIMENSIONS];
                column[entering - free] = 1.0;
                (column, f64::INFINITY, 1.0)
            }
        };
        let mut direction = [0.0; DIMENSIONS];
        for (direction, inverse) in direction[..rows].iter_mut().zip(&self.inverse) {
            *direction = dot(inverse, &column, rows);
        }
        let mut step = most;
        let mut leaving: Option<(usize, Place)> = None;
        // The ratio test of a simplex with bounds: a variable of the basis stops the step at 0 or at its maximum.
        for (row, direction) in direction[..rows].iter().enumerate() {
            let rate = sign * direction;
            let (limit, place) = if rate > 1e-12 {
                (self.amounts[row] / rate, Place::None)
            } else if rate < -1e-12 {
                let Some(choice) = choices.get(self.variables[row]) else {
                    continue;
                };
                (
                    (f64::from(choice.most) - self.amounts[row]) / -rate,
                    Place::All,
                )
            } else {
                continue;
            };
            if limit < step {
                step = limit.max(0.0);
                leaving = Some((row, place));
            }
        }
        if !step.is_finite() {
            // It takes nothing of what there is: numbers too small to tell.
            if let Some(choice) = choices.get_mut(entering) {
                choice.place = Place::All;
            }
            return;
        }
        for (amount, direction) in self.amounts[..rows].iter_mut().zip(direction) {
            *amount = (*amount - sign * direction * step).max(0.0);
        }
        let Some((leaving, place)) = leaving else {
            let choice = &mut choices[entering];
            choice.place = match choice.place {
                Place::All => Place::None,
                _ => Place::All,
            };
            return;
        };
        match choices.get_mut(self.variables[leaving]) {
            Some(choice) => choice.place = place,
            None => self.is_full[self.variables[leaving] - free] = true,
        }
        match choices.get_mut(entering) {
            Some(choice) => choice.place = Place::Basis,
            None => self.is_full[entering - free] = false,
        }
        self.variables[leaving] = entering;
        self.amounts[leaving] = if sign > 0.0 { step } else { most - step };
        let pivot = direction[leaving];
        let own = self.inverse[leaving].map(|entry| entry / pivot);
        for (inverse, direction) in self.inverse[..rows].iter_mut().zip(direction) {
            for (entry, own) in inverse.iter_mut().zip(own) {
                *entry -= direction * own;
            }
        }
        self.inverse[leaving] = own;
    }
}
