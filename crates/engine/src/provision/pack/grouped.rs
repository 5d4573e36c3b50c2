//! Packs pods of many sizes as if they had few: items of about one size are a group, the linear program over patterns
//! is about groups, and real pods take the places that its patterns have for their groups.

use fixedbitset::FixedBitSet;

use super::fill::Filler;
use super::knapsack::Knapsack;
use super::rates::{self, Rates};
use super::rounding::Solution;
use super::shelf::{Shelf, worth};
use super::{Bin, Item, Load, MOST_ROWS, Offer, Problem, Relaxation, add, within};

/// The number of groups to aim at; the linear program has a row for each.
const MOST_GROUPS: usize = 100;
/// The least number of groups for the items of a kind, if there are as many items.
const LEAST_GROUPS: usize = 4;

/// The factor by which a lack of room counts more than room that is left over.
const LACK: f64 = 3.0;

/// The number of pods of a group that are tried for the last place but one of a machine.
const TRIES: usize = 32;

/// Items of one kind and about one size.
struct Group {
    items: Vec<usize>,
    /// The average request of its pods.
    request: Load,
}

/// The problem with a group for each item.
pub(super) struct Grouped {
    groups: Vec<Group>,
    /// The group of each item of the real problem; arbitrary for items without pods that want a place.
    group_of: Vec<usize>,
    problem: Problem,
}

impl Grouped {
    /// Groups the items that have pods without a place. Returns `None` if they are of too many kinds. Groups ignore rules.
    pub(super) fn of(problem: &Problem, left: &[u32]) -> Option<Self> {
        let groups = groups(problem, left);
        if groups.len() > MOST_ROWS {
            return None;
        }
        let item = |group: &Group| Item {
            request: group.request,
            demand: group.items.iter().map(|item| left[*item]).sum(),
            kind: problem.items[group.items[0]].kind,
        };
        let offer = |offer: &Offer| {
            let of_groups = |set: &FixedBitSet| -> FixedBitSet {
                let holds = |group: &usize| {
                    let group = &groups[*group];
                    // A machine that holds only the group's smaller pods does not fit the average one, so it is no
                    // offer for the group.
                    within(&group.request, &offer.room)
                        && group.items.iter().any(|item| set.contains(*item))
                };
                (0..groups.len()).filter(holds).collect()
            };
            Offer {
                fits: of_groups(&offer.fits),
                opens: of_groups(&offer.opens),
                ..offer.clone()
            }
        };
        let mut grouped = Problem {
            items: groups.iter().map(item).collect(),
            offers: problem.offers.iter().map(offer).collect(),
            limits: problem.limits.clone(),
            ..Problem::default()
        };
        grouped.prepare();
        let mut group_of = vec![0; problem.items.len()];
        for (index, group) in groups.iter().enumerate() {
            group.items.iter().for_each(|item| group_of[*item] = index);
        }
        Some(Grouped {
            groups,
            group_of,
            problem: grouped,
        })
    }

    /// Returns what a pod of each group is worth in the linear program in which machines hold fractions of pods.
    pub(super) fn group_values(&self) -> Vec<f64> {
        Relaxation::in_parts(&self.problem, &mut Filler::new(&self.problem)).duals
    }

    /// Returns a lower bound of what a pod of each item costs, in micro-dollars per hour; infinite if no machine holds it. `values` are what a pod of each
    /// group is worth. On each machine, prices of resources are the duals of its fractional knapsack with these values, scaled so that the whole room
    /// costs the machine's price.
    pub(super) fn least(&self, problem: &Problem, values: &[f64]) -> Vec<f64> {
        let mut knapsack = Knapsack::default();
        let on_offer = |offer: usize| {
            let groups = self.problem.offers[offer].fits.ones();
            // As many as there is room for: so no group's pods are worth more than the room that they take.
            let choices: Vec<(u32, u32)> = groups.map(|group| (group as u32, u32::MAX)).collect();
            knapsack.rates(&self.problem, &self.problem.offers[offer], &choices, values)
        };
        rates::least_by(problem, on_offer)
    }

