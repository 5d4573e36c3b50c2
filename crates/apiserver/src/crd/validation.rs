//! Validates custom resources against their schema, in the words of `k8s.io/kube-openapi/pkg/validation`.
//!
//! The order of checks and the count of passed ones follow upstream's validators, because the count decides whose errors an
//! `anyOf` or `oneOf` shows. On an update, errors about values that the write does not change are forgiven (ratcheting).

use serde_json::Value;

use super::{
    findings::{Finding, Outcome, What},
    formats,
    structural::{Additional, Schema},
};
use crate::field::Errors;

/// Checks the object; `old` is the stored one on an update.
pub(crate) fn check(schema: &Schema, object: &Value, old: Option<&Value>, errors: &mut Errors) {
    let mut found = validate(schema, object, "").errors;
    structure(schema, object, "", &mut found);
    if let Some(old) = old {
        found.retain(|finding| {
            match (
                &finding.path,
                at(object, &finding.path),
                at(old, &finding.path),
            ) {
                (path, Some(new), Some(old)) if !path.is_empty() => new != old,
                _ => true,
            }
        });
    }
    for finding in found {
        finding.record(errors);
    }
}

/// The value at a path as error texts write it: `spec.list[0].name`.
pub(crate) fn at<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    let mut value = object;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let (name, indexes) = part.split_once('[').unwrap_or((part, ""));
        value = value.get(name)?;
        for index in indexes.split('[').filter(|index| !index.is_empty()) {
            value = value.get(index.trim_end_matches(']').parse::<usize>().ok()?)?;
        }
    }
    Some(value)
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

fn validate(schema: &Schema, value: &Value, path: &str) -> Outcome {
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
            outcome.merge(array(schema, items, path));
            outcome.passed += 1;
        }
        Value::Object(_) => {
            outcome.merge(object(schema, value, path));
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

fn combinations(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if !schema.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut success = None;
        for option in &schema.any_of {
            let result = validate(option, value, path);
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
                What::Nowhere,
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
            let result = validate(option, value, path);
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
                What::Nowhere,
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
            let result = validate(option, value, path);
            valid += usize::from(result.errors.is_empty());
            outcome.merge(result);
        }
        if valid != schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            outcome.add(
                path,
                What::Nowhere,
                None,
                format!("{path:?} must validate all the schemas (allOf){none}"),
            );
        }
    }
    if let Some(not) = &schema.not
        && validate(not, value, path).errors.is_empty()
    {
        outcome.add(
            path,
            What::Nowhere,
            None,
            format!("{path:?} must not validate the schema (not)"),
        );
    }
    outcome.passed += 1;
    outcome
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

/// Whether a number fits a type and format, as upstream's `IsValueValidAgainstRange`.
fn in_range(schema: &Schema, value: f64, as_integer: Option<i64>) -> bool {
    if schema.kind != "integer" {
        return true;
    }
    match (schema.format.as_str(), as_integer) {
        ("int32", Some(number)) => i32::try_from(number).is_ok(),
        ("uint32", Some(number)) => u32::try_from(number).is_ok(),
        ("uint64", Some(number)) => number >= 0,
        (_, Some(_)) => true,
        (_, None) => value.fract() == 0.0 && value.abs() < 9.3e18,
    }
}

fn number(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let data = value.as_f64().unwrap_or_default();
    let integer = value.as_i64();
    if !in_range(schema, data, integer) {
        let with = if schema.format.is_empty() {
            " (default format)".to_owned()
        } else {
            format!(" with format {}", schema.format)
        };
        outcome.add(
            path,
            What::Nowhere,
            None,
            format!(
                "Checked value must be of type {}{with} in {path}",
                schema.kind
            ),
        );
    }
    if let Some(factor) = schema.multiple_of {
        let wrong = |outcome: &mut Outcome, factor: Value| {
            outcome.add(
                path,
                What::Invalid,
                Some(value.clone()),
                format!("{path} in body should be a multiple of {factor}"),
            );
        };
        match integer {
            Some(number) => {
                let factor = factor as i64;
                if factor <= 0 {
                    let message =
                        format!("factor MultipleOf declared for {path} must be positive: {factor}");
                    outcome.add(path, What::Invalid, Some(factor.into()), message);
                } else if number % factor != 0 {
                    wrong(&mut outcome, factor.into());
                }
            }
            None => {
                let quotient = if factor < 1.0 {
                    1.0 / factor * data
                } else {
                    data / factor
                };
                if (quotient - quotient.round()).abs() > 1e-9 * quotient.abs().max(1.0) {
                    wrong(&mut outcome, plain(factor));
                }
            }
        }
    }
    if let Some(max) = schema.maximum {
        let exceeds = if schema.exclusive_maximum {
            data >= max
        } else {
            data > max
        };
        if exceeds {
            let than = if schema.exclusive_maximum {
                "less than"
            } else {
                "less than or equal to"
            };
            outcome.add(
                path,
                What::Invalid,
                Some(value.clone()),
                format!("{path} in body should be {than} {}", plain(max)),
            );
        }
    }
    if let Some(min) = schema.minimum {
        let below = if schema.exclusive_minimum {
            data <= min
        } else {
            data < min
        };
        if below {
            let than = if schema.exclusive_minimum {
                "greater than"
            } else {
                "greater than or equal to"
            };
            outcome.add(
                path,
                What::Invalid,
                Some(value.clone()),
                format!("{path} in body should be {than} {}", plain(min)),
            );
        }
    }
    outcome.passed += 1;
    outcome
}

/// A number without a fraction of zero, as Go prints it.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

fn array(schema: &Schema, items: &[Value], path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(item_schema) = schema.items.as_deref() {
        for (index, item) in items.iter().enumerate() {
            outcome.merge(validate(item_schema, item, &format!("{path}[{index}]")));
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

fn object(schema: &Schema, value: &Value, path: &str) -> Outcome {
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
                outcome.merge(validate(additional, value, &child(path, name)))
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
            outcome.merge(validate(property, value, &child(path, name)));
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

/// What JSON schema has no words for: embedded resources have a type, lists of type set and map have no duplicates.
fn structure(schema: &Schema, value: &Value, path: &str, found: &mut Vec<Finding>) {
    match value {
        Value::Object(map) => {
            if schema.embedded {
                for name in ["apiVersion", "kind"].into_iter().filter(|name| {
                    map.get(*name)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .is_empty()
                }) {
                    found.push(Finding {
                        path: child(path, name),
                        what: What::Required,
                        value: None,
                        message: String::new(),
                    });
                }
            }
            for (name, value) in map {
                if let Some(schema) = schema.properties.get(name).or(schema.additional_schema()) {
                    structure(schema, value, &child(path, name), found);
                }
            }
        }
        Value::Array(items) => {
            let identity = |item: &Value| -> Value {
                if schema.list_type.as_deref() != Some("map") {
                    return item.clone();
                }
                schema
                    .list_keys
                    .iter()
                    .filter_map(|key| Some((key.clone(), item.get(key)?.clone())))
                    .collect()
            };
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                let is_keyed = matches!(schema.list_type.as_deref(), Some("map" | "set"));
                if is_keyed
                    && items[..index]
                        .iter()
                        .any(|other| identity(other) == identity(item))
                {
                    found.push(Finding {
                        path: path.clone(),
                        what: What::Duplicate,
                        value: Some(identity(item)),
                        message: String::new(),
                    });
                }
                if let Some(schema) = schema.items.as_deref() {
                    structure(schema, item, &path, found);
                }
            }
        }
        _ => {}
    }
}
