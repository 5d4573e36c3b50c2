//! Builds daemon pods: the template, tied to one node by affinity. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod,
    PodTemplateSpec,
};

use super::{
    eligibility::tolerations,
    plan::{GENERATION_LABEL, HASH_LABEL, Revision},
};

/// Returns the node on which a pod runs, or the only one that its affinity allows.
pub(super) fn target_node(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    // A bound pod may have been created by a user, without the affinity that this controller sets.
    if let Some(node) = spec.node_name.as_ref().filter(|node| !node.is_empty()) {
        return Some(node.clone());
    }
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| term.match_fields.iter().flatten());
    let mut names = fields.filter(|field| field.key == "metadata.name" && field.operator == "In");
    names.find_map(|field| field.values.as_ref()?.first().cloned())
}

/// Returns the template with the labels and tolerations that every daemon pod has.
pub(super) fn pod_template(template: &PodTemplateSpec, revision: &Revision) -> PodTemplateSpec {
    let mut template = template.clone();
    let labels: &mut BTreeMap<_, _> = template
        .metadata
        .get_or_insert_default()
        .labels
        .get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), revision.hash.clone());
    if let Some(generation) = revision.generation {
        labels.insert(GENERATION_LABEL.to_owned(), generation.to_string());
    }
    let spec = template.spec.get_or_insert_default();
    spec.tolerations = Some(tolerations(spec));
    template
}

/// Replaces the required node affinity. The template's own was already honoured when the node was chosen.
pub(super) fn bind_by_affinity(pod: &mut Pod, node: &str) {
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm {
        match_fields: Some(vec![by_name]),
        match_expressions: None,
    };
    let affinity: &mut Affinity = pod
        .spec
        .get_or_insert_default()
        .affinity
        .get_or_insert_default();
    let affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    affinity.required_during_scheduling_ignored_during_execution = Some(NodeSelector {
        node_selector_terms: vec![term],
    });
}