    /// Buys the whole machines of the linear program over groups and fills them with real pods. `rates` are what a unit of each resource is worth. Returns
    /// the dual values of that program: what a pod of each group is worth.
    pub(super) fn buy(
        &mut self,
        problem: &Problem,
        rates: &Rates,
        solution: &mut Solution,
    ) -> Vec<f64> {
        let relaxation = Relaxation::solve(&self.problem, &mut Filler::new(&self.problem));
        let mut patterns = relaxation.patterns;
        // By how often they are bought, so that a turn can end at the first pattern that is used up.
        patterns.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.offer.cmp(&b.0.offer)));
        let most = patterns.iter().map(|own| own.1).fold(0.0, f64::max);
        let mut shelf = Shelf::of(problem, &solution.left);
        let offers = problem.offers.iter();
        let admitted = offers.map(|offer| {
            let [cpu, memory, ..] = rates::paid_on(problem, rates, offer);
            (rates::kinds_of(problem, &offer.fits), [cpu, memory])
        });
        let admitted: Vec<(Vec<usize>, [f64; 2])> = admitted.collect();
        // Patterns take turns, so that none of them uses up a group's most suitable pods.
        // Fractions of machines are left out; what they would hold is packed by resources afterwards.
        for turn in 0..(most + 1e-6).floor() as u64 {
            for (pattern, times) in &patterns {
                if turn >= (times + 1e-6).floor() as u64 {
                    break;
                }
                let offer = &problem.offers[pattern.offer];
                if !within(&offer.takes, &solution.limits[offer.pool]) {
                    continue;
                }
                let (kinds, rates) = &admitted[pattern.offer];
                let mut bin = Filling {
                    problem,
                    groups: &self.groups,
                    shelf: &shelf,
                    left: &solution.left,
                    offer,
                    kinds,
                    rates: *rates,
                    room: offer.room,
                    pods: Vec::new(),
                };
                bin.fill(&pattern.pods);
                let pods = bin.pods;
                if pods.iter().any(|(item, _)| offer.opens.contains(*item)) {
                    let offer = pattern.offer;
                    solution.put(
                        problem,
                        Bin {
                            offer,
                            pods: pods.clone(),
                        },
                    );
                    // Items without further pods leave shelf and group, or every later machine would look at them
                    // again.
                    for item in pods.iter().map(|pod| pod.0) {
                        if solution.left[item] == 0 {
                            shelf.forget(item);
                            let own = &mut self.groups[self.group_of[item]].items;
                            own.retain(|other| *other != item);
                        }
                    }
                }
            }
        }
        relaxation.duals
    }
}

/// A machine that is being filled with real pods.
struct Filling<'a> {
    problem: &'a Problem,
    groups: &'a [Group],
    shelf: &'a Shelf<'a>,
    /// Pods of each item that want a place.
    left: &'a [u32],
    offer: &'a Offer,
    /// The kinds of pods that it admits.
    kinds: &'a [usize],
    /// The values of a unit of cpu and of one of memory on the machine.
    rates: [f64; 2],
    /// The free room.
    room: Load,
    /// The items on it, with their numbers of pods.
    pods: Vec<(usize, u32)>,
}

impl Filling<'_> {
    /// Takes real pods for the places of a pattern. Together they request what the places are for, or a little less; those for the last two places, and
    /// any more that fit, are chosen so that little room is left.
    fn fill(&mut self, places: &[(usize, u32)]) {
        let places = places.iter();
        let mut order: Vec<usize> = places
            .flat_map(|(group, count)| (0..*count).map(|_| *group))
            .collect();
        let size = |group: usize| -> f64 {
            let request = &self.groups[group].request;
            let share = |dimension: usize| {
                request[dimension] as f64 / self.offer.room[dimension].max(1) as f64
            };
            share(0) + share(1)
        };
        // Large places first, because small pods later make good the error of a large one.
        order.sort_by(|a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
        let guided = order.len().saturating_sub(2);
        for place in 0..guided {
            let later = &order[place + 1..];
            if let Some(item) = self.nearest(order[place], later) {
                self.put(item);
            }
        }
        if order.len() > 1
            && let Some(item) = self.last_but_one(order[guided])
        {
            self.put(item);
        }
        while let Some((item, _)) = self.last(&self.room, None) {
            self.put(item);
        }
    }

    /// Returns the item of a group whose pod, with average pods for the later places, leaves the least room.
    fn nearest(&self, group: usize, later: &[usize]) -> Option<usize> {
        let mut planned = Load::default();
        for group in later {
            add(&mut planned, &self.groups[*group].request, 1);
        }
        let mut best: Option<(f64, usize)> = None;
        for item in self.groups[group].items.iter().copied() {
            if !self.takes(item) {
                continue;
            }
            let request = &self.problem.items[item].request;
            // What the later places have too little of weighs more than what is left over.
            let mut off = 0.0;
            for dimension in 0..2 {
                let rest = self.room[dimension] - request[dimension] - planned[dimension];
                let rest = rest as f64 / self.offer.room[dimension].max(1) as f64;
                off += if rest < 0.0 { -LACK * rest } else { rest };
            }
            if best.is_none_or(|best| off < best.0) {
                best = Some((off, item));
            }
        }
        best.map(|best| best.1)
    }

    /// Tries some items of a group and returns the one that is worth most together with the best last pod for the room that it leaves.
    fn last_but_one(&self, group: usize) -> Option<usize> {
        let items = &self.groups[group].items;
        let tries = TRIES.min(items.len());
        let mut best: Option<(f64, usize)> = None;
        for item in (0..tries).map(|index| items[index * items.len() / tries]) {
            if !self.takes(item) {
                continue;
            }
            let request = &self.problem.items[item].request;
            let mut rest = self.room;
            add(&mut rest, request, -1);
            let last = self.last(&rest, Some(item)).map_or(0.0, |last| last.1);
            let value = worth(request, self.rates) + last;
            if best.is_none_or(|best| value > best.0) {
                best = Some((value, item));
            }
        }
        best.map(|best| best.1)
    }

    /// Returns the item whose pod is worth most in a room on the machine, and its worth. `beside` is an item of which
    /// a pod is about to be taken. While no pod on the machine justifies it (a pool of lower weight is bought only
    /// for pods that others refuse), only a pod that does is returned.
    fn last(&self, room: &Load, beside: Option<usize>) -> Option<(usize, f64)> {
        let opens = |item: usize| self.offer.opens.contains(item);
        let is_open = beside.is_some_and(opens) || self.pods.iter().any(|pod| opens(pod.0));
        let admitted = if is_open {
            &self.offer.fits
        } else {
            &self.offer.opens
        };
        self.shelf.best(self.kinds, room, self.rates, |item| {
            let taken = self.count(item) + u32::from(beside == Some(item));
            admitted.contains(item) && self.left[item] > taken
        })
    }

    /// Returns whether one more pod of an item is without a place and fits.
    fn takes(&self, item: usize) -> bool {
        self.left[item] > self.count(item)
            && self.offer.fits.contains(item)
            && within(&self.problem.items[item].request, &self.room)
    }

    fn count(&self, item: usize) -> u32 {
        let own = self.pods.iter().find(|pod| pod.0 == item);
        own.map_or(0, |pod| pod.1)
    }

    fn put(&mut self, item: usize) {
        add(&mut self.room, &self.problem.items[item].request, -1);
        match self.pods.iter_mut().find(|pod| pod.0 == item) {
            Some(pod) => pod.1 += 1,
            None => self.pods.push((item, 1)),
        }
    }
}

