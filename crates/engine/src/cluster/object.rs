//! Namespaces, services, workloads and disruption budgets in the model.
//!
//! A change drops the views of the classes it affects; they are computed again when next needed. A change of a
//! namespace can affect every selector, so it drops all views.

use std::collections::BTreeMap;

use super::Cluster;
use super::undo::Undo;
use crate::class::{PodClass, SpreadRule};
use crate::intern::{Interner, Symbol};
use crate::labels::LabelSet;
use crate::model::{NamespaceSpec, PdbSpec, PodTemplate, ServiceSpec, StringMap, WorkloadSpec};
use crate::profile::Rules;
use crate::selector::LabelQuery;

/// A namespaced name.
pub(super) type Key = (String, String);

/// The objects by name, sorted so that results do not depend on the order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    services: BTreeMap<Key, StringMap>,
    workloads: BTreeMap<(String, String, String), WorkloadSpec>,
    pub(crate) pdbs: BTreeMap<Key, Budget>,
}

/// A compiled PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) namespace: Symbol,
    pub(crate) query: LabelQuery,
    pub(crate) allowed: i32,
    pub(crate) disrupted: Vec<String>,
}

impl Budget {
    /// Returns whether the budget may cover pods of a class; whether it covers one pod also depends on the pod's name.
    pub(crate) fn may_cover(&self, class: &PodClass, names: &Interner) -> bool {
        // kube-scheduler matches neither pods without labels nor budgets with an empty selector.
        self.namespace == class.namespace
            && !class.labels.is_empty()
            && !self.query.is_everything()
            && self.query.matches(&class.labels, names)
    }

    /// Returns whether evicting a pod counts against the budget (kube-scheduler: `filterPodsWithPDBViolation`).
    pub(crate) fn covers(&self, class: &PodClass, pod_name: &str, names: &Interner) -> bool {
        self.may_cover(class, names) && !self.disrupted.iter().any(|name| name == pod_name)
    }
}

impl Objects {
    /// Returns the default spread rules of a pod that declares none. They select by the merged selectors of its
    /// services and its owner.
    pub(super) fn default_spread(
        &self,
        template: &PodTemplate,
        rules: &Rules,
        names: &mut Interner,
    ) -> Vec<SpreadRule> {
        if !template.topology_spread_constraints.is_empty() {
            return Vec::new();
        }
        let labels = LabelSet::intern(&template.labels, names);
        let namespace = template.namespace.as_str();
        let mut merged = StringMap::new();
        let from = (namespace.to_owned(), String::new());
        for ((_, _), selector) in self
            .services
            .range(from..)
            .take_while(|((own, _), _)| own == namespace)
        {
            // A service without selector has endpoints of its own making and selects no pods.
            if !selector.is_empty() && LabelQuery::labels(selector, names).matches(&labels, names) {
                merged.extend(selector.clone());
            }
        }
        let mut query = LabelQuery::labels(&merged, names);
        let workload = template.owner.as_ref().and_then(|owner| {
            self.workloads
                .get(&(owner.kind.clone(), namespace.to_owned(), owner.name.clone()))
        });
        if let Some(workload) = workload
            && let LabelQuery::All(more) = LabelQuery::compile(Some(&workload.selector), names)
        {
            query.and(more);
        }
        // Without a service or workload no other pods belong to this one, so there is nothing to spread.
        if query.is_everything() {
            Vec::new()
        } else {
            rules.default_spread(&query)
        }
    }
}

impl Cluster {
    /// Adds a namespace or changes its labels.
    pub fn set_namespace(&mut self, namespace: &NamespaceSpec) {
        let name = self.names.intern(&namespace.name);
        let labels = LabelSet::intern(&namespace.labels, &mut self.names);
        self.change_namespace(name, Some(labels));
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        if let Some(name) = self.names.find(name) {
            self.change_namespace(name, None);
        }
    }

