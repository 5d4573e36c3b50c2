//! Rounds the linear program to whole machines: its patterns rounded down, and the remaining pods machine by machine.

use super::fill::{ALIKE, Filler, Weights};
use super::master::Pattern;
use super::{Bin, Load, Problem, Relaxation, give_back, take, within};

/// A machine is nearly full when its pods are worth so much of its price.
const NEARLY_FULL: f64 = 0.95;

/// Machines so far, those that are there first, and the pods that have no place.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) bins: Vec<Bin>,
    pub(super) left: Vec<u32>,
    pub(super) limits: Vec<Load>,
    /// Items that have pods left, and some that have none any more.
    open: Vec<usize>,
    /// How many pods are left.
    unplaced: u64,
}

/// The linear program's patterns as often as they are bought whole, then the best machine for what is left, again and again.
pub(super) fn build(
    problem: &Problem,
    relaxation: &Relaxation,
    demand: &[u32],
    filler: &mut Filler<'_>,
) -> Solution {
    let mut solution = Solution::of_nodes(problem, demand);
    fill_up(problem, &relaxation.values, &mut solution, filler);
    let mut patterns: Vec<_> = relaxation.patterns.iter().collect();
    patterns.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.offer.cmp(&b.0.offer)));
    for (pattern, times) in &patterns {
        let offer = &problem.offers[pattern.offer];
        for _ in 0..(times + 1e-6).floor() as u64 {
            let enough = pattern
                .pods
                .iter()
                .all(|(item, count)| solution.left[*item] >= *count);
            if !enough || !within(&offer.takes, &solution.limits[offer.pool]) {
                break;
            }
            let (offer, pods) = (pattern.offer, pattern.pods.clone());
            solution.put(problem, Bin { offer, pods });
        }
    }
    buy_nearly_full(problem, relaxation, &mut solution);
    fill_up(problem, &relaxation.values, &mut solution, filler);
    let weights = [ALIKE, filler.shortage];
    complete(
        problem,
        (&relaxation.offers, &relaxation.values),
        &mut solution,
        &weights,
        u64::MAX,
        filler,
    );
    solution
}

/// Buys patterns of which some pods have a place already, while the others are worth nearly what the machine costs: of the linear program's fractions
/// of machines, rounded down, a good part is left, and its patterns fit each other better than machines that are filled one by one.
fn buy_nearly_full(problem: &Problem, relaxation: &Relaxation, solution: &mut Solution) {
    loop {
        let mut best: Option<(f64, &Pattern)> = None;
        for (pattern, _) in &relaxation.patterns {
            let offer = &problem.offers[pattern.offer];
            let pods = pattern.pods.iter();
            let worth = pods.map(|(item, count)| {
                let count = (*count).min(solution.left[*item]);
                f64::from(count) * relaxation.duals[*item]
            });
            let ratio = worth.sum::<f64>() / offer.price as f64;
            let is_better = best.map_or(ratio >= NEARLY_FULL, |best| ratio > best.0);
            if is_better && within(&offer.takes, &solution.limits[offer.pool]) {
                best = Some((ratio, pattern));
            }
        }
        let Some((_, pattern)) = best else { break };
        let offer = pattern.offer;
        let pods = pattern.pods.iter();
        let pods = pods.map(|(item, count)| (*item, (*count).min(solution.left[*item])));
        let pods: Vec<(usize, u32)> = pods.filter(|pod| pod.1 > 0).collect();
        let opens = &problem.offers[offer].opens;
        if !pods.iter().any(|(item, _)| opens.contains(*item)) {
            break;
        }
        solution.put(problem, Bin { offer, pods });
    }
}

impl Solution {
    /// The machines that are there, all empty.
    pub(super) fn of_nodes(problem: &Problem, demand: &[u32]) -> Self {
        let nodes = problem.offers.len()..problem.offers.len() + problem.nodes.len();
        let empty = |offer: usize| Bin {
            offer,
            pods: Vec::new(),
        };
        Solution {
            bins: nodes.map(empty).collect(),
            left: demand.to_vec(),
            limits: problem.limits.clone(),
            open: (0..demand.len()).collect(),
            unplaced: demand.iter().map(|demand| u64::from(*demand)).sum(),
        }
    }

    /// What its machines cost from one of them on: micro-dollars an hour.
    pub(super) fn price_from(&self, first: usize, problem: &Problem) -> u64 {
        let bins = self.bins[first..].iter();
        bins.map(|bin| problem.offer(bin.offer).price).sum()
    }

    /// Pods without a place.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// Items that have pods left, and how many.
    pub(super) fn rest(&mut self) -> Vec<(usize, u32)> {
        let left = &self.left;
        self.open.retain(|item| left[*item] > 0);
        self.open.sort_unstable();
        self.open.dedup();
        self.open.iter().map(|item| (*item, left[*item])).collect()
    }

    fn place(&mut self, pods: &[(usize, u32)]) {
        for (item, count) in pods {
            self.left[*item] -= count;
            self.unplaced -= u64::from(*count);
        }
    }

    fn take_back(&mut self, pods: &[(usize, u32)]) {
        for (item, count) in pods {
            if self.left[*item] == 0 {
                self.open.push(*item);
            }
            self.left[*item] += count;
            self.unplaced += u64::from(*count);
        }
    }

