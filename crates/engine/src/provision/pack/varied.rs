//! Packing pods of more classes than the linear program over patterns has rows for.
//!
//! What is priced instead are resources: a program whose rows are a kind of pod and a resource, and whose machines may be filled with fractions of
//! pods. Its dual values say what a core or a GiB costs on the machines of that kind; a pod is worth what it asks for at those prices. The machines
//! that the program buys are filled one at a time: the largest pod that wants a place, then those whose mix of cpu and memory is nearest to what the
//! machine still wants of them.

use super::fill::{ALIKE, Filler};
use super::grouped::Grouped;
use super::rates::{Rates, bound, highest_of, price, sum_of, values, worth_of};
use super::rounding::{Solution, complete, fill_up};
use super::unplaced::{Filled, Trial, UnplacedPods};
use super::{Problem, Relaxation, within};

/// The numbers of pods with a mix of resources like the room's that are looked at: a machine is filled once with each
/// number, and the fullest is taken.
const NEAR: [usize; 3] = [12, 48, 192];
/// The number of pods on a machine that counts as a handful, and the number of machines that counts as many.
const HANDFUL: u64 = 10;
const MANY: u64 = 100;
/// The number of pods from which on the search tries all machines for all of them.
const FEW: usize = 150;

/// Returns what resources cost if all pods want a place.
pub(super) fn rates(problem: &Problem) -> Rates {
    let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
    price(problem, &demand).0
}

/// Returns what pods are worth by the resources they ask for, and what a unit of each resource is worth.
pub(super) fn relax(problem: &Problem) -> (Relaxation, Rates) {
    let rates = rates(problem);
    let mut rated: Vec<(f64, usize)> = Vec::with_capacity(problem.offers.len());
    for (index, offer) in problem.offers.iter().enumerate() {
        let room = offer.room.map(|room| room.max(0));
        let worth = worth_of(&room, &highest_of(problem, &rates, offer));
        rated.push((worth / offer.price as f64, index));
    }
    rated.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let values = values(problem, &rates);
    let bound = bound(problem, &rates);
    let relaxation = Relaxation {
        values,
        duals: Vec::new(),
        patterns: Vec::new(),
        bought: Vec::new(),
        offers: rated.into_iter().map(|rated| rated.1).collect(),
        bound,
    };
    (relaxation, rates)
}

/// Buys by groups of about one size, or by what resources cost, whichever is cheaper. If machines are many and hold a
/// handful of pods each, only by groups, which is cheaper then.
pub(super) fn build(
    problem: &Problem,
    demand: &[u32],
    filler: &mut Filler<'_>,
) -> (Relaxation, Solution) {
    let (mut relaxation, rates) = relax(problem);
    let mut solution = Solution::of_nodes(problem, demand);
    fill_up(problem, &relaxation.values, &mut solution, filler);
    let has_rules = !problem.rules.is_empty();
    let grouped = (!has_rules).then(|| Grouped::of(problem, &solution.left));
    let Some(mut grouped) = grouped.flatten() else {
        buy_all(problem, &relaxation, &mut solution, filler);
        return (relaxation, solution);
    };
    let mut by_groups = solution.clone();
    let pods = by_groups.unplaced();
    let values = grouped.buy(problem, &rates, &mut by_groups);
    // Pods on existing nodes pay nothing, so what all pods pay bounds a plan only without such nodes.
    if problem.nodes.is_empty() {
        let least = sum_of(problem, &grouped.least(problem, &values));
        relaxation.bound = relaxation.bound.max(least);
    }
    let machines = (by_groups.bins.len() - solution.bins.len()) as u64;
    let placed = pods - by_groups.unplaced();
    fill_up(problem, &relaxation.values, &mut by_groups, filler);
    buy_all(problem, &relaxation, &mut by_groups, filler);
    if machines >= MANY && placed <= HANDFUL * machines {
        return (relaxation, by_groups);
    }
    buy_all(problem, &relaxation, &mut solution, filler);
    let rank = |way: &Solution| (way.unplaced(), way.price_from(0, problem));
    if rank(&by_groups) < rank(&solution) {
        solution = by_groups;
    }
    (relaxation, solution)
}

/// Fills machines one at a time, then has the rest bought by the search that tries all of them.
fn buy_all(
    problem: &Problem,
    relaxation: &Relaxation,
    solution: &mut Solution,
    filler: &mut Filler<'_>,
) {
    loop {
        let before = solution.unplaced();
        if before <= FEW as u64 {
            break;
        }
        // Priced anew each time, because the mix of the pods that are left changes what is short.
        let (rates, bought) = price(problem, &solution.left);
        buy(problem, &rates, &bought, solution, filler);
        if solution.unplaced() == before {
            break;
        }
    }
    fill_up(problem, &relaxation.values, solution, filler);
    // What no machine of the program holds may be many pods: the best machines have to do for them.
    let offers = if solution.unplaced() > FEW as u64 {
        &relaxation.offers[..relaxation.offers.len().min(FEW)]
    } else {
        &relaxation.offers[..]
    };
    let weights = [ALIKE, filler.shortage];
    complete(
        problem,
        (offers, &relaxation.values),
        solution,
        &weights,
        u64::MAX,
        filler,
    );
}

/// Buys the machine that holds most for its price, one at a time, until none holds a pod.
fn buy(
    problem: &Problem,
    rates: &Rates,
    bought: &[usize],
    solution: &mut Solution,
    filler: &mut Filler<'_>,
) {
    let mut rest = UnplacedPods::of(problem, rates, &solution.left);
    let mut trials = trials_of(bought, &rest);
    while solution.unplaced() > FEW as u64 {
        let mut best: Option<(f64, &Trial)> = None;
        for trial in &mut trials {
            let offer = &problem.offers[trial.index];
            if !within(&offer.takes, &solution.limits[offer.pool]) {
                continue;
            }
            let goal = rest.goal(trial.index, offer);
            if !trial.is_current(goal, &solution.left) {
                trial.filled = Some(rest.filled(trial, goal, &solution.left, filler));
            }
            let filled = trial.filled.as_ref().filter(|filled| filled.value > 0.0);
            let Some(Filled { score, .. }) = filled else {
                continue;
            };
            if best.is_none_or(|best| *score > best.0) {
                best = Some((*score, trial));
            }
        }
        let Some(mut bin) = best.and_then(|best| best.1.bin()) else {
            break;
        };
        // It was filled for the sake of its price; what went on it may also fit on a cheaper one.
        if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
            bin.offer = smaller;
        }
        let pods = bin.pods.clone();
        solution.put(problem, bin);
        // Which pods are looked at depends on the lists that this tidies.
        if rest.forget(&pods, &solution.left) {
            trials = trials_of(bought, &rest);
        }
    }
}

/// Returns the ways to fill each of these offers.
fn trials_of(offers: &[usize], rest: &UnplacedPods<'_>) -> Vec<Trial> {
    let of_offer = |index: &usize| {
        let suiting = rest.suiting(*index);
        NEAR.map(|near| Trial {
            index: *index,
            suiting: suiting.clone(),
            near,
            filled: None,
        })
    };
    offers.iter().flat_map(of_offer).collect()
}
