//! Packing pods of more classes than the linear program over patterns has rows for.
//!
//! What is priced instead are resources: a program whose rows are a kind of pod and a resource, and whose machines may be filled with fractions of
//! pods. Its dual values say what a core or a GiB costs on the machines of that kind; a pod is worth what it asks for at those prices. The machines
//! that the program buys are filled one at a time: the largest pod that wants a place, then those whose mix of cpu and memory is nearest to what the
//! machine still wants of them.

use super::fill::{ALIKE, Filler};
use super::grouped::Grouped;
use super::rates::{Rates, bound, highest, highest_of, kinds_of, price, values, worth_of};
use super::whole::{Solution, complete, fill_up};
use super::{Bin, DIMENSIONS, Item, Load, Offer, Problem, Relaxation, within};

/// Pods with a mix of resources like the room's that are looked at for it: a machine is filled once with each number, and the fullest is taken.
const NEAR: [usize; 3] = [12, 48, 192];
/// A machine wants all its cpu or memory used if they make up so much of its price; otherwise as much as goes with the other one on average.
const COUNTS: f64 = 0.05;
/// What it is worth that cpu and memory are both used as they should be, beside the share of its price that a machine's pods pay.
const EVEN: f64 = 0.5;
/// A little more of what does not count is wanted than goes with the rest on average: pods seldom leave exactly what the last ones need.
const AHEAD: f64 = 1.03;
/// A pod pays for its room on a machine if it is worth so much of what pods of other kinds would pay for it.
const PAYS: f64 = 0.97;
/// Pods that are looked at in vain before a machine is full, and all that are, those it does not admit among them.
const TRIES: usize = 256;
/// Pods on a machine that are a handful, and machines that are many.
const HANDFUL: u64 = 10;
const MANY: u64 = 100;
/// So few pods are left to the search that tries all machines for all of them.
const FEW: usize = 150;

/// What resources cost where all pods want a place.
pub(super) fn rates(problem: &Problem) -> Rates {
    let demand: Vec<u32> = problem.items.iter().map(|item| item.demand).collect();
    price(problem, &demand).0
}

/// What pods are worth by the resources they ask for.
pub(super) fn relax(problem: &Problem) -> Relaxation {
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
    Relaxation {
        values,
        duals: Vec::new(),
        patterns: Vec::new(),
        bought: Vec::new(),
        offers: rated.into_iter().map(|rated| rated.1).collect(),
        bound,
    }
}

/// Buys by groups of about one size, or by what resources cost, whichever is cheaper. Where machines hold a handful of pods, and are many, groups are.
pub(super) fn build(
    problem: &Problem,
    relaxation: &Relaxation,
    demand: &[u32],
    filler: &mut Filler<'_>,
) -> Solution {
    let mut solution = Solution::of_nodes(problem, demand);
    fill_up(problem, &relaxation.values, &mut solution, filler);
    let Some(mut grouped) = Grouped::of(problem, &solution.left) else {
        buy_all(problem, relaxation, &mut solution, filler);
        return solution;
    };
    let mut by_groups = solution.clone();
    let pods = by_groups.unplaced();
    grouped.buy(problem, &mut by_groups);
    let machines = (by_groups.bins.len() - solution.bins.len()) as u64;
    let placed = pods - by_groups.unplaced();
    fill_up(problem, &relaxation.values, &mut by_groups, filler);
    buy_all(problem, relaxation, &mut by_groups, filler);
    if machines >= MANY && placed <= HANDFUL * machines {
        return by_groups;
    }
    buy_all(problem, relaxation, &mut solution, filler);
    let rank = |way: &Solution| (way.unplaced(), way.price_from(0, problem));
    if rank(&by_groups) < rank(&solution) {
        by_groups
    } else {
        solution
    }
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
        let (rates, bought) = price(problem, &solution.left);
        buy(problem, &rates, &bought, solution, filler);
        if solution.unplaced() == before {
            break;
        }
    }
    fill_up(problem, &relaxation.values, solution, filler);
    // What no machine of the program holds may be many pods: the best machines have to do for them.
    let offers = match solution.unplaced() > FEW as u64 {
        true => &relaxation.offers[..relaxation.offers.len().min(FEW)],
        false => &relaxation.offers[..],
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

/// Buys these machines, one at a time the one that holds most for its price, until none holds more.
fn buy(
    problem: &Problem,
    rates: &Rates,
    bought: &[usize],
    solution: &mut Solution,
    filler: &mut Filler<'_>,
) {
    let mut rest = Rest::of(problem, rates, &solution.left);
    while solution.unplaced() > FEW as u64 {
        let mut best: Option<(f64, Bin)> = None;
        for index in bought.iter().copied() {
            let offer = &problem.offers[index];
            if !within(&offer.takes, &solution.limits[offer.pool]) {
                continue;
            }
            for near in NEAR {
                let value = rest.fill((index, offer), near, &solution.left, filler);
                let used = rest.used((index, offer), &problem.load_of(&filler.taken));
                let score = value / offer.price as f64 + EVEN * used;
                if value > 0.0 && best.as_ref().is_none_or(|best| score > best.0) {
                    let pods = filler.taken.clone();
                    best = Some((score, Bin { offer: index, pods }));
                }
            }
        }
        let Some((_, mut bin)) = best else { break };
        if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
            bin.offer = smaller;
        }
        let pods = bin.pods.clone();
        solution.put(problem, bin);
        rest.forget(&pods, &solution.left);
    }
}

