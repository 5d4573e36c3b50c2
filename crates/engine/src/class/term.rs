//! Compiled pod affinity terms: which pods, in which namespaces, near by which label.
//!
//! Weights are signed: a preferred anti-affinity is a preference with a negative weight.

use rustc_hash::FxHashMap;

use super::PodClass;
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::PodAffinityTerm;
use crate::selector::LabelQuery;

/// Labels of the namespaces there are.
pub(crate) type Namespaces = FxHashMap<Symbol, LabelSet>;

/// One term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PodTerm {
    namespaces: Box<[Symbol]>,
    namespace_query: LabelQuery,
    /// The namespace selector matches a namespace without labels.
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

    /// Whether a pod of that class, which is there, is meant by the pod that asks. A namespace selector that matches a namespace without labels
    /// (`NotIn`, `DoesNotExist`) means every namespace then: upstream asks it about no labels after it has listed the namespaces it matches
    /// (kube-scheduler: `mergeAffinityTermNamespacesIfNotEmpty`, which changes a copy of the term; decision 16).
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

    /// Whether a pod of that class is meant which is to come near the pod that has the term: a namespace that is not known has no labels then
    /// (kube-scheduler: `GetNamespaceLabelsSnapshot`).
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

    /// Whether a pod is meant whose namespace the selector matches or not.
    fn means(&self, pod: &PodClass, is_selected: bool, names: &Interner) -> bool {
        (is_selected || self.namespaces.contains(&pod.namespace))
            && self.query.matches(&pod.labels, names)
    }
}
