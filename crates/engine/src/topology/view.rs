//! The view of a pod class: the counts for its spread constraints and its pod affinity.
//!
//! `join` and `leave` are for nodes, `apply` is for pods. Each can be undone exactly, on which rollback relies.

use super::{Effect, PairCounts, PairScores, SpreadCounts};
use crate::class::{NodeTaint, PodClass, SpreadRule, StaticRules};
use crate::cluster::NodeId;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::profile::Spread;
use crate::reason::Plugin;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// The DoNotSchedule constraints in their order.
    pub(crate) hard: Vec<SpreadCounts>,
    /// The ScheduleAnyway constraints, or the defaults.
    pub(crate) soft: Vec<SpreadCounts>,
    /// Whether the soft constraints are the pod's own, so that nodes which lack one of their keys are left out.
    pub(crate) soft_declared: bool,
    /// Pods that match all required affinity terms, by each term's key.
    pub(crate) affinity: PairCounts,
    /// Pods that match a required anti-affinity term.
    pub(crate) anti: PairCounts,
    /// Pods whose required anti-affinity matches this class.
    pub(crate) existing_anti: PairCounts,
    /// The preferences of the class and those of existing pods.
    pub(crate) score: PairScores,
    /// Whether the pod matches its own required affinity.
    pub(crate) self_affine: bool,
    /// The operating system that a node must have to count in constraints that honor node affinity.
    os: Option<Symbol>,
    affinity_keys: Vec<Symbol>,
    /// The topology keys, without the hostname, by which nodes differ for the class; sorted.
    keys: Vec<Symbol>,
    by_host: bool,
    /// The topology keys of required anti-affinity terms that match the class and belong to pods which may be placed.
    away_keys: Vec<Symbol>,
    /// Hosts whose counts changed since the last [`View::take_changed_hosts`].
    changed_hosts: ChangedHosts,
}

/// The hosts whose counts changed, with their hostname labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ChangedHosts {
    /// Any host may have changed.
    #[default]
    Any,
    These(Vec<(NodeId, Option<Symbol>)>),
}

/// If more hosts change than this, they are not listed one by one.
const MAX_CHANGED_HOSTS: usize = 4096;

/// Whether a pod stays on its node, is terminating, or is there only in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodPresence {
    Here,
    /// The pod is terminating; spread constraints no longer count it.
    Leaving,
    /// The pod is added or removed in a trial. kube-scheduler's PodTopologySpread then ignores whether the pod is terminating, so removing
    /// a terminating pod, which was never counted, lowers the count by one.
    Tried,
}

impl PodPresence {
    pub(crate) fn of(terminating: bool) -> Self {
        if terminating {
            PodPresence::Leaving
        } else {
            PodPresence::Here
        }
    }
}

/// The properties of a node that a view reads.
#[derive(Clone, Copy)]
pub(crate) struct ViewedNode<'a> {
    pub(crate) id: NodeId,
    pub(crate) name: Symbol,
    pub(crate) labels: &'a LabelSet,
    pub(crate) taints: &'a [NodeTaint],
}

impl View {
    /// Creates an empty view. `defaults` are the spread rules for a pod that declares none.
    pub(crate) fn new(
        class: &PodClass,
        defaults: Vec<SpreadRule>,
        self_affine: bool,
        StaticRules {
            rules: profile,
            os_filter,
        }: StaticRules<'_>,
        names: &Interner,
    ) -> Self {
        let declared = !class.spread.is_empty();
        // Constraints of a profile are treated like the pod's own; only the system's defaults let nodes without the
        // keys take part.
        let soft_declared = declared || !matches!(profile.spread, Spread::System);
        let rules = if declared {
            class.spread.clone()
        } else {
            defaults
        };
        let counts = rules.into_iter().map(|rule| {
            let self_match = rule.query.matches(&class.labels, names);
            SpreadCounts::new(rule, self_match)
        });
        let (mut hard, mut soft): (Vec<_>, Vec<_>) = counts.partition(|counts| counts.rule.hard);
        // Counts that no enabled plugin reads are dropped, so that no pod pays for updating them.
        if !profile.filters(Plugin::PodTopologySpread) {
            hard.clear();
        }
        if profile.weight(Plugin::PodTopologySpread) == 0 {
            soft.clear();
        }
        let mut view = View {
            hard,
            soft,
            soft_declared,
            self_affine,
            os: class.shape.os.filter(|_| os_filter),
            affinity_keys: class.affinity.iter().map(|term| term.key).collect(),
            ..View::default()
        };
        let spread: Vec<_> = view
            .hard
            .iter()
            .chain(&view.soft)
            .map(|counts| counts.rule.key)
            .collect();
        let terms = class
            .affinity
            .iter()
            .chain(&class.anti_affinity)
            .map(|term| term.key);
        spread
            .into_iter()
            .chain(terms)
            .for_each(|key| view.expect_key(key));
        view
    }

