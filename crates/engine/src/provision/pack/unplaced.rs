//! Pods that want a place, and trials of filling machines with them: the largest pod first, then those whose mix of cpu and memory is nearest to
//! what the machine still wants of them.
//!
//! A trial is kept until the pods that it needs are gone, because most machines are filled again and again with the same pods.

use std::cmp::Reverse;
use std::ops::Range;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use super::fill::Filler;
use super::rates::{Rates, highest, kinds_of, values, worth_of};
use super::sets::{first_in, last_in};
use super::{Bin, DIMENSIONS, Item, Load, Offer, Problem, within};

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

/// A way to fill a machine, and the machine as it was filled last.
pub(super) struct Trial {
    /// The offer.
    pub(super) index: usize,
    /// The sizes whose pods it admits and that pay for their room, by their places among sizes by mix.
    pub(super) suiting: FixedBitSet,
    /// The number of pods with a mix of resources like the room's that are looked at.
    pub(super) near: usize,
    pub(super) filled: Option<Filled>,
}

/// A filled machine, and what its pods depend on: most machines are filled again and again with the same pods.
pub(super) struct Filled {
    /// What its pods are worth.
    pub(super) value: f64,
    /// The value of its pods for the price, and of using its room as intended.
    pub(super) score: f64,
    pods: Vec<(usize, u32)>,
    goal: [f64; 2],
    /// The least number of pods of each item that must want a place for the machine to be filled like this. Other items
    /// had no pods left, or nobody asked whether they have.
    needs: Vec<(u32, u32)>,
}

impl Trial {
    /// Returns whether filling the machine again would have the same result. `left` is no more than it was before.
    pub(super) fn is_current(&self, goal: [f64; 2], left: &[u32]) -> bool {
        self.filled.as_ref().is_some_and(|filled| {
            let mut needs = filled.needs.iter();
            filled.goal == goal && needs.all(|(item, least)| left[*item as usize] >= *least)
        })
    }

    /// Returns the filled machine.
    pub(super) fn bin(&self) -> Option<Bin> {
        let pods = self.filled.as_ref()?.pods.clone();
        let offer = self.index;
        Some(Bin { offer, pods })
    }
}

/// The least number of pods of each item that a filling needs.
#[derive(Default)]
struct Needs {
    /// By item; 0 for most.
    least: Vec<u32>,
    /// The others.
    items: Vec<u32>,
}

impl Needs {
    fn note(&mut self, item: usize, least: u32) {
        if self.least[item] == 0 {
            self.items.push(item as u32);
        }
        self.least[item] = self.least[item].max(least);
    }

    /// Returns what was noted, and begins anew.
    fn take(&mut self) -> Vec<(u32, u32)> {
        let least = &mut self.least;
        let taken = self.items.drain(..);
        taken
            .map(|item| (item, std::mem::take(&mut least[item as usize])))
            .collect()
    }
}

