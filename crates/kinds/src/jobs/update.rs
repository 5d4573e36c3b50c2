//! Validates changes of a Job's spec. Parallelism may change, placement and resources of pods may change while the Job is suspended, and
//! little else.

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    validation::IMMUTABLE,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use super::status::is_true;
use crate::{fields, podspec::internal};

/// Validates a change of the spec.
pub(super) fn validate(object: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (spec, before) = (&object["spec"], &old["spec"]);
    completions(spec, before, path, errors);
    if spec["selector"] != before["selector"] {
        errors.with_text(
            ErrorType::Invalid,
            &path.child("selector"),
            internal::optional_selector(&spec["selector"]),
            IMMUTABLE,
        );
    }
    template(spec, old, &path.child("template"), errors);
    fields::immutable(&["completionMode"], spec, before, path, errors);
    same_struct(
        spec,
        before,
        "podFailurePolicy",
        "PodFailurePolicy",
        path,
        errors,
    );
    let fixed = &["backoffLimitPerIndex", "managedBy"];
    fields::immutable(fixed, spec, before, path, errors);
    same_struct(spec, before, "successPolicy", "SuccessPolicy", path, errors);
}

fn same_struct(
    spec: &Value,
    before: &Value,
    field: &str,
    type_name: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if spec[field] == before[field] {
        return;
    }
    let path = path.child(field);
    let text = match spec.field(field) {
        Some(value) => internal::as_sent(type_name, value, &path, errors),
        None => "null".to_owned(),
    };
    errors.with_text(ErrorType::Invalid, &path, text, IMMUTABLE);
}

/// Validates a change of `completions`, which is allowed for indexed Jobs if `parallelism` changes to the same number.
fn completions(spec: &Value, before: &Value, path: &Path<'_>, errors: &mut Errors) {
    let (wanted, had) = (&spec["completions"], &before["completions"]);
    if spec.text("completionMode") != "Indexed" {
        return fields::immutable(&["completions"], spec, before, path, errors);
    }
    // An indexed Job without a number is reported by the validation of the spec.
    if wanted != had && spec.has("completions") && *wanted != spec["parallelism"] {
        errors.invalid(
            &path.child("completions"),
            wanted.clone(),
            "can only be modified in tandem with spec.parallelism",
        );
    }
}

fn template(spec: &Value, old: &Value, path: &Path<'_>, errors: &mut Errors) {
    let mut expected = old["spec"]["template"].clone();
    let sent = &spec["template"];
    // Until its controller has acted on the suspension, a Job may still have pods of the old template.
    let idle = !old["status"].has("startTime") || is_true(&old["status"], "Suspended");
    if old["spec"].flag("suspend") && idle {
        // The metadata may change as a whole, and of the pod what decides where it runs.
        admit_placement(&mut expected, sent);
        admit_resources(&mut expected["spec"], &sent["spec"]);
        if sent["spec"] != expected["spec"] {
            let path = path.child("spec");
            let text = internal::as_sent("PodSpec", &sent["spec"], &path, errors);
            errors.with_text(ErrorType::Invalid, &path, text, IMMUTABLE);
        }
        return;
    }
    if sent["metadata"] != expected["metadata"] || sent["spec"] != expected["spec"] {
        let text = internal::as_sent("PodTemplateSpec", sent, path, errors);
        errors.with_text(ErrorType::Invalid, path, text, IMMUTABLE);
    }
}

/// Copies the fields that decide pod placement from `sent` to `expected`, so that their change is allowed.
fn admit_placement(expected: &mut Value, sent: &Value) {
    copy(
        &mut expected["spec"],
        &sent["spec"],
        &["nodeSelector", "tolerations", "schedulingGates"],
    );
    let (before, now) = (
        expected["spec"].field("affinity").is_some(),
        sent["spec"].field("affinity"),
    );
    match (before, now) {
        (true, None) => {
            let affinity = &mut expected["spec"]["affinity"];
            copy(affinity, &Value::Null, &["nodeAffinity"]);
            if affinity.as_object().is_some_and(serde_json::Map::is_empty) {
                copy(&mut expected["spec"], &Value::Null, &["affinity"]);
            }
        }
        (_, Some(now)) => {
            if !before {
                expected["spec"]["affinity"] = Value::Object(serde_json::Map::new());
            }
            copy(&mut expected["spec"]["affinity"], now, &["nodeAffinity"]);
        }
        (false, None) => {}
    }
}

/// Copies the resources of containers from `sent` to `expected`, so that their change is allowed.
fn admit_resources(expected: &mut Value, sent: &Value) {
    for list in ["containers", "initContainers"] {
        let Some(containers) = expected.get_mut(list).and_then(Value::as_array_mut) else {
            continue;
        };
        for (container, sent) in containers.iter_mut().zip(sent.items(list)) {
            copy(container, sent, &["resources"]);
        }
    }
}

/// Copies fields from `from` to `to`, and removes those that `from` does not have.
fn copy(to: &mut Value, from: &Value, fields: &[&str]) {
    let Some(to) = to.as_object_mut() else {
        return;
    };
    for field in fields {
        match from.field(field) {
            Some(value) => to.insert((*field).to_owned(), value.clone()),
            None => to.remove(*field),
        };
    }
}
