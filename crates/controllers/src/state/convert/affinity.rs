//! Converts affinity and topology spread constraints.

use k8s_openapi::api::core::v1 as api;
use mullion_engine::model::{
    Affinity, InclusionPolicy, NodeAffinity, NodeSelector, NodeSelectorRequirement,
    NodeSelectorTerm, PodAffinity, PodAffinityTerm, PreferredSchedulingTerm,
    TopologySpreadConstraint, WeightedPodAffinityTerm, WhenUnsatisfiable,
};

use super::{label_selector, operator};

pub(super) fn affinity(affinity: &api::Affinity) -> Affinity {
    Affinity {
        node_affinity: affinity.node_affinity.as_ref().map(node_affinity),
        pod_affinity: affinity.pod_affinity.as_ref().map(|affinity| PodAffinity {
            required: terms(&affinity.required_during_scheduling_ignored_during_execution),
            preferred: weighted(&affinity.preferred_during_scheduling_ignored_during_execution),
        }),
        pod_anti_affinity: affinity
            .pod_anti_affinity
            .as_ref()
            .map(|affinity| PodAffinity {
                required: terms(&affinity.required_during_scheduling_ignored_during_execution),
                preferred: weighted(&affinity.preferred_during_scheduling_ignored_during_execution),
            }),
    }
}

fn node_affinity(affinity: &api::NodeAffinity) -> NodeAffinity {
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()
        .map(|required| NodeSelector {
            node_selector_terms: required.node_selector_terms.iter().map(node_term).collect(),
        });
    let preferred = affinity
        .preferred_during_scheduling_ignored_during_execution
        .iter()
        .flatten();
    let preferred = preferred.map(|preferred| PreferredSchedulingTerm {
        weight: preferred.weight,
        preference: node_term(&preferred.preference),
    });
    NodeAffinity {
        required,
        preferred: preferred.collect(),
    }
}

fn node_term(term: &api::NodeSelectorTerm) -> NodeSelectorTerm {
    let requirement = |requirement: &api::NodeSelectorRequirement| NodeSelectorRequirement {
        key: requirement.key.clone(),
        operator: operator(&requirement.operator),
        values: requirement.values.clone().unwrap_or_default(),
    };
    NodeSelectorTerm {
        match_expressions: term
            .match_expressions
            .iter()
            .flatten()
            .map(requirement)
            .collect(),
        match_fields: term
            .match_fields
            .iter()
            .flatten()
            .map(requirement)
            .collect(),
    }
}

fn terms(terms: &Option<Vec<api::PodAffinityTerm>>) -> Vec<PodAffinityTerm> {
    terms.iter().flatten().map(pod_term).collect()
}

fn weighted(terms: &Option<Vec<api::WeightedPodAffinityTerm>>) -> Vec<WeightedPodAffinityTerm> {
    let weighted = |term: &api::WeightedPodAffinityTerm| WeightedPodAffinityTerm {
        weight: term.weight,
        pod_affinity_term: pod_term(&term.pod_affinity_term),
    };
    terms.iter().flatten().map(weighted).collect()
}

fn pod_term(term: &api::PodAffinityTerm) -> PodAffinityTerm {
    PodAffinityTerm {
        label_selector: term.label_selector.as_ref().map(label_selector),
        namespaces: term.namespaces.clone().unwrap_or_default(),
        namespace_selector: term.namespace_selector.as_ref().map(label_selector),
        topology_key: term.topology_key.clone(),
    }
}

pub(super) fn spread(constraint: &api::TopologySpreadConstraint) -> TopologySpreadConstraint {
    let policy = |policy: &Option<String>| match policy.as_deref() {
        Some("Honor") => Some(InclusionPolicy::Honor),
        Some("Ignore") => Some(InclusionPolicy::Ignore),
        _ => None,
    };
    let when_unsatisfiable = match constraint.when_unsatisfiable.as_str() {
        "ScheduleAnyway" => WhenUnsatisfiable::ScheduleAnyway,
        _ => WhenUnsatisfiable::DoNotSchedule,
    };
    TopologySpreadConstraint {
        max_skew: constraint.max_skew,
        topology_key: constraint.topology_key.clone(),
        when_unsatisfiable,
        label_selector: constraint.label_selector.as_ref().map(label_selector),
        min_domains: constraint.min_domains,
        node_affinity_policy: policy(&constraint.node_affinity_policy),
        node_taints_policy: policy(&constraint.node_taints_policy),
        match_label_keys: constraint.match_label_keys.clone().unwrap_or_default(),
    }
}
