//! Packing pods of more classes than the linear program over patterns has rows for.
//!
//! What is priced instead are resources: a program whose rows are a kind of pod and a resource, and whose machines may be filled with fractions of
//! pods. Its dual values say what a core or a GiB costs on the machines of that kind; a pod is worth what it asks for at those prices. The machines
//! that the program buys are filled one at a time: the largest pod that wants a place, then those whose mix of cpu and memory is nearest to what the
//! machine still wants of them.

use std::cmp::Reverse;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::fill::{ALIKE, Filler};
use super::grouped::Grouped;
use super::rates::{Rates, bound, highest, highest_of, kinds_of, price, sum_of, values, worth_of};
use super::rounding::{Solution, complete, fill_up};
use super::{Bin, DIMENSIONS, Item, Load, Offer, Problem, Relaxation, within};

/// The numbers of pods with a mix of resources like the room's that are looked at: a machine is filled once with each
/// number, and the fullest is taken.
const NEAR: [usize; 3] = [12, 48, 192];
/// The share of a machine's price from which cpu or memory should be used up; of less, only as much as goes with the
/// other one on average.
const COUNTS: f64 = 0.05;
/// The value of using cpu and memory as intended, beside the share of its price that a machine's pods pay.
const EVEN: f64 = 0.5;
/// The factor by which more of the cheap resource is wanted than goes with the other on average: pods seldom leave
/// exactly what the last ones need.
const AHEAD: f64 = 1.03;
/// A pod pays for its room on a machine if it is worth this share of what pods of other kinds would pay.
const PAYS: f64 = 0.97;
/// The number of pods that are looked at in vain before a machine counts as full.
const TRIES: usize = 256;
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

/// Buys the machine that holds most for its price, one at a time, until none holds a pod.
fn buy(
    problem: &Problem,
    rates: &Rates,
    bought: &[usize],
    solution: &mut Solution,
    filler: &mut Filler<'_>,
) {
    let mut rest = UnplacedPods::of(problem, rates, &solution.left);
    let bought = bought.iter().map(|index| (*index, rest.suiting(*index)));
    let bought: Vec<(usize, FixedBitSet)> = bought.collect();
    while solution.unplaced() > FEW as u64 {
        let mut best: Option<(f64, Bin)> = None;
        for (index, suiting) in &bought {
            let index = *index;
            let offer = &problem.offers[index];
            if !within(&offer.takes, &solution.limits[offer.pool]) {
                continue;
            }
            for near in NEAR {
                let value = rest.fill((index, offer), (suiting, near), &solution.left, filler);
                let used = rest.used((index, offer), &problem.load_of(&filler.taken));
                let score = value / offer.price as f64 + EVEN * used;
                if value > 0.0 && best.as_ref().is_none_or(|best| score > best.0) {
                    let pods = filler.taken.clone();
                    best = Some((score, Bin { offer: index, pods }));
                }
            }
        }
        let Some((_, mut bin)) = best else { break };
        // It was filled for the sake of its price; what went on it may also fit on a cheaper one.
        if let Some(smaller) = problem.cheapest_for(&bin.pods, &solution.limits) {
            bin.offer = smaller;
        }
        let pods = bin.pods.clone();
        solution.put(problem, bin);
        rest.forget(&pods, &solution.left);
    }
}

/// Pods that want a place, in the orders in which they are looked for.
struct UnplacedPods<'a> {
    problem: &'a Problem,
    values: Vec<f64>,
    sizes: Vec<Size>,
    /// The cpu and memory of all pods of each kind that want a place.
    wanted: Vec<[f64; 2]>,
    /// All cpu and memory that was wanted.
    all: [f64; 2],
    /// The kinds that each offer admits, and the most that they pay for a unit of each resource.
    kinds_of: Vec<(Vec<usize>, [f64; DIMENSIONS])>,
    /// Sizes by their mix of cpu and memory.
    by_lean: Vec<u32>,
    /// Sizes, the largest first.
    by_size: Vec<u32>,
    /// Items in the lists that want no more places.
    gone: usize,
}

/// Items of one kind that ask for the same amounts; only the rules about them differ.
struct Size {
    /// What a pod asks for.
    request: Load,
    /// The logarithm of memory by cpu: sizes with the same mix are near each other.
    lean: f64,
    /// The share of all wanted cpu and memory that a pod requests.
    share: f64,
    /// The items with the most rules first. Some may have no pods left.
    items: Vec<u32>,
}

