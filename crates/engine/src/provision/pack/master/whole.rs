//! Solves the program with whole pods, which begins with the values and fillings of the one with fractions of pods.

use super::super::fill::{ALIKE, Filler, Weights};
use super::super::simplex::Simplex;
use super::super::{DIMENSIONS, Offer};
use super::{
    LEAST_GAIN, PROMISING, Pattern, Program, SELDOM, STEPS, column_of, demand_of, holds,
    is_allowed, mixed,
};

/// The maximum number of rounds of looking for fillings.
const ROUNDS: usize = 60;
/// The relative distance from the bound at which the program counts as solved.
const NEAR: f64 = 0.004;
/// The program ends when `PATIENCE` rounds lowered its price by less than `LITTLE`.
const PATIENCE: usize = 5;
const LITTLE: f64 = 0.0005;
/// The number of fillings that are looked at for one machine: fewer than where a bound follows from the best one, because
/// any filling that lowers the price will do.
const NODES: usize = 600;
/// An offer whose best filling was worth less than this share of its price is looked at in one of `SELDOM` rounds.
const WORTHWHILE: f64 = 0.98;

impl Program<'_> {
    /// Solves the program with whole pods. Returns the patterns that it buys, and how often.
    pub(super) fn integral_patterns(
        &mut self,
        best: &[f64],
        filler: &mut Filler<'_>,
    ) -> Vec<(Pattern, f64)> {
        let problem = self.problem;
        let mut simplex = Simplex::new(problem.items.len());
        let mut patterns: Vec<Pattern> = Vec::new();
        let mut known = std::mem::take(&mut self.patterns).into_iter().flatten();
        for (item, own) in problem.items.iter().enumerate() {
            // The first columns are the items' own machines in the order of items, so they are taken off in the same
            // order.
            let first = self.alone[item].and_then(|_| known.next());
            let holds = first.as_ref().map(|first| holds(first, problem));
            simplex.start(item, holds, f64::from(own.demand));
            patterns.extend(first);
        }
        for pattern in known {
            simplex.add(column_of(&pattern, problem));
            patterns.push(pattern);
        }
        let demand = demand_of(problem);
        for pattern in self.rounded(best, &demand, filler) {
            simplex.add(column_of(&pattern, problem));
            patterns.push(pattern);
        }
        let mixes = mixes(filler.shortage);
        // An offer that is not worth its price even with fractions of pods is left out.
        let is_promising = |index: &usize| self.markets[*index].last >= PROMISING;
        let mut offers: Vec<usize> = (0..self.markets.len()).filter(is_promising).collect();
        offers.retain(|index| !self.markets[*index].choices.is_empty());
        let least = self.worth(best);
        let mut prices: Vec<f64> = Vec::new();
        for round in 0..ROUNDS {
            simplex.optimise(STEPS);
            let price = simplex.price();
            let before = round.checked_sub(PATIENCE).map(|before| prices[before]);
            let is_slow = before.is_some_and(|before| price > before * (1.0 - LITTLE));
            if is_slow || price <= least * (1.0 + NEAR) {
                break;
            }
            prices.push(price);
            let duals = simplex.duals();
            let mixed = mixed(best, &duals);
            let is_due = |index: &usize| {
                (round + index).is_multiple_of(SELDOM) || self.markets[*index].last >= WORTHWHILE
            };
            let due: Vec<usize> = offers.iter().copied().filter(is_due).collect();
            let mut found = self.fillings(&due, &mixed, (&demand, &mixes), filler);
            let gains = |pattern: &Pattern| {
                let column = column_of(pattern, problem);
                column.worth(&duals) > column.cost * (1.0 + LEAST_GAIN)
            };
            found.retain(gains);
            // What the steadied values do not find, the program's own may.
            if found.is_empty() {
                found = self.fillings(&offers, &duals, (&demand, &mixes), filler);
                found.retain(gains);
            }
            if found.is_empty() {
                break;
            }
            for pattern in found {
                simplex.add(column_of(&pattern, problem));
                patterns.push(pattern);
            }
        }
        let bought = simplex.bought().into_iter();
        bought
            .map(|(column, times)| (patterns[column].clone(), times))
            .collect()
    }

    /// Returns the first program's fillings without their fractions of pods, topped up with whole ones.
    fn rounded(
        &self,
        values: &[f64],
        demand: &[(usize, u32)],
        filler: &mut Filler<'_>,
    ) -> Vec<Pattern> {
        let mut found = Vec::new();
        for (column, index) in self.simplex.columns().iter().zip(&self.offers) {
            let entries = column.entries.iter();
            // The small addition undoes rounding: 2.9999999 pods are three.
            let whole = entries.map(|(item, count)| (*item as usize, (count + 1e-6) as u32));
            let mut pods: Vec<(usize, u32)> = whole.filter(|pod| pod.1 > 0).collect();
            let offer = &self.problem.offers[*index];
            if filler.top_up(offer, &pods, demand, values) {
                pods = std::mem::take(&mut filler.taken);
            }
            if is_allowed(self.problem, offer, &pods) {
                found.push(Pattern {
                    offer: *index,
                    pods,
                });
            }
        }
        found
    }

    /// Returns good fillings with whole pods of these offers: a greedy one of each, and one by branch and bound where it
    /// finds a better one.
    fn fillings(
        &mut self,
        offers: &[usize],
        values: &[f64],
        (demand, mixes): (&[(usize, u32)], &[Weights]),
        filler: &mut Filler<'_>,
    ) -> Vec<Pattern> {
        let problem = self.problem;
        let worth = |pods: &[(usize, u32)]| -> f64 {
            let worths = pods
                .iter()
                .map(|(item, count)| values[*item] * f64::from(*count));
            worths.sum()
        };
        let mut found = Vec::new();
        for index in offers.iter().copied() {
            let (offer, market) = (&problem.offers[index], &mut self.markets[index]);
            let price = offer.price as f64;
            let greedy = best_filling(offer, demand, values, mixes, filler);
            // The search need not find again what is no better than the greedy filling.
            let enough = worth(&greedy).max(PROMISING * price);
            let pods = (&market.choices[..], values);
            let most = self.knapsack.most(problem, offer, pods, enough, NODES);
            market.last = worth(&greedy).max(worth(&most.pods)) / price;
            let fillings = [greedy, most.pods].into_iter();
            found.extend(
                fillings
                    .filter(|pods| !pods.is_empty() && is_allowed(problem, offer, pods))
                    .map(|pods| Pattern { offer: index, pods }),
            );
        }
        found
    }
}