/// Pods that want a place, in the orders in which they are looked for.
struct Rest<'a> {
    problem: &'a Problem,
    values: Vec<f64>,
    /// The logarithm of each item's memory by cpu: items with the same mix are near each other.
    lean: Vec<f64>,
    /// By kind: cpu and memory of all that want a place.
    wanted: Vec<[f64; 2]>,
    /// All cpu and memory that was wanted.
    all: [f64; 2],
    /// By offer: the kinds that it admits, and the most that they pay for a unit of each resource.
    kinds_of: Vec<(Vec<usize>, [f64; DIMENSIONS])>,
    by_lean: Vec<u32>,
    /// How much of all cpu and memory that is wanted an item asks for.
    size: Vec<f64>,
    /// The largest first.
    by_size: Vec<u32>,
    /// Items in the lists that want no more places.
    gone: usize,
}

impl<'a> Rest<'a> {
    fn of(problem: &'a Problem, rates: &Rates, left: &[u32]) -> Self {
        let offers = problem.offers.iter().map(|offer| {
            let kinds = kinds_of(problem, &offer.fits);
            let most = highest(rates, &kinds);
            (kinds, most)
        });
        let kinds_of = offers.collect();
        let mut wanted = vec![[0.0; 2]; rates.len()];
        for (item, left) in problem.items.iter().zip(left) {
            for (wanted, request) in wanted[item.kind].iter_mut().zip(item.request) {
                *wanted += request as f64 * f64::from(*left);
            }
        }
        let values = values(problem, rates);
        let lean: Vec<f64> = problem
            .items
            .iter()
            .map(|item| lean_of(item.request[0] as f64, item.request[1] as f64))
            .collect();
        let all: [f64; 2] = std::array::from_fn(|dimension| {
            let wanted = wanted.iter().map(|wanted| wanted[dimension]);
            wanted.sum::<f64>().max(1.0)
        });
        let share = |item: &Item| {
            let shares = item.request.iter().zip(all);
            shares.map(|(request, all)| *request as f64 / all).sum()
        };
        let size: Vec<f64> = problem.items.iter().map(share).collect();
        let mut by_lean: Vec<u32> = (0..left.len() as u32)
            .filter(|item| left[*item as usize] > 0)
            .collect();
        let mut by_size = by_lean.clone();
        by_lean.sort_by(|a, b| lean[*a as usize].total_cmp(&lean[*b as usize]));
        by_size.sort_by(|a, b| size[*b as usize].total_cmp(&size[*a as usize]));
        Rest {
            problem,
            values,
            lean,
            wanted,
            kinds_of,
            by_lean,
            size,
            by_size,
            all,
            gone: 0,
        }
    }

    /// Pods were placed. Takes items without any more out of the lists once they are many.
    fn forget(&mut self, pods: &[(usize, u32)], left: &[u32]) {
        for (item, count) in pods.iter().copied() {
            let Item { request, kind, .. } = &self.problem.items[item];
            for (wanted, request) in self.wanted[*kind].iter_mut().zip(request) {
                *wanted -= *request as f64 * f64::from(count);
            }
            self.gone += usize::from(left[item] == 0);
        }
        if self.gone * 8 > self.by_lean.len() {
            self.by_lean.retain(|item| left[*item as usize] > 0);
            self.by_size.retain(|item| left[*item as usize] > 0);
            self.gone = 0;
        }
    }

    /// How much cpu and memory a machine should be used for.
    fn goal(&self, index: usize, offer: &Offer) -> [f64; 2] {
        let (kinds, rates) = &self.kinds_of[index];
        let all = |dimension: usize| -> f64 {
            let wanted = kinds.iter().map(|kind| self.wanted[*kind][dimension]);
            wanted.sum::<f64>().max(1.0)
        };
        let price = offer.price as f64;
        std::array::from_fn(|dimension| {
            let room = offer.room[dimension].max(0) as f64;
            let other = offer.room[1 - dimension].max(0) as f64;
            let counts = rates[dimension] * room >= COUNTS * price;
            let other_counts = rates[1 - dimension] * other >= COUNTS * price;
            match counts || !other_counts {
                true => room,
                false => room.min(AHEAD * other * all(dimension) / all(1 - dimension)),
            }
        })
    }

