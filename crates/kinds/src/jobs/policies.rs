//! Validates the policies that end a Job early, as failed (`podFailurePolicy`) or as succeeded (`successPolicy`).

use std::collections::HashSet;

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::nonnegative,
};
use mullion_schema::tree::{Tree, set_zero};
use serde_json::{Map, Value};

use super::indexes;
use crate::{
    fields::{self, All, Each, Field, Format, MaxItems, OneOf, always, required},
    podspec::internal,
};

const MAX_RULES: usize = 20;
const MAX_EXIT_CODES: usize = 255;
const MAX_INDEXES: usize = 64 * 1024;
const ACTIONS: [&str; 4] = ["Count", "FailIndex", "FailJob", "Ignore"];
const FAILURE: &[Field] = &[always("rules", MaxItems(MAX_RULES))];
const CONDITIONS: &[Field] = &[always(
    "onPodConditions",
    All(&[MaxItems(20), Each(CONDITION)]),
)];
const CONDITION: &[Field] = &[
    always("type", Format(names::qualified_name)),
    required("status", OneOf(&["False", "True", "Unknown"]))
        .because(r#"valid values: ["False" "True" "Unknown"]"#),
];
const EXIT_CODES: &[Field] =
    &[required("operator", OneOf(&["In", "NotIn"])).because(r#"valid values: ["In" "NotIn"]"#)];
const SUCCESS: &[Field] = &[required("rules", MaxItems(MAX_RULES))
    .because("at least one rules must be specified when the successPolicy is specified")];

/// Sets the default of a pattern for pod conditions: the condition is `True`.
pub(super) fn default(spec: &mut Map<String, Value>) {
    let rules = spec
        .get_mut("podFailurePolicy")
        .and_then(|policy| policy.get_mut("rules"))
        .and_then(Value::as_array_mut);
    for rule in rules.into_iter().flatten() {
        let patterns = rule
            .get_mut("onPodConditions")
            .and_then(Value::as_array_mut);
        for pattern in patterns
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            set_zero(pattern, "status", "True");
        }
    }
}

/// Validates the rules of `podFailurePolicy`, which decide how failures of pods count.
pub(super) fn failure(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(FAILURE, policy, path, errors);
    let path = path.child("rules");
    for (index, rule) in policy.items("rules").iter().enumerate() {
        failure_rule(spec, rule, &path.index(index), errors);
    }
}

fn failure_rule(spec: &Value, rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    let at = path.child("action");
    match rule.text("action") {
        "" => errors.required(
            &at,
            r#"valid values: ["Count" "FailIndex" "FailJob" "Ignore"]"#,
        ),
        // Only a Job that counts failures per index can fail a single one.
        "FailIndex" if !spec.has("backoffLimitPerIndex") => errors.invalid(
            &at,
            "FailIndex",
            "requires the backoffLimitPerIndex to be set",
        ),
        action if !ACTIONS.contains(&action) => errors.not_supported(&at, action, &ACTIONS),
        _ => {}
    }
    let (codes, conditions) = (rule.field("onExitCodes"), rule.items("onPodConditions"));
    if let Some(codes) = codes {
        exit_codes(spec, codes, &path.child("onExitCodes"), errors);
    }
    fields::validate(CONDITIONS, rule, path, errors);
    match (codes.is_some(), !conditions.is_empty()) {
        (true, true) => errors.invalid_as_a_whole(
            path,
            "specifying both OnExitCodes and OnPodConditions is not supported",
        ),
        (false, false) => errors.invalid_as_a_whole(
            path,
            "specifying one of OnExitCodes and OnPodConditions is required",
        ),
        _ => {}
    }
}

fn exit_codes(spec: &Value, codes: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(EXIT_CODES, codes, path, errors);
    let operator = codes.text("operator");
    let name = codes.text("containerName");
    let is_known = ["containers", "initContainers"].iter().any(|list| {
        let containers = spec["template"]["spec"].items(list);
        containers
            .iter()
            .any(|container| container.text("name") == name)
    });
    if codes.has("containerName") && !is_known {
        errors.invalid(
            &path.child("containerName"),
            name,
            "must be one of the container or initContainer names in the pod template",
        );
    }
    let at = path.child("values");
    let values: Vec<i64> = codes
        .items("values")
        .iter()
        .filter_map(Value::as_i64)
        .collect();
    if values.is_empty() {
        let sent = errors.as_sent(&at, &codes["values"]);
        errors.invalid(&at, sent, "at least one value is required");
    } else if values.len() > MAX_EXIT_CODES {
        errors.too_many(&at, values.len(), MAX_EXIT_CODES);
    }
    let mut seen = HashSet::new();
    for (index, value) in values.iter().enumerate() {
        // A container that exits with 0 has not failed, so the rule could never apply.
        if operator == "In" && *value == 0 {
            errors.invalid(&at.index(index), 0, "must not be 0 for the In operator");
        }
        if !seen.insert(value) {
            errors.duplicate(&at.index(index), *value);
        }
    }
    if !values.is_sorted() {
        errors.invalid(&at, values, "must be ordered");
    }
}

/// Validates the rules of `successPolicy`, by which a Job succeeds before all its indexes do.
pub(super) fn success(spec: &Value, policy: &Value, path: &Path<'_>, errors: &mut Errors) {
    if spec.text("completionMode") != "Indexed" {
        let text = internal::as_sent("SuccessPolicy", policy, path, errors);
        let why = "requires indexed completion mode";
        return errors.with_text(ErrorType::Invalid, path, text, why);
    }
    fields::validate(SUCCESS, policy, path, errors);
    let path = path.child("rules");
    for (index, rule) in policy.items("rules").iter().enumerate() {
        success_rule(spec, rule, &path.index(index), errors);
    }
}

fn success_rule(spec: &Value, rule: &Value, path: &Path<'_>, errors: &mut Errors) {
    let completions = spec.integer("completions").unwrap_or(0);
    if !rule.has("succeededCount") && !rule.has("succeededIndexes") {
        errors.required(
            path,
            "at least one of succeededCount or succeededIndexes must be specified",
        );
    }
    let mut named = None;
    if rule.has("succeededIndexes") {
        let at = path.child("succeededIndexes");
        let text = rule.text("succeededIndexes");
        if text.len() > MAX_INDEXES {
            errors.too_long(&at, MAX_INDEXES);
        }
        named = Some(match indexes::count(text, completions) {
            Ok(count) => count,
            Err(error) => {
                errors.invalid(
                    &at,
                    text,
                    format!("error parsing succeededIndexes: {error}"),
                );
                // kube-apiserver goes on with no indexes, so a positive count is reported too.
                0
            }
        });
    }
    let Some(count) = rule.integer("succeededCount") else {
        return;
    };
    let at = path.child("succeededCount");
    nonnegative(errors, &at, count);
    if count > completions {
        errors.invalid(
            &at,
            count,
            format!(
                "must be less than or equal to {completions} (the number of specified completions)"
            ),
        );
    }
    if let Some(named) = named.filter(|named| count > *named) {
        errors.invalid(
            &at,
            count,
            format!("must be less than or equal to {named} (the number of indexes in the specified succeededIndexes field)"),
        );
    }
}
