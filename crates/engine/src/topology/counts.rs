//! Counters of matching pods and of nodes by topology domain.
//!
//! Invariant: entries with count zero are removed, so an empty map means that there are no pods.

use std::collections::BTreeMap;

use fixedbitset::FixedBitSet;
use rustc_hash::FxHashMap;

use crate::class::SpreadRule;
use crate::cluster::NodeId;
use crate::intern::Symbol;

/// The number of pods for each pair of topology key and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairCounts {
    counts: FxHashMap<(Symbol, Symbol), i64>,
}

impl PairCounts {
    pub(crate) fn count(&self, key: Symbol, value: Symbol) -> i64 {
        self.counts.get(&(key, value)).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub(crate) fn change(&mut self, key: Symbol, value: Symbol, delta: i64) {
        let count = self.counts.entry((key, value)).or_insert(0);
        *count += delta;
        if *count == 0 {
            self.counts.remove(&(key, value));
        }
    }
}

/// The sum of weights for each pair of topology key and value, with the number of terms that contributed: a
/// sum of zero differs from no term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairScores {
    sums: FxHashMap<(Symbol, Symbol), WeightedSum>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WeightedSum {
    sum: i64,
    terms: i64,
}

impl PairScores {
    pub(crate) fn sum(&self, key: Symbol, value: Symbol) -> i64 {
        self.sums
            .get(&(key, value))
            .map_or(0, |weighed| weighed.sum)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    pub(crate) fn change(&mut self, key: Symbol, value: Symbol, weight: i64, delta: i64) {
        let weighed = self.sums.entry((key, value)).or_default();
        weighed.sum += weight * delta;
        weighed.terms += delta;
        // The sum alone does not tell: weights of affinity and anti-affinity can add up to zero.
        if weighed.terms == 0 {
            self.sums.remove(&(key, value));
        }
    }
}

/// The domains of one spread constraint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpreadCounts {
    pub(crate) rule: SpreadRule,
    /// Whether the constraint's selector matches the pod itself.
    pub(crate) self_match: bool,
    /// The nodes that belong to a domain.
    pub(crate) eligible: FixedBitSet,
    places: FxHashMap<Symbol, Place>,
    /// The number of domains for each number of pods; the first entry is the minimum.
    histogram: BTreeMap<i64, u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    nodes: u32,
    pods: i64,
}

impl SpreadCounts {
    pub(crate) fn new(rule: SpreadRule, self_match: bool) -> Self {
        SpreadCounts {
            rule,
            self_match,
            eligible: FixedBitSet::new(),
            places: FxHashMap::default(),
            histogram: BTreeMap::new(),
        }
    }

    pub(crate) fn pods_at(&self, place: Symbol) -> i64 {
        self.places.get(&place).map_or(0, |place| place.pods)
    }

    /// Returns the domains that count.
    pub(crate) fn all_places(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.places.keys().copied()
    }

    /// Returns whether there are fewer domains than `minDomains`.
    pub(crate) fn lacks_domains(&self) -> bool {
        (self.places.len() as i64) < self.rule.min_domains
    }

    /// Returns the number of pods in the domain with the fewest; 0 if there are fewer domains than
    /// `minDomains`.
    pub(crate) fn fewest(&self) -> i64 {
        // Too few domains count as if an empty one existed.
        if self.lacks_domains() {
            return 0;
        }
        self.histogram.keys().next().copied().unwrap_or(0)
    }

    pub(crate) fn join(&mut self, node: NodeId, place: Symbol) {
        self.eligible.grow_and_insert(node.index());
        self.change(place, 1, 0);
    }

    pub(crate) fn leave(&mut self, node: NodeId, place: Symbol) {
        // A node that never counted, because of policies or missing labels, must not be taken off.
        if self.eligible.contains(node.index()) {
            self.eligible.set(node.index(), false);
            self.change(place, -1, 0);
        }
    }

    pub(crate) fn count(&mut self, node: NodeId, place: Symbol, delta: i64) {
        // Pods on nodes that do not count are ignored, as in kube-scheduler's `calPreFilterState`.
        if self.eligible.contains(node.index()) {
            self.change(place, 0, delta);
        }
    }

    fn change(&mut self, key: Symbol, nodes: i32, pods: i64) {
        let place = self.places.entry(key).or_default();
        let before = *place;
        place.nodes = place.nodes.wrapping_add_signed(nodes);
        place.pods += pods;
        let after = *place;
        if after.nodes == 0 {
            self.places.remove(&key);
        }
        // Only domains with nodes are in the histogram, because only they can be the minimum.
        if before.nodes > 0 {
            self.tally(before.pods, -1);
        }
        if after.nodes > 0 {
            self.tally(after.pods, 1);
        }
    }

    fn tally(&mut self, pods: i64, delta: i32) {
        let places = self.histogram.entry(pods).or_insert(0);
        *places = places.wrapping_add_signed(delta);
        if *places == 0 {
            self.histogram.remove(&pods);
        }
    }
}