impl<'a> UnplacedPods<'a> {
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
        let all: [f64; 2] = std::array::from_fn(|dimension| {
            let wanted = wanted.iter().map(|wanted| wanted[dimension]);
            wanted.sum::<f64>().max(1.0)
        });
        let share = |item: &Item| {
            let shares = item.request.iter().zip(all);
            shares.map(|(request, all)| *request as f64 / all).sum()
        };
        let mut sizes: Vec<Size> = Vec::new();
        let mut number_of = FxHashMap::default();
        for (index, item) in problem.items.iter().enumerate() {
            if left[index] == 0 {
                continue;
            }
            let number = *number_of
                .entry((item.kind, item.request))
                .or_insert_with(|| {
                    sizes.push(Size {
                        request: item.request,
                        lean: lean_of(item.request[0] as f64, item.request[1] as f64),
                        share: share(item),
                        items: Vec::new(),
                    });
                    sizes.len() - 1
                });
            sizes[number].items.push(index as u32);
        }
        // Pods that rules keep apart have the least choice of machines.
        for size in &mut sizes {
            size.items.sort_by_key(|item| {
                let roles = &problem.rules_of[*item as usize];
                let subject_of = roles.iter().filter(|role| role.is_subject).count();
                Reverse((subject_of, roles.len()))
            });
        }
        let mut by_lean: Vec<u32> = (0..sizes.len() as u32).collect();
        let mut by_size = by_lean.clone();
        by_lean.sort_by(|a, b| sizes[*a as usize].lean.total_cmp(&sizes[*b as usize].lean));
        by_size.sort_by(|a, b| {
            sizes[*b as usize]
                .share
                .total_cmp(&sizes[*a as usize].share)
        });
        UnplacedPods {
            problem,
            values,
            sizes,
            wanted,
            kinds_of,
            by_lean,
            by_size,
            all,
            gone: 0,
        }
    }

    /// Counts pods as placed, and tidies the lists once many items in them have no pods left.
    fn forget(&mut self, pods: &[(usize, u32)], left: &[u32]) {
        for (item, count) in pods.iter().copied() {
            let Item { request, kind, .. } = &self.problem.items[item];
            for (wanted, request) in self.wanted[*kind].iter_mut().zip(request) {
                *wanted -= *request as f64 * f64::from(count);
            }
            self.gone += usize::from(left[item] == 0);
        }
        if self.gone * 8 > self.by_lean.len() {
            for size in &mut self.sizes {
                size.items.retain(|item| left[*item as usize] > 0);
            }
            let sizes = &self.sizes;
            let is_wanted = |size: &u32| !sizes[*size as usize].items.is_empty();
            self.by_lean.retain(is_wanted);
            self.by_size.retain(is_wanted);
            self.gone = 0;
        }
    }

    /// Returns how much of a machine's cpu and memory should be used.
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

    /// Returns how much of the intended cpu and memory a machine's pods use, as the sum of two shares: at most 2.
    fn used(&self, (index, offer): (usize, &Offer), load: &Load) -> f64 {
        let goal = self.goal(index, offer);
        let shares = goal.iter().zip(load);
        shares
            .map(|(goal, load)| (*load as f64 / goal.max(1.0)).min(1.0))
            .sum()
    }

    /// Fills a machine and returns the value of its pods, which are in the filler's `taken`.
    fn fill(
        &self,
        (index, offer): (usize, &Offer),
        (suiting, near): (&FixedBitSet, usize),
        left: &[u32],
        filler: &mut Filler<'_>,
    ) -> f64 {
        filler.taken.clear();
        let mut room = offer.room;
        let rates = &self.kinds_of[index].1;
        let goal = self.goal(index, offer);
        let opener = |size: &u32| {
            let items = self.items(*size).filter(|item| left[*item] > 0);
            let mut opening = items.filter(|item| offer.opens.contains(*item));
            opening.find(|item| self.pays(*item, rates))
        };
        // The largest pod first: what is left of a machine suits small pods, and no later machine would suit the
        // large one better.
        let Some(first) = self.by_size.iter().find_map(opener) else {
            return 0.0;
        };
        let mut value = filler.put(first, 1, &mut room, &self.values);
        // Of what a machine may have few of it should have them: no later one makes up for it.
        for dimension in 2..DIMENSIONS {
            let is_scarce = room[dimension] == 1 && offer.room[dimension] == 1;
            if !is_scarce || rates[dimension] <= 0.0 {
                continue;
            }
            let next = |size: &u32| {
                let one = self.items(*size).next()?;
                let request = &self.problem.items[one].request;
                let fits =
                    request[dimension] > 0 && offer.fits.contains(one) && within(request, &room);
                self.items(*size)
                    .find(|item| fits && left[*item] > filler.count(*item) && filler.allows(*item))
            };
            if let Some(item) = self.by_size.iter().find_map(next) {
                value += filler.put(item, 1, &mut room, &self.values);
            }
        }
        loop {
            let [cpu, memory] = std::array::from_fn(|dimension| {
                goal[dimension] - (offer.room[dimension] - room[dimension]) as f64
            });
            let mix = lean_of(cpu, memory);
            let next = self.nearest(suiting, &room, (mix, near), left, filler);
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
        let is_larger = |size: &u32| self.sizes[*size as usize].share > most;
        let start = self.by_size.partition_point(is_larger);
        let mut tries = 0;
        'sizes: for size in self.by_size[start..].iter().copied() {
            let Some(one) = self.items(size).next() else {
                continue;
            };
            if !offer.fits.contains(one) {
                continue;
            }
            if !within(&self.sizes[size as usize].request, &room) {
                tries += 1;
                if tries > TRIES {
                    break;
                }
                continue;
            }
            for item in self.items(size) {
                let wanted = left[item] - filler.count(item);
                if wanted == 0 {
                    continue;
                }
                let more = filler.put(item, wanted, &mut room, values);
                value += more;
                tries = if more > 0.0 { 0 } else { tries + 1 };
                if tries > TRIES {
                    break 'sizes;
                }
            }
        }
        filler.settle();
        value
    }

    /// Returns the items of a size.
    fn items(&self, size: u32) -> impl Iterator<Item = usize> + '_ {
        let items = self.sizes[size as usize].items.iter();
        items.map(|item| *item as usize)
    }

    /// Returns whether a pod pays for its room at these prices of a unit of each resource.
    fn pays(&self, item: usize, rates: &[f64; DIMENSIONS]) -> bool {
        self.values[item] >= PAYS * worth_of(&self.problem.items[item].request, rates)
    }

    /// Returns the sizes whose pods an offer admits if they fit, and pay for their room on it.
    fn suiting(&self, index: usize) -> FixedBitSet {
        let (offer, rates) = (&self.problem.offers[index], &self.kinds_of[index].1);
        let suits = |size: &usize| {
            let mut items = self.items(*size as u32);
            items
                .next()
                .is_some_and(|one| offer.fits.contains(one) && self.pays(one, rates))
        };
        (0..self.sizes.len()).filter(suits).collect()
    }

    /// Returns the largest of the pods of suiting sizes that fit into a room, among those of the `near` sizes whose mix of cpu and memory
    /// is nearest to the wanted one.
    fn nearest(
        &self,
        suiting: &FixedBitSet,
        room: &Load,
        (wanted, near): (f64, usize),
        left: &[u32],
        filler: &Filler<'_>,
    ) -> Option<usize> {
        let lean = |size: u32| self.sizes[size as usize].lean;
        let at = self.by_lean.partition_point(|size| lean(*size) < wanted);
        let (mut below, mut above) = (at, at);
        let mut best: Option<(f64, usize)> = None;
        let (mut seen, mut tries) = (0, 0);
        // Walks outwards from the wanted mix to both sides, always to the nearer neighbour.
        while seen < near && tries < near + TRIES {
            let under = below.checked_sub(1).map(|place| self.by_lean[place]);
            let over = self.by_lean.get(above).copied();
            let far = |size: u32| (lean(size) - wanted).abs();
            let size = match (under, over) {
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
            let fits =
                suiting.contains(size as usize) && within(&self.sizes[size as usize].request, room);
            let wanted = |item: &usize| left[*item] > filler.count(*item) && filler.allows(*item);
            let item = fits.then(|| self.items(size).find(wanted)).flatten();
            if let Some(item) = item {
                seen += self.sizes[size as usize].items.len();
                let share = self.sizes[size as usize].share;
                if best.is_none_or(|best| share > best.0) {
                    best = Some((share, item));
                }
            }
        }
        best.map(|best| best.1)
    }
}

/// Returns a mix of cpu and memory as one number.
fn lean_of(cpu: f64, memory: f64) -> f64 {
    memory.max(1.0).ln() - cpu.max(1.0).ln()
}
