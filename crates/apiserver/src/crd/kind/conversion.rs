//! Validates the conversion between the versions of a definition.

use std::collections::HashSet;

use mullion_kinds::admissionregistration::client_config;
use mullion_kube_text::{
    field::{Errors, Path},
    names,
};
use serde_json::Value;

use super::text;

/// Validates the conversion of a definition's objects. The paths are those of kube-apiserver's internal form, in which the fields for a
/// webhook are next to the strategy. Requests that need a webhook are refused one by one ([`crate::http`]).
pub(super) fn check_conversion(
    object: &Value,
    old: Option<&Value>,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    let conversion = &object["spec"]["conversion"];
    let webhook = conversion.get("webhook").filter(|given| given.is_object());
    let (config, reviews) = (
        path.child("webhookClientConfig"),
        path.child("conversionReviewVersions"),
    );
    let named = review_versions(object);
    let given = webhook.and_then(|webhook| webhook.get("clientConfig"));
    let given = given.filter(|given| given.is_object());
    let strategy = text(conversion, "strategy");
    match strategy {
        "" => errors.required(&path.child("strategy"), ""),
        "None" | "Webhook" => {}
        other => errors.not_supported(&path.child("strategy"), other, &["None", "Webhook"]),
    }
    if strategy != "Webhook" {
        let why = "should not be set when strategy is not set to Webhook";
        if given.is_some() {
            errors.forbidden(&config, why);
        }
        if !named.is_empty() {
            errors.forbidden(&reviews, why);
        }
        return;
    }
    match given {
        Some(given) => client_config::client_config(given, &config, errors),
        None => errors.required(&config, "required when strategy is set to Webhook"),
    }
    // An update is not refused for unknown versions if the stored definition has only unknown versions.
    let before = old.map(review_versions).unwrap_or_default();
    let may_be_unknown = !before.is_empty() && !has_known(before);
    check_review_versions(named, may_be_unknown, &reviews, errors);
}

fn check_review_versions(
    named: &[Value],
    may_be_unknown: bool,
    path: &Path<'_>,
    errors: &mut Errors,
) {
    if named.is_empty() {
        return errors.required(path, "");
    }
    let mut seen = HashSet::new();
    for (index, name) in named.iter().enumerate() {
        let at = path.index(index);
        if !seen.insert(name) {
            errors.invalid(&at, name.clone(), "duplicate version");
            continue;
        }
        for sentence in names::dns1035_label(name.as_str().unwrap_or_default()) {
            errors.invalid(&at, name.clone(), sentence);
        }
    }
    if !may_be_unknown && !has_known(named) {
        errors.invalid(path, named, "must include at least one of v1, v1beta1");
    }
}

fn has_known(versions: &[Value]) -> bool {
    let mut versions = versions.iter();
    versions.any(|name| name == "v1" || name == "v1beta1")
}

/// Returns the review versions that a conversion webhook supports.
fn review_versions(object: &Value) -> &[Value] {
    let versions = object.pointer("/spec/conversion/webhook/conversionReviewVersions");
    let versions = versions.and_then(Value::as_array);
    versions.map(Vec::as_slice).unwrap_or_default()
}