/// Cuts the items of each kind by cpu, and each part by memory.
fn groups(problem: &Problem, left: &[u32]) -> Vec<Group> {
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    for (index, item) in problem.items.iter().enumerate() {
        if left[index] == 0 {
            continue;
        }
        if kinds.len() <= item.kind {
            kinds.resize(item.kind + 1, Vec::new());
        }
        kinds[item.kind].push(index);
    }
    kinds.retain(|kind| !kind.is_empty());
    let all: usize = kinds.iter().map(Vec::len).sum();
    let mut groups = Vec::new();
    for mut kind in kinds {
        // The same number of cuts by cpu and by memory, so a kind with `share` groups has about its root of them on
        // each side.
        let share = MOST_GROUPS * kind.len() / all.max(1);
        let side = (share.max(LEAST_GROUPS) as f64).sqrt() as usize;
        for part in cut(problem, &mut kind, 0, side) {
            for own in cut(problem, &mut part.to_vec(), 1, side) {
                groups.push(Group::of(problem, own, left));
            }
        }
    }
    groups
}

/// Sorts items by their request for a resource and cuts them into about so many parts of equal length. A cut near the room of a machine is moved there, so
/// that the same machines hold all pods of a group.
fn cut<'a>(
    problem: &Problem,
    items: &'a mut [usize],
    dimension: usize,
    parts: usize,
) -> Vec<&'a [usize]> {
    let request = |item: usize| problem.items[item].request[dimension];
    items.sort_by_key(|item| (request(*item), *item));
    let items = &*items;
    let length = items.len().div_ceil(parts);
    let offers = problem.offers.iter();
    let held = |room: i64| items.partition_point(|item| request(*item) <= room);
    let mut held: Vec<usize> = offers.map(|offer| held(offer.room[dimension])).collect();
    held.sort_unstable();
    held.dedup();
    let mut cut = Vec::with_capacity(parts);
    let mut start = 0;
    for part in 1..=parts {
        let even = (part * length).min(items.len());
        let near = held.iter().copied().min_by_key(|held| held.abs_diff(even));
        let near = near.filter(|near| part < parts && near.abs_diff(even) <= length / 2);
        let end = near.unwrap_or(even);
        if end > start {
            cut.push(&items[start..end]);
            start = end;
        }
    }
    cut
}

impl Group {
    fn of(problem: &Problem, items: &[usize], left: &[u32]) -> Self {
        let mut sum = [0_i128; super::DIMENSIONS];
        let mut pods = 0_i128;
        for item in items {
            pods += i128::from(left[*item]);
            for (sum, request) in sum.iter_mut().zip(problem.items[*item].request) {
                *sum += i128::from(request) * i128::from(left[*item]);
            }
        }
        // Rounded up: places for averages that are too small could not all be filled with real pods.
        let request = sum.map(|sum| i64::try_from((sum + pods - 1) / pods).unwrap_or(i64::MAX));
        Group {
            items: items.to_vec(),
            request,
        }
    }
}
