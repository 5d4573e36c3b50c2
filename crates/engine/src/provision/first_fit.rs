//! Places pods one by one, as Karpenter does, in several ways, and keeps the cheapest.
//!
//! Karpenter chooses at random between zones with equally few of the pods that are spread or kept apart, so that some of its plans are
//! cheaper than others. It opens a node of the pool whose name is last among those of one weight, whatever that pool's machines cost.
//! A plan tries several of these [`Choices`]: first arbitrary ones, then, from the best of them, one zone for all pods, and another zone
//! for one class of pods after the other.

use rustc_hash::{FxHashMap, FxHashSet};

use super::solve::{Attempt, Pending, PlacementMode, Solver};
use crate::class::PodClassId;
use crate::intern::Symbol;

/// The maximum number of other choices between zones that are tried for all pods at once.
const MOST_VARIANTS: usize = 24;
/// From this one on, each node makes a choice of its own.
const FIRST_BY_NODE: u64 = 13;
/// The maximum number of pods that are placed in all of these together.
const VARIED_PODS: usize = 3000;
/// The maximum number of zones of single classes that are tried.
const MOST_CHANGES: usize = 60;
/// The maximum number of pods that are placed in all of these together.
const CHANGED_PODS: usize = 6000;
/// Zones of single classes are tried only if pods placed one by one cost at most one part in so many more than the other plan: a
/// greater difference is not made up by zones.
const NEAR: u64 = 4;

/// The choices that Karpenter leaves to chance or to names.
#[derive(Clone, Default)]
pub(super) struct Choices {
    /// The order of places with equally few pods: 0 for the one with the cheapest option first, other numbers for arbitrary ones.
    pub(super) variant: u64,
    /// Whether the pool that sells the cheapest machine for a pod goes before others of its weight.
    pub(super) cheapest_pool_first: bool,
    /// Whether nobody looks for a node that has room for all pods that must share one.
    pub(super) splits_units: bool,
    /// The zone that goes before others with equally few pods, for some classes.
    pub(super) zones: FxHashMap<PodClassId, Symbol>,
}

impl Choices {
    /// Returns the number of the order of places for a pod while there are so many planned nodes.
    pub(super) fn variant_at(&self, nodes: usize) -> u64 {
        if self.variant < FIRST_BY_NODE {
            self.variant
        } else {
            // Any two numbers that come from different variants or nodes differ.
            (self.variant << 32) + nodes as u64
        }
    }
}

/// The cheapest attempt so far, and the choices that led to it.
struct Best {
    attempt: Attempt,
    choices: Choices,
}

impl Solver<'_> {
    /// Places all pods one by one with several choices. `rival` is the plan that the result will be compared with.
    pub(super) fn first_fit(
        &mut self,
        pending: &[Pending],
        mode: PlacementMode<'_>,
        rival: &Attempt,
    ) -> Attempt {
        let mut best = Best {
            attempt: self.attempt(pending, mode),
            choices: Choices::default(),
        };
        if best.attempt.is_open() && !self.units.is_empty() {
            // Karpenter does not look for a node that has room for all pods that must share one. Where they cannot all be together,
            // that buys a larger node for some of them, or leaves nothing of a limit for other pods.
            let units = std::mem::take(&mut self.units);
            let attempt = self.attempt(pending, mode);
            self.units = units;
            if !best.attempt.is_as_good_as(&attempt) {
                let choices = Choices {
                    splits_units: true,
                    ..Choices::default()
                };
                best = Best { attempt, choices };
            }
        }
        let first = best.choices.clone();
        let has_rivals = self.has_rivals();
        if self.varies && has_rivals {
            let choices = Choices {
                cheapest_pool_first: true,
                ..first.clone()
            };
            self.try_choices(choices, pending, mode, &mut best);
        }
        let placed = self.classes_with_places(pending);
        if self.varies && !placed.is_empty() {
            let variants = (VARIED_PODS / pending.len()).min(MOST_VARIANTS) as u64;
            for variant in 1..=variants {
                let choices = Choices {
                    variant,
                    cheapest_pool_first: has_rivals && variant % 2 == 1,
                    ..first.clone()
                };
                self.try_choices(choices, pending, mode, &mut best);
            }
            if best.attempt.is_open() || best.attempt.may_beat(rival, NEAR) {
                self.change_zones(&placed, pending, mode, &mut best);
            }
        }
        best.attempt
    }

    /// Tries another zone for one class after the other, until none makes the plan better or many were tried.
    fn change_zones(
        &mut self,
        classes: &[PodClassId],
        pending: &[Pending],
        mode: PlacementMode<'_>,
        best: &mut Best,
    ) {
        let zones = self.zones();
        let mut most = (CHANGED_PODS / pending.len()).min(MOST_CHANGES);
        // All classes together first: pods that want to be near others may share machines then.
        for zone in zones.iter().take(most) {
            let choices = Choices {
                zones: classes.iter().map(|class| (*class, *zone)).collect(),
                ..best.choices.clone()
            };
            self.try_choices(choices, pending, mode, best);
        }
        most = most.saturating_sub(zones.len());
        let changes = classes.iter().flat_map(|class| {
            let zones = zones.iter();
            zones.map(|zone| (*class, *zone))
        });
        let changes: Vec<(PodClassId, Symbol)> = changes.collect();
        let mut in_vain = 0;
        for (class, zone) in changes.iter().cycle().take(most) {
            if in_vain == changes.len() {
                break;
            }
            let mut choices = best.choices.clone();
            let is_new = choices.zones.insert(*class, *zone) != Some(*zone);
            if is_new && self.try_choices(choices, pending, mode, best) {
                in_vain = 0;
            } else {
                in_vain += 1;
            }
        }
    }

    /// Places all pods with these choices. Returns whether that is better than `best`, which then becomes the result.
    fn try_choices(
        &mut self,
        choices: Choices,
        pending: &[Pending],
        mode: PlacementMode<'_>,
        best: &mut Best,
    ) -> bool {
        let units = self.units.clone();
        if choices.splits_units {
            self.units.clear();
        }
        self.choices = choices;
        let attempt = self.attempt(pending, mode);
        let choices = std::mem::take(&mut self.choices);
        self.units = units;
        let is_better = attempt.is_better_than(&best.attempt);
        if is_better {
            *best = Best { attempt, choices };
        }
        is_better
    }

    /// Returns whether pools share a weight, so that a node may be of any of them.
    fn has_rivals(&self) -> bool {
        let mut pools = self.opening_order.windows(2);
        pools.any(|two| self.catalogs[two[0]].weight == self.catalogs[two[1]].weight)
    }

    /// Returns the classes of pods that have rules about zones or other places of more than one node, or count for those of
    /// others, in the order of the pods.
    fn classes_with_places(&mut self, pending: &[Pending]) -> Vec<PodClassId> {
        let mut looked_at = FxHashSet::default();
        let mut classes: Vec<PodClassId> = pending.iter().map(|pod| pod.class).collect();
        classes.retain(|class| {
            looked_at.insert(*class) && {
                let keys = self.topology(*class).keys;
                keys.iter().any(|key| *key != Symbol::HOSTNAME)
            }
        });
        classes
    }

    /// Returns the zones in which pools can buy, by name.
    fn zones(&self) -> Vec<Symbol> {
        let catalogs = self.catalogs.iter();
        let mut zones: Vec<Symbol> = catalogs
            .flat_map(|catalog| catalog.values(Symbol::ZONE))
            .collect();
        // By name and not by number: numbers depend on what the cluster saw before.
        zones.sort_by_key(|zone| self.cluster.text(*zone));
        zones.dedup();
        zones
    }
}