/// Pods that want a place, in the orders in which they are looked for.
pub(super) struct UnplacedPods<'a> {
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
    /// Their mixes, in this order.
    leans: Vec<f64>,
    /// Sizes, the largest first.
    by_size: Vec<u32>,
    /// Items in the lists that want no more places.
    gone: usize,
    needs: Needs,
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
    pub(super) fn of(problem: &'a Problem, rates: &Rates, left: &[u32]) -> Self {
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
            wanted,
            kinds_of,
            leans: leans(&by_lean, &sizes),
            sizes,
            by_lean,
            by_size,
            all,
            gone: 0,
            needs: Needs {
                least: vec![0; problem.items.len()],
                items: Vec::new(),
            },
        }
    }

    /// Counts pods as placed, and tidies the lists once many items in them have no pods left. Returns whether it did.
    pub(super) fn forget(&mut self, pods: &[(usize, u32)], left: &[u32]) -> bool {
        for (item, count) in pods.iter().copied() {
            let Item { request, kind, .. } = &self.problem.items[item];
            for (wanted, request) in self.wanted[*kind].iter_mut().zip(request) {
                *wanted -= *request as f64 * f64::from(count);
            }
            self.gone += usize::from(left[item] == 0);
        }
        let is_due = self.gone * 8 > self.by_lean.len();
        if is_due {
            for size in &mut self.sizes {
                size.items.retain(|item| left[*item as usize] > 0);
            }
            let sizes = &self.sizes;
            let is_wanted = |size: &u32| !sizes[*size as usize].items.is_empty();
            self.by_lean.retain(is_wanted);
            self.by_size.retain(is_wanted);
            self.leans = leans(&self.by_lean, &self.sizes);
            self.gone = 0;
        }
        is_due
    }

    /// Returns how much of a machine's cpu and memory should be used.
    pub(super) fn goal(&self, index: usize, offer: &Offer) -> [f64; 2] {
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
            if counts || !other_counts {
                room
            } else {
                room.min(AHEAD * other * all(dimension) / all(1 - dimension))
            }
        })
    }

    /// Fills a machine.
    pub(super) fn filled(
        &mut self,
        trial: &Trial,
        goal: [f64; 2],
        left: &[u32],
        filler: &mut Filler<'_>,
    ) -> Filled {
        // Taken out for the call, which notes in it and reads the rest.
        let mut needs = std::mem::take(&mut self.needs);
        let value = self.fill(trial, goal, left, (filler, &mut needs));
        let load = self.problem.load_of(&filler.taken);
        let price = self.problem.offers[trial.index].price as f64;
        let filled = Filled {
            value,
            score: value / price + EVEN * used(goal, &load),
            pods: filler.taken.clone(),
            goal,
            needs: needs.take(),
        };
        self.needs = needs;
        filled
    }

    /// Fills a machine and returns the value of its pods, which are in the filler's `taken`.
    fn fill(
        &self,
        trial: &Trial,
        goal: [f64; 2],
        left: &[u32],
        (filler, needs): (&mut Filler<'_>, &mut Needs),
    ) -> f64 {
        let Trial { suiting, near, .. } = trial;
        let offer = &self.problem.offers[trial.index];
        filler.taken.clear();
        let mut room = offer.room;
        let rates = &self.kinds_of[trial.index].1;
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
        needs.note(first, 1);
        let mut open = suiting.clone();
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
                needs.note(item, filler.count(item) + 1);
                value += filler.put(item, 1, &mut room, &self.values);
            }
        }
        loop {
            let [cpu, memory] = std::array::from_fn(|dimension| {
                goal[dimension] - (offer.room[dimension] - room[dimension]) as f64
            });
            let mix = lean_of(cpu, memory);
            let next = self.nearest(&mut open, &room, (mix, *near), left, (filler, needs));
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
                let before = filler.count(item);
                let wanted = left[item] - before;
                if wanted == 0 {
                    continue;
                }
                let more = filler.put(item, wanted, &mut room, values);
                needs.note(item, filler.count(item).max(before + 1));
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

    /// Returns the places in `by_lean` of sizes whose pods an offer admits if they fit, and that pay for their room on it.
    pub(super) fn suiting(&self, index: usize) -> FixedBitSet {
        let (offer, rates) = (&self.problem.offers[index], &self.kinds_of[index].1);
        let suits = |place: &usize| {
            let mut items = self.items(self.by_lean[*place]);
            items
                .next()
                .is_some_and(|one| offer.fits.contains(one) && self.pays(one, rates))
        };
        let mut suiting = FixedBitSet::with_capacity(self.by_lean.len());
        suiting.extend((0..self.by_lean.len()).filter(suits));
        suiting
    }

    /// Returns the largest of the pods that fit into a room, among those of the `near` sizes in `open` (places in `by_lean`) whose mix of
    /// cpu and memory is nearest to the wanted one. Closes sizes of which no pod fits or may join: none will until the
    /// machine is full.
    fn nearest(
        &self,
        open: &mut FixedBitSet,
        room: &Load,
        (wanted, near): (f64, usize),
        left: &[u32],
        (filler, needs): (&Filler<'_>, &mut Needs),
    ) -> Option<usize> {
        let far = |place: usize| (self.leans[place] - wanted).abs();
        let at = self.leans.partition_point(|lean| *lean < wanted);
        let looked_at = self.nearest_places(at, wanted, near + TRIES);
        let mut below = last_in(open, looked_at.start..at);
        let mut above = first_in(open, at..looked_at.end);
        let mut best: Option<(f64, usize)> = None;
        let mut seen = 0;
        // Walks outwards from the wanted mix to both sides, always to the nearer neighbour.
        while seen < near {
            let place = match (below, above) {
                (Some(under), over) if over.is_none_or(|over| far(under) <= far(over)) => {
                    below = last_in(open, looked_at.start..under);
                    under
                }
                (_, Some(over)) => {
                    above = first_in(open, over + 1..looked_at.end);
                    over
                }
                (_, None) => break,
            };
            let size = &self.sizes[self.by_lean[place] as usize];
            let fits = within(&size.request, room);
            let wanted = |item: &usize| left[*item] > filler.count(*item) && filler.allows(*item);
            let mut items = size.items.iter().map(|item| *item as usize);
            let Some(item) = fits.then(|| items.find(wanted)).flatten() else {
                open.set(place, false);
                continue;
            };
            needs.note(item, filler.count(item) + 1);
            seen += size.items.len();
            if best.is_none_or(|best| size.share > best.0) {
                best = Some((size.share, item));
            }
        }
        best.map(|best| best.1)
    }

    /// Returns the `most` places in `by_lean` whose mix is nearest to the wanted one, which is at `at`.
    fn nearest_places(&self, at: usize, wanted: f64, most: usize) -> Range<usize> {
        let places = self.leans.len();
        if places <= most {
            return 0..places;
        }
        let far = |place: usize| (self.leans[place] - wanted).abs();
        // Whether so many places below are among them: the first place above that is not must be as far or farther.
        let is_among = |below: usize| {
            let above = at + most - below;
            above >= places || far(at - below) <= far(above)
        };
        let (mut least, mut greatest) = (0, at.min(most));
        while least < greatest {
            let middle = (least + greatest).div_ceil(2);
            if is_among(middle) {
                least = middle
            } else {
                greatest = middle - 1
            }
        }
        at - least..at + most - least
    }
}

/// Returns how much of the intended cpu and memory pods use, as the sum of two shares: at most 2.
fn used(goal: [f64; 2], load: &Load) -> f64 {
    let shares = goal.iter().zip(load);
    shares
        .map(|(goal, load)| (*load as f64 / goal.max(1.0)).min(1.0))
        .sum()
}

/// Returns the mixes of sizes.
fn leans(order: &[u32], sizes: &[Size]) -> Vec<f64> {
    let order = order.iter();
    order.map(|size| sizes[*size as usize].lean).collect()
}

/// Returns a mix of cpu and memory as one number.
fn lean_of(cpu: f64, memory: f64) -> f64 {
    memory.max(1.0).ln() - cpu.max(1.0).ln()
}
