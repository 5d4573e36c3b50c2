//! Validates numbers: their formats, bounds and multiples.
//!
//! Integers are compared with the whole part of a bound that fits their type, all other numbers as doubles, as in kube-openapi on amd64.

use std::cmp::Ordering;

use mullion_kube_text::golang::number as go;
use mullion_schema::structural::Schema;
use serde_json::Value;

use crate::crd::findings::{FindingKind, Outcome};

/// What kube-openapi's number validator reads of a schema: no type where there are several, and only the formats of that type.
struct Range<'a> {
    kind: &'a str,
    format: &'a str,
}

impl<'a> Range<'a> {
    fn of(schema: &'a Schema) -> Self {
        let (kind, formats): (_, &[&str]) = match schema.kind.as_str() {
            _ if schema.int_or_string => ("", &[]),
            "integer" => ("integer", &["int32", "int64"]),
            "number" => ("number", &["float", "double"]),
            _ => ("", &[]),
        };
        let format = Some(schema.format.as_str()).filter(|format| formats.contains(format));
        Range {
            kind,
            format: format.unwrap_or_default(),
        }
    }

    /// Returns whether a double is in the range (kube-openapi: `IsValueValidAgainstRange`).
    fn holds(&self, float: f64) -> bool {
        // Go reads the shortest digits of the double, so the smallest 64-bit integer, whose digits are -9223372036854776000, is none.
        let integer = || float.to_string().parse::<i64>();
        match (self.kind, self.format) {
            ("integer", "int32") => integer().is_ok_and(|whole| i32::try_from(whole).is_ok()),
            ("integer", _) => integer().is_ok(),
            (_, "float") => (float as f32).is_finite(),
            _ => true,
        }
    }

    fn holds_value(&self, value: &Value, float: f64) -> bool {
        match value.as_i64() {
            Some(whole) => self.format != "int32" || i32::try_from(whole).is_ok(),
            None => self.holds(float),
        }
    }

    fn violated(&self, what: &str, path: &str) -> Outcome {
        let with = match self.format {
            "" => " (default format)".to_owned(),
            format => format!(" with format {format}"),
        };
        let message = format!("{what} value must be of type {}{with} in {path}", self.kind);
        Outcome::failed(path, FindingKind::Nowhere, None, message)
    }
}

/// Validates a number against a schema.
///
/// Where the value is an integer and a bound fits the type and format, Go compares integers. A bound that does not fit is an error of its
/// own, and then all are doubles.
pub(super) fn number(schema: &Schema, value: &Value, path: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let range = Range::of(schema);
    let float = value.as_f64().unwrap_or_default();
    if !range.holds_value(value, float) {
        outcome.merge(range.violated("Checked", path));
    }
    if let Some(factor) = schema.multiple_of {
        let is_fit = range.holds(factor);
        if !is_fit {
            outcome.merge(range.violated("MultipleOf", path));
        }
        outcome.merge(match value.as_i64().filter(|_| is_fit) {
            Some(number) => multiple_of_integer(number, factor, path),
            None => multiple(float, factor, path),
        });
    }
    for (bound, is_maximum) in [(schema.minimum, false), (schema.maximum, true)] {
        let Some(bound) = bound else {
            continue;
        };
        let is_fit = range.holds(bound);
        if !is_fit {
            let what = if is_maximum {
                "Maximum boundary"
            } else {
                "Minimum boundary"
            };
            outcome.merge(range.violated(what, path));
        }
        let (value, order, shown) = match value.as_i64().filter(|_| is_fit) {
            Some(number) => {
                let bound = go::to_integer(bound);
                (number.into(), Some(number.cmp(&bound)), bound.to_string())
            }
            None => (float.into(), float.partial_cmp(&bound), go::text(bound)),
        };
        outcome.merge(within(schema, value, order, &shown, is_maximum, path));
    }
    outcome.passed += 1;
    outcome
}

fn multiple_of_integer(number: i64, factor: f64, path: &str) -> Outcome {
    // A factor below 1 becomes 0.
    let factor = go::to_integer(factor);
    if factor <= 0 {
        return no_factor(factor.into(), &factor.to_string(), path);
    }
    if number % factor == 0 {
        Outcome::default()
    } else {
        no_multiple(number.into(), &factor.to_string(), path)
    }
}

fn multiple(float: f64, factor: f64, path: &str) -> Outcome {
    let shown = go::text(factor);
    if factor <= 0.0 {
        return no_factor(factor.into(), &shown, path);
    }
    let quotient = if factor < 1.0 {
        1.0 / factor * float
    } else {
        float / factor
    };
    if go::is_json_integer(quotient) {
        Outcome::default()
    } else {
        no_multiple(float.into(), &shown, path)
    }
}

fn no_factor(factor: Value, shown: &str, path: &str) -> Outcome {
    let message = format!("factor MultipleOf declared for {path} must be positive: {shown}");
    Outcome::failed(path, FindingKind::Invalid, Some(factor), message)
}

fn no_multiple(value: Value, factor: &str, path: &str) -> Outcome {
    let message = format!("{path} in body should be a multiple of {factor}");
    Outcome::failed(path, FindingKind::Invalid, Some(value), message)
}

/// Checks how a number compares with its maximum or minimum, which is `bound` in words.
fn within(
    schema: &Schema,
    value: Value,
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
    Outcome::failed(path, FindingKind::Invalid, Some(value), message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(schema: &Value, value: Value) -> Vec<String> {
        let schema = Schema::parse(schema);
        let findings = number(&schema, &value, "p").errors.into_iter();
        findings.map(|finding| finding.message).collect()
    }

    #[test]
    fn bounds_beyond_64_bits_are_errors_of_integers_and_the_smallest_integer_for_numbers() {
        let largest = json!({"type": "integer", "maximum": i64::MAX});
        let unfit = "Maximum boundary value must be of type integer (default format) in p";
        assert_eq!(said(&largest, json!(5)), [unfit]);
        let largest = json!({"type": "number", "maximum": i64::MAX});
        let below = "p in body should be less than or equal to -9223372036854775808";
        assert_eq!(said(&largest, json!(5)), [below]);
        assert_eq!(said(&largest, json!(5.5)), [""; 0]);
        let smallest = json!({"type": "integer", "format": "int64", "minimum": i64::MIN});
        assert_eq!(
            said(&smallest, json!(5)),
            ["Minimum boundary value must be of type integer with format int64 in p"]
        );
        // The format of another type counts for nothing.
        let unsigned = json!({"type": "integer", "format": "uint32", "minimum": 5.5});
        assert_eq!(
            said(&unsigned, json!(4_294_967_296_i64)),
            ["Minimum boundary value must be of type integer (default format) in p"]
        );
    }

    #[test]
    fn a_bound_that_does_not_fit_is_compared_as_a_double() {
        let schema = json!({"type": "integer", "format": "int32", "minimum": 4_294_967_296_i64});
        assert_eq!(
            said(&schema, json!(5)),
            [
                "Minimum boundary value must be of type integer with format int32 in p",
                "p in body should be greater than or equal to 4.294967296e+09"
            ]
        );
    }

    #[test]
    fn a_quotient_just_below_a_whole_number_is_no_multiple() {
        let schema = json!({"type": "number", "multipleOf": 1.1});
        assert_eq!(said(&schema, json!(5.5)), [""; 0]);
        // 3.3 / 1.1 is 2.9999999999999996 in doubles.
        assert_eq!(
            said(&schema, json!(3.3)),
            ["p in body should be a multiple of 1.1"]
        );
    }
}
