//! Compiles the requirements that a refused pod waits to have met, once per refusal, so that each later event costs only a comparison.
//!
//! Besides the pod's own spec this covers what its profile adds: node affinity, and default spread constraints with the
//! selector of the pod's services and owner. The queueing hints in [`super::hints`] use it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{
    api::core::v1::{
        Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
        PodAffinityTerm, PodSpec, TopologySpreadConstraint,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::core::{Selector, SelectorExt};
use mullion_engine::{
    Plugin, Profile,
    model::{self, InclusionPolicy, WhenUnsatisfiable},
    profile::DefaultSpread,
};

use super::wake::Plugins;
use crate::{
    Informers, ownership,
    state::{
        node_selector,
        requests::{Amounts, pod_requests},
    },
};

type Labels = BTreeMap<String, String>;

/// The requirements of a refused pod that the plugins which refused it depend on.
#[derive(Clone, Debug, Default)]
pub struct PodRequirements {
    /// The terms of required affinity to other pods.
    pub(super) affinity: Vec<AffinityTerm>,
    /// The terms of required anti-affinity to other pods.
    pub(super) anti_affinity: Vec<AffinityTerm>,
    /// Spread constraints with `whenUnsatisfiable: DoNotSchedule`.
    pub(super) spread: Vec<SpreadConstraint>,
    /// The pod's requests above zero, by resource.
    pub(super) requests: Amounts,
    /// The extended resources that a DeviceClass provided when the pod was refused; a class that is added later wakes the pod.
    pub(super) device_class_resources: BTreeSet<String>,
    profile: ProfileRequirements,
}

/// The requirements that a profile adds to those of its pods.
#[derive(Clone, Debug, Default)]
pub struct ProfileRequirements {
    /// A pod spec with the profile's added node affinity and nothing else.
    added: Option<Arc<PodSpec>>,
    /// Default spread constraints for pods without their own; the selectors are filled in per pod.
    defaults: Vec<SpreadConstraint>,
}

/// One required term of affinity or anti-affinity to other pods.
#[derive(Clone, Debug)]
pub(super) struct AffinityTerm {
    pub(super) topology_key: String,
    namespaces: Vec<String>,
    /// The term has a namespace selector. A hint does not know the labels of namespaces, so it assumes that any may
    /// match.
    any_namespace: bool,
    selector: Option<Selector>,
}

/// One spread constraint with `whenUnsatisfiable: DoNotSchedule`.
#[derive(Clone, Debug)]
pub(super) struct SpreadConstraint {
    pub(super) topology_key: String,
    pub(super) honours_taints: bool,
    selector: Option<Selector>,
}

impl ProfileRequirements {
    /// Compiles the requirements that `profile` adds.
    pub fn of(profile: &Profile) -> Self {
        let defaults = match &profile.default_spread {
            DefaultSpread::System => &[],
            DefaultSpread::List(constraints) => constraints.as_slice(),
        };
        let hard = defaults
            .iter()
            .filter(|own| own.when_unsatisfiable == WhenUnsatisfiable::DoNotSchedule);
        Self {
            added: profile.added_affinity.required.as_ref().map(added),
            defaults: hard
                .map(|own| SpreadConstraint {
                    topology_key: own.topology_key.clone(),
                    honours_taints: own.node_taints_policy == Some(InclusionPolicy::Honor),
                    selector: None,
                })
                .collect(),
        }
    }

    /// Returns a copy whose default constraints have the selector for `pod`: that of its services and its owner
    /// (kube-scheduler: `DefaultSelector`). Without such a selector there are no default constraints.
    pub(super) fn for_pod(&self, pod: &Pod, informers: &Informers) -> Self {
        let selector = if self.defaults.is_empty() {
            None
        } else {
            default_selector(pod, informers)
        };
        let chosen = |constraint: &SpreadConstraint| SpreadConstraint {
            selector: selector.clone(),
            ..constraint.clone()
        };
        Self {
            added: self.added.clone(),
            defaults: match &selector {
                Some(_) => self.defaults.iter().map(chosen).collect(),
                None => Vec::new(),
            },
        }
    }
}

impl PodRequirements {
    /// Compiles what `pod` waits for after `rejectors` refused it.
    pub fn of(pod: &Pod, rejectors: Plugins, profile: ProfileRequirements) -> Self {
        let mut requirements = Self {
            profile,
            ..Self::default()
        };
        let Some(spec) = &pod.spec else {
            return requirements;
        };
        if rejectors.contains(Plugin::NodeResourcesFit) {
            requirements.requests = pod_requests(spec);
            requirements.requests.retain(|_, amount| *amount > 0);
        }
        if rejectors.contains(Plugin::PodTopologySpread) {
            requirements.spread = match spec.topology_spread_constraints.as_deref() {
                // The profile's default constraints apply only to pods without constraints of their own.
                None | Some([]) => requirements.profile.defaults.clone(),
                Some(own) => own
                    .iter()
                    .filter(|own| own.when_unsatisfiable == "DoNotSchedule")
                    .map(|own| SpreadConstraint::of(own, pod))
                    .collect(),
            };
        }
        if rejectors.contains(Plugin::InterPodAffinity) {
            requirements.affinity = affinity_terms(pod);
            requirements.anti_affinity = anti_affinity_terms(pod);
        }
        requirements
    }

    /// Compiles the requirements again after the pod changed.
    pub(super) fn renewed(&self, pod: &Pod, rejectors: Plugins) -> Self {
        Self::of(pod, rejectors, self.profile.clone())
    }

    /// Returns whether the profile's added node affinity allows `node`.
    pub(super) fn profile_allows(&self, node: &Node) -> bool {
        let added = self.profile.added.as_deref();
        added.is_none_or(|added| node_selector::allows(added, node))
    }
}

impl AffinityTerm {
    fn of(pod: &Pod, term: &PodAffinityTerm) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        // The API's default: a term without namespaces and selector is about the pod's own namespace.
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.extend(pod.metadata.namespace.clone());
        }
        Self {
            topology_key: term.topology_key.clone(),
            namespaces,
            any_namespace: term.namespace_selector.is_some(),
            selector: ownership::selector(term.label_selector.as_ref()),
        }
    }

    /// Returns whether the term's namespaces and selector match `other`.
    pub(super) fn is_about(&self, other: &Pod) -> bool {
        let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
        let inside = self.any_namespace || self.namespaces.iter().any(|listed| listed == namespace);
        inside && selects(self.selector.as_ref(), other)
    }
}

