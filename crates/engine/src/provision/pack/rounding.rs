//! Rounds the linear program to whole machines: its patterns rounded down, and the remaining pods machine by machine.

use super::fill::{ALIKE, Filler, Weights};
use super::master::Pattern;
use super::{Bin, Load, Problem, Relaxation, give_back, take, within};

/// The share of its price that the pods of a nearly full machine are worth.
const NEARLY_FULL: f64 = 0.95;

/// The machines so far, existing nodes first, and the pods that have no place.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) bins: Vec<Bin>,
    pub(super) left: Vec<u32>,
    pub(super) limits: Vec<Load>,
    /// Items that have pods left; some may have none any more, because the list is tidied only when it is read.
    open: Vec<usize>,
    /// The number of pods that are left.
    unplaced: u64,
}

/// Buys the linear program's patterns as often as they are bought whole, then again and again the best machine for
/// the pods that are left.
pub(super) fn build(
    problem: &Problem,
    relaxation: &Relaxation,
    demand: &[u32],
    filler: &mut Filler<'_>,
) -> Solution {
    let mut solution = Solution::of_nodes(problem, demand);
    // Existing nodes first, because they cost nothing.
    fill_up(problem, &relaxation.values, &mut solution, filler);
    let mut patterns: Vec<_> = relaxation.patterns.iter().collect();
    patterns.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.offer.cmp(&b.0.offer)));
    for (pattern, times) in &patterns {
        let offer = &problem.offers[pattern.offer];
        for _ in 0..(times + 1e-6).floor() as u64 {
            // A pattern is bought only with all of its pods here; partly filled ones compete by worth below.
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

/// Buys patterns of which some pods have a place already while the others are worth nearly what the machine costs.
/// Rounding down the program's fractions of machines leaves many pods, and its patterns fit each other better than
/// machines that are filled one by one.
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
    /// Creates a solution of the existing nodes, all empty.
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

    /// Returns what its machines from `first` on cost, in micro-dollars per hour.
    pub(super) fn price_from(&self, first: usize, problem: &Problem) -> u64 {
        let bins = self.bins[first..].iter();
        bins.map(|bin| problem.offer(bin.offer).price).sum()
    }

    /// Returns the number of pods without a place.
    pub(super) fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// Returns the items that have pods left, with their numbers.
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

    /// Gives the last machines back until `bins` are left.
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

    /// Replaces the pods on a machine and returns those that were there.
    pub(super) fn exchange(&mut self, index: usize, pods: Vec<(usize, u32)>) -> Vec<(usize, u32)> {
        let before = std::mem::take(&mut self.bins[index].pods);
        self.take_back(&before);
        self.place(&pods);
        self.bins[index].pods = pods;
        before
    }

    /// Adds some of the pods without a place, which are `rest`, to a machine that has room for them. Returns what was
    /// there before if any were added.
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

/// Puts pods without a place on any machine that has room for them.
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

/// Buys machines for the pods that are left, among `offers`, where pods have these `values`: again and again the
/// machine that holds most value for its price; at any point, everything left may go on one machine instead. The
/// cheapest of these ways is taken. Returns `false`, with nothing changed, if it would cost `most` or more.
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
    let mut trials = Trials::of(market, weights, filler);
    // The best way with one last machine for everything left: its price, the number of machines before the last, and
    // the last.
    let mut best: Option<(u64, usize, Bin)> = None;
    loop {
        let rest = solution.rest();
        if rest.is_empty() {
            break;
        }
        // Near the end one machine for all that is left is often cheaper than the two best ones, which greed alone
        // does not see.
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
        let Some(bin) = trials.best(problem, (&rest, solution), filler) else {
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

/// Machines on trial, each filled in several ways with pods that are left. A machine is filled again only when pods that it
/// needs are gone: meanwhile it would be filled with the same ones.
pub(super) struct Trials<'a> {
    offers: &'a [usize],
    /// What a pod of each item is worth.
    values: &'a [f64],
    weights: &'a [Weights],
    /// By offer, then by weights; empty if fillings are not kept.
    filled: Vec<Filling>,
}

/// How a machine is filled.
#[derive(Clone, Default)]
struct Filling {
    is_known: bool,
    /// What its pods are worth.
    value: f64,
    pods: Vec<(usize, u32)>,
    /// The first item by value for its room, and the first for which the machine may be bought: if one of them has no pods left, the
    /// filling would begin differently. `None` if the machine stays empty.
    leads: Option<[usize; 2]>,
}

impl<'a> Trials<'a> {
    /// Creates trials of these offers. A filler that draws random numbers fills a machine differently each time, so its fillings are not kept.
    pub(super) fn of(
        (offers, values): (&'a [usize], &'a [f64]),
        weights: &'a [Weights],
        filler: &Filler<'_>,
    ) -> Self {
        let count = match filler.random {
            None => offers.len() * weights.len(),
            Some(_) => 0,
        };
        Trials {
            offers,
            values,
            weights,
            filled: vec![Filling::default(); count],
        }
    }

    /// Returns the machine that holds most value for its price, made no larger than what it holds. `rest` are the pods that
    /// are left in the solution: no more than when it was asked before.
    pub(super) fn best(
        &mut self,
        problem: &Problem,
        (rest, solution): (&[(usize, u32)], &Solution),
        filler: &mut Filler<'_>,
    ) -> Option<Bin> {
        let (left, limits) = (&solution.left[..], &solution.limits[..]);
        let mut best: Option<(f64, usize)> = None;
        let mut pods = Vec::new();
        for (place, index) in self.offers.iter().copied().enumerate() {
            let offer = &problem.offers[index];
            if !within(&offer.takes, &limits[offer.pool]) {
                continue;
            }
            for (turn, weights) in self.weights.iter().enumerate() {
                let known = self.filled.get_mut(place * self.weights.len() + turn);
                let (value, taken) = match known {
                    Some(known) if known.is_current(left) => {
                        if known.leads.is_some() {
                            filler.count_work(offer, rest, self.values);
                        }
                        (known.value, &known.pods)
                    }
                    known => {
                        let value = filler.fill(offer, rest, self.values, weights);
                        if let Some(known) = known {
                            known.is_known = true;
                            known.value = value;
                            known.pods.clone_from(&filler.taken);
                            known.leads = filler.leads;
                        }
                        (value, &filler.taken)
                    }
                };
                let ratio = value / offer.price as f64;
                if value > 0.0 && best.is_none_or(|best| ratio > best.0) {
                    best = Some((ratio, index));
                    pods.clone_from(taken);
                }
            }
        }
        let (_, offer) = best?;
        // What rules or sizes left empty need not be paid for.
        let smaller = problem.cheapest_for(&pods, limits);
        Some(Bin {
            offer: smaller.unwrap_or(offer),
            pods,
        })
    }
}

impl Filling {
    /// Returns whether filling the machine again would have the same result: each of its items has so many pods left.
    /// If an item has fewer pods on it than were left, room or rules allowed no more.
    fn is_current(&self, left: &[u32]) -> bool {
        let mut leads = self.leads.iter().flatten();
        let mut pods = self.pods.iter();
        self.is_known
            && leads.all(|item| left[*item] > 0)
            && pods.all(|(item, count)| left[*item] >= *count)
    }
}

/// Returns the items that have pods left, with their numbers.
pub(super) fn pods(left: &[u32]) -> Vec<(usize, u32)> {
    let some = left.iter().enumerate().filter(|(_, count)| **count > 0);
    some.map(|(item, count)| (item, *count)).collect()
}
