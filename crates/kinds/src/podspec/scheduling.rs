//! Validates tolerations, topology spread constraints, scheduling gates and readiness gates.

use std::collections::{HashMap, HashSet};

use mullion_kube_text::{
    field::{Errors, Path},
    names,
    validation::{check, metadata::label_name, selector::label_selector},
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::affinity;

const NOT_POSITIVE: &str = "must be greater than zero";

/// Validates `spec.tolerations`, also of a RuntimeClass.
pub(crate) fn validate_tolerations(tolerations: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let at = path.index(index);
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
        const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            errors.not_supported(&at.child("effect"), effect, &EFFECTS);
        }
    }
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
        let skew = constraint.integer("maxSkew").unwrap_or(0);
        if skew <= 0 {
            errors.invalid(&at.child("maxSkew"), skew, NOT_POSITIVE);
        }
        let (key, action) = (
            constraint.text("topologyKey"),
            constraint.text("whenUnsatisfiable"),
        );
        if key.is_empty() {
            errors.required(&at.child("topologyKey"), "can not be empty");
        }
        if action != "DoNotSchedule" && action != "ScheduleAnyway" {
            errors.not_supported(
                &at.child("whenUnsatisfiable"),
                action,
                &["DoNotSchedule", "ScheduleAnyway"],
            );
        }
        let same = following.entry(pair(constraint)).or_default();
        *same = same.saturating_sub(1);
        if *same > 0 {
            errors.duplicate(
                // Both fields together are the key, and kube-apiserver's path names both.
                &at.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{key}, {action}}}"),
            );
        }
        if let Some(domains) = constraint.integer("minDomains") {
            let at = at.child("minDomains");
            if domains <= 0 {
                errors.invalid(&at, domains, NOT_POSITIVE);
            }
            if action != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
                );
                errors.invalid(&at, domains, detail);
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let policy = constraint.text(field);
            if constraint.has(field) && policy != "Honor" && policy != "Ignore" {
                errors.not_supported(&at.child(field), policy, &["Honor", "Ignore"]);
            }
        }
        affinity::label_keys(constraint, &at, errors);
        if let Some(selector) = constraint.field("labelSelector") {
            label_selector(errors, &at.child("labelSelector"), selector);
        }
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

/// Validates `spec.readinessGates`.
pub(super) fn validate_readiness_gates(gates: &[Value], path: &Path<'_>, errors: &mut Errors) {
    for (index, gate) in gates.iter().enumerate() {
        let kind = gate.text("conditionType");
        check(
            errors,
            &path.index(index).child("conditionType"),
            kind,
            names::qualified_name(kind),
        );
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
