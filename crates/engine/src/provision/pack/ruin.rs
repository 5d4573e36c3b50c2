//! Ruin and recreate: some machines of a plan are taken apart and what was on them is bought for again, with what pods are worth changed a
//! little each time. What is cheaper stays.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::fill::{Filler, Random, Weights};
use super::rounding::{Solution, complete, fill_up};
use super::{Bin, Problem, Relaxation, give_back, take, within};

/// Machines that are taken apart at once, at most.
const MOST: usize = 8;
/// Offers that are looked at for an item: the best, and so many others; and for how many items.
const BEST: usize = 3;
const OTHERS: usize = 1;
const ITEMS: usize = 5;
/// After so many rounds without a cheaper plan it ends, and more the more machines there are.
const PATIENCE: usize = 600;
/// A plan of so many machines is cheap enough if it costs less than such a part of its bound more.
const MANY: usize = 200;
const CLOSE: u128 = 400;
/// The effort has so many stretches. A plan of many machines that one stretch makes less than 1 / `LITTLE` of its price cheaper is good enough.
const STRETCHES: u64 = 20;
const LITTLE: u128 = 2000;
/// Other machines whose free room is looked at.
const NEIGHBOURS: usize = 12;

/// Improves a plan until the effort is spent, or it costs no more than the bound.
pub(super) fn improve(
    problem: &Problem,
    relaxation: &Relaxation,
    solution: &mut Solution,
    effort: u64,
    filler: &mut Filler<'_>,
) {
    let mut random = Random::new();
    let mut noisy = Random::new();
    let end = filler.work + effort;
    let mut now = solution.price_from(0, problem);
    let mut values = relaxation.values.clone();
    let mut ranked = RankedOffers {
        problem,
        relaxation,
        by_item: FxHashMap::default(),
    };
    let mut idle = 0;
    let stretch = effort / STRETCHES;
    let mut begun = (filler.work, now);
    while filler.work < end
        && !is_close(now, relaxation.bound, solution.bins.len())
        && !solution.bins.is_empty()
        && idle < PATIENCE + 20 * solution.bins.len()
    {
        if solution.bins.len() >= MANY && filler.work - begun.0 >= stretch {
            let saved = begun.1.saturating_sub(now);
            if u128::from(saved) * LITTLE < u128::from(now) {
                break;
            }
            begun = (filler.work, now);
        }
        filler.work += 1;
        idle += 1;
        let chosen = choose(problem, relaxation, solution, &mut random);
        let weights: Weights = std::array::from_fn(|_| random.fraction().powi(2));
        let left_before = solution.unplaced();
        let (taken, cleared) = take_apart(problem, solution, chosen);
        for (item, _) in solution.rest() {
            values[item] = relaxation.values[item] * (0.6 + 0.8 * random.fraction());
        }
        let paid: u64 = taken.iter().map(|bin| problem.offer(bin.offer).price).sum();
        let kept = solution.bins.len();
        filler.random = (random.below(2) == 0).then(|| noisy.clone());
        let offers = sample(&mut ranked, (&taken, &cleared), &mut random);
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
        let cost = solution.price_from(kept, problem);
        noisy = filler.random.take().unwrap_or(noisy);
        let left = solution.unplaced();
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
            solution.shorten(problem, kept);
            for (index, pods) in cleared.into_iter().chain(topped).rev() {
                solution.exchange(index, pods);
            }
            for bin in taken {
                solution.put(problem, bin);
            }
        }
    }
    fill_up(problem, &relaxation.values, solution, filler);
    // What lost pods may do with a smaller machine.
    for bin in &mut solution.bins[problem.nodes.len()..] {
        give_back(&mut solution.limits, problem.offer(bin.offer));
        if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
            bin.offer = smaller;
        }
        take(&mut solution.limits, problem.offer(bin.offer));
    }
}

/// Whether a plan costs as little as makes no difference: the bound, or of many machines hardly more.
fn is_close(price: u64, bound: u64, machines: usize) -> bool {
    let beyond = price.saturating_sub(bound);
    beyond == 0 || (machines >= MANY && u128::from(beyond) * CLOSE < u128::from(bound))
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

/// Offers to look at: what was taken apart, and for some of the items on it the best and some of the others.
fn sample(
    ranked: &mut RankedOffers<'_>,
    (taken, cleared): (&[Bin], &[Before]),
    random: &mut Random,
) -> Vec<usize> {
    let mut sample: Vec<usize> = taken.iter().map(|bin| bin.offer).collect();
    let pods = taken
        .iter()
        .map(|bin| &bin.pods)
        .chain(cleared.iter().map(|(_, pods)| pods));
    let items: Vec<usize> = pods.flatten().map(|pod| pod.0).collect();
    let offers = &ranked.relaxation.offers;
    let mut add = |offer: usize| {
        if !sample.contains(&offer) {
            sample.push(offer);
        }
    };
    for _ in 0..ITEMS.min(items.len()) {
        let item = items[random.below(items.len())];
        let (ranks, count) = ranked.of(item);
        ranks.ones().take(BEST).for_each(|rank| add(offers[rank]));
        for _ in 0..OTHERS.min(*count) {
            let rank = nth(ranks, random.below(*count));
            rank.into_iter().for_each(|rank| add(offers[rank]));
        }
    }
    sample
}

/// The offers that hold each item, worked out when an item is asked for first.
struct RankedOffers<'a> {
    problem: &'a Problem,
    relaxation: &'a Relaxation,
    /// By item: their places among the relaxation's offers, and how many they are.
    by_item: FxHashMap<usize, (FixedBitSet, usize)>,
}

impl RankedOffers<'_> {
    fn of(&mut self, item: usize) -> &(FixedBitSet, usize) {
        self.by_item.entry(item).or_insert_with(|| {
            let offers = &self.relaxation.offers;
            let mut ranks = FixedBitSet::with_capacity(offers.len());
            for (rank, offer) in offers.iter().enumerate() {
                ranks.set(rank, self.problem.offers[*offer].fits.contains(item));
            }
            let count = ranks.count_ones(..);
            (ranks, count)
        })
    }
}

/// Returns the member of a set before which there are so many others.
fn nth(set: &FixedBitSet, mut before: usize) -> Option<usize> {
    for (index, block) in set.as_slice().iter().enumerate() {
        let count = block.count_ones() as usize;
        if before < count {
            let mut rest = *block;
            (0..before).for_each(|_| rest &= rest - 1);
            return Some(index * usize::BITS as usize + rest.trailing_zeros() as usize);
        }
        before -= count;
    }
    None
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
        if index < problem.nodes.len() {
            cleared.push((index, solution.exchange(index, Vec::new())));
        } else {
            taken.push(solution.give_back(problem, index));
        }
    }
    (taken, cleared)
}

/// Puts pods without a place where other machines have room. Gives the machines it changed with what was on them before.
fn fill_gaps(
    problem: &Problem,
    solution: &mut Solution,
    values: &[f64],
    random: &mut Random,
    filler: &mut Filler<'_>,
) -> Vec<Before> {
    let mut changed = Vec::new();
    let count = solution.bins.len();
    if count == 0 {
        return changed;
    }
    let start = random.below(count);
    let mut rest = solution.rest();
    for step in 0..count.min(NEIGHBOURS) {
        let index = (start + step) % count;
        if let Some(before) = solution.top_up(problem, index, &rest, values, filler) {
            changed.push((index, before));
            rest = solution.rest();
        }
    }
    debug_assert!(
        solution
            .bins
            .iter()
            .all(|bin| { within(&problem.load_of(&bin.pods), &problem.offer(bin.offer).room) })
    );
    changed
}
