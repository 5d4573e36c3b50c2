//! What pods prefer, as demands on nodes that are to be bought.
//!
//! A node that does not exist yet can be what its pods would like best. So a pod is planned as if it demanded all that it prefers, then with one
//! preference less, and last as it is, in Karpenter's order (`Preferences.Relax`): affinity to pods, the heaviest first; anti-affinity to pods; the
//! heaviest preferred labels of nodes, of which one term is demanded at a time; spreading over hosts; pools with a PreferNoSchedule taint.
//!
//! What a preference may cost is bounded: those that make a pod's own cheapest machine dearer than its pool allows
//! ([`super::NodeTemplate::preference_price`]) are given up before anything is planned, and all of them if the plan as a whole costs that much more than
//! one without.
//!
//! Invariant: a pod is only ever looked at as a class of more demands; it counts in the cluster as the class that it has.

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::catalog::Catalog;
use super::solve::{Pending, Solver};
use super::{PlanRequest, PreferencePolicy};
use crate::class::{PodClass, PodClassId};
use crate::cluster::Cluster;
use crate::intern::Symbol;
use crate::model::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Operator, PodTemplate, TaintEffect,
    WhenUnsatisfiable, label,
};

/// More steps than this from all preferences to none are not taken: the rest is given up at once.
const MOST_STEPS: usize = 16;

/// What is known of the preferences of classes, for one set of pools.
#[derive(Default)]
pub(super) struct Preferences {
    pub(super) policy: PreferencePolicy,
    /// By class: classes that demand more, the most demanding first.
    steps: FxHashMap<PodClassId, Arc<[PodClassId]>>,
    /// By class and how many pods of it wait: the most demanding that costs no more than allowed.
    chosen: FxHashMap<(PodClassId, u32), PodClassId>,
}

impl Preferences {
    /// Nothing known yet.
    pub(super) fn of(request: &PlanRequest) -> Self {
        Preferences {
            policy: request.preferences,
            ..Preferences::default()
        }
    }

    /// The class to look at next where a pod found no place as the one it was looked at.
    fn after(&self, pod: &Pending) -> Option<PodClassId> {
        let steps = self.steps.get(&pod.own)?;
        let at = steps.iter().position(|step| *step == pod.class)?;
        Some(steps.get(at + 1).copied().unwrap_or(pod.own))
    }
}

/// What one pod of a class costs at least, on a machine with as many of its like as wait and have room: a price, for so many pods.
#[derive(Clone, Copy)]
struct Rate {
    price: u64,
    pods: u64,
}

impl Rate {
    fn is_below(self, other: Rate) -> bool {
        u128::from(self.price) * u128::from(other.pods)
            < u128::from(other.price) * u128::from(self.pods)
    }

    /// Whether it is at most so many thousandths more than another.
    fn is_within(self, allowance: u32, other: Rate) -> bool {
        let most = u128::from(other.price) * u128::from(1000 + allowance);
        u128::from(self.price) * u128::from(other.pods) * 1000 <= most * u128::from(self.pods)
    }
}

impl Solver<'_> {
    /// The same pods, looked at as what they prefer as far as that may cost.
    pub(super) fn with_preferences(&mut self, pending: &[Pending]) -> Vec<Pending> {
        let mut counts: FxHashMap<PodClassId, u32> = FxHashMap::default();
        for pod in pending {
            *counts.entry(pod.own).or_default() += 1;
        }
        let mut wanted = pending.to_vec();
        for pod in &mut wanted {
            pod.class = self.preferred(pod.own, counts[&pod.own]);
        }
        wanted
    }

    /// Gives up one preference of each pod that has some left. `false` if none has.
    pub(super) fn give_up_one(&self, pending: &mut [Pending]) -> bool {
        let mut some = false;
        for pod in pending {
            if let Some(class) = self.preferences.after(pod) {
                pod.class = class;
                some = true;
            }
        }
        some
    }

    /// The most that a plan with preferences may cost beside one without: micro-dollars an hour.
    pub(super) fn most_for_preferences(&self, without: u64) -> u64 {
        match self.preferences.policy {
            PreferencePolicy::Respect => u64::MAX,
            _ => {
                let allowances = self.catalogs.iter().map(|catalog| catalog.preference_price);
                let allowance = allowances.max().unwrap_or(0);
                let more = u128::from(without) * u128::from(allowance) / 1000;
                without.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
            }
        }
    }

    /// The most demanding class that so many pods of a class may be looked at.
    fn preferred(&mut self, own: PodClassId, count: u32) -> PodClassId {
        if self.preferences.policy == PreferencePolicy::Ignore {
            return own;
        }
        if let Some(chosen) = self.preferences.chosen.get(&(own, count)) {
            return *chosen;
        }
        let steps = steps(own, &self.catalogs, self.cluster);
        let mut chosen = own;
        if !steps.is_empty() {
            let base = self.rate(own, count).map(|(rate, _)| rate);
            let is_open = |solver: &mut Self, step: &PodClassId| match solver.rate(*step, count) {
                None => false,
                Some(_) if solver.preferences.policy == PreferencePolicy::Respect => true,
                Some((rate, allowance)) => base.is_none_or(|base| rate.is_within(allowance, base)),
            };
            for step in steps.iter() {
                if is_open(self, step) {
                    chosen = *step;
                    break;
                }
            }
        }
        self.preferences.steps.insert(own, steps);
        self.preferences.chosen.insert((own, count), chosen);
        chosen
    }

    /// What each of so many pods of a class costs at least, and by how many thousandths its pool lets preferences raise that. None if nothing can be
    /// bought for them.
    fn rate(&mut self, class: PodClassId, count: u32) -> Option<(Rate, u32)> {
        let most = most_on_a_host(self.cluster.class(class), self.cluster);
        let most = most.min(i64::from(count));
        let mut best: Option<(Rate, u32)> = None;
        let mut weight = None;
        for catalog in &mut self.catalogs {
            if best.is_some() && weight != Some(catalog.weight) {
                break;
            }
            weight = Some(catalog.weight);
            let mut open = catalog.verdicts(class, self.cluster).fits.clone();
            open.intersect_with(&catalog.available);
            let requests = &self.cluster.class(class).shape.requests.real;
            for option in open.ones() {
                let free = &catalog.room_of(option).free;
                let asked = requests.iter().filter(|(_, amount)| *amount > 0);
                let by_room = asked.map(|(name, amount)| free.amount(name) / amount);
                let pods = by_room.min().unwrap_or(i64::MAX).min(free.pods).min(most);
                let Some(pods) = u64::try_from(pods).ok().filter(|pods| *pods > 0) else {
                    continue;
                };
                let rate = Rate {
                    price: catalog.price_of(option),
                    pods,
                };
                if best.is_none_or(|(best, _)| rate.is_below(best)) {
                    best = Some((rate, catalog.preference_price));
                }
            }
        }
        best
    }
}

