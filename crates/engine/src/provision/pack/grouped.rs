//! Packing pods of many sizes as if they had few: items of about one size are a group, the linear program over patterns is about groups, and real pods
//! take the places that its patterns have for their groups.

use fixedbitset::FixedBitSet;

use super::fill::Filler;
use super::whole::Solution;
use super::{Bin, Item, Load, MOST_ROWS, Offer, Problem, Relaxation, add, within};

/// So many groups are aimed at: the linear program has a row for each.
const MOST_GROUPS: usize = 100;
/// Items of a kind are cut into so many groups at least, where there are as many.
const LEAST_GROUPS: usize = 4;

/// How much more a lack of room counts than room that is left over.
const LACK: f64 = 3.0;

/// Items of one kind and about one size.
struct Group {
    items: Vec<usize>,
    /// What its pods ask for on average.
    request: Load,
}

/// The problem with a group for each item.
pub(super) struct Grouped {
    groups: Vec<Group>,
    problem: Problem,
}

impl Grouped {
    /// Of the items that want a place. None where pods have rules, of which groups know nothing, or are of too many kinds.
    pub(super) fn of(problem: &Problem, left: &[u32]) -> Option<Self> {
        if !problem.rules.is_empty() {
            return None;
        }
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
        Some(Grouped {
            groups,
            problem: grouped,
        })
    }

    /// Buys what the linear program over groups buys whole, with real pods on it.
    pub(super) fn buy(&mut self, problem: &Problem, solution: &mut Solution) {
        let relaxation = Relaxation::solve(&self.problem, &mut Filler::new(&self.problem));
        let mut patterns = relaxation.patterns;
        patterns.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.offer.cmp(&b.0.offer)));
        let most = patterns.iter().map(|own| own.1).fold(0.0, f64::max);
        // Patterns take turns, so that no group's best pods are all gone to one of them.
        for turn in 0..(most + 1e-6).floor() as u64 {
            for (pattern, times) in &patterns {
                if turn >= (times + 1e-6).floor() as u64 {
                    break;
                }
                let offer = &problem.offers[pattern.offer];
                if !within(&offer.takes, &solution.limits[offer.pool]) {
                    continue;
                }
                let pods = self.fill(problem, offer, &pattern.pods, &solution.left);
                if pods.iter().any(|(item, _)| offer.opens.contains(*item)) {
                    let bin = Bin {
                        offer: pattern.offer,
                        pods,
                    };
                    solution.put(problem, bin);
                    for (group, _) in &pattern.pods {
                        let left = &solution.left;
                        self.groups[*group].items.retain(|item| left[*item] > 0);
                    }
                }
            }
        }
    }

    /// Real pods for the places of a pattern: together they ask for what the places are for, or a little less.
    fn fill(
        &self,
        problem: &Problem,
        offer: &Offer,
        places: &[(usize, u32)],
        left: &[u32],
    ) -> Vec<(usize, u32)> {
        let mut room = offer.room;
        // What the places that are still to be taken are for.
        let mut planned = Load::default();
        for (group, count) in places {
            add(
                &mut planned,
                &self.groups[*group].request,
                i64::from(*count),
            );
        }
        let share = |load: &Load, dimension: usize| {
            load[dimension] as f64 / offer.room[dimension].max(1) as f64
        };
        let mut order: Vec<usize> = places
            .iter()
            .flat_map(|(group, count)| (0..*count).map(|_| *group))
            .collect();
        let size = |group: usize| -> f64 {
            let request = &self.groups[group].request;
            (0..2).map(|dimension| share(request, dimension)).sum()
        };
        order.sort_by(|a, b| size(*b).total_cmp(&size(*a)).then(a.cmp(b)));
        let mut pods: Vec<(usize, u32)> = Vec::with_capacity(order.len());
        for group in order {
            let own = &self.groups[group];
            add(&mut planned, &own.request, -1);
            let mut best: Option<(f64, usize)> = None;
            for item in own.items.iter().copied() {
                let request = &problem.items[item].request;
                let there = pods.iter().find(|pod| pod.0 == item).map_or(0, |pod| pod.1);
                if left[item] <= there || !offer.fits.contains(item) || !within(request, &room) {
                    continue;
                }
                // What the later places have too little of weighs more than what is left over.
                let mut off = 0.0;
                for dimension in 0..2 {
                    let rest = room[dimension] - request[dimension] - planned[dimension];
                    let rest = rest as f64 / offer.room[dimension].max(1) as f64;
                    off += if rest < 0.0 { -LACK * rest } else { rest };
                }
                if best.is_none_or(|best| off < best.0) {
                    best = Some((off, item));
                }
            }
            let Some((_, item)) = best else { continue };
            add(&mut room, &problem.items[item].request, -1);
            match pods.iter_mut().find(|pod| pod.0 == item) {
                Some(pod) => pod.1 += 1,
                None => pods.push((item, 1)),
            }
        }
        pods
    }
}

/// Cuts the items of each kind by cpu, and each part by memory for a unit of cpu.
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
        let share = MOST_GROUPS * kind.len() / all.max(1);
        let side = (share.max(LEAST_GROUPS) as f64).sqrt() as usize;
        kind.sort_by_key(|item| (problem.items[*item].request[0], *item));
        let length = kind.len().div_ceil(side);
        for part in kind.chunks_mut(length) {
            part.sort_by_key(|item| (problem.items[*item].request[1], *item));
            for own in part.chunks(part.len().div_ceil(side)) {
                groups.push(Group::of(problem, own, left));
            }
        }
    }
    groups
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
        let request = sum.map(|sum| i64::try_from((sum + pods - 1) / pods).unwrap_or(i64::MAX));
        Group {
            items: items.to_vec(),
            request,
        }
    }
}