    pub(super) fn change_namespace(&mut self, name: Symbol, labels: Option<LabelSet>) {
        if self.namespaces.get(&name) == labels.as_ref() {
            return;
        }
        let before = exchange(&mut self.namespaces, name, labels);
        self.log(Undo::Namespace(name, before));
        self.drop_views();
    }

    /// Adds or changes a service.
    pub fn set_service(&mut self, service: &ServiceSpec) {
        let key = (service.namespace.clone(), service.name.clone());
        self.change_service(key, Some(service.selector.clone()));
    }

    /// Removes a service.
    pub fn remove_service(&mut self, namespace: &str, name: &str) {
        self.change_service((namespace.to_owned(), name.to_owned()), None);
    }

    pub(super) fn change_service(&mut self, key: Key, selector: Option<StringMap>) {
        if self.objects.services.get(&key) == selector.as_ref() {
            return;
        }
        let after = selector.clone();
        let before = exchange_ordered(&mut self.objects.services, key.clone(), selector);
        let selects = |selector: &Option<StringMap>, pod: &PodTemplate| {
            selector.as_ref().is_some_and(|selector| {
                selector
                    .iter()
                    .all(|(key, value)| pod.labels.get(key) == Some(value))
            })
        };
        // Of the pods that it selected as well as of those that it selects now.
        self.drop_views_of(|pod| {
            pod.namespace == key.0 && (selects(&before, pod) || selects(&after, pod))
        });
        self.log(Undo::Service(key, before));
    }

    /// Adds or changes a ReplicaSet, ReplicationController or StatefulSet.
    pub fn set_workload(&mut self, workload: &WorkloadSpec) {
        let key = (
            workload.kind.clone(),
            workload.namespace.clone(),
            workload.name.clone(),
        );
        self.change_workload(key, Some(workload.clone()));
    }

    /// Removes a workload.
    pub fn remove_workload(&mut self, kind: &str, namespace: &str, name: &str) {
        self.change_workload(
            (kind.to_owned(), namespace.to_owned(), name.to_owned()),
            None,
        );
    }

    pub(super) fn change_workload(
        &mut self,
        key: (String, String, String),
        workload: Option<WorkloadSpec>,
    ) {
        if self.objects.workloads.get(&key) == workload.as_ref() {
            return;
        }
        let before = exchange_ordered(&mut self.objects.workloads, key.clone(), workload);
        let (kind, namespace, name) = &key;
        self.drop_views_of(|pod| {
            let owner = pod.owner.as_ref().filter(|_| pod.namespace == *namespace);
            owner.is_some_and(|owner| owner.kind == *kind && owner.name == *name)
        });
        self.log(Undo::Workload(key, before));
    }

    /// Adds or changes a PodDisruptionBudget.
    pub fn set_pdb(&mut self, pdb: &PdbSpec) {
        let budget = Budget {
            namespace: self.names.intern(&pdb.namespace),
            query: LabelQuery::compile(pdb.selector.as_ref(), &mut self.names),
            allowed: pdb.disruptions_allowed,
            disrupted: pdb.disrupted_pods.clone(),
        };
        self.change_pdb((pdb.namespace.clone(), pdb.name.clone()), Some(budget));
    }

    /// Removes a PodDisruptionBudget.
    pub fn remove_pdb(&mut self, namespace: &str, name: &str) {
        self.change_pdb((namespace.to_owned(), name.to_owned()), None);
    }

    pub(super) fn change_pdb(&mut self, key: Key, budget: Option<Budget>) {
        // Budgets decide only about evictions, so nothing else has to be computed again.
        self.boards.budgets += 1;
        let before = exchange_ordered(&mut self.objects.pdbs, key.clone(), budget);
        self.log(Undo::Pdb(key, before));
    }
}

fn exchange(
    map: &mut crate::class::Namespaces,
    key: Symbol,
    value: Option<LabelSet>,
) -> Option<LabelSet> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

fn exchange_ordered<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}
