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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodTerm {
    namespaces: Box<[Symbol]>,
    namespace_query: LabelQuery,
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
        PodTerm {
            namespaces,
            namespace_query: LabelQuery::compile(term.namespace_selector.as_ref(), names),
            query: LabelQuery::compile(term.label_selector.as_ref(), names),
            key: names.intern(&term.topology_key),
            weight,
        }
    }

    /// Whether a pod of that class, which is there, is meant.
    pub(crate) fn matches(
        &self,
        pod: &PodClass,
        namespaces: &Namespaces,
        names: &Interner,
    ) -> bool {
        self.means(pod, namespaces.get(&pod.namespace), names)
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
        self.means(pod, Some(labels), names)
    }

    fn means(&self, pod: &PodClass, namespace: Option<&LabelSet>, names: &Interner) -> bool {
        let in_namespace = self.namespaces.contains(&pod.namespace)
            || self.namespace_query.is_everything()
            || namespace.is_some_and(|labels| self.namespace_query.matches(labels, names));
        in_namespace && self.query.matches(&pod.labels, names)
    }
}
