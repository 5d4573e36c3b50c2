//! Validates tolerations, topology spread constraints, scheduling gates and readiness gates.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata::label_name},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::affinity;
use crate::fields::{
    self, Anything, AtLeast, Code, Field, Items, OneOf, Rule, Selector, always, filled, required,
    set,
};

const POSITIVE: Rule = AtLeast(1, "must be greater than zero");
/// What a taint does to pods that do not tolerate it.
pub(crate) const TAINT_EFFECT: Rule = OneOf(&["NoSchedule", "PreferNoSchedule", "NoExecute"]);
const TOLERATION: &[Field] = &[filled("effect", TAINT_EFFECT)];
const SPREAD: &[Field] = &[
    always("maxSkew", POSITIVE),
    required("topologyKey", Anything).because("can not be empty"),
    always(
        "whenUnsatisfiable",
        OneOf(&["DoNotSchedule", "ScheduleAnyway"]),
    ),
];
const DOMAINS: &[Field] = &[set("minDomains", POSITIVE)];
const NODE_POLICIES: &[Field] = &[
    set("nodeAffinityPolicy", OneOf(&["Honor", "Ignore"])),
    set("nodeTaintsPolicy", OneOf(&["Honor", "Ignore"])),
];
const SELECTOR: &[Field] = &[set("labelSelector", Selector)];

/// The tolerations of a pod or of a RuntimeClass.
pub(crate) const TOLERATIONS: Rule = Items(&Code(toleration));

/// Validates the tolerations of an annotation or of an update.
pub(super) fn validate_tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, item) in tolerations.iter().enumerate() {
        toleration(item, &path.index(index), errors);
    }
}

fn toleration(toleration: &Value, at: &Path<'_>, errors: &mut Errors) {
    let (key, operator) = (toleration.text("key"), toleration.text("operator"));
    let (value, effect) = (toleration.text("value"), toleration.text("effect"));
    if !key.is_empty() {
        label_name(errors, &at.child("key"), key);
    } else if operator != "Exists" {
        let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&at.child("operator"), operator, detail);
    }
    // Only NoExecute evicts pods, so with another effect there is nothing to wait for.
    if toleration.has("tolerationSeconds") && effect != "NoExecute" {
        errors.invalid(
            &at.child("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
    match operator {
        "Equal" | "" => {
            let sentences = names::label_value(value);
            if !sentences.is_empty() {
                // kube-apiserver reports a wrong value at the operator, here and below.
                errors.invalid(&at.child("operator"), value, sentences.join(";"));
            }
        }
        "Exists" if !value.is_empty() => {
            errors.invalid(
                &at.child("operator"),
                value,
                "value must be empty when `operator` is 'Exists'",
            );
        }
        "Exists" => {}
        // Their feature gate is off by default, but kube-apiserver's message lists them.
        "Lt" | "Gt" => {
            let known = ["Equal", "Exists", "Lt", "Gt"];
            errors.not_supported(&at.child("operator"), operator, &known);
        }
        other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
    }
    fields::validate(TOLERATION, toleration, at, errors);
}

/// Validates `spec.topologySpreadConstraints`.
pub(super) fn validate_spread<'c>(constraints: &'c [Value], path: &Path<'_>, errors: &mut Errors) {
    let pair = |constraint: &'c Value| {
        let fields = ["topologyKey", "whenUnsatisfiable"];
        fields.map(|field| constraint.text(field))
    };
    // kube-apiserver reports a duplicate at each constraint that an equal one follows, so the equal ones that follow are counted.
    let mut following: HashMap<[&str; 2], usize> = HashMap::new();
    for constraint in constraints {
        *following.entry(pair(constraint)).or_default() += 1;
    }
    for (index, constraint) in constraints.iter().enumerate() {
        let at = path.index(index);
        fields::validate(SPREAD, constraint, &at, errors);
        let (key, action) = (
            constraint.text("topologyKey"),
            constraint.text("whenUnsatisfiable"),
        );
        let same = following.entry(pair(constraint)).or_default();
        *same = same.saturating_sub(1);
        if *same > 0 {
            errors.duplicate(
                // Both fields together are the key, and kube-apiserver's path names both.
                &at.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{key}, {action}}}"),
            );
        }
        fields::validate(DOMAINS, constraint, &at, errors);
        if let Some(domains) = constraint.integer("minDomains") {
            let at = at.child("minDomains");
            if action != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                errors.invalid(&at, domains, detail);
            }
        }
        fields::validate(NODE_POLICIES, constraint, &at, errors);
        affinity::label_keys(constraint, &at, errors);
        fields::validate(SELECTOR, constraint, &at, errors);
    }
}

/// Validates `spec.schedulingGates`.
pub(super) fn validate_gates(gates: &[Value], path: &Path<'_>, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, gate) in gates.iter().enumerate() {
        let name = gate.text("name");
        check(
            errors,
            &path.index(index),
            name,
            names::qualified_name(name),
        );
        if !seen.insert(name) {
            errors.duplicate(&path.index(index), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use mullion_kube_text::field::causes;
    use serde_json::json;

    use super::*;

    #[test]
    fn operators_that_are_not_on_yet_are_named_to_who_uses_one() {
        let given = [
            json!({"key": "a", "operator": "Gt"}),
            json!({"key": "a", "operator": "Foo"}),
        ];
        assert_eq!(
            causes(|errors| validate_tolerations(&given, &Path::new("t"), errors)),
            [
                r#"t[0].operator: Unsupported value: "Gt": supported values: "Equal", "Exists", "Lt", "Gt""#,
                r#"t[1].operator: Unsupported value: "Foo": supported values: "Equal", "Exists""#,
            ]
        );
    }
}