/// How many pods of a class one node takes at most by what they demand of each other.
fn most_on_a_host(class: &PodClass, cluster: &Cluster) -> i64 {
    let names = cluster.names();
    let is_apart = class.anti_affinity.iter().any(|term| {
        term.key == Symbol::HOSTNAME && term.matches_newcomer(class, cluster.namespaces(), names)
    });
    if is_apart {
        return 1;
    }
    let by_host = class
        .spread
        .iter()
        .filter(|rule| rule.hard && rule.key == Symbol::HOSTNAME);
    by_host
        .filter(|rule| rule.query.matches(&class.labels, names))
        .map(|rule| rule.max_skew)
        .min()
        .unwrap_or(i64::MAX)
}

/// The classes of more demands than a class has, the most demanding first.
fn steps(own: PodClassId, catalogs: &[Catalog], cluster: &mut Cluster) -> Arc<[PodClassId]> {
    let shape = &cluster.class(own).shape;
    let avoided: Vec<String> = catalogs
        .iter()
        .filter(|catalog| {
            let mut taints = catalog.taints.iter();
            taints.any(|taint| {
                taint.effect == TaintEffect::PreferNoSchedule && !shape.tolerates(*taint)
            })
        })
        .map(|catalog| catalog.pool.clone())
        .collect();
    let template = cluster.template(own);
    if !has_preferences(template) && avoided.is_empty() {
        return Arc::default();
    }
    let mut templates = demanding(&template.clone(), &avoided);
    templates.truncate(MOST_STEPS);
    let mut classes: Vec<PodClassId> = Vec::with_capacity(templates.len());
    for template in &templates {
        // A preference that cannot be a demand is none.
        if let Ok(class) = cluster.pod_class(template)
            && class != own
            && !classes.contains(&class)
        {
            classes.push(class);
        }
    }
    classes.into()
}

fn has_preferences(template: &PodTemplate) -> bool {
    let affinity = &template.affinity;
    let of_pods = [&affinity.pod_affinity, &affinity.pod_anti_affinity];
    let by_nodes = affinity.node_affinity.as_ref();
    of_pods
        .into_iter()
        .flatten()
        .any(|own| !own.preferred.is_empty())
        || by_nodes.is_some_and(|own| !own.preferred.is_empty())
        || template
            .topology_spread_constraints
            .iter()
            .any(is_soft_by_host)
}

/// Spreading over zones as a preference is planned without a class of its own: see [`super::numbers`].
fn is_soft_by_host(constraint: &crate::model::TopologySpreadConstraint) -> bool {
    constraint.when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway
        && constraint.topology_key == label::HOSTNAME
}

/// What is still demanded of what a template prefers: so many of each sort, counted from the lightest.
#[derive(Clone, Copy, PartialEq)]
struct Kept {
    near: usize,
    apart: usize,
    nodes: usize,
    spread: usize,
    avoids: bool,
}

impl Kept {
    /// The same with one preference less, in Karpenter's order. None if nothing is left.
    fn less(self) -> Option<Self> {
        let mut less = self;
        let first = [
            &mut less.near,
            &mut less.apart,
            &mut less.nodes,
            &mut less.spread,
        ]
        .into_iter()
        .find(|count| **count > 0);
        match first {
            Some(count) => *count -= 1,
            None if less.avoids => less.avoids = false,
            None => return None,
        }
        Some(less)
    }