    /// Returns the topology keys, without the hostname, by which nodes differ for the class; sorted.
    pub(crate) fn keys(&self) -> &[Symbol] {
        &self.keys
    }

    /// Returns the topology keys by which the required anti-affinity of other pods may exclude the class.
    pub(crate) fn away_keys(&self) -> &[Symbol] {
        &self.away_keys
    }

    /// Returns whether other pods can exclude the class only by the resources they use.
    pub(crate) fn is_filtered_by_room_only(&self, class: &PodClass) -> bool {
        let free = class.affinity.is_empty() && class.anti_affinity.is_empty();
        let free = free
            && class.volumes.is_empty()
            && class.features.is_empty()
            && class.devices.is_none();
        free && self.hard.is_empty() && self.away_keys.is_empty()
    }

    /// Returns whether hosts differ for the class.
    pub(crate) fn by_host(&self) -> bool {
        self.by_host
    }

    /// Records that pods with these effects may be placed from now on.
    pub(crate) fn expect(&mut self, effects: &[Effect]) {
        for effect in effects {
            // Recorded before any such pod is placed: a plan must know what its own pods may do to each other.
            if let Effect::ExistingAnti(key) = *effect
                && !self.away_keys.contains(&key)
            {
                self.away_keys.push(key);
            }
            if let Effect::Anti(key) | Effect::ExistingAnti(key) | Effect::Score { key, .. } =
                *effect
            {
                self.expect_key(key);
            }
        }
    }

    fn expect_key(&mut self, key: Symbol) {
        if key == Symbol::HOSTNAME {
            self.by_host = true;
        } else if let Err(index) = self.keys.binary_search(&key) {
            self.keys.insert(index, key);
        }
    }

    /// Returns the hosts whose counts changed since the last call, with their hostname labels; `None` if that is not known.
    pub(crate) fn take_changed_hosts(&mut self) -> Option<Vec<(NodeId, Option<Symbol>)>> {
        // Without rules about hosts no host is noted, so an empty list would say nothing.
        if !self.by_host {
            return None;
        }
        match std::mem::replace(&mut self.changed_hosts, ChangedHosts::These(Vec::new())) {
            ChangedHosts::Any => None,
            ChangedHosts::These(nodes) => Some(nodes),
        }
    }

    fn note_changed_host(&mut self, spot: ViewedNode<'_>) {
        let ChangedHosts::These(nodes) = &mut self.changed_hosts else {
            return;
        };
        let host = (spot.id, spot.labels.value(Symbol::HOSTNAME));
        // Only the last entry is compared: pods often come to one host in a row, and other duplicates do no harm.
        if nodes.len() >= MAX_CHANGED_HOSTS {
            self.changed_hosts = ChangedHosts::Any;
        } else if nodes.last() != Some(&host) {
            nodes.push(host);
        }
    }

    /// Returns whether adding and removing nodes changes the view.
    pub(crate) fn counts_nodes(&self) -> bool {
        !(self.hard.is_empty() && self.soft.is_empty())
    }

