//! Validates custom resources against their schema, with the messages of `k8s.io/kube-openapi/pkg/validation`.
//!
//! The order of checks and the number of passed checks are those of kube-openapi's validators, because the numbers decide which branch's
//! errors an `anyOf` or `oneOf` reports. On an update, errors about values that the write does not change are forgiven ([`Correlation`]).

mod combinations;
pub(super) mod embedded;
mod lists;
mod number;
pub(super) mod scale;

use std::collections::HashSet;

use mullion_kube_text::{
    field::{Errors, Path},
    formats,
    golang::number as go,
};
use mullion_schema::structural::{Additional, Schema};
use serde_json::Value;

use self::{combinations::combinations, number::number};
use super::{
    correlation::Correlation,
    findings::{FindingKind, Outcome},
};

/// Checks values, types and structure; `old` is the stored object on an update.
pub(crate) fn check(schema: &Schema, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let correlation = old.map(|old| Correlation::new(schema, object, old));
    for finding in validate(schema, object, correlation, "").errors {
        finding.record(errors);
    }
}

/// Checks that no list of type set or map has an item twice, unless the stored object already has duplicates.
pub(crate) fn check_lists(
    schema: &Schema,
    object: &Value,
    old: Option<&Value>,
    errors: &mut Errors,
) {
    let mut found = Errors::default();
    lists::check(schema, object, None, &mut found);
    let had_any = |old| {
        let mut before = Errors::default();
        lists::check(schema, old, None, &mut before);
        !before.is_empty()
    };
    if !(found.is_empty() || old.is_some_and(had_any)) {
        errors.0.extend(found.0);
    }
}

/// Visits the items or fields of a value that have a schema. The path of the whole object is `None`.
fn each_below(
    schema: &Schema,
    value: &Value,
    path: Option<&Path<'_>>,
    mut visit: impl FnMut(&Schema, &Value, &Path<'_>),
) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let property = schema.properties.get(name);
                let at = match (property, path) {
                    (Some(_), Some(path)) => path.child(name),
                    (None, Some(path)) => path.key(name),
                    (_, None) => Path::new(name),
                };
                if let Some(schema) = property.or(schema.additional_schema()) {
                    visit(schema, value, &at);
                }
            }
        }
        Value::Array(items) => {
            let root = Path::new("");
            let path = path.unwrap_or(&root);
            if let Some(schema) = schema.items.as_deref() {
                for (index, item) in items.iter().enumerate() {
                    visit(schema, item, &path.index(index));
                }
            }
        }
        _ => {}
    }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Returns the JSON type of a value and Go's name for its format.
fn type_of(value: &Value) -> (&'static str, &'static str) {
    match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
    }
}

fn validate(
    schema: &Schema,
    value: &Value,
    correlation: Option<Correlation<'_>>,
    path: &str,
) -> Outcome {
    let mut outcome = validate_anew(schema, value, correlation, path);
    // The comparison with the stored value is made only where there is an error to forgive.
    if !outcome.errors.is_empty() && correlation.is_some_and(|it| it.is_unchanged()) {
        outcome.errors.clear();
    }
    outcome
}

fn validate_anew(
    schema: &Schema,
    value: &Value,
    correlation: Option<Correlation<'_>>,
    path: &str,
) -> Outcome {
    let mut outcome = Outcome::default();
    outcome.merge(value_type(schema, value, path));
    // kube-openapi checks only the type and the enum of a null.
    if value.is_null() {
        outcome.merge(enumeration(schema, value, path));
        return outcome;
    }
    outcome.passed += 1;
    outcome.merge(combinations(schema, value, path));
    outcome.passed += 1;
    match value {
        Value::String(text) => {
            outcome.merge(string(schema, text, path));
            outcome.passed += 1;
            if !schema.format.is_empty() {
                if !formats::holds(&schema.format, text) {
                    outcome.merge(wrong_type(path, &schema.format, text));
                }
                outcome.passed += 1;
            }
        }
        Value::Number(_) => {
            outcome.merge(number(schema, value, path));
            outcome.passed += 1;
        }
        Value::Array(items) => {
            outcome.merge(array(schema, items, correlation, path));
            outcome.passed += 1;
        }
        Value::Object(_) => {
            outcome.merge(object(schema, value, correlation, path));
            outcome.passed += 1;
        }
        _ => {}
    }
    outcome.merge(enumeration(schema, value, path));
    // One passed check is the enum, the other the schema as a whole.
    outcome.passed += 2;
    outcome
}

fn wrong_type(path: &str, wanted: &str, found: &str) -> Outcome {
    let message = format!("{path} in body must be of type {wanted}: {found:?}");
    Outcome::failed(path, FindingKind::Type, Some(found.into()), message)
}

