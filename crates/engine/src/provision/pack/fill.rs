//! Fills one machine on trial: greedily, by pods' value for the room that they take.

use std::cmp::Ordering;

use super::{DIMENSIONS, Load, Offer, Problem};

/// The weight of each resource's share in the size of a pod.
pub(super) type Weights = [f64; DIMENSIONS];

/// The weights with which the shares of all resources count alike.
pub(super) const ALIKE: Weights = [1.0; DIMENSIONS];

/// The maximum number of pods that are exchanged for others on a machine.
const EXCHANGES: usize = 4;

/// The number of items that a filling finds by looking at all that fit. After that it sorts those that still fit: most
/// machines are full before.
const PICKS: usize = 8;

/// Scratch space of a filling, used again for the next one.
pub(super) struct Filler<'a> {
    pub(super) problem: &'a Problem,
    /// The items that want a place on the machine.
    wanting: Vec<Wanting>,
    /// The number of items that wanted a place on it.
    listed: usize,
    /// The items that the filling took pods of or tried to, in their order.
    tried: Vec<Wanting>,
    /// Resources that some item asks for.
    asked: Vec<usize>,
    /// The items that a filling took, with their numbers of pods.
    pub(super) taken: Vec<(usize, u32)>,
    /// The item whose turn was first, and the first for which the machine may be bought; `None` if there was no such item.
    pub(super) leads: Option<[usize; 2]>,
    /// The shortage of each resource on an average machine.
    pub(super) shortage: Weights,
    counts: Vec<u32>,
    /// The number of pods on the machine that each rule counts.
    rule_counts: Vec<RuleCount>,
    /// If set, now and then fewer pods of an item are taken than fit, so that repeated fillings differ.
    pub(super) random: Option<Random>,
    /// Items looked at so far.
    pub(super) work: u64,
}

/// An item of which some pods want a place.
#[derive(Clone, Copy, Debug)]
struct Wanting {
    /// A pod's value for the room that it takes.
    density: f64,
    item: u32,
    pods: u32,
}

impl Wanting {
    /// Returns whether this item has its turn before the other one.
    fn is_before(&self, other: &Wanting) -> bool {
        // Densities are never NaN, and comparing them as numbers is faster than in total order.
        self.density > other.density || (self.density == other.density && self.item < other.item)
    }

    /// Compares by density, the highest first, then by item.
    fn order(&self, other: &Wanting) -> Ordering {
        let by_density = other.density.total_cmp(&self.density);
        by_density.then(self.item.cmp(&other.item))
    }
}

/// The number of pods on a machine that a rule counts.
#[derive(Clone, Copy, Debug, Default)]
struct RuleCount {
    subjects: u32,
    members: u32,
}

