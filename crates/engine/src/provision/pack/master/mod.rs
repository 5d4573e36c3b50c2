//! Solves the linear program over patterns by column generation; its dual values say what pods are worth.
//!
//! A pattern is one machine with a number of pods of each item. The program buys fractions of patterns so that every
//! pod has a place at the least price; its dual values say what one more pod of an item costs. Patterns are found as
//! they are needed: the one whose pods are worth most beyond its price enters.
//!
//! It is solved twice. In the first program, a machine with too many fillings to search may hold fractions of pods:
//! the best such filling is found at once and exactly, so the program ends, and its price is a bound for every plan.
//! The second one has whole pods only, begins with the values of the first one and with its fillings, rounded, and
//! its patterns are what is bought.

mod whole;

use super::fill::{ALIKE, Filler};
use super::knapsack::Knapsack;
use super::rounding::pods;
use super::simplex::{Column, EPSILON, Simplex};
use super::{Offer, Problem};

/// The maximum number of rounds of looking for fillings with fractions of pods.
const ROUNDS: usize = 400;
/// The maximum number of steps of the simplex in a round.
const STEPS: usize = 200;
/// The relative error that sums may have.
const ROUNDING: f64 = 1e-10;
/// The relative distance from the bound at which the price of the program with fractions of pods counts as solved.
const NEAR: f64 = 0.0003;
/// The share of the best known values in those at which fillings are looked for; the rest are the program's own,
/// which jump about while fillings are missing.
const STEADY: f64 = 0.7;
/// The number of fillings of whole pods that are looked at for one machine to find the best one.
const NODES: usize = 1000;
/// An offer whose pods were worth less than `PROMISING` of its price is looked at in one of `SELDOM` rounds.
const PROMISING: f64 = 0.95;
const SELDOM: usize = 8;
/// The share of their price from which the pods of machines count as nearly as good as those that the program buys.
const NEARLY: f64 = 0.99;
/// The number of times that a machine may have too many fillings to search before it may hold fractions of pods for
/// good.
const TOO_MANY: u8 = 3;

/// The solution of the linear program.
pub(crate) struct Relaxation {
    /// Micro-dollars an hour that a pod of each item is worth.
    pub(super) values: Vec<f64>,
    /// The dual values: no less than nothing, and nothing for items that no machine is bought for.
    pub(super) duals: Vec<f64>,
    /// Patterns that are bought, and how often.
    pub(super) patterns: Vec<(Pattern, f64)>,
    /// Offers that the program with fractions of pods buys, and those that are as good.
    pub(super) bought: Vec<usize>,
    /// Offers by what the pods on them are worth for the price, the best first.
    pub(super) offers: Vec<usize>,
    /// A lower bound for the price of every plan, in micro-dollars per hour.
    pub(super) bound: u64,
}

/// One machine, and how many pods of each item are on it.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(super) offer: usize,
    pub(super) pods: Vec<(usize, u32)>,
}

impl Relaxation {
    /// Solves both programs. Items that no offer holds are worth nothing and left out.
    pub(super) fn solve(problem: &Problem, filler: &mut Filler<'_>) -> Self {
        let mut program = Program::new(problem);
        let mut relaxation = program.relax(filler);
        relaxation.patterns = program.integral_patterns(&relaxation.duals, filler);
        relaxation
    }

    /// Solves only the program with fractions of pods, without patterns.
    pub(super) fn in_parts(problem: &Problem, filler: &mut Filler<'_>) -> Self {
        Program::new(problem).relax(filler)
    }
}

/// The program with fractions of pods, and what both programs know about offers.
struct Program<'a> {
    problem: &'a Problem,
    simplex: Simplex,
    /// The pattern of each column; `None` if it has fractions of pods, or pods that may not be together.
    patterns: Vec<Option<Pattern>>,
    /// The offer of each column.
    offers: Vec<usize>,
    /// The price of a pod of each item if its machines hold nothing else.
    alone: Vec<Option<f64>>,
    markets: Vec<Market>,
    knapsack: Knapsack,
}

/// The state of an offer in the search for patterns.
struct Market {
    /// Items and how many of each there may be on it.
    choices: Vec<(u32, u32)>,
    /// The share of its price that its pods were worth when it was looked at last.
    last: f64,
    /// The number of times that branch and bound ended early.
    failed: u8,
}

