//! Which labels match: label selectors, node selector terms, tolerations, namespaces of pod affinity terms.

use crate::objects::{
    Labels, Meta, Node, NodeTerm, Pod, PodTerm, Requirement, Selector, Taint, Toleration, World,
};

fn number(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// One requirement on labels. Gt and Lt exist for nodes only.
pub(crate) fn meets(requirement: &Requirement, labels: &Labels) -> bool {
    let value = labels.get(&requirement.key);
    let values = &requirement.values;
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" | "Lt" => {
            let (Some(found), Some(bound)) = (
                value.and_then(|v| number(v)),
                values.first().and_then(|v| number(v)),
            ) else {
                return false;
            };
            match requirement.operator.as_str() {
                "Gt" => found > bound,
                _ => found < bound,
            }
        }
        other => panic!("{other} is no operator"),
    }
}

pub(crate) fn is_empty(selector: &Selector) -> bool {
    selector.match_labels.is_empty() && selector.match_expressions.is_empty()
}

/// A selector that is absent matches nothing, an empty one everything.
pub(crate) fn selects(selector: Option<&Selector>, labels: &Labels) -> bool {
    selector.is_some_and(|selector| {
        let all_labels = selector
            .match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        all_labels
            && selector
                .match_expressions
                .iter()
                .all(|own| meets(own, labels))
    })
}

/// A term without requirements matches no node.
pub(crate) fn term_matches(term: &NodeTerm, node: &Node) -> bool {
    if term.match_expressions.is_empty() && term.match_fields.is_empty() {
        return false;
    }
    let name = Labels::from([("metadata.name".to_owned(), node.metadata.name.clone())]);
    term.match_expressions
        .iter()
        .all(|own| meets(own, &node.metadata.labels))
        && term.match_fields.iter().all(|own| meets(own, &name))
}

/// nodeSelector and required node affinity; with `os`, `spec.os.name` as well.
pub(crate) fn pod_selects_node(pod: &Pod, node: &Node, os: bool) -> bool {
    let labels = &node.metadata.labels;
    let wanted = pod.spec.os.as_ref().filter(|_| os);
    let os_fits = wanted.is_none_or(|os| labels.get("kubernetes.io/os") == Some(&os.name));
    let selected = pod
        .spec
        .node_selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = pod.spec.affinity.node_affinity.required.as_ref();
    let affine = required.is_none_or(|required| {
        required
            .node_selector_terms
            .iter()
            .any(|term| term_matches(term, node))
    });
    os_fits && selected && affine
}

pub(crate) fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    tolerations.iter().any(|toleration| {
        let effect = toleration.effect.is_empty() || toleration.effect == taint.effect;
        let key = toleration.key.is_empty() || toleration.key == taint.key;
        let value = match toleration.operator.as_str() {
            "Exists" => true,
            "" | "Equal" => toleration.value == taint.value,
            _ => false,
        };
        effect && key && value
    })
}

/// The first taint that keeps the pod away.
pub(crate) fn untolerated<'a>(pod: &Pod, node: &'a Node) -> Option<&'a Taint> {
    node.spec.taints.iter().find(|taint| {
        taint.effect != "PreferNoSchedule" && !tolerates(&pod.spec.tolerations, taint)
    })
}

/// Whether a term of `owner`, which is to come, means the pod described by `meta`, which is there: if the selector matches its namespace, or
/// a namespace without labels. A namespace that no object speaks of has none to match.
pub(crate) fn term_means(term: &PodTerm, owner: &Meta, meta: &Meta, world: &World) -> bool {
    let known = world.namespaces.get(&meta.namespace);
    means(term, owner, meta, known) || means(term, owner, meta, Some(&Labels::new()))
}

/// The same where the pod is to come and `owner` is there: a namespace that nobody knows has no labels then.
pub(crate) fn term_means_newcomer(
    term: &PodTerm,
    owner: &Meta,
    meta: &Meta,
    world: &World,
) -> bool {
    let none = Labels::new();
    let labels = world.namespaces.get(&meta.namespace).unwrap_or(&none);
    means(term, owner, meta, Some(labels))
}

fn means(term: &PodTerm, owner: &Meta, meta: &Meta, namespace: Option<&Labels>) -> bool {
    let own_only = term.namespaces.is_empty() && term.namespace_selector.is_none();
    let listed = term.namespaces.contains(&meta.namespace)
        || (own_only && meta.namespace == owner.namespace);
    let selector = term.namespace_selector.as_ref();
    let by_selector = namespace.is_some_and(|labels| selects(selector, labels));
    (listed || by_selector) && selects(term.label_selector.as_ref(), &meta.labels)
}
