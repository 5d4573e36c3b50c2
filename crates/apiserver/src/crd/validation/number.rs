//! Validates numbers: their formats, bounds and multiples.
//!
//! Numbers are compared as doubles, as in kube-openapi; only the range of a format is checked on the integer itself.

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
pub(super) fn number(schema: &Schema, value: &Value, path: &str) -> Outcome {
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
            FindingKind::Nowhere,
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
                FindingKind::Invalid,
                Some(value.clone()),
                format!("{path} in body should be a multiple of {factor}"),
            );
        };
        match integer {
            Some(number) => {
                // Go converts the factor of an integer to int64, so a factor below 1 becomes 0.
                let factor = factor as i64;
                if factor <= 0 {
                    let message =
                        format!("factor MultipleOf declared for {path} must be positive: {factor}");
                    outcome.add(path, FindingKind::Invalid, Some(factor.into()), message);
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
                FindingKind::Invalid,
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
                FindingKind::Invalid,
                Some(value.clone()),
                format!("{path} in body should be {than} {}", plain(min)),
            );
        }
    }
    outcome.passed += 1;
    outcome
}

/// Converts a number as Go prints it: without a fraction of zero.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}
