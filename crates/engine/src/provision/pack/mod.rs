//! Packs pods by cost: which machines to buy for so many pods of each class, in whole numbers.
//!
//! Karpenter takes the first machine that holds a pod and looks at prices last. Here prices lead: a linear program over patterns (one machine
//! with so many pods of each class) says what a pod of each class is worth (`master`), machines are chosen by how much worth they
//! hold for their price (`rounding`), and what was chosen is taken apart and put together again in cheaper ways (`ruin`).
//! Pods of more sizes than the program has time for are packed in groups of about one size (`grouped`) or by what resources cost (`varied`).
//!
//! Numbers only: what the scheduler's rules mean for a class became data in [`Problem`] before, and the finished plan is carried
//! out with the scheduler's own filters after. Floating point guides the search; what a machine holds and costs is counted in integers.

mod fill;
mod grouped;
mod knapsack;
mod least;
mod master;
mod rates;
mod rounding;
mod ruin;
mod search;
mod sets;
mod shelf;
mod simplex;
#[cfg(test)]
mod tests;
mod unplaced;
mod varied;

use std::cell::OnceCell;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::room_table::RoomTable;
use fill::Filler;
pub(super) use least::ZonalDemand;
pub(super) use master::Relaxation;

/// The most rows of a linear program over patterns.
const MOST_ROWS: usize = 300;

/// Pods that are kept apart count as a resource if they need at least this many machines.
const LEAST_MACHINES: u64 = 20;

/// The number of resources that are told apart: cpu, memory, pods, local storage, and four others.
pub(super) const DIMENSIONS: usize = 8;

/// An amount of each resource.
pub(super) type Load = [i64; DIMENSIONS];

/// Pods of one class that need a place.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) request: Load,
    pub(super) demand: u32,
    /// Items of the same kind are admitted by the same machines, apart from their sizes.
    pub(super) kind: usize,
}

/// A machine that can be bought any number of times.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    /// The price in micro-dollars an hour, at least 1.
    pub(super) price: u64,
    pub(super) room: Load,
    /// The items that may run on it.
    pub(super) fits: FixedBitSet,
    /// The items for which it may be bought. The others may only join them, because a pool of higher weight could
    /// hold them.
    pub(super) opens: FixedBitSet,
    /// The pool whose limits it counts against.
    pub(super) pool: usize,
    /// The amounts of these limits that it uses up.
    pub(super) takes: Load,
}

/// A rule about the pods of one node: as long as the node has a pod of any of the `subjects`, it may have at most
/// `most` pods of the `members` together.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) subjects: Vec<usize>,
    pub(super) members: Vec<usize>,
    pub(super) most: u32,
}

/// The packing problem in numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Problem {
    pub(super) items: Vec<Item>,
    /// The machines that can be bought, cheapest first.
    pub(super) offers: Vec<Offer>,
    /// The existing machines, each of which can be used once and costs nothing.
    pub(super) nodes: Vec<Offer>,
    pub(super) rules: Vec<Rule>,
    /// The amounts that each pool may still buy; `i64::MAX` where there is no limit.
    pub(super) limits: Vec<Load>,
    /// The rules that each item is part of.
    rules_of: Vec<Vec<Role>>,
    /// The rooms of offers, once they are asked for.
    rooms: OnceCell<RoomTable>,
    /// The number of kinds of items.
    kinds: usize,
}

/// The part that an item has in a rule.
#[derive(Clone, Copy, Debug)]
struct Role {
    rule: usize,
    /// The most pods of members that the rule allows.
    most: u32,
    is_subject: bool,
    is_member: bool,
}

/// A machine and the pods that go on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Bin {
    /// The index of the machine among the offers, or behind them among the existing machines.
    pub(super) offer: usize,
    /// The items and the numbers of their pods, sorted by item.
    pub(super) pods: Vec<(usize, u32)>,
}

/// The solution of a [`Problem`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Packing {
    pub(super) bins: Vec<Bin>,
    /// The number of pods of each item that found no place.
    pub(super) left: Vec<u32>,
    /// The price in micro-dollars an hour.
    pub(super) price: u64,
    /// A lower bound for the price of a packing of all pods.
    pub(super) bound: u64,
}

/// A packing, and the dual values of the linear program over patterns: what a pod of each item is worth, in micro-dollars an
/// hour. They are empty where there were too many items for that program.
pub(super) struct Packed {
    pub(super) packing: Packing,
    pub(super) values: Vec<f64>,
}

