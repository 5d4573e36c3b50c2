//! What the workload kinds have in common: a selector that matches the template's labels, counts or percentages, table cells.

use serde_json::Value;

use super::{
    podspec::{self, internal},
    tree::Tree,
};
use crate::{
    field::{ErrorType, Errors, Path},
    validation::{
        IMMUTABLE, names, nonnegative,
        selector::{Selector, label_selector},
    },
};

/// Which kind a selector and a template belong to, as upstream's sentences name it.
pub(super) struct Owner {
    /// In `empty selector is invalid for ...`.
    pub(super) selector_of: &'static str,
    /// In `activeDeadlineSeconds in ... is not Supported`.
    pub(super) deadline_in: &'static str,
}

/// `spec.selector` and `spec.template`.
pub(super) fn selector_and_template(
    spec: &Value,
    owner: &Owner,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let none = Value::Null;
    let selector_path = path.child("selector");
    let selector = spec.get("selector").unwrap_or(&none);
    if selector.is_null() {
        errors.required(&selector_path, "");
    } else {
        label_selector(errors, &selector_path, selector);
        if selector.entries("matchLabels").next().is_none()
            && selector.items("matchExpressions").is_empty()
        {
            let detail = format!("empty selector is invalid for {}", owner.selector_of);
            errors.with_text(
                ErrorType::Invalid,
                &selector_path,
                internal::label_selector(selector),
                detail,
            );
        }
    }
    match Selector::from_label_selector(selector) {
        Err(_) => errors.with_text(
            ErrorType::Invalid,
            &selector_path,
            internal::label_selector(selector),
            "invalid label selector",
        ),
        Ok(parsed) => template(
            spec.get("template").unwrap_or(&none),
            &parsed,
            owner,
            &path.child("template"),
            errors,
        ),
    }
}

fn template(
    template: &Value,
    selector: &Selector,
    owner: &Owner,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let labels = template
        .get("metadata")
        .and_then(|metadata| metadata.get("labels"));
    if !selector.is_everything() && !selector.matches(labels) {
        let labels = labels.cloned().unwrap_or_default();
        errors.invalid(
            &path.child("metadata").child("labels"),
            labels,
            "`selector` does not match template `labels`",
        );
    }
    podspec::validate_template(template, path, errors);
    let none = Value::Null;
    let (spec, at) = (template.get("spec").unwrap_or(&none), path.child("spec"));
    if spec.text("restartPolicy") != "Always" {
        errors.not_supported(
            &at.child("restartPolicy"),
            spec.text("restartPolicy"),
            &["Always"],
        );
    }
    if spec.has("activeDeadlineSeconds") {
        let detail = format!(
            "activeDeadlineSeconds in {} is not Supported",
            owner.deadline_in
        );
        errors.forbidden(&at.child("activeDeadlineSeconds"), detail);
    }
}

/// Numbers below `path` that may not be negative.
pub(super) fn counts(owner: &Value, fields: &[&str], path: &Path<'_>, errors: &mut Errors) {
    for field in fields {
        if let Some(count) = owner.integer(field) {
            nonnegative(errors, &path.child(field), count);
        }
    }
}

/// Numbers that may not exceed another one.
pub(super) fn at_most(
    status: &Value,
    fields: &[&str],
    most: &str,
    named: &str,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let bound = status.integer(most).unwrap_or(0);
    for field in fields {
        let count = status.integer(field).unwrap_or(0);
        if count > bound {
            errors.invalid(
                &path.child(field),
                count,
                format!("cannot be greater than {named}"),
            );
        }
    }
}

/// A count or a percentage that is not negative.
pub(super) fn int_or_percent(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    match value {
        Value::String(text) => {
            for sentence in names::percent(text) {
                errors.invalid(path, text.as_str(), sentence);
            }
        }
        number => nonnegative(errors, path, number.as_i64().unwrap_or(0)),
    }
}

/// At most 100%; counts pass.
pub(super) fn at_most_all(value: &Value, path: &Path<'_>, errors: &mut Errors) {
    let percent = value
        .as_str()
        .and_then(|text| text.strip_suffix('%'))
        .and_then(|number| number.parse::<i64>().ok());
    if percent.is_some_and(|percent| percent > 100) {
        errors.invalid(path, value.clone(), "must not be greater than 100%");
    }
}

/// The number of a count or a percentage.
pub(super) fn number(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::String(text)) => text
            .strip_suffix('%')
            .and_then(|number| number.parse().ok())
            .unwrap_or(0),
        Some(number) => number.as_i64().unwrap_or(0),
        None => 0,
    }
}

/// `spec.selector` may not change.
pub(super) fn same_selector(object: &Value, old: &Value, errors: &mut Errors) {
    let selector = &object["spec"]["selector"];
    if *selector != old["spec"]["selector"] {
        let path = Path::new("spec");
        errors.with_text(
            ErrorType::Invalid,
            &path.child("selector"),
            internal::label_selector(selector),
            IMMUTABLE,
        );
    }
}

/// A counter that may not fall.
pub(super) fn not_decremented(object: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let (count, before) = (
        object["status"].integer(field),
        old["status"].integer(field),
    );
    if before.is_some_and(|before| count.is_none_or(|count| count < before)) {
        let path = Path::new("status");
        let value = count.map_or(Value::Null, Value::from);
        errors.invalid(&path.child(field), value, "cannot be decremented");
    }
}

/// Whether the template changed, which is when its warnings are worth repeating.
pub(super) fn template_changed(object: &Value, old: Option<&Value>) -> bool {
    old.is_none_or(|old| old["spec"]["template"] != object["spec"]["template"])
}

/// The wide cells: container names, images, selector.
pub(super) fn wide_cells(spec: &Value) -> [Value; 3] {
    let containers = spec["template"]["spec"].items("containers");
    let joined = |field: &str| {
        containers
            .iter()
            .map(|container| container.text(field))
            .collect::<Vec<_>>()
            .join(",")
    };
    [
        joined("name").into(),
        joined("image").into(),
        crate::validation::selector::format_label_selector(&spec["selector"]).into(),
    ]
}