    /// Adds a node, which has no pods yet.
    pub(crate) fn join(&mut self, class: &PodClass, spot: ViewedNode<'_>, names: &Interner) {
        let has_all = |all: &[SpreadCounts]| {
            all.iter()
                .all(|counts| spot.labels.value(counts.rule.key).is_some())
        };
        let os = self.os;
        // Worked out at most once for a node, and only if a constraint honors affinity.
        let mut selected = None;
        let mut honored = |rule: &SpreadRule| {
            let selected = *selected.get_or_insert_with(|| {
                os.is_none_or(|os| spot.labels.value(Symbol::OS) == Some(os))
                    && class.shape.selects(spot.labels, spot.name, names)
            });
            (!rule.honor_affinity || selected)
                && (!rule.honor_taints
                    || spot
                        .taints
                        .iter()
                        .all(|taint| !taint.is_hard() || class.shape.tolerates(*taint)))
        };
        // kube-scheduler counts a node only if it has the keys of all hard constraints.
        if has_all(&self.hard) {
            for counts in &mut self.hard {
                if honored(&counts.rule) {
                    counts.join(spot.id, place(counts.rule.key, spot));
                }
            }
        }
        let all_soft = !self.soft_declared || has_all(&self.soft);
        for counts in &mut self.soft {
            let by_host = counts.rule.key == Symbol::HOSTNAME;
            // For scoring, kube-scheduler counts the pods on the node itself for a constraint over hosts, whatever the inclusion policies
            // say.
            if by_host || (all_soft && honored(&counts.rule)) {
                counts.join(spot.id, soft_place(counts.rule.key, spot));
            }
        }
    }

    /// Removes a node, whose pods are removed already.
    pub(crate) fn leave(&mut self, spot: ViewedNode<'_>) {
        for counts in &mut self.hard {
            counts.leave(spot.id, place(counts.rule.key, spot));
        }
        for counts in &mut self.soft {
            counts.leave(spot.id, soft_place(counts.rule.key, spot));
        }
    }

    /// Adds `delta` pods (or removes them, if negative) with these effects on a node.
    pub(crate) fn apply(
        &mut self,
        effects: &[Effect],
        spot: ViewedNode<'_>,
        delta: i64,
        presence: PodPresence,
    ) {
        if self.by_host {
            self.note_changed_host(spot);
        }
        for effect in effects {
            match *effect {
                Effect::Hard(_) | Effect::Soft(_) if presence == PodPresence::Leaving => {}
                Effect::HardInThought(_) if presence != PodPresence::Tried => {}
                Effect::Hard(index) | Effect::HardInThought(index) => {
                    let counts = &mut self.hard[index];
                    counts.count(spot.id, place(counts.rule.key, spot), delta);
                }
                Effect::Soft(index) => {
                    let counts = &mut self.soft[index];
                    counts.count(spot.id, soft_place(counts.rule.key, spot), delta);
                }
                Effect::Affinity => {
                    // A node without one of the keys counts for the others, as in kube-scheduler's
                    // `updateWithAffinityTerms`.
                    for &key in &self.affinity_keys {
                        if let Some(value) = spot.labels.value(key) {
                            self.affinity.change(key, value, delta);
                        }
                    }
                }
                Effect::Anti(key) => {
                    if let Some(value) = spot.labels.value(key) {
                        self.anti.change(key, value, delta);
                    }
                }
                Effect::ExistingAnti(key) => {
                    if let Some(value) = spot.labels.value(key) {
                        self.existing_anti.change(key, value, delta);
                    }
                }
                Effect::Score { key, weight } => {
                    if let Some(value) = spot.labels.value(key) {
                        self.score.change(key, value, weight, delta);
                    }
                }
            }
        }
    }
}

fn place(key: Symbol, spot: ViewedNode<'_>) -> Symbol {
    spot.labels.value(key).unwrap_or(Symbol::EMPTY)
}

/// Returns the domain of a node for scoring. kube-scheduler counts hosts by the node itself there, whatever its hostname label says.
fn soft_place(key: Symbol, spot: ViewedNode<'_>) -> Symbol {
    if key == Symbol::HOSTNAME {
        spot.name
    } else {
        place(key, spot)
    }
}