    /// Buys a machine with pods on it.
    pub(super) fn put(&mut self, problem: &Problem, bin: Bin) {
        self.place(&bin.pods);
        take(&mut self.limits, problem.offer(bin.offer));
        self.bins.push(bin);
    }

    /// Gives the last machines back, until there are so many left.
    pub(super) fn shorten(&mut self, problem: &Problem, bins: usize) {
        while self.bins.len() > bins {
            self.give_back(problem, self.bins.len() - 1);
        }
    }

    /// Gives a machine back; the last one takes its place.
    pub(super) fn give_back(&mut self, problem: &Problem, index: usize) -> Bin {
        let bin = self.bins.swap_remove(index);
        self.take_back(&bin.pods);
        give_back(&mut self.limits, problem.offer(bin.offer));
        bin
    }

    /// Puts other pods on a machine. Gives those that were there.
    pub(super) fn exchange(&mut self, index: usize, pods: Vec<(usize, u32)>) -> Vec<(usize, u32)> {
        let before = std::mem::take(&mut self.bins[index].pods);
        self.take_back(&before);
        self.place(&pods);
        self.bins[index].pods = pods;
        before
    }

    /// Puts some of the pods without a place, which are `rest`, where a machine has room for them. Gives what was there before, if any came.
    pub(super) fn top_up(
        &mut self,
        problem: &Problem,
        index: usize,
        rest: &[(usize, u32)],
        values: &[f64],
        filler: &mut Filler<'_>,
    ) -> Option<Vec<(usize, u32)>> {
        let bin = &self.bins[index];
        let came = filler.top_up(problem.offer(bin.offer), &bin.pods, rest, values);
        came.then(|| self.exchange(index, filler.taken.clone()))
    }
}

/// Puts pods without a place where any machine has room for them.
pub(super) fn fill_up(
    problem: &Problem,
    values: &[f64],
    solution: &mut Solution,
    filler: &mut Filler<'_>,
) {
    let mut rest = solution.rest();
    for index in 0..solution.bins.len() {
        if rest.is_empty() {
            break;
        }
        if solution
            .top_up(problem, index, &rest, values, filler)
            .is_some()
        {
            rest = solution.rest();
        }
    }
}

/// Buys for what is left of the demand, of some offers, where pods have these values: the machine that holds most value for its price, again and
/// again; at any point everything that is left may go on one machine instead. The cheapest of these ways is taken. False, and nothing changed,
/// where it would cost `most` or more.
pub(super) fn complete(
    problem: &Problem,
    market: (&[usize], &[f64]),
    solution: &mut Solution,
    weights: &[Weights],
    most: u64,
    filler: &mut Filler<'_>,
) -> bool {
    let kept = solution.bins.len();
    let mut price = 0;
    // Price of a way that places everything: so many machines of the greedy way, then one.
    let mut best: Option<(u64, usize, Bin)> = None;
    loop {
        let rest = solution.rest();
        if rest.is_empty() {
            break;
        }
        if let Some(one) = problem.cheapest_for(&rest, &solution.limits)
            && problem.together(&rest)
        {
            let whole = price + problem.offers[one].price;
            if best.as_ref().is_none_or(|best| whole < best.0) {
                let bin = Bin {
                    offer: one,
                    pods: rest.clone(),
                };
                best = Some((whole, solution.bins.len(), bin));
            }
        }
        let bar = best.as_ref().map_or(most, |best| best.0.min(most));
        let Some(bin) = next(problem, market, (&rest, &solution.limits), weights, filler) else {
            break;
        };
        price += problem.offer(bin.offer).price;
        if price >= bar {
            break;
        }
        solution.put(problem, bin);
    }
    if let Some((whole, machines, bin)) = best
        && (solution.unplaced() > 0 || whole < solution.price_from(kept, problem))
    {
        solution.shorten(problem, machines);
        solution.put(problem, bin);
    }
    let is_cheap = solution.price_from(kept, problem) < most;
    if !is_cheap {
        solution.shorten(problem, kept);
    }
    is_cheap
}

/// The machine with most value for its price, made no larger than what it holds.
fn next(
    problem: &Problem,
    (offers, values): (&[usize], &[f64]),
    (rest, limits): (&[(usize, u32)], &[Load]),
    weights: &[Weights],
    filler: &mut Filler<'_>,
) -> Option<Bin> {
    let mut best: Option<(f64, Bin)> = None;
    for index in offers.iter().copied() {
        let offer = &problem.offers[index];
        if !within(&offer.takes, &limits[offer.pool]) {
            continue;
        }
        for weights in weights {
            let value = filler.fill(offer, rest, values, weights);
            let ratio = value / offer.price as f64;
            if value > 0.0 && best.as_ref().is_none_or(|best| ratio > best.0) {
                let pods = filler.taken.clone();
                best = Some((ratio, Bin { offer: index, pods }));
            }
        }
    }
    let (_, mut bin) = best?;
    if let Some(smaller) = problem.cheapest_for(&bin.pods, limits) {
        bin.offer = smaller;
    }
    Some(bin)
}

/// Items that have pods left, and how many.
pub(super) fn pods(left: &[u32]) -> Vec<(usize, u32)> {
    let some = left.iter().enumerate().filter(|(_, count)| **count > 0);
    some.map(|(item, count)| (item, *count)).collect()
}