/// A pseudorandom sequence that is the same every time (xorshift64*), because plans must not depend on chance.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        Random(0x9e37_79b9_7f4a_7c15)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        // The high half times the bound, which is less biased than a remainder and needs no division.
        (((self.next() >> 32) * bound as u64) >> 32) as usize
    }

    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl<'a> Filler<'a> {
    pub(super) fn new(problem: &'a Problem) -> Self {
        let mut asked = [0.0; DIMENSIONS];
        for item in &problem.items {
            for (asked, request) in asked.iter_mut().zip(item.request) {
                *asked += request as f64 * f64::from(item.demand);
            }
        }
        let mut given = [0.0; DIMENSIONS];
        for offer in &problem.offers {
            // Room for the price: what matters is how much of a resource money buys, not how large machines are.
            for (given, room) in given.iter_mut().zip(offer.room) {
                *given += room.max(0) as f64 / offer.price as f64;
            }
        }
        let mut shortage = [0.0; DIMENSIONS];
        for dimension in 0..DIMENSIONS {
            if given[dimension] > 0.0 {
                shortage[dimension] = asked[dimension] / given[dimension];
            }
        }
        let most: f64 = shortage.iter().copied().fold(1e-300, f64::max);
        shortage.iter_mut().for_each(|one| *one /= most);
        Filler {
            problem,
            wanting: Vec::new(),
            listed: 0,
            tried: Vec::new(),
            asked: (0..DIMENSIONS)
                .filter(|dimension| {
                    let mut items = problem.items.iter();
                    items.any(|item| item.request[*dimension] != 0)
                })
                .collect(),
            taken: Vec::new(),
            leads: None,
            shortage,
            counts: vec![0; problem.items.len()],
            rule_counts: vec![RuleCount::default(); problem.rules.len()],
            random: None,
            work: 0,
        }
    }

    /// Fills a machine with some of these pods (item and number) and returns the value of the pods that it holds
    /// then, which are in `taken`. Returns 0 if no pod for which the machine may be bought fits.
    pub(super) fn fill(
        &mut self,
        offer: &Offer,
        demand: &[(usize, u32)],
        values: &[f64],
        weights: &Weights,
    ) -> f64 {
        self.taken.clear();
        self.list(offer, demand, values, weights);
        let opens = |own: &&Wanting| offer.opens.contains(own.item as usize);
        let first = first_of(self.wanting.iter());
        let opener = match first.filter(|first| opens(&first)) {
            Some(first) => Some(first),
            None => first_of(self.wanting.iter().filter(opens)),
        };
        let leads = first
            .zip(opener)
            .map(|(first, opener)| [first.item, opener.item]);
        self.leads = leads.map(|leads| leads.map(|item| item as usize));
        let Some(opener) = opener else { return 0.0 };
        // The machine is bought for one of these; without it the rest may not come.
        let is_first = first.is_some_and(|first| first.item == opener.item);
        let opener = (!is_first).then_some(opener.item as usize);
        let mut room = offer.room;
        let mut value = 0.0;
        if let Some(item) = opener {
            value += self.put(item, 1, &mut room, values);
        }
        self.tried.clear();
        while let Some(next) = self.next(&room) {
            let item = next.item as usize;
            let wanted = next.pods - u32::from(opener == Some(item));
            value += self.put(item, wanted, &mut room, values);
            self.tried.push(next);
        }
        // With chance in it, the first pass may leave room that the same pods could have had.
        if self.random.is_some() {
            // Those of which fewer than fit were taken; the others fit no more.
            for index in 0..self.tried.len() {
                let Wanting { item, pods, .. } = self.tried[index];
                let wanted = pods - self.counts[item as usize];
                value += self.put(item as usize, wanted, &mut room, values);
            }
        }
        self.settle();
        value
    }

    /// Counts the work of filling a machine, where it is known how it would be filled.
    pub(super) fn count_work(&mut self, offer: &Offer, demand: &[(usize, u32)], values: &[f64]) {
        let wants = |(item, pods): &&(usize, u32)| {
            *pods > 0 && values[*item] > 0.0 && offer.fits.contains(*item)
        };
        self.work += 1 + demand.iter().filter(wants).count() as u64;
    }

    /// Takes one pod after the other off a machine whose pods are in `taken` and worth `value`, fills its room with
    /// others by the weights, and keeps what is worth more. Returns the value of what is in `taken` then. One pod for
    /// which the machine may be bought stays.
    pub(super) fn exchange(
        &mut self,
        offer: &Offer,
        demand: &[(usize, u32)],
        (values, weights): (&[f64], &Weights),
        mut value: f64,
    ) -> f64 {
        self.list(offer, demand, values, weights);
        self.wanting.sort_unstable_by(Wanting::order);
        for _ in 0..EXCHANGES {
            let mut best: Option<(f64, Vec<(usize, u32)>)> = None;
            let there = self.taken.clone();
            for leaving in there.iter().map(|pod| pod.0) {
                let other = self.without(offer, values, &there, leaving);
                // The margin keeps rounding errors from exchanging equal pods back and forth.
                if other > best.as_ref().map_or(value, |best| best.0) * (1.0 + 1e-9) {
                    best = Some((other, self.taken.clone()));
                }
            }
            let Some((more, pods)) = best else {
                self.taken = there;
                break;
            };
            value = more;
            self.taken = pods;
        }
        value
    }

    /// Returns the value of a machine when one pod of an item leaves and others take its room.
    fn without(
        &mut self,
        offer: &Offer,
        values: &[f64],
        there: &[(usize, u32)],
        leaving: usize,
    ) -> f64 {
        let mut room = offer.room;
        super::add(&mut room, &self.problem.load_of(there), -1);
        super::add(&mut room, &self.problem.items[leaving].request, 1);
        self.taken.clear();
        let mut value = 0.0;
        let mut is_open = false;
        for (item, count) in there.iter().copied() {
            let count = count - u32::from(item == leaving);
            self.taken.push((item, count));
            self.set_count(item, count);
            value += values[item] * f64::from(count);
            is_open |= count > 0 && offer.opens.contains(item);
        }
        // Without a pod that justifies the machine, nothing else may be on it.
        if is_open {
            for index in 0..self.wanting.len() {
                let Wanting { item, pods, .. } = self.wanting[index];
                let item = item as usize;
                if item != leaving {
                    let wanted = pods - self.counts[item];
                    value += self.put(item, wanted, &mut room, values);
                }
            }
        }
        self.settle();
        self.taken.retain(|(_, count)| *count > 0);
        if is_open { value } else { 0.0 }
    }

    /// Puts more pods into the room that a machine has left, beside those that are there. Returns whether one was
    /// added; the pods are in `taken` then.
    pub(super) fn top_up(
        &mut self,
        offer: &Offer,
        there: &[(usize, u32)],
        demand: &[(usize, u32)],
        values: &[f64],
    ) -> bool {
        let mut room = offer.room;
        super::add(&mut room, &self.problem.load_of(there), -1);
        let fits = |(item, _): &(usize, u32)| {
            offer.fits.contains(*item) && super::within(&self.problem.items[*item].request, &room)
        };
        // Most machines have no room for anything, so this comes before sorting.
        if !demand.iter().any(fits) {
            return false;
        }
        self.taken.clear();
        for (item, count) in there {
            self.taken.push((*item, *count));
            self.set_count(*item, *count);
        }
        self.list(offer, demand, values, &ALIKE);
        self.tried.clear();
        let mut more = 0.0;
        while let Some(next) = self.next(&room) {
            more += self.put(next.item as usize, next.pods, &mut room, values);
            self.tried.push(next);
        }
        self.settle();
        more > 0.0
    }

    /// Puts up to `wanted` pods of an item into the room and returns their value.
    pub(super) fn put(&mut self, item: usize, wanted: u32, room: &mut Load, values: &[f64]) -> f64 {
        let request = &self.problem.items[item].request;
        // Most pods do not fit, and of many only one is wanted: divisions are seldom needed.
        if wanted == 0 || !fits(request, room) {
            return 0.0;
        }
        let mut count = i64::from(wanted);
        if count > 1 {
            for (request, room) in request.iter().zip(room.iter()) {
                if *request > 0 {
                    count = count.min(room / request);
                }
            }
        }
        if !self.problem.rules_of[item].is_empty() {
            count = count.min(self.allowed(item));
        }
        if count <= 0 {
            return 0.0;
        }
        // Sometimes fewer than fit, so that a repeated search finds other fillings.
        if let Some(random) = self.random.as_mut().filter(|_| count > 1)
            && random.below(4) == 0
        {
            count = 1 + random.below(count as usize) as i64;
        }
        super::add(room, request, -count);
        let count = count as u32;
        // `taken` only lists the items; `settle` fills in the numbers.
        if self.counts[item] == 0 {
            self.taken.push((item, 0));
        }
        self.set_count(item, self.counts[item] + count);
        values[item] * f64::from(count)
    }

    /// Returns how many pods of an item are on the machine that is being filled.
    pub(super) fn count(&self, item: usize) -> u32 {
        self.counts[item]
    }

    /// Returns whether the rules let one more pod of an item join.
    pub(super) fn allows(&self, item: usize) -> bool {
        self.problem.rules_of[item].is_empty() || self.allowed(item) > 0
    }

    /// Returns how many more pods of an item the rules let join.
    fn allowed(&self, item: usize) -> i64 {
        let mut allowed = i64::MAX;
        for role in &self.problem.rules_of[item] {
            let RuleCount { subjects, members } = self.rule_counts[role.rule];
            let free = i64::from(role.most) - i64::from(members);
            // A rule limits its members only while a subject is there; a subject may come only where its members are
            // few enough already.
            if role.is_member && (role.is_subject || subjects > 0) {
                allowed = allowed.min(free);
            } else if role.is_subject && free < 0 {
                allowed = 0;
            }
        }
        allowed.max(0)
    }

    /// Sets how many pods of an item are on the machine that is being filled, and what its rules count.
    fn set_count(&mut self, item: usize, count: u32) {
        let before = std::mem::replace(&mut self.counts[item], count);
        for role in &self.problem.rules_of[item] {
            let rule_count = &mut self.rule_counts[role.rule];
            if role.is_subject {
                rule_count.subjects = rule_count.subjects + count - before;
            }
            if role.is_member {
                rule_count.members = rule_count.members + count - before;
            }
        }
    }

    /// Writes the counts into `taken` and resets them.
    pub(super) fn settle(&mut self) {
        // Only items in `taken` have counts, so resetting costs what was taken and not the number of all items.
        for index in 0..self.taken.len() {
            let item = self.taken[index].0;
            self.taken[index].1 = self.counts[item];
            self.set_count(item, 0);
        }
        self.work += 1 + self.listed as u64;
    }

    /// Takes the item off the list whose turn is next among those that fit into the room, which only becomes less.
    fn next(&mut self, room: &Load) -> Option<Wanting> {
        let items = &self.problem.items;
        let asked = self.asked.last().map_or(0, |last| last + 1);
        let fits = |own: &Wanting| fits(&items[own.item as usize].request[..asked], room);
        if self.tried.len() >= PICKS {
            if self.tried.len() == PICKS {
                self.wanting.retain(fits);
                // The last of these is the next.
                self.wanting.sort_unstable_by(|one, other| other.order(one));
            }
            return self.wanting.pop();
        }
        let mut first: Option<(usize, Wanting)> = None;
        let mut index = 0;
        while let Some(own) = self.wanting.get(index).copied() {
            // Whether an item fits is asked only of those whose turn would be next.
            if first.is_some_and(|first| !own.is_before(&first.1)) {
                index += 1;
            } else if fits(&own) {
                first = Some((index, own));
                index += 1;
            } else {
                // What does not fit now never will.
                self.wanting.swap_remove(index);
            }
        }
        let (index, next) = first?;
        self.wanting.swap_remove(index);
        Some(next)
    }

    /// Lists the items of which a machine may hold pods that want a place.
    fn list(&mut self, offer: &Offer, demand: &[(usize, u32)], values: &[f64], weights: &Weights) {
        let mut share = [0.0; DIMENSIONS];
        for (dimension, share) in share.iter_mut().enumerate() {
            if offer.room[dimension] > 0 {
                // The small addition keeps a pod that asks only for resources of weight 0 from seeming to take no
                // room at all.
                *share = (weights[dimension] + 0.01) / offer.room[dimension] as f64;
            }
        }
        self.wanting.clear();
        for (item, wanted) in demand.iter().copied() {
            if wanted == 0 || values[item] <= 0.0 || !offer.fits.contains(item) {
                continue;
            }
            let request = &self.problem.items[item].request;
            let asked = self.asked.iter().copied();
            let shares = asked.map(|dimension| request[dimension] as f64 * share[dimension]);
            let size: f64 = shares.sum();
            self.wanting.push(Wanting {
                density: values[item] / size.max(1e-12),
                item: item as u32,
                pods: wanted,
            });
        }
        self.listed = self.wanting.len();
    }
}

/// Returns the item whose turn is first.
fn first_of<'a>(mut items: impl Iterator<Item = &'a Wanting>) -> Option<Wanting> {
    let mut first = *items.next()?;
    for own in items {
        if own.is_before(&first) {
            first = *own;
        }
    }
    Some(first)
}

/// Returns whether a room has all that a pod asks for. It may have too little of what the pod does not ask for.
fn fits(request: &[i64], room: &Load) -> bool {
    let mut pairs = request.iter().zip(room);
    pairs.all(|(request, room)| *request <= (*room).max(0))
}