impl<'a> Program<'a> {
    fn new(problem: &'a Problem) -> Self {
        let items = problem.items.len();
        let mut simplex = Simplex::new(items);
        let mut patterns = Vec::new();
        let mut offers = Vec::new();
        let mut alone = Vec::with_capacity(items);
        // Each item starts with machines of its own, so that the program has a solution from the first step.
        for (item, own) in problem.items.iter().enumerate() {
            let first = first_pattern(problem, item);
            let holds = first.as_ref().map(|first| holds(first, problem));
            alone.push(holds.map(|(price, holds)| price / holds));
            simplex.start(item, holds, f64::from(own.demand));
            offers.extend(first.as_ref().map(|first| first.offer));
            patterns.extend(first.map(Some));
        }
        let market = |offer: &Offer| {
            let mut choices = problem.choices_on(offer);
            choices.retain(|(item, _)| alone[*item as usize].is_some());
            // A machine for which no pod of the problem may be bought is never looked at.
            if !choices
                .iter()
                .any(|(item, _)| offer.opens.contains(*item as usize))
            {
                choices.clear();
            }
            Market {
                choices,
                last: f64::INFINITY,
                failed: 0,
            }
        };
        let markets = problem.offers.iter().map(market).collect();
        Program {
            problem,
            simplex,
            patterns,
            offers,
            alone,
            markets,
            knapsack: Knapsack::default(),
        }
    }

    /// Returns the values of pods and offers and the bound, without patterns.
    fn relax(&mut self, filler: &mut Filler<'_>) -> Relaxation {
        let problem = self.problem;
        let (duals, bound) = self.bound();
        let dearest = problem
            .offers
            .last()
            .map_or(1.0, |offer| offer.price as f64);
        let pairs = duals.iter().zip(&self.alone);
        let values: Vec<f64> = pairs
            .map(|(value, alone)| match alone {
                // A pod that only ever rides along is worth something all the same, or nobody would take it along.
                Some(alone) => value.max(alone / 1000.0),
                // No machine is bought for it: it has to find room.
                None => dearest,
            })
            .collect();
        let demand = demand_of(problem);
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
        let columns = self.simplex.bought().into_iter();
        let mut bought: Vec<usize> = columns.map(|(column, _)| self.offers[column]).collect();
        // Where the program buys a machine another one of nearly its worth may suit the last pods better.
        let nearly = |index: &usize| (NEARLY..=f64::MAX).contains(&self.markets[*index].last);
        bought.extend((0..self.markets.len()).filter(nearly));
        bought.sort_unstable();
        bought.dedup();
        // Prices are whole numbers, so what is beyond the last one counts as another.
        let bound = (bound * (1.0 - ROUNDING)).ceil();
        Relaxation {
            values,
            duals,
            patterns: Vec::new(),
            bought,
            offers: offers.into_iter().map(|offer| offer.1).collect(),
            bound: bound as u64,
        }
    }

    /// Returns the sum of all pods' values.
    fn worth(&self, values: &[f64]) -> f64 {
        let pairs = self.problem.items.iter().zip(values);
        pairs
            .map(|(item, value)| f64::from(item.demand) * value)
            .sum()
    }

    /// Returns dual values and a lower bound for the price of all pods.
    fn bound(&mut self) -> (Vec<f64>, f64) {
        // At these values all pods together are worth most, no machine being worth more than it costs.
        let mut best: Vec<f64> = Vec::new();
        let mut bound: f64 = 0.0;
        for round in 0..ROUNDS {
            self.simplex.optimise(STEPS);
            let duals = self.simplex.duals();
            if best.is_empty() {
                best.clone_from(&duals);
            }
            let price = self.simplex.price();
            let is_near = bound * (1.0 + NEAR) >= price;
            let mixed = mixed(&best, &duals);
            let mut is_solved = true;
            // The steadied values first. Only if no filling gains at them do the program's own decide whether it is
            // solved.
            for values in [&mixed, &duals] {
                let (ratio, added) = self.look(values, &duals, (!is_near).then_some(round));
                let ratio = ratio.max(EPSILON);
                // Divided by the ratio, no machine's pods are worth more than its price, so the sum of the values is
                // a lower bound.
                let own = self.worth(values) / ratio;
                if own > bound {
                    bound = own;
                    best = values.iter().map(|value| value / ratio).collect();
                }
                if added > 0 {
                    is_solved = false;
                    break;
                }
            }
            if is_solved || (is_near && bound * (1.0 + NEAR) >= price) {
                break;
            }
        }
        // Offers were skipped in rounds, so the ratio that makes the bound valid is worked out once for all of them.
        let values = best.clone();
        let ratio = self.look(&values, &values, None).0.max(1.0);
        best.iter_mut().for_each(|value| *value /= ratio);
        let bound = self.worth(&best);
        (best, bound)
    }

