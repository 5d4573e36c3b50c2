//! Node selectors and required node affinity on the API's own types.
//!
//! This is kube-scheduler's NodeAffinity rule for one pod and one node, for example for the kubelet's admission.
//! The engine has a compiled form for placing pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// Returns whether the pod's node selector and required node affinity allow `node`.
pub fn allows(spec: &PodSpec, node: &Node) -> bool {
    static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&NO_LABELS);
    let selector_fits = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let name = node.metadata.name.as_deref().unwrap_or_default();
    selector_fits
        && required.is_none_or(|required| {
            required
                .node_selector_terms
                .iter()
                .any(|term| fits(term, labels, name))
        })
}

fn fits(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, name: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let field = |key: &str| (key == "metadata.name").then_some(name);
    // An empty term matches no node, and terms are joined by OR (Kubernetes: NodeSelectorTerm).
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|requirement| {
            holds(
                requirement,
                labels.get(&requirement.key).map(String::as_str),
            )
        })
        && fields
            .iter()
            .all(|requirement| holds(requirement, field(&requirement.key)))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|candidate| candidate == value));
    let numbers = || {
        Some((
            value?.parse::<i64>().ok()?,
            values.first()?.parse::<i64>().ok()?,
        ))
    };
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(label, bound)| label > bound),
        "Lt" => numbers().is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn allowed(spec: serde_json::Value) -> bool {
        let node = json!({ "metadata": { "name": "n1", "labels": { "kubernetes.io/os": "windows", "cores": "8" } } });
        let spec = spec.as_object().cloned().map(|mut spec| {
            spec.insert("containers".to_owned(), json!([]));
            serde_json::Value::Object(spec)
        });
        let spec = serde_json::from_value(spec.expect("an object")).expect("a pod spec");
        allows(&spec, &serde_json::from_value(node).expect("a node"))
    }

    fn required(terms: serde_json::Value) -> serde_json::Value {
        json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } })
    }

    #[test]
    fn selectors_and_affinity_terms_decide_as_the_scheduler_would() {
        let expression = |key: &str, operator: &str, values: &[&str]| {
            required(
                json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]),
            )
        };
        let cases = [
            (json!({}), true),
            (
                json!({ "nodeSelector": { "kubernetes.io/os": "windows" } }),
                true,
            ),
            (
                json!({ "nodeSelector": { "kubernetes.io/os": "linux" } }),
                false,
            ),
            (required(json!([{}])), false),
            (required(json!([])), false),
            (
                required(
                    json!([{}, { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n1"] }] }]),
                ),
                true,
            ),
            (expression("absent", "NotIn", &["x"]), true),
            (expression("absent", "Exists", &[]), false),
            (expression("cores", "Gt", &["4"]), true),
            (expression("cores", "Lt", &["8"]), false),
        ];
        for (spec, expected) in cases {
            assert_eq!(allowed(spec.clone()), expected, "{spec}");
        }
    }
}
