//! Plans pods' preferences as if they were requirements, and relaxes them step by step.
//!
//! A node that does not exist yet can be bought the way its pods prefer. So a pod is first planned as if it required
//! everything that it prefers, then with one preference less, and finally as it is, in Karpenter's order
//! (`Preferences.Relax`): pod affinity, the heaviest term first; pod anti-affinity; the heaviest preferred node labels, of
//! which one term is required at a time; spreading over hosts; avoiding pools with a PreferNoSchedule taint.
//!
//! The cost of preferences is bounded. Those that make a pod's own cheapest machine more expensive than its pool allows
//! ([`super::NodeTemplate::preference_price`]) are dropped before planning, and all are dropped if the whole plan costs that
//! much more than one without preferences.
//!
//! Invariant: preferences change only the class that a pod is planned as; in the cluster it counts as its real class.

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

/// The maximum number of relaxation steps; preferences left after that are dropped together.
const MOST_STEPS: usize = 16;

/// The relaxation steps of pod classes, for one set of pools.
#[derive(Default)]
pub(super) struct Preferences {
    pub(super) policy: PreferencePolicy,
    /// For each class its stricter variants, the strictest first.
    steps: FxHashMap<PodClassId, Arc<[PodClassId]>>,
    /// For a class and a number of waiting pods, the strictest variant whose price is allowed.
    chosen: FxHashMap<(PodClassId, u32), PodClassId>,
}

impl Preferences {
    /// Creates an empty table.
    pub(super) fn of(request: &PlanRequest) -> Self {
        Preferences {
            policy: request.preferences,
            ..Preferences::default()
        }
    }

    /// Returns the next variant to plan a pod as, after it found no place as `pod.class`.
    fn after(&self, pod: &Pending) -> Option<PodClassId> {
        let steps = self.steps.get(&pod.own)?;
        let at = steps.iter().position(|step| *step == pod.class)?;
        Some(steps.get(at + 1).copied().unwrap_or(pod.own))
    }
}

/// The lowest price per pod of a class: the price of one machine, and how many of the pods it holds.
#[derive(Clone, Copy)]
struct Rate {
    price: u64,
    pods: u64,
}

impl Rate {
    // Compared by cross-multiplication: dividing would round, and rates that differ by little would depend on it.
    fn is_below(self, other: Rate) -> bool {
        u128::from(self.price) * u128::from(other.pods)
            < u128::from(other.price) * u128::from(self.pods)
    }

    /// Returns whether the rate is at most `allowance` thousandths above `other`.
    fn is_within(self, allowance: u32, other: Rate) -> bool {
        let most = u128::from(other.price) * u128::from(1000 + allowance);
        u128::from(self.price) * u128::from(other.pods) * 1000 <= most * u128::from(self.pods)
    }
}

