//! Validation of labels, addresses, selectors, resources and metadata, with the messages of `k8s.io/apimachinery/pkg/util/validation`.
//!
//! [`names`] and [`net`] are checks that return error messages; an empty list means that the value is valid, and allocates nothing.
//! [`metadata`], [`selector`] and [`resources`] validate objects and record errors under a path. Kinds build their validation from these
//! and contain no such messages themselves.

pub mod metadata;
pub mod net;
pub mod resources;
pub mod selector;

use serde_json::{Map, Value};

use crate::{
    field::{Errors, Path},
    names,
};

/// The message for a change of an immutable field.
pub const IMMUTABLE: &str = "field is immutable";

/// Records each message of a check as an invalid value.
pub fn check(errors: &mut Errors, path: &Path<'_>, value: &str, sentences: Vec<String>) {
    for sentence in sentences {
        errors.invalid(path, value, sentence);
    }
}

/// Records an error if the value differs from the old one (an absent field is null).
pub fn immutable(errors: &mut Errors, path: &Path<'_>, value: &Value, old: &Value) {
    if value != old {
        errors.invalid(path, value.clone(), IMMUTABLE);
    }
}

/// Records an error if the number is negative.
pub fn nonnegative(errors: &mut Errors, path: &Path<'_>, value: i64) {
    if value < 0 {
        errors.invalid(path, value, "must be greater than or equal to 0");
    }
}

/// Records an error unless the value is one of `supported`, which must be sorted because it is printed as given.
pub fn one_of(errors: &mut Errors, path: &Path<'_>, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

/// Validates a domain-prefixed path (`acme.io/foo`).
pub fn domain_prefixed_path(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    match value.split_once('/') {
        Some((host, rest)) if !host.is_empty() && !rest.is_empty() => {
            check(errors, path, host, names::dns_subdomain(host));
            check(errors, path, rest, names::http_path(rest));
        }
        _ => errors.invalid(
            path,
            value,
            r#"must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
    }
}

/// The most bytes of a signer's name: a domain, a slash, and a path with room for a namespace and a name.
const MAX_SIGNER_NAME: usize = 253 + 1 + 63 + 1 + 253;

/// Validates the name of a certificate signer (`example.com/signer`).
pub fn signer_name(errors: &mut Errors, path: &Path<'_>, value: &str) {
    if value.is_empty() {
        return errors.required(path, "");
    }
    let Some((domain, rest)) = value
        .split_once('/')
        .filter(|(_, rest)| !rest.contains('/'))
    else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, value, why);
    };
    if domain.len() > names::MAX_SUBDOMAIN {
        errors.too_long(path, names::MAX_SUBDOMAIN);
    }
    signer_part(errors, path, domain, names::dns_label);
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, domain, why);
    }
    signer_part(errors, path, rest, names::dns_subdomain);
    if value.len() > MAX_SIGNER_NAME {
        errors.too_long(path, MAX_SIGNER_NAME);
    }
}

/// Validates the labels between dots, up to the first invalid one.
fn signer_part(
    errors: &mut Errors,
    path: &Path<'_>,
    whole: &str,
    rule: fn(&str) -> names::Sentences,
) {
    let mut labels = whole.split('.').map(|label| (label, rule(label)));
    if let Some((label, sentences)) = labels.find(|(_, sentences)| !sentences.is_empty()) {
        for sentence in sentences {
            errors.invalid(
                path,
                whole,
                format!("validating label {label:?}: {sentence}"),
            );
        }
    }
}

/// Returns a string field, empty if it is absent.
pub fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object.get(field).and_then(Value::as_str).unwrap_or("")
}

/// Returns the items of a list field, none if it is absent.
pub fn items<'v>(object: &'v Value, field: &str) -> &'v [Value] {
    object
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Returns the entries of a map field, none if it is absent.
pub fn entries<'v>(
    object: &'v Value,
    field: &str,
) -> impl Iterator<Item = (&'v str, &'v Value)> + use<'v> {
    object
        .get(field)
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::iter)
        .map(|(key, value)| (key.as_str(), value))
}
