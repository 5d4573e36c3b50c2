//! Whole machines: what the linear program buys, rounded down, and the rest machine by machine.

use super::fill::{ALIKE, Filler, Weights};
use super::{Bin, Load, Problem, Relaxation, give_back, take, within};

/// Machines so far, those that are there first, and the pods that have no place.
#[derive(Clone, Debug)]
pub(super) struct Solution {
    pub(super) bins: Vec<Bin>,
    pub(super) left: Vec<u32>,
    pub(super) limits: Vec<Load>,
}

/// The linear program's patterns as often as they are bought whole, then the best machine for what is left, again and again.
pub(super) fn build(
    problem: &Problem,
    relaxation: &Relaxation,
    demand: &[u32],
    filler: &mut Filler,
) -> Solution {
    let mut solution = Solution {
        bins: Vec::new(),
        left: demand.to_vec(),
        limits: problem.limits.clone(),
    };
    for (node, offer) in problem.nodes.iter().enumerate() {
        let pods = match filler.top_up(problem, offer, &[], &solution.left, &relaxation.values) {
            true => filler.taken.clone(),
            false => Vec::new(),
        };
        for (item, count) in &pods {
            solution.left[*item] -= count;
        }
        let offer = problem.offers.len() + node;
        solution.bins.push(Bin { offer, pods });
    }
    let mut patterns: Vec<_> = relaxation.patterns.iter().collect();
    patterns.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.offer.cmp(&b.0.offer)));
    for (pattern, times) in patterns {
        let offer = &problem.offers[pattern.offer];
        for _ in 0..(times + 1e-6).floor() as u64 {
            let enough = pattern
                .pods
                .iter()
                .all(|(item, count)| solution.left[*item] >= *count);
            if !enough || !within(&offer.takes, &solution.limits[offer.pool]) {
                break;
            }
            for (item, count) in &pattern.pods {
                solution.left[*item] -= count;
            }
            take(&mut solution.limits, offer);
            solution.bins.push(Bin {
                offer: pattern.offer,
                pods: pattern.pods.clone(),
            });
        }
    }
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

/// Puts pods without a place where any machine has room for them.
pub(super) fn fill_up(
    problem: &Problem,
    values: &[f64],
    solution: &mut Solution,
    filler: &mut Filler,
) {
    for index in 0..solution.bins.len() {
        if solution.left.iter().all(|left| *left == 0) {
            break;
        }
        let bin = &solution.bins[index];
        let offer = problem.offer(bin.offer);
        if filler.top_up(problem, offer, &bin.pods, &solution.left, values) {
            let before = std::mem::replace(&mut solution.bins[index].pods, filler.taken.clone());
            for (item, count) in &before {
                solution.left[*item] += count;
            }
            for (item, count) in &filler.taken {
                solution.left[*item] -= count;
            }
        }
    }
}

/// Buys for what is left of the demand, of some offers, where pods have these values: the machine that holds most value for its price, again and again; at any point everything that is
/// left may go on one machine instead. The cheapest of these ways is taken. False, and nothing changed, where it would cost `most` or more.
pub(super) fn complete(
    problem: &Problem,
    market: (&[usize], &[f64]),
    solution: &mut Solution,
    weights: &[Weights],
    most: u64,
    filler: &mut Filler,
) -> bool {
    let kept = solution.bins.len();
    let before = solution.left.clone();
    let mut price = 0;
    // Price of a way that places everything: so many machines of the greedy way, then one.
    let mut best: Option<(u64, usize, Bin)> = None;
    loop {
        let rest: Vec<(usize, u32)> = pods(&solution.left);
        if rest.is_empty() {
            break;
        }
        if problem.together(&rest)
            && let Some(one) = problem.cheapest_for(&rest, &solution.limits)
        {
            let whole = price + problem.offers[one].price;
            if best.as_ref().is_none_or(|best| whole < best.0) {
                let bin = Bin {
                    offer: one,
                    pods: rest,
                };
                best = Some((whole, solution.bins.len(), bin));
            }
        }
        let bar = best.as_ref().map_or(most, |best| best.0.min(most));
        let Some(bin) = next(problem, market, solution, weights, filler) else {
            break;
        };
        price += problem.offer(bin.offer).price;
        if price >= bar {
            break;
        }
        put(problem, solution, bin);
    }
    let placed_all = solution.left.iter().all(|left| *left == 0);
    let greedy: u64 = solution.bins[kept..]
        .iter()
        .map(|bin| problem.offer(bin.offer).price)
        .sum();
    if let Some((whole, machines, bin)) = best
        && (!placed_all || whole < greedy)
    {
        while solution.bins.len() > machines {
            unput(problem, solution);
        }
        put(problem, solution, bin);
    }
    let cost: u64 = solution.bins[kept..]
        .iter()
        .map(|bin| problem.offer(bin.offer).price)
        .sum();
    if cost >= most {
        while solution.bins.len() > kept {
            unput(problem, solution);
        }
        debug_assert_eq!(solution.left, before);
        return false;
    }
    true
}

/// The machine with most value for its price, made no larger than what it holds.
fn next(
    problem: &Problem,
    (offers, values): (&[usize], &[f64]),
    solution: &Solution,
    weights: &[Weights],
    filler: &mut Filler,
) -> Option<Bin> {
    let mut best: Option<(f64, Bin)> = None;
    for index in offers.iter().copied() {
        let offer = &problem.offers[index];
        if !within(&offer.takes, &solution.limits[offer.pool]) {
            continue;
        }
        for weights in weights {
            let value = filler.fill(problem, offer, &solution.left, values, weights);
            let ratio = value / offer.price as f64;
            if value > 0.0 && best.as_ref().is_none_or(|best| ratio > best.0) {
                let pods = filler.taken.clone();
                best = Some((ratio, Bin { offer: index, pods }));
            }
        }
    }
    let (_, mut bin) = best?;
    if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
        bin.offer = smaller;
    }
    Some(bin)
}

pub(super) fn pods(left: &[u32]) -> Vec<(usize, u32)> {
    let some = left.iter().enumerate().filter(|(_, count)| **count > 0);
    some.map(|(item, count)| (item, *count)).collect()
}

pub(super) fn put(problem: &Problem, solution: &mut Solution, bin: Bin) {
    for (item, count) in &bin.pods {
        solution.left[*item] -= count;
    }
    take(&mut solution.limits, problem.offer(bin.offer));
    solution.bins.push(bin);
}

/// Takes the last machine back.
pub(super) fn unput(problem: &Problem, solution: &mut Solution) {
    if let Some(bin) = solution.bins.pop() {
        for (item, count) in &bin.pods {
            solution.left[*item] += count;
        }
        give_back(&mut solution.limits, problem.offer(bin.offer));
    }
}
