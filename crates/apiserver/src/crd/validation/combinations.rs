//! Validates the branches of `allOf`, `anyOf`, `oneOf` and `not`.
//!
//! If every branch of an `anyOf` or `oneOf` fails, the errors of the branch with the most passed checks are reported, as kube-openapi does;
//! [`super`] counts the checks.

use mullion_schema::structural::Schema;
use serde_json::Value;

use super::validate;
use crate::crd::findings::{FindingKind, Outcome};

/// Validates a value against a schema's `allOf`, `anyOf`, `oneOf` and `not`.
pub(super) fn combinations(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if !schema.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut success = None;
        for option in &schema.any_of {
            let result = validate(option, value, None, path);
            if result.errors.is_empty() {
                success = Some(result);
                break;
            }
            if best.as_ref().is_none_or(|best| result.passed > best.passed) {
                best = Some(result);
            }
        }
        if let Some(success) = success {
            outcome.merge(success);
        } else {
            outcome.add(
                path,
                FindingKind::Nowhere,
                None,
                format!("{path:?} must validate at least one schema (anyOf)"),
            );
            outcome.merge(best.unwrap_or_default());
        }
    }
    if !schema.one_of.is_empty() {
        let mut valid = Vec::new();
        let mut best: Option<Outcome> = None;
        for option in &schema.one_of {
            let result = validate(option, value, None, path);
            if result.errors.is_empty() {
                valid.push(result);
            } else if valid.is_empty()
                && best.as_ref().is_none_or(|best| result.passed > best.passed)
            {
                best = Some(result);
            }
        }
        if valid.len() == 1 {
            outcome.merge(valid.remove(0));
        } else {
            let count = if valid.is_empty() {
                "Found none valid".to_owned()
            } else {
                format!("Found {} valid alternatives", valid.len())
            };
            outcome.add(
                path,
                FindingKind::Nowhere,
                None,
                format!("{path:?} must validate one and only one schema (oneOf). {count}"),
            );
            if let (true, Some(best)) = (valid.is_empty(), best) {
                outcome.merge(best);
            }
        }
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for option in &schema.all_of {
            let result = validate(option, value, None, path);
            valid += usize::from(result.errors.is_empty());
            outcome.merge(result);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            outcome.add(
                path,
                FindingKind::Nowhere,
                None,
                format!("{path:?} must validate all the schemas (allOf){none}"),
            );
        }
    }
    if let Some(not) = &schema.not
        && validate(not, value, None, path).errors.is_empty()
    {
        outcome.add(
            path,
            FindingKind::Nowhere,
            None,
            format!("{path:?} must not validate the schema (not)"),
        );
    }
    outcome.passed += 1;
    outcome
}
