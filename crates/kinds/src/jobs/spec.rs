//! Validates the spec of a Job, or of a CronJob's template (`pkg/apis/batch/validation`).

use mullion_kube_text::{
    field::{Errors, Path},
    validation::domain_prefixed_path,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::policies;
use crate::{
    fields::{self, All, Field, MaxBytes, NOT_NEGATIVE, OneOf, Text, set},
    podspec,
};

/// The highest parallelism of an indexed Job, and the highest limit of failed indexes.
const MAX_INDEXED: i64 = 100_000;
/// Jobs with more completions than this have lower limits, because each index is tracked.
const MANY_COMPLETIONS: i64 = 100_000;
/// The limit of parallelism and of failed indexes for Jobs with many completions.
const LIMIT_WITH_MANY: i64 = 10_000;
const COUNTS: &[Field] = &[
    set("parallelism", NOT_NEGATIVE),
    set("completions", NOT_NEGATIVE),
    set("activeDeadlineSeconds", NOT_NEGATIVE),
    set("backoffLimit", NOT_NEGATIVE),
    set("ttlSecondsAfterFinished", NOT_NEGATIVE),
    set("backoffLimitPerIndex", NOT_NEGATIVE),
    set("maxFailedIndexes", NOT_NEGATIVE),
];
const SPEC: &[Field] = &[
    set(
        "managedBy",
        All(&[Text(domain_prefixed_path), MaxBytes(63)]),
    ),
    set("completionMode", OneOf(&["NonIndexed", "Indexed"])),
];

/// Validates the spec, except for its selector.
pub(crate) fn validate(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    fields::validate(COUNTS, spec, path, errors);
    if spec.has("maxFailedIndexes") && !spec.has("backoffLimitPerIndex") {
        errors.required(
            &path.child("backoffLimitPerIndex"),
            "when maxFailedIndexes is specified",
        );
    }
    fields::validate(SPEC, spec, path, errors);
    completion_mode(spec, path, errors);
    if let Some(policy) = spec.field("podFailurePolicy") {
        policies::failure(spec, policy, &path.child("podFailurePolicy"), errors);
    }
    if let Some(policy) = spec.field("successPolicy") {
        policies::success(spec, policy, &path.child("successPolicy"), errors);
    }
    replacement(spec, &path.child("podReplacementPolicy"), errors);
    let path = path.child("template");
    podspec::validate_template(&spec["template"], &path, errors);
    let path = path.child("spec");
    restart_policy(spec, &path.child("restartPolicy"), errors);
}

/// Returns the warnings for a valid spec, without those for the pod template.
pub(crate) fn warnings(spec: &Value, path: &Path<'_>) -> Vec<String> {
    let above = |field: &str, limit: i64| spec.integer(field).unwrap_or(0) > limit;
    let tracked_badly = spec.text("completionMode") == "Indexed"
        && above("completions", MANY_COMPLETIONS)
        && above("parallelism", LIMIT_WITH_MANY);
    if !tracked_badly {
        return Vec::new();
    }
    vec![format!(
        "{path}: In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail"
    )]
}

fn completion_mode(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mode = spec.text("completionMode");
    if mode == "Indexed" {
        indexed(spec, path, errors);
    }
    if mode == "NonIndexed" || !spec.has("completionMode") {
        for field in ["backoffLimitPerIndex", "maxFailedIndexes"] {
            if let Some(value) = spec.integer(field) {
                errors.invalid(
                    &path.child(field),
                    value,
                    "requires indexed completion mode",
                );
            }
        }
    }
}

fn indexed(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    let completions = spec.integer("completions");
    if completions.is_none() {
        errors.required(
            &path.child("completions"),
            "when completion mode is Indexed",
        );
    }
    let mut at_most = |field: &str, limit: i64, detail: String| {
        if let Some(value) = spec.integer(field).filter(|value| *value > limit) {
            errors.invalid(&path.child(field), value, detail);
        }
    };
    let no_more = |limit: i64| format!("must be less than or equal to {limit}");
    at_most(
        "parallelism",
        MAX_INDEXED,
        format!("{} when completion mode is Indexed", no_more(MAX_INDEXED)),
    );
    if let Some(completions) = completions {
        let detail = "must be less than or equal to completions".to_owned();
        at_most("maxFailedIndexes", completions, detail);
    }
    at_most("maxFailedIndexes", MAX_INDEXED, no_more(MAX_INDEXED));
    if completions.is_none_or(|count| count <= MANY_COMPLETIONS)
        || !spec.has("backoffLimitPerIndex")
    {
        return;
    }
    if !spec.has("maxFailedIndexes") {
        errors.required(
            &path.child("maxFailedIndexes"),
            format!("must be specified when completions is above {MANY_COMPLETIONS}"),
        );
    }
    for field in ["parallelism", "maxFailedIndexes"] {
        if let Some(value) = spec.integer(field).filter(|value| *value > LIMIT_WITH_MANY) {
            errors.invalid(
                &path.child(field),
                value,
                format!(
                    "{} when completions are above {MANY_COMPLETIONS} and used with backoff limit per index",
                    no_more(LIMIT_WITH_MANY)
                ),
            );
        }
    }
}

fn replacement(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    if !spec.has("podReplacementPolicy") {
        return;
    }
    let policy = spec.text("podReplacementPolicy");
    let supported: &[&str] = if spec.has("podFailurePolicy") {
        &["Failed"]
    } else {
        &["Failed", "TerminatingOrFailed"]
    };
    if !supported.contains(&policy) {
        errors.not_supported(path, policy, supported);
    }
}

/// Checks the restart policy: the pods of a Job must end, so `Always` is invalid.
fn restart_policy(spec: &Value, path: &Path<'_>, errors: &mut Errors) {
    match spec["template"]["spec"].text("restartPolicy") {
        // `Always` is only the default of templates, so kube-apiserver reports that the client has not chosen.
        "Always" | "" => errors.required(path, r#"valid values: "OnFailure", "Never""#),
        "OnFailure" if spec.has("podFailurePolicy") => errors.invalid(
            path,
            "OnFailure",
            r#"only "Never" is supported when podFailurePolicy is specified"#,
        ),
        "OnFailure" | "Never" => {}
        other => errors.not_supported(path, other, &["OnFailure", "Never"]),
    }
}
