//! The effects of one placed pod of one class on the view of another class.
//!
//! Effects are computed once per pair of classes, from selectors and labels; applying one needs only the labels of the node.

use super::View;
use crate::class::{Namespaces, PodClass};
use crate::intern::{Interner, Symbol};
use crate::profile::Rules;
use crate::reason::Plugin;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Adds a matching pod to a DoNotSchedule constraint.
    Hard(usize),
    /// Adds a matching pod to a ScheduleAnyway constraint.
    Soft(usize),
    /// Adds a pod to a DoNotSchedule constraint with an empty selector, which counts only pods that are added or removed in a
    /// trial.
    HardInThought(usize),
    /// Adds a pod that matches all required affinity terms of the view's class.
    Affinity,
    /// Adds a pod that matches a required anti-affinity term with this key.
    Anti(Symbol),
    /// Adds a pod whose required anti-affinity over this key matches the view's class.
    ExistingAnti(Symbol),
    /// Adds the weight of a preferred term over this key, of either class.
    Score { key: Symbol, weight: i64 },
}

impl Effect {
    /// Returns all effects of a pod of class `other` on the view of class `own`.
    pub(crate) fn all(
        view: &View,
        (own, rules): (&PodClass, &Rules),
        other: &PodClass,
        namespaces: &Namespaces,
        names: &Interner,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        // Spread constraints count pods of the pod's own namespace only.
        if own.namespace == other.namespace {
            let spreads = |counts: &super::SpreadCounts| {
                // kube-scheduler counts no pods for an empty selector (`countPodsMatchSelector`), although it matches
                // everything.
                !counts.rule.query.is_everything()
                    && counts.rule.query.matches(&other.labels, names)
            };
            effects.extend(
                (0..view.hard.len())
                    .filter(|&i| spreads(&view.hard[i]))
                    .map(Effect::Hard),
            );
            // AddPod and RemovePod lack that exception, so trials do count pods for an empty selector.
            let counts_all = |i: &usize| view.hard[*i].rule.query.is_everything();
            let of_thought = (0..view.hard.len()).filter(counts_all);
            effects.extend(of_thought.map(Effect::HardInThought));
            effects.extend(
                (0..view.soft.len())
                    .filter(|&i| spreads(&view.soft[i]))
                    .map(Effect::Soft),
            );
        }
        // A pod counts for required affinity only if it matches all terms together.
        if !own.affinity.is_empty()
            && own
                .affinity
                .iter()
                .all(|term| term.matches(other, namespaces, names))
        {
            effects.push(Effect::Affinity);
        }
        let on_other = |term: &&crate::class::PodTerm| term.matches(other, namespaces, names);
        let on_own = |term: &&crate::class::PodTerm| term.matches_newcomer(own, namespaces, names);
        effects.extend(
            own.anti_affinity
                .iter()
                .filter(on_other)
                .map(|term| Effect::Anti(term.key)),
        );
        effects.extend(
            other
                .anti_affinity
                .iter()
                .filter(on_own)
                .map(|term| Effect::ExistingAnti(term.key)),
        );
        // Effects that no enabled scorer reads are left out, so that no placed pod pays for them.
        let scores = rules.weight(Plugin::InterPodAffinity) != 0
            && !(rules.ignore_others_preferences && own.preferred_pods.is_empty());
        if !scores {
            return effects;
        }
        let score = |term: &crate::class::PodTerm| Effect::Score {
            key: term.key,
            weight: term.weight,
        };
        effects.extend(own.preferred_pods.iter().filter(on_other).map(score));
        effects.extend(other.preferred_pods.iter().filter(on_own).map(score));
        // Required affinity of pods that are there attracts too (`hardPodAffinityWeight`, 1 by default).
        if rules.hard_affinity_weight != 0 {
            let terms = other.affinity.iter().filter(on_own);
            effects.extend(terms.map(|term| Effect::Score {
                key: term.key,
                weight: rules.hard_affinity_weight,
            }));
        }
        effects
    }

    /// Returns the topology keys by which the effect can change the result of a filter; preferences change none.
    pub(crate) fn filter_keys(self, view: &View, own: &PodClass) -> Vec<Symbol> {
        match self {
            Effect::Hard(index) => vec![view.hard[index].rule.key],
            Effect::Anti(key) | Effect::ExistingAnti(key) => vec![key],
            Effect::Affinity => own.affinity.iter().map(|term| term.key).collect(),
            Effect::Soft(_) | Effect::HardInThought(_) | Effect::Score { .. } => Vec::new(),
        }
    }
}