    /// Adds the best fillings of the offers at these values if they are worth more than their price at the program's
    /// own values. Returns the highest share of its price that any machine's pods are worth, and how many fillings
    /// were added. If a round is given, offers that are worth little are looked at seldom.
    fn look(&mut self, values: &[f64], duals: &[f64], round: Option<usize>) -> (f64, usize) {
        let (mut most, mut added) = (0.0_f64, 0);
        for index in 0..self.markets.len() {
            let market = &mut self.markets[index];
            let is_due = round.is_none_or(|round| (round + index).is_multiple_of(SELDOM));
            if market.choices.is_empty() || (!is_due && market.last < PROMISING) {
                continue;
            }
            let offer = &self.problem.offers[index];
            let price = offer.price as f64;
            // A machine whose searches were cut short too often is not searched again: fractions of pods must do.
            let nodes = if market.failed < TOO_MANY { NODES } else { 0 };
            let pods = (&market.choices[..], values);
            let found = self.knapsack.most(self.problem, offer, pods, price, nodes);
            market.last = found.upper / price;
            most = most.max(market.last);
            // Its pods are worth no more than its price, so no filling of it lowers the program's price.
            if market.last <= 1.0 + EPSILON {
                continue;
            }
            let in_parts = !found.is_exact || found.pods.is_empty();
            market.failed += u8::from(!found.is_exact && nodes > 0);
            let entries: Vec<(u32, f64)> = if in_parts {
                self.knapsack.parts.clone()
            } else {
                entries_of(&found.pods)
            };
            let column = Column {
                cost: price,
                entries,
            };
            // The fillings were looked for at steadier values, but only the program's own say whether this one helps.
            if column.worth(duals) > price * (1.0 + LEAST_GAIN) {
                // A filling with fractions, or one that the rules forbid, cannot be bought; it only serves the bound.
                let is_whole = !in_parts && is_allowed(self.problem, offer, &found.pods);
                self.patterns.push(is_whole.then_some(Pattern {
                    offer: index,
                    pods: found.pods,
                }));
                self.offers.push(index);
                self.simplex.add(column);
                added += 1;
            }
        }
        (most, added)
    }
}

/// The relative gain below which a filling does not enter the program.
const LEAST_GAIN: f64 = 1e-7;

fn demand_of(problem: &Problem) -> Vec<(usize, u32)> {
    let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
    pods(&demand)
}

/// Returns values near the best known ones.
fn mixed(best: &[f64], duals: &[f64]) -> Vec<f64> {
    let pairs = best.iter().zip(duals);
    pairs
        .map(|(best, dual)| STEADY * best + (1.0 - STEADY) * dual)
        .collect()
}

/// Returns whether rules let these pods be on a machine together and one of them justifies buying it.
fn is_allowed(problem: &Problem, offer: &Offer, pods: &[(usize, u32)]) -> bool {
    let opens = pods.iter().any(|(item, _)| offer.opens.contains(*item));
    opens && problem.together(pods)
}

fn entries_of(pods: &[(usize, u32)]) -> Vec<(u32, f64)> {
    let pods = pods.iter();
    pods.map(|(item, count)| (*item as u32, f64::from(*count)))
        .collect()
}

fn column_of(pattern: &Pattern, problem: &Problem) -> Column {
    Column {
        cost: problem.offers[pattern.offer].price as f64,
        entries: entries_of(&pattern.pods),
    }
}

/// Returns the price of a pattern of one item, and how many pods it has.
fn holds(pattern: &Pattern, problem: &Problem) -> (f64, f64) {
    let price = problem.offers[pattern.offer].price as f64;
    (price, f64::from(pattern.pods[0].1))
}

/// Returns the cheapest way to place a pod of an item on a machine with nothing else on it.
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
        // Rules may let fewer pods of the item be together than room does.
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