    fn is_nothing(self) -> bool {
        self.less().is_none()
    }
}

/// The template with its preferences as demands: all of them, then one less, and so on, without the one that demands none.
fn demanding(template: &PodTemplate, avoided: &[String]) -> Vec<PodTemplate> {
    let mut own = template.clone();
    let affinity = &mut own.affinity;
    let of_pods = [&mut affinity.pod_affinity, &mut affinity.pod_anti_affinity];
    for own in of_pods.into_iter().flatten() {
        own.preferred.sort_by_key(|term| Reverse(term.weight));
    }
    if let Some(own) = &mut affinity.node_affinity {
        own.preferred.sort_by_key(|term| Reverse(term.weight));
    }
    let affinity = &own.affinity;
    let terms =
        |of: &Option<crate::model::PodAffinity>| of.as_ref().map_or(0, |own| own.preferred.len());
    let by_nodes = affinity.node_affinity.as_ref();
    let mut kept = Kept {
        near: terms(&affinity.pod_affinity),
        apart: terms(&affinity.pod_anti_affinity),
        nodes: by_nodes.map_or(0, |own| own.preferred.len()),
        spread: own
            .topology_spread_constraints
            .iter()
            .filter(|constraint| is_soft_by_host(constraint))
            .count(),
        avoids: !avoided.is_empty(),
    };
    let mut all = Vec::new();
    while !kept.is_nothing() {
        all.push(with_demands(&own, template, kept, avoided));
        let Some(less) = kept.less() else { break };
        kept = less;
    }
    all
}

/// The template with what is kept as demands. `sorted` has its preferences by falling weight.
fn with_demands(
    sorted: &PodTemplate,
    template: &PodTemplate,
    kept: Kept,
    avoided: &[String],
) -> PodTemplate {
    let mut wanted = template.clone();
    let last = |of: &Option<crate::model::PodAffinity>, count: usize| {
        let preferred = of.iter().flat_map(|own| &own.preferred);
        let skipped = of
            .as_ref()
            .map_or(0, |own| own.preferred.len().saturating_sub(count));
        let terms: Vec<_> = preferred
            .skip(skipped)
            .map(|term| term.pod_affinity_term.clone())
            .collect();
        terms
    };
    let near = last(&sorted.affinity.pod_affinity, kept.near);
    let apart = last(&sorted.affinity.pod_anti_affinity, kept.apart);
    if let Some(own) = &mut wanted.affinity.pod_affinity {
        own.required.extend(near);
    }
    if let Some(own) = &mut wanted.affinity.pod_anti_affinity {
        own.required.extend(apart);
    }
    let by_nodes = sorted.affinity.node_affinity.iter();
    let preferred: Vec<_> = by_nodes.flat_map(|own| &own.preferred).collect();
    let heaviest = preferred.len().checked_sub(kept.nodes);
    let heaviest = heaviest.and_then(|at| preferred.get(at));
    // A weight of 0 is no preference, and a term without expressions prefers no node to another.
    if let Some(term) = heaviest.filter(|term| term.weight > 0) {
        demand_of_nodes(&mut wanted, &term.preference);
    }
    let by_host = wanted
        .topology_spread_constraints
        .iter_mut()
        .filter(|constraint| is_soft_by_host(constraint));
    // Those that come first are given up first.
    let all = sorted.topology_spread_constraints.iter();
    let given_up = all
        .filter(|constraint| is_soft_by_host(constraint))
        .count()
        .saturating_sub(kept.spread);
    for constraint in by_host.skip(given_up) {
        constraint.when_unsatisfiable = WhenUnsatisfiable::DoNotSchedule;
    }
    if kept.avoids && !avoided.is_empty() {
        let elsewhere = NodeSelectorTerm {
            match_expressions: vec![NodeSelectorRequirement {
                key: label::NODE_POOL.to_owned(),
                operator: Operator::NotIn,
                values: avoided.to_vec(),
            }],
            match_fields: Vec::new(),
        };
        demand_of_nodes(&mut wanted, &elsewhere);
    }
    wanted
}

/// Adds a term to every alternative of what a template demands of its nodes.
fn demand_of_nodes(template: &mut PodTemplate, term: &NodeSelectorTerm) {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return;
    }
    let own = template
        .affinity
        .node_affinity
        .get_or_insert_with(Default::default);
    match &mut own.required {
        Some(required) => {
            for alternative in &mut required.node_selector_terms {
                let is_empty =
                    alternative.match_expressions.is_empty() && alternative.match_fields.is_empty();
                // An alternative that says nothing matches no node, and is to stay so.
                if !is_empty {
                    let expressions = term.match_expressions.iter().cloned();
                    alternative.match_expressions.extend(expressions);
                    alternative
                        .match_fields
                        .extend(term.match_fields.iter().cloned());
                }
            }
        }
        None => {
            own.required = Some(NodeSelector {
                node_selector_terms: vec![term.clone()],
            });
        }
    }
}
