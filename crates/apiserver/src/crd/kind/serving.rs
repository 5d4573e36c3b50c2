//! Validates how a definition's versions are served: deprecation, table columns, subresources.

use mullion_kube_text::{
    field::{Errors, Path},
    golang::is_printable,
};
use serde_json::Value;

use super::text;

const COLUMN_FORMATS: &[&str] = &[
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const COLUMN_TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];

pub(super) fn check_deprecation(version: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(warning) = version["deprecationWarning"].as_str() else {
        return;
    };
    if version["deprecated"] != true {
        errors.invalid(path, warning, "can only be set for deprecated versions");
        return;
    }
    if warning.len() > 256 {
        errors.invalid(path, warning, "must be <= 256 characters long");
    }
    if warning.is_empty() {
        errors.invalid(path, warning, "must not be an empty string");
    }
    if let Some((at, _)) = warning.char_indices().find(|(_, c)| !is_printable(*c)) {
        let why = format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        );
        errors.invalid(path, warning, why);
    }
}

pub(super) fn check_columns(columns: &Value, path: &Path<'_>, errors: &mut Errors) {
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = path.index(index);
        if text(column, "name").is_empty() {
            errors.required(&at.child("name"), "");
        }
        match text(column, "type") {
            "" => errors.required(
                &at.child("type"),
                format!("must be one of {}", COLUMN_TYPES.join(",")),
            ),
            known if COLUMN_TYPES.contains(&known) => {}
            other => errors.invalid(
                &at.child("type"),
                other,
                format!("must be one of {}", COLUMN_TYPES.join(",")),
            ),
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            errors.invalid(
                &at.child("format"),
                format,
                format!("must be one of {}", COLUMN_FORMATS.join(",")),
            );
        }
        match text(column, "jsonPath") {
            "" => errors.required(&at.child("JSONPath"), ""),
            simple if simple.starts_with('.') => {}
            other => errors.invalid(
                &at.child("JSONPath"),
                other,
                "must be a simple json path starting with .",
            ),
        }
    }
}

pub(super) fn check_subresources(subresources: &Value, path: &Path<'_>, errors: &mut Errors) {
    let Some(scale) = subresources.get("scale").filter(|scale| scale.is_object()) else {
        return;
    };
    let at = path.child("scale");
    for (field, roots, required) in [
        ("specReplicasPath", &[".spec."][..], true),
        ("statusReplicasPath", &[".status."][..], true),
        ("labelSelectorPath", &[".spec.", ".status."][..], false),
    ] {
        let given = text(scale, field);
        let under = roots
            .iter()
            .map(|root| root.trim_end_matches('.'))
            .collect::<Vec<_>>();
        if given.is_empty() {
            if required {
                errors.required(&at.child(field), "");
            }
        } else if !given.starts_with('.') {
            errors.invalid(
                &at.child(field),
                given,
                "must be a simple json path starting with .",
            );
        } else if !roots.iter().any(|root| given.starts_with(root)) {
            let why = if under.len() == 1 {
                format!("should be a json path under {}", under[0])
            } else {
                "should be a json path under either .spec or .status".to_owned()
            };
            errors.invalid(&at.child(field), given, why);
        }
    }
}
