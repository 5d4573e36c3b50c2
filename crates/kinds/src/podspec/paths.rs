//! Validates file paths in pod specs, which must be relative and without `..`.

use mullion_kube_text::field::{Errors, Path};

/// Refuses a path that has `..` as an element.
pub(super) fn no_backsteps(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if has_backsteps(value) {
        errors.invalid(path, value, "must not contain '..'");
    }
}

/// Returns whether one of the path's elements is `..`.
pub(super) fn has_backsteps(value: &str) -> bool {
    value.split('/').any(|element| element == "..")
}

/// Requires a relative path without `..`.
pub(super) fn local_descending(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if value.starts_with('/') {
        errors.invalid(path, value, "must be a relative path");
    }
    no_backsteps(errors, path, value);
}

/// Requires a relative path without `..` that does not start with two dots, because the kubelet reserves such names.
pub(super) fn local_non_reserved(errors: &mut Errors, path: &Path<'_>, value: &str) {
    local_descending(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.invalid(path, value, "must not start with '..'");
    }
}
