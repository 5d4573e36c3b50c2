//! Improves a plan by ruin and recreate: some machines are taken apart, and machines for the pods on them are bought
//! again, each time with slightly different values of pods. Cheaper results are kept.

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::fill::{Filler, Random, Weights};
use super::rounding::{Solution, complete, fill_up};
use super::sets::nth;
use super::{Bin, Problem, Relaxation, give_back, take, within};

/// The maximum number of machines that are taken apart at once.
const MOST: usize = 8;
/// The numbers of offers that are looked at for an item, the best ones and arbitrary others, and of the items.
const BEST: usize = 3;
const OTHERS: usize = 1;
const ITEMS: usize = 5;
/// The number of rounds without a cheaper plan after which the search ends; more if there are many machines.
const PATIENCE: usize = 600;
/// A plan of `MANY` machines is cheap enough if it costs less than 1 / `CLOSE` of its bound more than that.
const MANY: usize = 200;
const CLOSE: u128 = 400;
/// The number of stretches of the effort. If one stretch makes a plan of many machines cheaper by less than 1 /
/// `LITTLE` of its price, the plan is good enough.
const STRETCHES: u64 = 20;
const LITTLE: u128 = 2000;
/// The number of other machines whose free room is looked at.
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
    // A sequence of its own: how often a filling draws must not change which machines are chosen next.
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
        // A result of the same price is accepted as well, because steps sideways lead out of dead ends. If pods have
        // no place, any price is.
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
            // In reverse, because a node may have been emptied first and filled from others' pods after.
            for (index, pods) in cleared.into_iter().chain(topped).rev() {
                solution.exchange(index, pods);
            }
            for bin in taken {
                solution.put(problem, bin);
            }
        }
    }
    fill_up(problem, &relaxation.values, solution, filler);
    // Machines that lost pods may be replaced by smaller ones.
    // Given back first, so that the machine's own part of the limits does not stand in the way of a smaller one.
    for bin in &mut solution.bins[problem.nodes.len()..] {
        give_back(&mut solution.limits, problem.offer(bin.offer));
        if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
            bin.offer = smaller;
        }
        take(&mut solution.limits, problem.offer(bin.offer));
    }
}

/// Returns whether a plan costs so little that improving it makes no difference: the bound, or for many machines
/// hardly more.
fn is_close(price: u64, bound: u64, machines: usize) -> bool {
    let beyond = price.saturating_sub(bound);
    beyond == 0 || (machines >= MANY && u128::from(beyond) * CLOSE < u128::from(bound))
}

/// Returns the machines to take apart: the one of three that holds least for its price, and random others.
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
    // Of three only: the worst of all would be taken apart again and again, even if nothing better can be done with
    // it.
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

/// Returns the offers to look at: what was taken apart, and for some of the items on it the best offers and an
/// arbitrary one.
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

/// The index of a machine, and what was on it.
type Before = (usize, Vec<(usize, u32)>);

/// Empties machines: those to buy are given back, existing nodes stay.
fn take_apart(
    problem: &Problem,
    solution: &mut Solution,
    chosen: Vec<usize>,
) -> (Vec<Bin>, Vec<Before>) {
    let (mut taken, mut cleared) = (Vec::with_capacity(chosen.len()), Vec::new());
    // From the last on: giving a machine back moves the last machine to its place, which would change the indices of
    // later ones.
    for index in chosen.into_iter().rev() {
        if index < problem.nodes.len() {
            cleared.push((index, solution.exchange(index, Vec::new())));
        } else {
            taken.push(solution.give_back(problem, index));
        }
    }
    (taken, cleared)
}

/// Puts pods without a place on other machines that have room. Returns the machines that changed with what was on
/// them before.
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
