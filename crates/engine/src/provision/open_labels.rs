//! Labels of nodes to be bought that neither the machine nor its place decides.
//!
//! A pool may name values of such a label (`In`), or leave it open within bounds (`Exists`, `NotIn`, `Gt`, ...). Karpenter
//! gives a node the value that its pods ask for, and a random number if the pool demands the label and no pod asks for a
//! value. Here the values that pods ask for become choices, beside one that nobody asks for.
//!
//! The kubelet and the cloud's controller repeat five labels under the names that they had before Kubernetes 1.17, so nodes to
//! be bought have these names too (Karpenter: `NormalizedLabels`).

use std::collections::{BTreeMap, BTreeSet};

use crate::class::PodClassId;
use crate::cluster::Cluster;
use crate::model::{NodeSelectorRequirement, Operator, PodTemplate, StringMap, label};

use super::{NodeTemplate, Requirement};

/// The maximum number of label choices per type and offering.
const MAX_CHOICES: usize = 64;

/// Labels and their former names.
const FORMER: [(&str, &str); 5] = [
    (label::ARCH, "beta.kubernetes.io/arch"),
    (label::OS, "beta.kubernetes.io/os"),
    (label::INSTANCE_TYPE, "beta.kubernetes.io/instance-type"),
    (label::ZONE, label::BETA_ZONE),
    (label::REGION, label::BETA_REGION),
];

/// Adds the former names of labels, with the values that the labels have.
pub(super) fn add_former_names(labels: &mut StringMap) {
    for (name, former) in FORMER {
        if let Some(value) = labels.get(name) {
            labels.insert(former.to_owned(), value.clone());
        }
    }
}

/// The values that pods ask for of the labels that pools leave open.
#[derive(Default)]
pub(super) struct Asked(BTreeMap<String, BTreeSet<String>>);

impl Asked {
    /// Collects the values that pods of these classes select or prefer.
    pub(super) fn of(
        classes: impl Iterator<Item = PodClassId>,
        templates: &[NodeTemplate],
        cluster: &Cluster,
    ) -> Self {
        let mut asked = Asked::default();
        for template in templates {
            let open = template.requirements.iter().filter(|own| {
                let names_values = matches!(own.operator, Operator::In | Operator::DoesNotExist);
                !names_values && !template.is_decided(&own.key)
            });
            for requirement in open {
                asked.0.entry(requirement.key.clone()).or_default();
            }
        }
        if !asked.0.is_empty() {
            let classes: BTreeSet<PodClassId> = classes.collect();
            for class in classes {
                asked.add(cluster.template(class));
            }
        }
        asked
    }

    fn add(&mut self, pod: &PodTemplate) {
        let mut note = |key: &str, values: &[String]| {
            if let Some(known) = self.0.get_mut(key) {
                known.extend(values.iter().cloned());
            }
        };
        for (key, value) in &pod.node_selector {
            note(key, std::slice::from_ref(value));
        }
        let Some(affinity) = &pod.affinity.node_affinity else {
            return;
        };
        let required = affinity.required.iter();
        let required = required.flat_map(|selector| &selector.node_selector_terms);
        let preferred = affinity.preferred.iter().map(|own| &own.preference);
        let demands = required
            .chain(preferred)
            .flat_map(|term| &term.match_expressions);
        let named = |own: &&NodeSelectorRequirement| own.operator == Operator::In;
        for demand in demands.filter(named) {
            note(&demand.key, &demand.values);
        }
    }

    /// Returns the values that a node may have of a label that its machine does not decide; `None` stands for no such label.
    fn values(&self, key: &str, requirements: &[&Requirement]) -> Vec<Option<String>> {
        let is_met = |value: Option<&String>| requirements.iter().all(|own| own.is_met_by(value));
        let named = |own: &&&Requirement| own.operator == Operator::In;
        if let Some(named) = requirements.iter().find(named) {
            let values = named.values.iter().filter(|value| is_met(Some(value)));
            return values.cloned().map(Some).collect();
        }
        let Some(asked) = self.0.get(key) else {
            return vec![None];
        };
        let nobodys = match is_met(None) {
            true => Some(None),
            false => nobodys(asked, requirements).map(Some),
        };
        let asked = asked.iter().filter(|value| is_met(Some(value)));
        nobodys
            .into_iter()
            .chain(asked.cloned().map(Some))
            .collect()
    }
}

/// Returns the smallest number that meets the requirements on a label and that no pod asks for.
fn nobodys(asked: &BTreeSet<String>, requirements: &[&Requirement]) -> Option<String> {
    let bound = |own: &&Requirement| {
        let bound = own.values.first()?.parse::<u64>().ok()?;
        match own.operator {
            Operator::Gt => bound.checked_add(1),
            Operator::Gte => Some(bound),
            _ => None,
        }
    };
    let least = requirements.iter().filter_map(bound).max().unwrap_or(0);
    let excluded: usize = requirements.iter().map(|own| own.values.len()).sum();
    // One more than the numbers that can be taken or excluded.
    let tried = (least..=u64::MAX).take(asked.len() + excluded + 1);
    tried.map(|number| number.to_string()).find(|value| {
        let is_met = requirements.iter().all(|own| own.is_met_by(Some(value)));
        is_met && !asked.contains(value)
    })
}

/// Returns the label sets that a node can have in addition to `labels`: none if `labels` contradict a requirement, several
/// if a label that the machine does not decide may have several values.
pub(super) fn choices(
    labels: &StringMap,
    requirements: &[Requirement],
    asked: &Asked,
) -> Vec<Vec<(String, String)>> {
    let mut open: BTreeMap<&str, Vec<&Requirement>> = BTreeMap::new();
    for requirement in requirements {
        match labels.get(&requirement.key) {
            Some(value) if !requirement.is_met_by(Some(value)) => return Vec::new(),
            Some(_) => {}
            None => open.entry(&requirement.key).or_default().push(requirement),
        }
    }
    let mut choices = vec![Vec::new()];
    for (key, requirements) in open {
        let mut with = Vec::new();
        for value in asked.values(key, &requirements) {
            for choice in &choices {
                let own = value.iter().map(|value| (key.to_owned(), value.clone()));
                with.push(choice.iter().cloned().chain(own).collect());
            }
        }
        with.truncate(MAX_CHOICES);
        choices = with;
    }
    choices
}