impl Offer {
    /// Returns whether this machine can stand for another one everywhere. It is not dearer, because the offers are
    /// compared from the cheapest on.
    pub(super) fn does_for(&self, other: &Offer) -> bool {
        // It may not use up more of the same pool's limits.
        let limited =
            self.pool != other.pool || self.takes.iter().zip(&other.takes).any(|(a, b)| a > b);
        let counts = self.takes.iter().any(|takes| *takes != 0);
        !(limited && counts)
            && within(&other.room, &self.room)
            && other.fits.is_subset(&self.fits)
            && other.opens.is_subset(&self.opens)
    }
}

impl Problem {
    /// Completes a problem whose items, offers, rules and limits are known.
    pub(super) fn prepare(&mut self) {
        debug_assert!(self.offers.is_sorted_by_key(|offer| offer.price));
        // Only a program over resources needs this; one over patterns knows the rules.
        if self.is_varied() {
            self.add_scarce();
        }
        self.rooms = OnceCell::new();
        let kinds = self.items.iter().map(|item| item.kind + 1);
        self.kinds = kinds.max().unwrap_or(0);
        self.rules_of = vec![Vec::new(); self.items.len()];
        for (rule, own) in self.rules.iter().enumerate() {
            for item in own.subjects.iter().copied() {
                self.rules_of[item].push(Role {
                    rule,
                    most: own.most,
                    is_subject: true,
                    is_member: false,
                });
            }
            for item in own.members.iter().copied() {
                // Subjects were entered above, so an item that is both has one role.
                match self.rules_of[item].last_mut() {
                    Some(role) if role.rule == rule => role.is_member = true,
                    _ => self.rules_of[item].push(Role {
                        rule,
                        most: own.most,
                        is_subject: false,
                        is_member: true,
                    }),
                }
            }
        }
    }

