//! Ruin and recreate: some machines of a plan are taken apart and what was on them is bought for again, with what pods are worth changed a
//! little each time. What is cheaper stays.

use super::fill::{Filler, Random, Weights};
use super::whole::{Solution, complete, fill_up, pods, put};
use super::{Bin, Problem, Relaxation, change, within};

/// Machines that are taken apart at once, at most.
const MOST: usize = 8;
/// Offers that are looked at for an item: the best, and so many others; and for how many items.
const BEST: usize = 3;
const OTHERS: usize = 1;
const ITEMS: usize = 5;
/// After so many rounds without a cheaper plan it ends, and more the more machines there are.
const PATIENCE: usize = 600;
/// Other machines whose free room is looked at.
const NEIGHBOURS: usize = 12;

/// Improves a plan until the effort is spent, or it costs no more than the bound.
pub(super) fn improve(
    problem: &Problem,
    relaxation: &Relaxation,
    solution: &mut Solution,
    effort: u64,
    filler: &mut Filler,
) {
    let price = |solution: &Solution| -> u64 {
        solution
            .bins
            .iter()
            .map(|bin| problem.offer(bin.offer).price)
            .sum()
    };
    let unplaced =
        |solution: &Solution| -> u64 { solution.left.iter().map(|left| u64::from(*left)).sum() };
    let mut random = Random::new();
    let mut noisy = Random::new();
    let end = filler.work + effort;
    let mut now = price(solution);
    let mut values = relaxation.values.clone();
    let ranked = rank(problem, relaxation);
    let mut idle = 0;
    while filler.work < end && now > relaxation.bound && idle < PATIENCE + 20 * solution.bins.len()
    {
        if solution.bins.is_empty() {
            break;
        }
        filler.work += 1;
        idle += 1;
        let chosen = choose(problem, relaxation, solution, &mut random);
        for (value, own) in values.iter_mut().zip(&relaxation.values) {
            *value = own * (0.6 + 0.8 * random.fraction());
        }
        let weights: Weights = std::array::from_fn(|_| random.fraction().powi(2));

        let left_before = unplaced(solution);
        let (taken, cleared) = take_apart(problem, solution, chosen);
        let paid: u64 = taken.iter().map(|bin| problem.offer(bin.offer).price).sum();
        let kept = solution.bins.len();
        filler.random = (random.below(2) == 0).then(|| noisy.clone());
        let offers = sample(&ranked, &taken, &cleared, &mut random);
        let topped = fill_gaps(problem, solution, &values, &mut random, filler);
        let most = if left_before > 0 { u64::MAX } else { paid + 1 };
        let done = complete(
            problem,
            (&offers, &values),
            solution,
            &[weights],
            most,
            filler,
        );
        let cost: u64 = solution.bins[kept..]
            .iter()
            .map(|bin| problem.offer(bin.offer).price)
            .sum();
        noisy = filler.random.take().unwrap_or(noisy);
        let left = unplaced(solution);
        let better = done
            && (left < left_before
                || (left == left_before
                    && (cost < paid
                        || (cost == paid && solution.bins.len() - kept <= taken.len()))));
        if better {
            if cost < paid || left < left_before {
                idle = 0;
            }
            now = now + cost - paid;
        } else {
            if done {
                while solution.bins.len() > kept {
                    super::whole::unput(problem, solution);
                }
            }
            for (index, pods) in cleared.into_iter().chain(topped).rev() {
                let now = std::mem::replace(&mut solution.bins[index].pods, pods);
                for (item, count) in &now {
                    solution.left[*item] += count;
                }
                for (item, count) in &solution.bins[index].pods {
                    solution.left[*item] -= count;
                }
            }
            for bin in taken {
                put(problem, solution, bin);
            }
        }
    }
    fill_up(problem, &relaxation.values, solution, filler);
    // What lost pods may do with a smaller machine.
    for index in problem.nodes.len()..solution.bins.len() {
        let offer = problem.offer(solution.bins[index].offer);
        change(&mut solution.limits[offer.pool], &offer.takes, 1);
        if let Some(smaller) = problem.cheapest_for(&solution.bins[index].pods, &solution.limits) {
            solution.bins[index].offer = smaller;
        }
        let offer = problem.offer(solution.bins[index].offer);
        change(&mut solution.limits[offer.pool], &offer.takes, -1);
    }
    let rest = pods(&solution.left);
    debug_assert!(
        rest.iter()
            .all(|(item, count)| *count <= problem.items[*item].demand)
    );
}

