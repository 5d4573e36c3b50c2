//! Classes whose pods count for each other's zones.
//!
//! Templates that share the labels by which they are spread, or by which they want to be near each other, are one
//! group: the rule about a class's own pods holds for the pods of the whole group. Groups of any other shape are
//! placed pod by pod.

use super::forms::{ClassInteractions, Forms, Zones, is_beyond};
use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::topology::{Effect, SpreadCounts};

/// Joins classes that matter for each other's zones into groups, and drops the forms of classes of which that cannot
/// be expressed in numbers.
pub(super) fn join(
    pending: &[(PodClassId, u32)],
    forms: &mut [Option<Forms>],
    interactions: &ClassInteractions,
    cluster: &Cluster,
) {
    let mut groups = Groups::new(pending.len());
    let mut is_odd = vec![false; pending.len()];
    for (index, (class, _)) in pending.iter().enumerate() {
        for (view, effect) in cluster.touches(*class) {
            let Some(other) = interactions
                .place(view)
                .filter(|_| is_beyond(view, effect, cluster))
            else {
                continue;
            };
            groups.unite(index, other);
            let zones = forms[other].as_ref().map(|form| form.zones);
            let is_unit = forms[other].as_ref().is_some_and(|form| form.is_unit);
            // An effect that the other class's form does not contain would be ignored by the packing.
            is_odd[other] |= match effect {
                Effect::Hard(own) => {
                    zones != Some(Zones::Spread(own)) && zones != Some(Zones::One(Some(own)))
                }
                Effect::Affinity => !matches!(zones, Some(Zones::One(_))) && !is_unit,
                Effect::Anti(Symbol::ZONE) | Effect::ExistingAnti(Symbol::ZONE) => {
                    zones != Some(Zones::Apart)
                }
                _ => true,
            };
        }
    }
    for members in groups.all() {
        let is_known = members
            .iter()
            .all(|member| !is_odd[*member] && forms[*member].is_some());
        let ids: Vec<PodClassId> = members.iter().map(|member| pending[*member].0).collect();
        let is_one = members.len() == 1;
        let is_group = || {
            is_spread(&members, &ids, forms, interactions, cluster)
                || is_near(&members, &ids, forms, interactions, cluster)
        };
        if is_known && (is_one || is_group()) {
            let group = (!is_one).then_some(members[0]);
            for member in members {
                if let Some(form) = &mut forms[member] {
                    form.group = group;
                }
            }
        } else {
            // All of them: a member placed by numbers would ignore what the others' pods mean for it.
            members.iter().for_each(|member| forms[*member] = None);
        }
    }
}

/// Returns whether one constraint that counts all of these classes spreads them. Members that may be in any zone only
/// have to be counted.
fn is_spread(
    members: &[usize],
    ids: &[PodClassId],
    forms: &[Option<Forms>],
    interactions: &ClassInteractions,
    cluster: &Cluster,
) -> bool {
    let mut first: Option<&SpreadCounts> = None;
    for (member, class) in members.iter().zip(ids) {
        match forms[*member].as_ref().map(|form| form.zones) {
            Some(Zones::Any) => {}
            Some(Zones::Spread(index)) => {
                let counts = &cluster.view(*class).hard[index];
                let counts_all = is_all(
                    interactions.with_effect(*class, |own| own == Effect::Hard(index)),
                    ids,
                );
                let is_same = first.is_none_or(|first| is_alike(first, counts));
                if !counts_all || !is_same {
                    return false;
                }
                first = Some(counts);
            }
            _ => return false,
        }
    }
    first.is_some()
}

/// Returns whether two constraints allow the same now: equal limits, and equal pods in the same places.
fn is_alike(one: &SpreadCounts, other: &SpreadCounts) -> bool {
    let places = |counts: &SpreadCounts| {
        let mut places: Vec<(Symbol, i64)> = counts
            .all_places()
            .map(|place| (place, counts.pods_at(place)))
            .collect();
        places.sort_unstable();
        places
    };
    one.rule.max_skew == other.rule.max_skew
        && one.rule.min_domains == other.rule.min_domains
        && places(one) == places(other)
}

/// Returns whether each class has to be in a zone with pods of any of them, and no pod that is there decides the
/// zone.
fn is_near(
    members: &[usize],
    ids: &[PodClassId],
    forms: &[Option<Forms>],
    interactions: &ClassInteractions,
    cluster: &Cluster,
) -> bool {
    members.iter().zip(ids).all(|(member, class)| {
        let zones = forms[*member].as_ref().map(|form| form.zones);
        zones == Some(Zones::One(None))
            && cluster.view(*class).affinity.is_empty()
            && is_all(
                interactions.with_effect(*class, |own| own == Effect::Affinity),
                ids,
            )
    })
}

/// Returns whether the counted classes are exactly the members of a group.
fn is_all(mut counted: Vec<PodClassId>, ids: &[PodClassId]) -> bool {
    counted.sort_unstable();
    counted.dedup();
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    counted == ids
}

/// Disjoint sets of indices (union-find), each known by its smallest member.
struct Groups(Vec<usize>);

impl Groups {
    fn new(size: usize) -> Self {
        Groups((0..size).collect())
    }

    fn least(&mut self, mut own: usize) -> usize {
        while self.0[own] != own {
            // Path halving keeps the chains short.
            self.0[own] = self.0[self.0[own]];
            own = self.0[own];
        }
        own
    }

    fn unite(&mut self, one: usize, other: usize) {
        let (one, other) = (self.least(one), self.least(other));
        // The smaller index leads, so the order of sets does not depend on the order in which they were united.
        self.0[one.max(other)] = one.min(other);
    }

    /// Returns all sets by their smallest member, the members of each in order.
    fn all(mut self) -> Vec<Vec<usize>> {
        let mut sets = vec![Vec::new(); self.0.len()];
        for own in 0..self.0.len() {
            let least = self.least(own);
            sets[least].push(own);
        }
        sets.retain(|set| !set.is_empty());
        sets
    }
}
