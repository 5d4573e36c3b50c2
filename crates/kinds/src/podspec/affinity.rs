//! Validates node affinity, pod affinity and pod anti-affinity.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata::label_name},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::fields::{self, Anything, Code, Field, Selector, Text, Within, always, required, set};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
/// `spec.affinity`.
pub(super) const AFFINITY: &[Field] = &[
    set("nodeAffinity", Code(node_affinity)),
    set("podAffinity", Code(pod_affinity)),
    set("podAntiAffinity", Code(pod_affinity)),
];
const WEIGHT: &[Field] = &[always(
    "weight",
    Within(1, 100, "must be in the range 1-100"),
)];
const SELECTORS: &[Field] = &[
    set("labelSelector", Selector),
    set("namespaceSelector", Selector),
];
const TOPOLOGY_KEY: &[Field] = &[
    required("topologyKey", Anything).because("can not be empty"),
    always("topologyKey", Text(label_name)),
];
const NO_SELECTOR: &str = "must not be specified when labelSelector is not set";

fn node_affinity(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    if let Some(required) = affinity.field(REQUIRED) {
        node_selector(required, &path.child(REQUIRED), errors);
    }
    let preferred = path.child(PREFERRED);
    for (index, term) in affinity.items(PREFERRED).iter().enumerate() {
        let at = preferred.index(index);
        fields::validate(WEIGHT, term, &at, errors);
        if let Some(preference) = term.field("preference") {
            // A preference that no label can satisfy does no harm, so its values are not checked.
            node_selector_term(preference, false, &at.child("preference"), errors);
        }
    }
}

/// Validates a required node selector.
pub(crate) fn node_selector(selector: &Value, path: &Path<'_>, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = selector.items("nodeSelectorTerms");
    if terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_selector_term(term, true, &path.index(index), errors);
    }
}

fn node_selector_term(term: &Value, check_values: bool, path: &Path<'_>, errors: &mut Errors) {
    let expressions = path.child("matchExpressions");
    for (index, requirement) in term.items("matchExpressions").iter().enumerate() {
        label_requirement(requirement, check_values, &expressions.index(index), errors);
    }
    let fields = path.child("matchFields");
    for (index, requirement) in term.items("matchFields").iter().enumerate() {
        field_requirement(requirement, &fields.index(index), errors);
    }
}

fn label_requirement(
    requirement: &Value,
    check_values: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let values = requirement.items("values");
    let at = path.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at, "must be specified when `operator` is 'In' or 'NotIn'")
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(
                &at,
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(
                &at,
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    label_name(errors, &path.child("key"), requirement.text("key"));
    if check_values {
        for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
            check(errors, &at.index(index), value, names::label_value(value));
        }
    }
}

fn field_requirement(requirement: &Value, path: &Path<'_>, errors: &mut Errors) {
    let values = requirement.items("values");
    let at = path.child("values");
    match requirement.text("operator") {
        "In" | "NotIn" if values.len() != 1 => {
            errors.required(
                &at,
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            );
        }
        "In" | "NotIn" => {}
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    let key = requirement.text("key");
    if key != "metadata.name" {
        return errors.invalid(&path.child("key"), key, "not a valid field selector key");
    }
    for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
        check(errors, &at.index(index), value, names::dns_subdomain(value));
    }
}

fn pod_affinity(affinity: &Value, path: &Path<'_>, errors: &mut Errors) {
    let required = path.child(REQUIRED);
    for (index, term) in affinity.items(REQUIRED).iter().enumerate() {
        pod_affinity_term(term, &required.index(index), errors);
    }
    let preferred = path.child(PREFERRED);
    for (index, weighted) in affinity.items(PREFERRED).iter().enumerate() {
        let at = preferred.index(index);
        fields::validate(WEIGHT, weighted, &at, errors);
        let none = Value::Null;
        pod_affinity_term(
            weighted.get("podAffinityTerm").unwrap_or(&none),
            &at.child("podAffinityTerm"),
            errors,
        );
    }
}

fn pod_affinity_term(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(SELECTORS, term, path, errors);
    for namespace in term.items("namespaces").iter().filter_map(Value::as_str) {
        check(
            errors,
            // kube-apiserver's path has the singular and no index.
            &path.child("namespace"),
            namespace,
            names::dns_label(namespace),
        );
    }
    label_keys(term, path, errors);
    fields::validate(TOPOLOGY_KEY, term, path, errors);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of an affinity term or a spread constraint. The keys of `matchLabelKeys` have been
/// merged into the pod's selector by now, so a key that is in the selector twice was given both ways.
pub(super) fn label_keys(term: &Value, path: &Path<'_>, errors: &mut Errors) {
    let selector = term.field("labelSelector");
    let (matching, mismatching) = (
        term.items("matchLabelKeys"),
        term.items("mismatchLabelKeys"),
    );
    for (field, keys) in [
        ("matchLabelKeys", matching),
        ("mismatchLabelKeys", mismatching),
    ] {
        let at = path.child(field);
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(&at, NO_SELECTOR);
            continue;
        }
        for (index, key) in keys.iter().filter_map(Value::as_str).enumerate() {
            label_name(errors, &at.index(index), key);
        }
    }
    if let Some(selector) = selector {
        let positions = matching.iter().enumerate();
        let positions: HashMap<&str, usize> = positions
            .filter_map(|(position, key)| Some((key.as_str()?, position)))
            .collect();
        let mut seen: HashSet<&str> = selector
            .entries("matchLabels")
            .map(|(label, _)| label)
            .collect();
        for expression in selector.items("matchExpressions") {
            let key = expression.text("key");
            let twice = !seen.insert(key);
            if let Some(position) = positions.get(key).filter(|_| twice) {
                errors.invalid(
                    // kube-apiserver leaves the field out of this path.
                    &path.index(*position),
                    key,
                    "exists in both matchLabelKeys and labelSelector",
                );
            }
        }
    }
    let at = path.child("matchLabelKeys");
    let mismatching: HashSet<&Value> = mismatching.iter().collect();
    for (index, key) in matching
        .iter()
        .enumerate()
        .filter(|(_, key)| mismatching.contains(key))
    {
        errors.invalid(
            &at.index(index),
            key.clone(),
            "exists in both matchLabelKeys and mismatchLabelKeys",
        );
    }
}
