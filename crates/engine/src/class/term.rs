//! Compiled pod affinity terms: a selector of pods, the namespaces it applies to, and the topology key.
//!
//! Weights are signed: a preferred anti-affinity is a preference with a negative weight.

use rustc_hash::FxHashMap;

use super::PodClass;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::PodAffinityTerm;
use crate::selector::LabelQuery;

/// The labels of each existing namespace.
pub(crate) type Namespaces = FxHashMap<Symbol, LabelSet>;

/// One pod affinity or anti-affinity term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodTerm {
    namespaces: Box<[Symbol]>,
    namespace_query: LabelQuery,
    /// Whether the namespace selector matches a namespace without labels.
    takes_unlabelled: bool,
    query: LabelQuery,
    pub(crate) key: Symbol,
    pub(crate) weight: i64,
}

impl PodTerm {
    pub(crate) fn compile(
        term: &PodAffinityTerm,
        own: Symbol,
        weight: i64,
        names: &mut Interner,
    ) -> Self {
        // Without list and selector a term is about the pod's own namespace; an empty selector matches all
        // namespaces.
        let namespaces = if term.namespaces.is_empty() && term.namespace_selector.is_none() {
            Box::from([own])
        } else {
            term.namespaces
                .iter()
                .map(|namespace| names.intern(namespace))
                .collect()
        };
        let namespace_query = LabelQuery::compile(term.namespace_selector.as_ref(), names);
        PodTerm {
            namespaces,
            takes_unlabelled: namespace_query.matches(&LabelSet::default(), names),
            namespace_query,
            query: LabelQuery::compile(term.label_selector.as_ref(), names),
            key: names.intern(&term.topology_key),
            weight,
        }
    }

    /// Returns whether the term selects an existing pod of class `pod`, for a pod with this term that is to be placed. If the namespace selector
    /// matches a namespace without labels (`NotIn`, `DoesNotExist`), every namespace matches: kube-scheduler first adds the matching namespaces to
    /// the term and then evaluates the selector once more, against no labels (`mergeAffinityTermNamespacesIfNotEmpty`, which changes a copy of the
    /// term; decision 16).
    pub(crate) fn matches(
        &self,
        pod: &PodClass,
        namespaces: &Namespaces,
        names: &Interner,
    ) -> bool {
        let labels = namespaces.get(&pod.namespace);
        let selects = |labels: &LabelSet| self.namespace_query.matches(labels, names);
        self.means(
            pod,
            self.takes_unlabelled || labels.is_some_and(selects),
            names,
        )
    }

    /// Returns whether the term, on an existing pod, selects a pod of class `pod` that is to be placed. An unknown namespace counts as one without
    /// labels (kube-scheduler: `GetNamespaceLabelsSnapshot`).
    pub(crate) fn matches_newcomer(
        &self,
        pod: &PodClass,
        namespaces: &Namespaces,
        names: &Interner,
    ) -> bool {
        let unknown = LabelSet::default();
        let labels = namespaces.get(&pod.namespace).unwrap_or(&unknown);
        self.means(pod, self.namespace_query.matches(labels, names), names)
    }

    /// Returns whether the term selects a pod. `is_selected` is whether the namespace selector matches the pod's namespace.
    fn means(&self, pod: &PodClass, is_selected: bool, names: &Interner) -> bool {
        (is_selected || self.namespaces.contains(&pod.namespace))
            && self.query.matches(&pod.labels, names)
    }
}
