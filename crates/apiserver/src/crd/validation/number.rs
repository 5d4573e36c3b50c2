//! Validates numbers: their formats, bounds and multiples.
//!
//! Integers are compared with the whole part of a bound that fits their type, all other numbers as doubles, as in kube-openapi.

use std::cmp::Ordering;

use mullion_kube_text::golang;
use mullion_schema::structural::Schema;
use serde_json::Value;

use crate::crd::findings::{FindingKind, Outcome};

/// Returns whether a number is in the range of a type and format (kube-openapi: `IsValueValidAgainstRange`).
fn in_range(schema: &Schema, value: f64, as_integer: Option<i64>) -> bool {
    if schema.kind != "integer" {
        let is_small = matches!(schema.format.as_str(), "float" | "float32");
        return !is_small || value.abs() <= f64::from(f32::MAX);
    }
    match (schema.format.as_str(), as_integer) {
        ("int32", Some(number)) => i32::try_from(number).is_ok(),
        ("uint32", Some(number)) => u32::try_from(number).is_ok(),
        ("uint64", Some(number)) => number >= 0,
        (_, Some(_)) => true,
        (_, None) => value.fract() == 0.0 && value.abs() < 9.3e18,
    }
}

/// Validates a number against a schema.
///
/// Where the type and a bound are integers, Go compares integers. A bound that does not fit the type and format is an error of its own, and
/// then compared as a double.
pub(super) fn number(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let data = value.as_f64().unwrap_or_default();
    let integer = value.as_i64();
    if !in_range(schema, data, integer) {
        outcome.merge(out_of_range(schema, "Checked", path));
    }
    if let Some(factor) = schema.multiple_of {
        let is_fit = bound_fits(schema, factor);
        if !is_fit {
            outcome.merge(out_of_range(schema, "MultipleOf", path));
        }
        match integer.filter(|_| is_fit) {
            Some(number) => outcome.merge(multiple_of_integer(value, number, factor, path)),
            None => outcome.merge(multiple(value, data, factor, path)),
        }
    }
    for (bound, is_maximum) in [(schema.minimum, false), (schema.maximum, true)] {
        let Some(bound) = bound else {
            continue;
        };
        let is_fit = bound_fits(schema, bound);
        if !is_fit {
            let what = if is_maximum {
                "Maximum boundary"
            } else {
                "Minimum boundary"
            };
            outcome.merge(out_of_range(schema, what, path));
        }
        // Go converts the bound of an integer to int64.
        let (order, shown) = match integer {
            Some(number) if is_fit => {
                let bound = bound as i64;
                (Some(number.cmp(&bound)), bound.to_string())
            }
            _ => (data.partial_cmp(&bound), golang::number::text(bound)),
        };
        outcome.merge(within(schema, value, order, &shown, is_maximum, path));
    }
    outcome.passed += 1;
    outcome
}

/// Returns whether a bound is in the range of the schema's type and format.
fn bound_fits(schema: &Schema, bound: f64) -> bool {
    let whole = (bound.fract() == 0.0 && bound.abs() < 9.2e18).then_some(bound as i64);
    in_range(schema, bound, whole)
}

fn out_of_range(schema: &Schema, what: &str, path: &str) -> Outcome {
    let with = if schema.format.is_empty() {
        " (default format)".to_owned()
    } else {
        format!(" with format {}", schema.format)
    };
    let message = format!(
        "{what} value must be of type {}{with} in {path}",
        schema.kind
    );
    Outcome::failed(path, FindingKind::Nowhere, None, message)
}

fn multiple_of_integer(value: &Value, number: i64, factor: f64, path: &str) -> Outcome {
    // Go converts the factor of an integer to int64, so a factor below 1 becomes 0.
    let factor = factor as i64;
    if factor <= 0 {
        return no_factor(factor.into(), path);
    }
    if number % factor == 0 {
        Outcome::default()
    } else {
        no_multiple(value, factor.into(), path)
    }
}

fn multiple(value: &Value, data: f64, factor: f64, path: &str) -> Outcome {
    if factor <= 0.0 {
        return no_factor(plain(factor), path);
    }
    let quotient = if factor < 1.0 {
        1.0 / factor * data
    } else {
        data / factor
    };
    if (quotient - quotient.round()).abs() > 1e-9 * quotient.abs().max(1.0) {
        no_multiple(value, plain(factor), path)
    } else {
        Outcome::default()
    }
}

fn no_factor(factor: Value, path: &str) -> Outcome {
    let message = format!("factor MultipleOf declared for {path} must be positive: {factor}");
    Outcome::failed(path, FindingKind::Invalid, Some(factor), message)
}

fn no_multiple(value: &Value, factor: Value, path: &str) -> Outcome {
    let message = format!("{path} in body should be a multiple of {factor}");
    Outcome::failed(path, FindingKind::Invalid, Some(value.clone()), message)
}

/// Checks how a number compares with its maximum or minimum, which is `bound` in words.
fn within(
    schema: &Schema,
    value: &Value,
    order: Option<Ordering>,
    bound: &str,
    is_maximum: bool,
    path: &str,
) -> Outcome {
    let is = |orders: &[Ordering]| order.is_some_and(|own| orders.contains(&own));
    let (is_wrong, than) = match (
        is_maximum,
        schema.exclusive_maximum,
        schema.exclusive_minimum,
    ) {
        (true, true, _) => (!is(&[Ordering::Less]), "less than"),
        (true, false, _) => (is(&[Ordering::Greater]), "less than or equal to"),
        (false, _, true) => (!is(&[Ordering::Greater]), "greater than"),
        (false, _, false) => (is(&[Ordering::Less]), "greater than or equal to"),
    };
    if !is_wrong {
        return Outcome::default();
    }
    let message = format!("{path} in body should be {than} {bound}");
    Outcome::failed(path, FindingKind::Invalid, Some(value.clone()), message)
}

/// Converts a number as Go prints it: without a fraction of zero.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}