fn value_type(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let wanted: Vec<&str> = if schema.int_or_string {
        vec!["integer", "string"]
    } else {
        schema.kind.split_whitespace().collect()
    };
    if wanted.is_empty() && schema.format.is_empty() {
        return Outcome::default();
    }
    let passed = Outcome {
        errors: Vec::new(),
        passed: 1,
    };
    let joined = wanted.join(",");
    let (found, format) = type_of(value);
    if value.is_null() {
        return if wanted.is_empty() || schema.nullable {
            passed
        } else {
            wrong_type(path, &joined, "null")
        };
    }
    let whole_float = value.as_f64().is_some_and(go::is_json_integer)
        && found == "number"
        && wanted.contains(&"integer");
    let int_for_number = found == "integer" && wanted.contains(&"number");
    // kube-openapi leaves the format of texts and lists to a validator of its own.
    let textual = matches!(value, Value::String(_) | Value::Array(_));
    let fits = wanted.contains(&found) || format == schema.format || whole_float || int_for_number;
    if !textual && !schema.format.is_empty() && !fits {
        return wrong_type(path, &schema.format, format);
    }
    let numeric = wanted.contains(&"number") || wanted.contains(&"integer");
    if !numeric && !schema.format.is_empty() && textual {
        return passed;
    }
    if !(wanted.contains(&found) || whole_float || int_for_number) {
        return wrong_type(path, &joined, found);
    }
    passed
}

fn string(schema: &Schema, text: &str, path: &str) -> Outcome {
    let length = text.chars().count() as u64;
    if let Some(max) = schema.max_length.filter(|max| length > *max) {
        return Outcome::failed(path, FindingKind::TooLong(max), None, String::new());
    }
    if let Some(min) = schema.min_length.filter(|min| length < *min) {
        return Outcome::failed(
            path,
            FindingKind::Invalid,
            Some(text.into()),
            format!("{path} in body should be at least {min} chars long"),
        );
    }
    if let Some(pattern) = &schema.pattern
        && pattern
            .regex
            .as_ref()
            .is_some_and(|regex| !regex.is_match(text))
    {
        return Outcome::failed(
            path,
            FindingKind::Invalid,
            Some(text.into()),
            format!("{path} in body should match '{}'", pattern.source),
        );
    }
    Outcome::default()
}

fn array(
    schema: &Schema,
    items: &[Value],
    correlation: Option<Correlation<'_>>,
    path: &str,
) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(item_schema) = schema.items.as_deref() {
        let correlations = correlation.map(|list| list.items());
        for (index, item) in items.iter().enumerate() {
            let below = correlations.as_ref().map(|items| items.at(index));
            let path = format!("{path}[{index}]");
            outcome.merge(validate(item_schema, item, below, &path));
        }
    }
    if let Some(min) = schema.min_items.filter(|min| (items.len() as u64) < *min) {
        outcome.add(
            path,
            FindingKind::Invalid,
            Some(items.len().into()),
            format!("{path} in body should have at least {min} items"),
        );
    }
    if let Some(max) = schema.max_items.filter(|max| items.len() as u64 > *max) {
        outcome.add(
            path,
            FindingKind::TooMany {
                actual: items.len(),
                max,
            },
            None,
            String::new(),
        );
    }
    if schema.unique_items && items.iter().collect::<HashSet<_>>().len() < items.len() {
        outcome.add(
            path,
            FindingKind::Invalid,
            None,
            format!("{path} in body shouldn't contain duplicates"),
        );
    }
    outcome.passed += 1;
    outcome
}

fn object(
    schema: &Schema,
    value: &Value,
    correlation: Option<Correlation<'_>>,
    path: &str,
) -> Outcome {
    let below = |name: &str| correlation.map(|it| it.key(name));
    let map = value.as_object().expect("only objects come here");
    let mut outcome = Outcome::default();
    let count = map.len();
    if let Some(min) = schema.min_properties.filter(|min| (count as u64) < *min) {
        outcome.add(
            path,
            FindingKind::Invalid,
            Some(count.into()),
            format!("{path} in body should have at least {min} properties"),
        );
    }
    if let Some(max) = schema.max_properties.filter(|max| count as u64 > *max) {
        let kind = FindingKind::TooMany { actual: count, max };
        outcome.add(path, kind, None, String::new());
    }
    for (name, value) in map
        .iter()
        .filter(|(name, _)| !schema.properties.contains_key(*name))
    {
        match &schema.additional {
            Some(Additional::Schema(additional)) => {
                outcome.merge(validate(additional, value, below(name), &child(path, name)))
            }
            Some(Additional::Allowed(false)) => {
                outcome.add(
                    path,
                    FindingKind::Invalid,
                    Some(name.as_str().into()),
                    format!("{path}.{name} in body is a forbidden property"),
                );
            }
            _ => {}
        }
    }
    for (name, property) in &schema.properties {
        if let Some(value) = map.get(name) {
            outcome.merge(validate(property, value, below(name), &child(path, name)));
        }
    }
    for name in schema
        .required
        .iter()
        .filter(|name| !map.contains_key(*name))
    {
        outcome.add(
            &child(path, name),
            FindingKind::Required,
            None,
            String::new(),
        );
    }
    outcome
}

fn enumeration(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let same = |allowed: &Value| match (allowed.as_f64(), value.as_f64()) {
        // 1 and 1.0 are the same value of an enum.
        (Some(allowed), Some(value)) => allowed == value,
        _ => allowed == value,
    };
    if schema.enumeration.is_empty() || schema.enumeration.iter().any(same) {
        return Outcome::default();
    }
    Outcome::failed(
        path,
        FindingKind::Enum(schema.enumeration.clone()),
        Some(value.clone()),
        String::new(),
    )
}