/// Returns the terms of the pod's required affinity.
pub(super) fn affinity_terms(pod: &Pod) -> Vec<AffinityTerm> {
    let affinity = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
    required_terms(
        pod,
        affinity.and_then(|near| {
            near.required_during_scheduling_ignored_during_execution
                .as_deref()
        }),
    )
}

/// Returns the terms of the pod's required anti-affinity.
pub(super) fn anti_affinity_terms(pod: &Pod) -> Vec<AffinityTerm> {
    let affinity = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    required_terms(
        pod,
        affinity.and_then(|far| {
            far.required_during_scheduling_ignored_during_execution
                .as_deref()
        }),
    )
}

fn required_terms(pod: &Pod, terms: Option<&[PodAffinityTerm]>) -> Vec<AffinityTerm> {
    let terms = terms.unwrap_or_default().iter();
    terms.map(|term| AffinityTerm::of(pod, term)).collect()
}

/// Returns the pod's affinity.
pub(super) fn affinity(pod: &Pod) -> Option<&Affinity> {
    pod.spec.as_ref()?.affinity.as_ref()
}

impl SpreadConstraint {
    fn of(constraint: &TopologySpreadConstraint, pod: &Pod) -> Self {
        let mut selector = constraint.label_selector.clone();
        // The API server has added these keys to the selector already; kube-scheduler adds them again, which changes
        // nothing.
        let labels = pod.metadata.labels.as_ref();
        for key in constraint.match_label_keys.iter().flatten() {
            if let (Some(value), Some(selector)) =
                (labels.and_then(|labels| labels.get(key)), &mut selector)
            {
                let wanted = selector.match_labels.get_or_insert_default();
                wanted.insert(key.clone(), value.clone());
            }
        }
        Self {
            topology_key: constraint.topology_key.clone(),
            honours_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            selector: ownership::selector(selector.as_ref()),
        }
    }

    /// Returns whether the constraint's selector matches a pod of its namespace.
    pub(super) fn counts(&self, other: &Pod) -> bool {
        selects(self.selector.as_ref(), other)
    }
}

fn selects(selector: Option<&Selector>, pod: &Pod) -> bool {
    static NONE: Labels = Labels::new();
    let labels = pod.metadata.labels.as_ref().unwrap_or(&NONE);
    selector.is_some_and(|selector| selector.matches(labels))
}

fn default_selector(pod: &Pod, informers: &Informers) -> Option<Selector> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let labels = pod.metadata.labels.clone().unwrap_or_default();
    let mut merged = LabelSelector::default();
    for service in informers.services.in_namespace(namespace) {
        let wanted = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref());
        // A service without a selector selects no pods, though an empty selector would match all.
        let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
            continue;
        };
        if wanted
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
        {
            let all = merged.match_labels.get_or_insert_default();
            all.extend(
                wanted
                    .iter()
                    .map(|(key, value)| (key.clone(), value.clone())),
            );
        }
    }
    if let Some(owner) = ownership::controller_of(pod).filter(|owner| owner.kind == "ReplicaSet")
        && let Some(set) = informers.replica_sets.get(namespace, &owner.name)
        && let Some(spec) = &set.spec
    {
        let all = merged.match_labels.get_or_insert_default();
        all.extend(spec.selector.match_labels.clone().unwrap_or_default());
        merged.match_expressions = spec.selector.match_expressions.clone();
    }
    let empty = merged.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && merged.match_expressions.as_ref().is_none_or(Vec::is_empty);
    if empty {
        None
    } else {
        ownership::selector(Some(&merged))
    }
}

/// Returns a pod spec with this required node affinity and nothing else.
fn added(required: &model::NodeSelector) -> Arc<PodSpec> {
    let requirement = |own: &model::NodeSelectorRequirement| NodeSelectorRequirement {
        key: own.key.clone(),
        operator: format!("{:?}", own.operator),
        values: Some(own.values.clone()),
    };
    let term = |own: &model::NodeSelectorTerm| NodeSelectorTerm {
        match_expressions: Some(own.match_expressions.iter().map(requirement).collect()),
        match_fields: Some(own.match_fields.iter().map(requirement).collect()),
    };
    let selector = NodeSelector {
        node_selector_terms: required.node_selector_terms.iter().map(term).collect(),
    };
    Arc::new(PodSpec {
        affinity: Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(selector),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        }),
        ..PodSpec::default()
    })
}