    /// How much of the cpu and memory that a machine should be used for its pods take: at most 2.
    fn used(&self, (index, offer): (usize, &Offer), load: &Load) -> f64 {
        let goal = self.goal(index, offer);
        let shares = goal.iter().zip(load);
        shares
            .map(|(goal, load)| (*load as f64 / goal.max(1.0)).min(1.0))
            .sum()
    }

    /// Fills a machine and gives the value of what it holds; what that is stands in the filler's `taken`.
    fn fill(
        &self,
        (index, offer): (usize, &Offer),
        near: usize,
        left: &[u32],
        filler: &mut Filler<'_>,
    ) -> f64 {
        filler.taken.clear();
        let mut room = offer.room;
        let rates = &self.kinds_of[index].1;
        let goal = self.goal(index, offer);
        let opens = |item: &&u32| {
            let item = **item as usize;
            left[item] > 0 && offer.opens.contains(item) && self.pays(item, rates)
        };
        let Some(first) = self.by_size.iter().find(opens) else {
            return 0.0;
        };
        let mut value = filler.put(*first as usize, 1, &mut room, &self.values);
        // Of what a machine may have few of it should have them: no later one makes up for it.
        for dimension in 2..DIMENSIONS {
            let is_scarce = room[dimension] == 1 && offer.room[dimension] == 1;
            if !is_scarce || rates[dimension] <= 0.0 {
                continue;
            }
            let takes = |item: &&u32| {
                let item = **item as usize;
                let request = &self.problem.items[item].request;
                request[dimension] > 0
                    && left[item] > filler.count(item)
                    && offer.fits.contains(item)
                    && within(request, &room)
                    && filler.allows(item)
            };
            if let Some(item) = self.by_size.iter().find(takes) {
                value += filler.put(*item as usize, 1, &mut room, &self.values);
            }
        }
        loop {
            let [cpu, memory] = std::array::from_fn(|dimension| {
                goal[dimension] - (offer.room[dimension] - room[dimension]) as f64
            });
            let mix = lean_of(cpu, memory);
            let next = self.nearest(offer, (&room, rates), (mix, near), left, filler);
            let Some(next) = next else { break };
            let more = filler.put(next, 1, &mut room, &self.values);
            if more <= 0.0 {
                break;
            }
            value += more;
        }
        // The largest that fit into what is left.
        let rest = room.iter().zip(self.all);
        let most: f64 = rest.map(|(room, all)| *room as f64 / all).sum();
        let values = &self.values;
        let size = &self.size;
        let start = self
            .by_size
            .partition_point(|item| size[*item as usize] > most);
        let mut tries = 0;
        for item in self.by_size[start..].iter().map(|item| *item as usize) {
            let wanted = left[item] - filler.count(item);
            if wanted == 0 || !offer.fits.contains(item) {
                continue;
            }
            let more = filler.put(item, wanted, &mut room, values);
            value += more;
            tries = if more > 0.0 { 0 } else { tries + 1 };
            if tries > TRIES {
                break;
            }
        }
        filler.settle();
        value
    }

    /// Whether a pod pays for its room where a unit of each resource costs this.
    fn pays(&self, item: usize, rates: &[f64; DIMENSIONS]) -> bool {
        self.values[item] >= PAYS * worth_of(&self.problem.items[item].request, rates)
    }

    /// Of the paying pods that fit into a room and whose mix of cpu and memory is nearest to the given one, so many are looked at: the
    /// largest.
    fn nearest(
        &self,
        offer: &Offer,
        (room, rates): (&Load, &[f64; DIMENSIONS]),
        (wanted, near): (f64, usize),
        left: &[u32],
        filler: &Filler<'_>,
    ) -> Option<usize> {
        let lean = &self.lean;
        let at = self
            .by_lean
            .partition_point(|item| lean[*item as usize] < wanted);
        let (mut below, mut above) = (at, at);
        let mut best: Option<(f64, usize)> = None;
        let (mut seen, mut tries) = (0, 0);
        while seen < near && tries < near + TRIES {
            let under = below
                .checked_sub(1)
                .map(|place| self.by_lean[place] as usize);
            let over = self.by_lean.get(above).map(|item| *item as usize);
            let far = |item: usize| (lean[item] - wanted).abs();
            let item = match (under, over) {
                (None, None) => break,
                (Some(under), over) if over.is_none_or(|over| far(under) <= far(over)) => {
                    below -= 1;
                    under
                }
                (_, Some(over)) => {
                    above += 1;
                    over
                }
                (Some(_), None) => break,
            };
            tries += 1;
            let fits = left[item] > filler.count(item)
                && offer.fits.contains(item)
                && within(&self.problem.items[item].request, room)
                && self.pays(item, rates)
                && filler.allows(item);
            if fits {
                seen += 1;
                if best.is_none_or(|best| self.size[item] > best.0) {
                    best = Some((self.size[item], item));
                }
            }
        }
        best.map(|best| best.1)
    }
}

/// A mix of cpu and memory as one number.
fn lean_of(cpu: f64, memory: f64) -> f64 {
    memory.max(1.0).ln() - cpu.max(1.0).ln()
}