    /// Adds a resource for each rule that many machines are needed for: a machine has as much of it as the rule
    /// allows pods, and each of these pods requests one. A linear program over resources would know nothing of rules
    /// otherwise.
    fn add_scarce(&mut self) {
        // Only resources that no pod requests can stand for rules.
        let is_unused = |dimension: &usize| {
            let mut items = self.items.iter();
            items.all(|item| item.request[*dimension] == 0)
        };
        let unused: Vec<usize> = (0..DIMENSIONS).filter(is_unused).collect();
        let mut scarce: Vec<(u64, u32, Vec<usize>)> = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.most > 0) {
            let both = self.about_each_other(rule);
            let pods: u64 = both
                .iter()
                .map(|item| u64::from(self.items[*item].demand))
                .sum();
            scarce.push((pods / u64::from(rule.most), rule.most, both));
        }
        // There may be more rules than free resources, so those that need most machines come first.
        scarce.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.2.cmp(&b.2)));
        let most = scarce.first().map_or(0, |own| own.0);
        // Rules that need far fewer machines than the first one say little about the price.
        scarce.retain(|own| own.0 >= LEAST_MACHINES && own.0 * 4 >= most);
        for (dimension, (_, most, items)) in unused.into_iter().zip(scarce) {
            for item in items {
                self.items[item].request[dimension] = 1;
            }
            for offer in self.offers.iter_mut().chain(&mut self.nodes) {
                offer.room[dimension] = i64::from(most);
            }
        }
    }

    /// Returns the subjects of a rule that are members too: no machine has more of them together than the rule
    /// allows.
    fn about_each_other(&self, rule: &Rule) -> Vec<usize> {
        let mut members = FixedBitSet::with_capacity(self.items.len());
        members.extend(rule.members.iter().copied());
        let subjects = rule.subjects.iter().copied();
        subjects.filter(|item| members.contains(*item)).collect()
    }

    /// Returns a cheap packing. `effort` bounds the search for a cheaper one: the number of times that an item may be
    /// considered for a machine.
    pub(super) fn pack(&self, effort: u64) -> Packed {
        let mut filler = Filler::new(self);
        let demand: Vec<u32> = self.items.iter().map(|item| item.demand).collect();
        let (mut relaxation, mut best) = if self.is_varied() {
            varied::build(self, &demand, &mut filler)
        } else {
            let mut relaxation = Relaxation::solve(self, &mut filler);
            // Either bound may be the higher one.
            let by_resources = rates::bound(self, &varied::rates(self));
            relaxation.bound = relaxation.bound.max(by_resources);
            let best = rounding::build(self, &relaxation, &demand, &mut filler);
            (relaxation, best)
        };
        if !self.nodes.is_empty() {
            // The linear program does not know the existing machines, which cost nothing, so its bound would be too
            // high.
            relaxation.bound = 0;
        }
        ruin::improve(self, &relaxation, &mut best, effort, &mut filler);
        let packing = Packing {
            price: best
                .bins
                .iter()
                .map(|bin| self.offer(bin.offer).price)
                .sum(),
            bins: best.bins,
            left: best.left,
            bound: relaxation.bound,
        };
        Packed {
            packing,
            values: relaxation.duals,
        }
    }

    /// Returns what a pod of each item is worth in the linear program, and a lower bound for the price of all of
    /// them, in micro-dollars an hour.
    pub(super) fn values(&self) -> (Vec<f64>, u64) {
        let relaxation = if self.is_varied() {
            varied::relax(self).0
        } else {
            Relaxation::solve(self, &mut Filler::new(self))
        };
        (relaxation.values, relaxation.bound)
    }

    /// Returns whether there are too many items for the linear program over patterns, which has a row for each and
    /// takes time by the square of their number.
    fn is_varied(&self) -> bool {
        self.items.len() > MOST_ROWS
    }

    /// Returns a bin's machine: an offer or an existing machine.
    fn offer(&self, index: usize) -> &Offer {
        match index.checked_sub(self.offers.len()) {
            None => &self.offers[index],
            Some(node) => &self.nodes[node],
        }
    }

    /// Returns the cheapest offer that holds these pods and their requests together, within the limits of its pool.
    fn cheapest_for(&self, pods: &[(usize, u32)], limits: &[Load]) -> Option<usize> {
        let rooms = self.rooms.get_or_init(|| {
            RoomTable::of(self.offers.len(), DIMENSIONS, |offer, dimension| {
                self.offers[offer].room[dimension]
            })
        });
        rooms.first_holding(&self.load_of(pods), |index| {
            let offer = &self.offers[index];
            pods.iter().all(|(item, _)| offer.fits.contains(*item))
                // It is enough that one of the pods may buy it.
                && pods.iter().any(|(item, _)| offer.opens.contains(*item))
                && within(&offer.takes, &limits[offer.pool])
        })
    }

    fn load_of(&self, pods: &[(usize, u32)]) -> Load {
        let mut load = Load::default();
        for (item, count) in pods {
            add(&mut load, &self.items[*item].request, i64::from(*count));
        }
        load
    }

    /// Returns whether the rules allow these pods on one node.
    fn together(&self, pods: &[(usize, u32)]) -> bool {
        let mut members: FxHashMap<usize, u32> = FxHashMap::default();
        for (item, count) in pods {
            for role in self.rules_of[*item].iter().filter(|role| role.is_member) {
                *members.entry(role.rule).or_default() += count;
            }
        }
        pods.iter()
            .filter(|(_, count)| *count > 0)
            .all(|(item, _)| {
                let mut roles = self.rules_of[*item].iter().filter(|role| role.is_subject);
                roles.all(|role| {
                    let members = members.get(&role.rule).copied().unwrap_or(0);
                    members <= role.most
                })
            })
    }

    /// Returns the items that an offer may hold, and how many pods of each at most: as many as fit and are wanted.
    fn choices_on(&self, offer: &Offer) -> Vec<(u32, u32)> {
        let most = |item: usize| self.most_on(offer, item).min(self.items[item].demand);
        let items = offer.fits.ones().map(|item| (item as u32, most(item)));
        items.filter(|(_, most)| *most > 0).collect()
    }

    /// Returns how many pods of an item an empty machine holds.
    fn most_on(&self, offer: &Offer, item: usize) -> u32 {
        let request = &self.items[item].request;
        let by_room = request.iter().zip(&offer.room).filter(|own| *own.0 > 0);
        let by_room = by_room.map(|(request, room)| (room / request).max(0));
        let by_room = by_room.min().unwrap_or(i64::MAX);
        let most = by_room.min(self.most_alone(item));
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Returns how many pods of an item the rules allow on a node without other pods.
    fn most_alone(&self, item: usize) -> i64 {
        let roles = self.rules_of[item].iter();
        let own = roles.filter(|role| role.is_subject && role.is_member);
        let most = own.map(|role| i64::from(role.most));
        most.min().unwrap_or(i64::MAX)
    }
}

pub(super) fn within(load: &Load, room: &Load) -> bool {
    (0..DIMENSIONS).all(|dimension| load[dimension] <= room[dimension])
}

fn add(load: &mut Load, more: &Load, times: i64) {
    (0..DIMENSIONS).for_each(|dimension| load[dimension] += more[dimension] * times);
}

fn take(limits: &mut [Load], offer: &Offer) {
    change(&mut limits[offer.pool], &offer.takes, -1);
}

fn give_back(limits: &mut [Load], offer: &Offer) {
    change(&mut limits[offer.pool], &offer.takes, 1);
}

fn change(limit: &mut Load, takes: &Load, sign: i64) {
    for (limit, takes) in limit.iter_mut().zip(takes) {
        // A pool without a limit stays without one.
        if *limit != i64::MAX {
            *limit += sign * takes;
        }
    }
}
