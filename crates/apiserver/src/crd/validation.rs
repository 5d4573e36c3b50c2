//! Validates custom resources against their schema, in the words of `k8s.io/kube-openapi/pkg/validation`.
//!
//! The order of checks and the count of passed ones follow upstream's validators, because the count decides whose errors an
//! `anyOf` or `oneOf` shows. On an update, errors about values that the write does not change are forgiven ([`Correlation`]).

mod combinations;
mod number;

use std::collections::HashSet;

use serde_json::Value;

use self::{combinations::combinations, number::number};
use super::{
    correlation::Correlation,
    findings::{Finding, Outcome, What},
    formats,
    structural::{Additional, Schema},
};
use crate::field::Errors;

/// Checks the object; `old` is the stored one on an update.
pub(crate) fn check(schema: &Schema, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let correlation = old.map(|old| Correlation::new(object, old));
    let mut found = validate(schema, object, correlation, "").errors;
    embedded(schema, object, "", &mut found);
    let mut twice = Vec::new();
    duplicates(schema, object, "", &mut twice);
    // Who has duplicates already may keep them.
    let had_any = |old| {
        let mut before = Vec::new();
        duplicates(schema, old, "", &mut before);
        !before.is_empty()
    };
    if !(twice.is_empty() || old.is_some_and(had_any)) {
        found.extend(twice);
    }
    for finding in found {
        finding.record(errors);
    }
}

fn child(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The JSON type of a value and Go's name for its format.
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
    outcome.passed += 2;
    outcome
}

fn wrong_type(path: &str, wanted: &str, found: &str) -> Outcome {
    let message = format!("{path} in body must be of type {wanted}: {found:?}");
    Outcome::failed(path, What::Type, Some(found.into()), message)
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
    let whole_float = value.as_f64().is_some_and(|number| number.fract() == 0.0)
        && found == "number"
        && wanted.contains(&"integer");
    let int_for_number = found == "integer" && wanted.contains(&"number");
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
        return Outcome::failed(path, What::TooLong(max), None, String::new());
    }
    if let Some(min) = schema.min_length.filter(|min| length < *min) {
        return Outcome::failed(
            path,
            What::Invalid,
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
            What::Invalid,
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
        for (index, item) in items.iter().enumerate() {
            let below = correlation.map(|it| it.index(schema, index));
            let path = format!("{path}[{index}]");
            outcome.merge(validate(item_schema, item, below, &path));
        }
    }
    if let Some(min) = schema.min_items.filter(|min| (items.len() as u64) < *min) {
        outcome.add(
            path,
            What::Invalid,
            Some(items.len().into()),
            format!("{path} in body should have at least {min} items"),
        );
    }
    if let Some(max) = schema.max_items.filter(|max| items.len() as u64 > *max) {
        outcome.add(
            path,
            What::TooMany {
                actual: items.len(),
                max,
            },
            None,
            String::new(),
        );
    }
    if schema.unique_items
        && items
            .iter()
            .enumerate()
            .any(|(index, item)| items[..index].contains(item))
    {
        outcome.add(
            path,
            What::Invalid,
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
    let below = |name: &str| correlation.map(|it| it.key(schema, name));
    let map = value.as_object().expect("only objects come here");
    if let Some(min) = schema
        .min_properties
        .filter(|min| (map.len() as u64) < *min)
    {
        return Outcome::failed(
            path,
            What::Invalid,
            Some(map.len().into()),
            format!("{path} in body should have at least {min} properties"),
        );
    }
    if let Some(max) = schema.max_properties.filter(|max| map.len() as u64 > *max) {
        return Outcome::failed(
            path,
            What::TooMany {
                actual: map.len(),
                max,
            },
            None,
            String::new(),
        );
    }
    let mut outcome = Outcome::default();
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
                    What::Invalid,
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
        outcome.add(&child(path, name), What::Required, None, String::new());
    }
    outcome
}

fn enumeration(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let same = |allowed: &Value| match (allowed.as_f64(), value.as_f64()) {
        (Some(allowed), Some(value)) => allowed == value,
        _ => allowed == value,
    };
    if schema.enumeration.is_empty() || schema.enumeration.iter().any(same) {
        return Outcome::default();
    }
    Outcome::failed(
        path,
        What::Enum(schema.enumeration.clone()),
        Some(value.clone()),
        String::new(),
    )
}

/// Embedded resources have a type.
fn embedded(schema: &Schema, value: &Value, path: &str, found: &mut Vec<Finding>) {
    if let (true, Value::Object(map)) = (schema.embedded, value) {
        for name in ["apiVersion", "kind"] {
            let given = map.get(name).and_then(Value::as_str);
            if given.unwrap_or_default().is_empty() {
                found.push(Finding {
                    path: child(path, name),
                    what: What::Required,
                    value: None,
                    message: String::new(),
                });
            }
        }
    }
    for_each_below(schema, value, path, &mut |schema, value, path| {
        embedded(schema, value, path, found);
    });
}

/// Lists of type set and map have no duplicates.
fn duplicates(schema: &Schema, value: &Value, path: &str, found: &mut Vec<Finding>) {
    let list_type = schema.list_type.as_deref();
    if let (Value::Array(items), Some("map" | "set")) = (value, list_type) {
        let identity = |item: &Value| -> Value {
            if list_type == Some("set") {
                return item.clone();
            }
            let keys = schema.list_keys.iter();
            keys.filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
                .collect()
        };
        let mut seen = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let identity = identity(item);
            if !seen.insert(identity.to_string()) {
                found.push(Finding {
                    path: format!("{path}[{index}]"),
                    what: What::Duplicate,
                    value: Some(identity),
                    message: String::new(),
                });
            }
        }
    }
    for_each_below(schema, value, path, &mut |schema, value, path| {
        duplicates(schema, value, path, found);
    });
}

/// Visits the properties, entries and items that have a schema.
fn for_each_below(
    schema: &Schema,
    value: &Value,
    path: &str,
    visit: &mut dyn FnMut(&Schema, &Value, &str),
) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let below = schema.properties.get(name);
                if let Some(schema) = below.or(schema.additional_schema()) {
                    visit(schema, value, &child(path, name));
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(schema) = schema.items.as_deref() {
                    visit(schema, item, &format!("{path}[{index}]"));
                }
            }
        }
        _ => {}
    }
}