/// Fills a machine by the best of these weights, then exchanges pods on it.
fn best_filling(
    offer: &Offer,
    demand: &[(usize, u32)],
    values: &[f64],
    mixes: &[Weights],
    filler: &mut Filler<'_>,
) -> Vec<(usize, u32)> {
    let mut best: Option<(f64, &Weights)> = None;
    let mut pods = Vec::new();
    for weights in mixes {
        let value = filler.fill(offer, demand, values, weights);
        if best.is_none_or(|best| value > best.0) {
            best = Some((value, weights));
            pods.clone_from(&filler.taken);
        }
    }
    filler.taken = pods;
    if let Some((value, weights)) = best {
        filler.exchange(offer, demand, (values, weights), value);
    }
    std::mem::take(&mut filler.taken)
}

/// The weights of cpu and memory in the size of a pod that are tried, beside those of the other resources.
const MIXES: [(f64, f64); 6] = [
    (1.0, 0.0),
    (1.0, 0.1),
    (1.0, 0.3),
    (0.3, 1.0),
    (0.1, 1.0),
    (0.0, 1.0),
];

/// Returns the weights by which a machine is filled, each of which puts other pods first.
fn mixes(shortage: Weights) -> Vec<Weights> {
    let mixed = MIXES.iter().map(|(cpu, memory)| {
        let mut weights = [0.05; DIMENSIONS];
        (weights[0], weights[1]) = (*cpu, *memory);
        weights
    });
    [ALIKE, shortage].into_iter().chain(mixed).collect()
}