impl Solver<'_> {
    /// Returns the pods, each as the strictest variant whose price is allowed.
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

    /// Relaxes each pod by one preference; returns `false` if no pod had any left.
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

    /// Returns the highest price that a plan with preferences may have if one without costs `without`, in micro-dollars per
    /// hour.
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

    /// Returns the strictest variant of a class that `count` pods may be planned as.
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
                // A pod that cannot be bought for as it is may be bought for at any price with its preferences.
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

    /// Returns the lowest price per pod for `count` pods of a class, and by how many thousandths that pool lets preferences
    /// raise it; `None` if nothing can be bought for them.
    fn rate(&mut self, class: PodClassId, count: u32) -> Option<(Rate, u32)> {
        // A preferred anti-affinity makes every pod pay for a machine of its own, which is what the comparison must
        // see.
        let most = most_on_a_host(self.cluster.class(class), self.cluster);
        let most = most.min(i64::from(count));
        let mut best: Option<(Rate, u32)> = None;
        let mut weight = None;
        for catalog in &mut self.catalogs {
            // A pool of lower weight is bought from only if no heavier one can, so its prices do not count.
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

/// Returns how many pods of a class fit on one node by their anti-affinity and spread over hosts.
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

/// Returns the stricter variants of a class, the strictest first.
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
    // The strictest steps are kept; after the last of them the pod is planned as it is.
    templates.truncate(MOST_STEPS);
    let mut classes: Vec<PodClassId> = Vec::with_capacity(templates.len());
    for template in &templates {
        // A preference that is invalid as a requirement is left out.
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

/// Returns whether a constraint is soft spreading over hosts. Soft spreading over zones needs no variant of the
/// class: see [`super::numbers`].
fn is_soft_by_host(constraint: &crate::model::TopologySpreadConstraint) -> bool {
    constraint.when_unsatisfiable == WhenUnsatisfiable::ScheduleAnyway
        && constraint.topology_key == label::HOSTNAME
}

/// The number of preferences of each sort that are still required, counted from the lightest.
#[derive(Clone, Copy, PartialEq)]
struct RequiredPreferences {
    near: usize,
    apart: usize,
    nodes: usize,
    spread: usize,
    avoids: bool,
}

impl RequiredPreferences {
    /// Returns the next step, with one preference less in Karpenter's order; `None` if none is left.
    fn less(self) -> Option<Self> {
        let mut less = self;
        // The order of Karpenter's `Preferences.Relax`.
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

/// Returns the template with all preferences as requirements, then with one less, and so on down to one.
fn demanding(template: &PodTemplate, avoided: &[String]) -> Vec<PodTemplate> {
    let mut own = template.clone();
    let affinity = &mut own.affinity;
    // By falling weight, because Karpenter drops the heaviest preference of a sort first.
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
    let mut required = RequiredPreferences {
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
    while !required.is_nothing() {
        all.push(with_demands(&own, template, required, avoided));
        let Some(less) = required.less() else { break };
        required = less;
    }
    all
}

/// Returns the template with the kept preferences as requirements; `sorted` has them by falling weight.
fn with_demands(
    sorted: &PodTemplate,
    template: &PodTemplate,
    required: RequiredPreferences,
    avoided: &[String],
) -> PodTemplate {
    let mut wanted = template.clone();
    let last = |of: &Option<crate::model::PodAffinity>, count: usize| {
        let preferred = of.iter().flat_map(|own| &own.preferred);
        // Sorted by falling weight, so leaving out the first ones gives up the heaviest, which Karpenter does first.
        let skipped = of
            .as_ref()
            .map_or(0, |own| own.preferred.len().saturating_sub(count));
        let terms: Vec<_> = preferred
            .skip(skipped)
            .map(|term| term.pod_affinity_term.clone())
            .collect();
        terms
    };
    let near = last(&sorted.affinity.pod_affinity, required.near);
    let apart = last(&sorted.affinity.pod_anti_affinity, required.apart);
    if let Some(own) = &mut wanted.affinity.pod_affinity {
        own.required.extend(near);
    }
    if let Some(own) = &mut wanted.affinity.pod_anti_affinity {
        own.required.extend(apart);
    }
    let by_nodes = sorted.affinity.node_affinity.iter();
    let preferred: Vec<_> = by_nodes.flat_map(|own| &own.preferred).collect();
    // Only one term is required at a time, as in Karpenter: node terms are alternatives of different weight, and all
    // together may exclude each other.
    let heaviest = preferred.len().checked_sub(required.nodes);
    let heaviest = heaviest.and_then(|at| preferred.get(at));
    // A weight of 0 is no preference, and a term without expressions prefers no node to another.
    if let Some(term) = heaviest.filter(|term| term.weight > 0) {
        demand_of_nodes(&mut wanted, &term.preference);
    }
    let by_host = wanted
        .topology_spread_constraints
        .iter_mut()
        .filter(|constraint| is_soft_by_host(constraint));
    // The constraints listed first are relaxed first.
    let all = sorted.topology_spread_constraints.iter();
    let given_up = all
        .filter(|constraint| is_soft_by_host(constraint))
        .count()
        .saturating_sub(required.spread);
    for constraint in by_host.skip(given_up) {
        constraint.when_unsatisfiable = WhenUnsatisfiable::DoNotSchedule;
    }
    if required.avoids && !avoided.is_empty() {
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

/// Adds a term to every alternative of a template's required node affinity.
fn demand_of_nodes(template: &mut PodTemplate, term: &NodeSelectorTerm) {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return;
    }
    let own = template
        .affinity
        .node_affinity
        .get_or_insert_with(Default::default);
    // Terms of a node selector are alternatives, so a further demand has to hold in each of them.
    match &mut own.required {
        Some(required) => {
            for alternative in &mut required.node_selector_terms {
                let is_empty =
                    alternative.match_expressions.is_empty() && alternative.match_fields.is_empty();
                // An empty term matches no node; adding to it would change that.
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
