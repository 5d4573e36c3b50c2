//! What a refused pod waits for, compiled once when it is refused, so that an event costs a comparison only.
//!
//! Beside what the pod itself asks for there is what its profile adds: node affinity, and default spread constraints with
//! the selector of the pod's services and owner. Used by the hints in [`super::hints`].

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

/// What a refused pod waits for, as far as those who refused it ask.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Required affinity to other pods.
    pub(super) near: Vec<Term>,
    /// Required anti-affinity.
    pub(super) far: Vec<Term>,
    /// Spread constraints that must hold.
    pub(super) spread: Vec<Constraint>,
    /// Amounts above zero, by resource.
    pub(super) requests: Amounts,
    /// Those of the resources for which a DeviceClass stood when the pod was refused; later ones wake it.
    pub(super) stood_for: BTreeSet<String>,
    profile: ProfileWishes,
}

/// What a profile adds to what its pods ask for themselves.
#[derive(Clone, Debug, Default)]
pub struct ProfileWishes {
    /// A pod that asks for the added node affinity only.
    added: Option<Arc<PodSpec>>,
    /// Spread constraints of pods that have none, without their selectors.
    defaults: Vec<Constraint>,
}

/// One required term about other pods.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) topology_key: String,
    namespaces: Vec<String>,
    /// Namespaces are chosen by their labels too, which a hint does not know: any may be meant.
    any_namespace: bool,
    selector: Option<Selector>,
}

/// One spread constraint that must hold.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    pub(super) topology_key: String,
    pub(super) honours_taints: bool,
    selector: Option<Selector>,
}

impl ProfileWishes {
    /// What `profile` adds.
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
                .map(|own| Constraint {
                    topology_key: own.topology_key.clone(),
                    honours_taints: own.node_taints_policy == Some(InclusionPolicy::Honor),
                    selector: None,
                })
                .collect(),
        }
    }

    /// The same with the selector that default constraints have for `pod`: that of its services and its owner
    /// (kube-scheduler: `DefaultSelector`). Without one there are no default constraints.
    pub(super) fn for_pod(&self, pod: &Pod, informers: &Informers) -> Self {
        let selector = match self.defaults.is_empty() {
            true => None,
            false => default_selector(pod, informers),
        };
        let chosen = |constraint: &Constraint| Constraint {
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

impl Wishes {
    /// What `pod` waits for now that `rejectors` refused it.
    pub fn of(pod: &Pod, rejectors: Plugins, profile: ProfileWishes) -> Self {
        let mut wishes = Self {
            profile,
            ..Self::default()
        };
        let Some(spec) = &pod.spec else {
            return wishes;
        };
        if rejectors.contains(Plugin::NodeResourcesFit) {
            wishes.requests = pod_requests(spec);
            wishes.requests.retain(|_, amount| *amount > 0);
        }
        if rejectors.contains(Plugin::PodTopologySpread) {
            wishes.spread = match spec.topology_spread_constraints.as_deref() {
                None | Some([]) => wishes.profile.defaults.clone(),
                Some(own) => own
                    .iter()
                    .filter(|own| own.when_unsatisfiable == "DoNotSchedule")
                    .map(|own| Constraint::of(own, pod))
                    .collect(),
            };
        }
        if rejectors.contains(Plugin::InterPodAffinity) {
            wishes.near = near_terms(pod);
            wishes.far = far_terms(pod);
        }
        wishes
    }

    /// The same after the pod itself changed.
    pub(super) fn renewed(&self, pod: &Pod, rejectors: Plugins) -> Self {
        Self::of(pod, rejectors, self.profile.clone())
    }

    /// Whether the profile lets the pod onto `node`.
    pub(super) fn profile_allows(&self, node: &Node) -> bool {
        let added = self.profile.added.as_deref();
        added.is_none_or(|added| node_selector::allows(added, node))
    }
}

impl Term {
    fn of(pod: &Pod, term: &PodAffinityTerm) -> Self {
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
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

    /// Whether `other` is one of the pods that the term is about.
    pub(super) fn is_about(&self, other: &Pod) -> bool {
        let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
        let inside = self.any_namespace || self.namespaces.iter().any(|listed| listed == namespace);
        inside && selects(self.selector.as_ref(), other)
    }
}

/// The pod's required affinity.
pub(super) fn near_terms(pod: &Pod) -> Vec<Term> {
    let affinity = affinity(pod).and_then(|affinity| affinity.pod_affinity.as_ref());
    let terms = affinity.and_then(|near| {
        near.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    terms
        .into_iter()
        .flatten()
        .map(|term| Term::of(pod, term))
        .collect()
}

/// The pod's required anti-affinity.
pub(super) fn far_terms(pod: &Pod) -> Vec<Term> {
    let affinity = affinity(pod).and_then(|affinity| affinity.pod_anti_affinity.as_ref());
    let terms = affinity.and_then(|far| {
        far.required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    terms
        .into_iter()
        .flatten()
        .map(|term| Term::of(pod, term))
        .collect()
}

/// The pod's affinity of all kinds.
pub(super) fn affinity(pod: &Pod) -> Option<&Affinity> {
    pod.spec.as_ref()?.affinity.as_ref()
}

impl Constraint {
    fn of(constraint: &TopologySpreadConstraint, pod: &Pod) -> Self {
        let mut selector = constraint.label_selector.clone();
        // The API server has put these into the selector already; kube-scheduler adds them once more.
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

    /// Whether the constraint counts a pod of its namespace.
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
    match empty {
        true => None,
        false => ownership::selector(Some(&merged)),
    }
}

/// A pod that asks for nothing but this node affinity.
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
