//! Validates the attributes of a device: the names, and the value, of which each attribute has exactly one.

use mullion_kube_text::{
    field::{ErrorType, Errors, Path},
    names,
    validation::check,
};
use mullion_schema::tree::Tree;
use serde_json::Value;

use crate::{
    fields::{self, All, Field, MaxBytes, Text, always, set},
    podspec::internal,
    resource::driver_name,
};

const MAX_ID: usize = 32;
const ATTRIBUTE: &[Field] = &[
    always("string", MaxBytes(64)),
    set("version", All(&[Text(version), MaxBytes(64)])),
];

pub(super) fn attribute(attribute: &Value, path: &Path<'_>, errors: &mut Errors) {
    let kinds = ["bool", "int", "string", "version"];
    let count = kinds.iter().filter(|kind| attribute.has(kind)).count();
    fields::validate(ATTRIBUTE, attribute, path, errors);
    match count {
        0 => errors.invalid(path, "", "exactly one value must be specified"),
        1 => {}
        _ => {
            let text = internal::compact("DeviceAttribute", attribute);
            let why = "exactly one value must be specified";
            errors.with_text(ErrorType::Invalid, path, text, why);
        }
    }
}

fn version(errors: &mut Errors, path: &Path<'_>, text: &str) {
    if !is_semantic_version(text) {
        let why = "must be a string compatible with semver.org spec 2.0.0";
        errors.invalid(path, text, why);
    }
}

/// Returns whether a text is a version like `1.2.3`, with an optional pre-release after a dash and a build after a plus.
fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = match text.split_once('+') {
        Some((rest, build)) => (rest, Some(build)),
        None => (text, None),
    };
    let (core, release) = match rest.split_once('-') {
        Some((core, release)) => (core, Some(release)),
        None => (rest, None),
    };
    let is_number = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && (part == "0" || !part.starts_with('0'))
    };
    let is_word = |part: &str| {
        let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !part.is_empty() && part.bytes().all(letter)
    };
    let digits_only = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers: Vec<&str> = core.split('.').collect();
    numbers.len() == 3
        && numbers.into_iter().all(is_number)
        && release.is_none_or(|text| {
            let mut parts = text.split('.');
            parts.all(|part| is_word(part) && (!digits_only(part) || is_number(part)))
        })
        && build.is_none_or(|text| text.split('.').all(is_word))
}

/// Validates the name of an attribute or capacity, with or without a domain.
pub(super) fn qualified(name: &str, path: &Path<'_>, errors: &mut Errors) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        [id] => identifier(id, path, errors),
        [domain, id] => {
            if domain.is_empty() {
                errors.invalid(path, "", "the domain must not be empty");
            } else {
                driver_name(errors, path, domain);
            }
            if id.is_empty() {
                errors.invalid(path, "", "the name must not be empty");
            } else {
                identifier(id, path, errors);
            }
        }
        // As in kube-apiserver, a name with more slashes is not checked.
        _ => {}
    }
}

/// Validates the name of an attribute, which must have a domain.
pub(in crate::resource) fn fully_qualified(name: &str, path: &Path<'_>, errors: &mut Errors) {
    qualified(name, path, errors);
    if !name.contains('/') {
        let why = "a fully qualified name must be a domain and a name separated by a slash";
        errors.invalid(path, name, why);
    }
}

fn identifier(id: &str, path: &Path<'_>, errors: &mut Errors) {
    if id.len() > MAX_ID {
        errors.too_long(path, MAX_ID);
    }
    check(errors, path, id, names::c_identifier(id));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_semantic() {
        for good in ["1.2.3", "0.0.0-alpha.1", "1.0.0-a-b+5.x"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in ["1.2", "01.2.3", "1.2.3-01", "1.2.3+", "v1.2.3", ""] {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }
}