/// Which machines to take apart: the one that holds least for its price of a few looked at, and others at random.
fn choose(
    problem: &Problem,
    relaxation: &Relaxation,
    solution: &Solution,
    random: &mut Random,
) -> Vec<usize> {
    let bins = &solution.bins;
    let waste = |index: usize| {
        let bin = &bins[index];
        let worth: f64 = bin
            .pods
            .iter()
            .map(|(item, count)| relaxation.values[*item] * f64::from(*count))
            .sum();
        problem.offer(bin.offer).price as f64 - worth
    };
    let mut chosen = Vec::with_capacity(MOST);
    let first = (0..3)
        .map(|_| random.below(bins.len()))
        .max_by(|a, b| waste(*a).total_cmp(&waste(*b)))
        .unwrap_or_default();
    chosen.push(first);
    let count = (1 + random.below(MOST)).min(bins.len());
    let mut tries = 0;
    while chosen.len() < count && tries < 4 * MOST {
        tries += 1;
        let next = random.below(bins.len());
        if !chosen.contains(&next) {
            chosen.push(next);
        }
    }
    chosen.sort_unstable();
    chosen
}

/// The offers that fit each item, the best first.
fn rank(problem: &Problem, relaxation: &Relaxation) -> Vec<Vec<usize>> {
    let fitting = |item: usize| {
        let offers = relaxation.offers.iter().copied();
        offers
            .filter(|offer| problem.offers[*offer].fits.contains(item))
            .collect()
    };
    (0..problem.items.len()).map(fitting).collect()
}

/// Offers to look at: what was taken apart, and for some of the items on it the best and some of the others.
fn sample(
    ranked: &[Vec<usize>],
    taken: &[Bin],
    cleared: &[Before],
    random: &mut Random,
) -> Vec<usize> {
    let mut sample: Vec<usize> = taken.iter().map(|bin| bin.offer).collect();
    let pods = taken
        .iter()
        .map(|bin| &bin.pods)
        .chain(cleared.iter().map(|(_, pods)| pods));
    let items: Vec<usize> = pods.flatten().map(|pod| pod.0).collect();
    let mut add = |offer: usize| {
        if !sample.contains(&offer) {
            sample.push(offer);
        }
    };
    for _ in 0..ITEMS.min(items.len()) {
        let offers = &ranked[items[random.below(items.len())]];
        offers.iter().take(BEST).for_each(|offer| add(*offer));
        for _ in 0..OTHERS.min(offers.len()) {
            add(offers[random.below(offers.len())]);
        }
    }
    sample
}

/// A machine's place, and what was on it.
type Before = (usize, Vec<(usize, u32)>);

/// Empties machines: those to buy are given back, those that are there stay.
fn take_apart(
    problem: &Problem,
    solution: &mut Solution,
    chosen: Vec<usize>,
) -> (Vec<Bin>, Vec<Before>) {
    let (mut taken, mut cleared) = (Vec::with_capacity(chosen.len()), Vec::new());
    for index in chosen.into_iter().rev() {
        for (item, count) in &solution.bins[index].pods {
            solution.left[*item] += count;
        }
        if index < problem.nodes.len() {
            cleared.push((index, std::mem::take(&mut solution.bins[index].pods)));
            continue;
        }
        let bin = solution.bins.swap_remove(index);
        let offer = problem.offer(bin.offer);
        change(&mut solution.limits[offer.pool], &offer.takes, 1);
        taken.push(bin);
    }
    (taken, cleared)
}

/// Puts pods without a place where other machines have room. Gives the machines it changed with what was on them before.
fn fill_gaps(
    problem: &Problem,
    solution: &mut Solution,
    values: &[f64],
    random: &mut Random,
    filler: &mut Filler,
) -> Vec<Before> {
    let mut changed = Vec::new();
    let count = solution.bins.len();
    if count == 0 {
        return changed;
    }
    let start = random.below(count);
    for step in 0..count.min(NEIGHBOURS) {
        let index = (start + step) % count;
        let bin = &solution.bins[index];
        let offer = problem.offer(bin.offer);
        if !filler.top_up(problem, offer, &bin.pods, &solution.left, values) {
            continue;
        }
        let before = std::mem::replace(&mut solution.bins[index].pods, filler.taken.clone());
        for (item, count) in &before {
            solution.left[*item] += count;
        }
        for (item, count) in &filler.taken {
            solution.left[*item] -= count;
        }
        changed.push((index, before));
    }
    debug_assert!(
        solution
            .bins
            .iter()
            .all(|bin| { within(&problem.load_of(&bin.pods), &problem.offer(bin.offer).room) })
    );
    changed
}
