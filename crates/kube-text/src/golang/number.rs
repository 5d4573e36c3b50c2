//! Formats floating-point numbers like Go: integers without a point, large and small numbers with an exponent.

use std::io;

use serde::Serialize as _;
use serde_json::{Value, ser::Formatter};

/// The first number above the range of Go's `int64`.
const END: f64 = 9_223_372_036_854_775_808.0;

/// Returns a float as an integer, if it is a whole number that fits.
pub fn whole(float: f64) -> Option<i64> {
    let fits = float.fract() == 0.0 && (-END..END).contains(&float);
    fits.then_some(float as i64)
}

/// The largest whole number up to which every whole number is a double.
const MAX_JSON_INTEGER: f64 = 9_007_199_254_740_991.0;
/// The relative distance from a whole number below which go-openapi takes a double for that number.
const EPSILON: f64 = 1e-9;

/// Returns whether go-openapi takes a double for a whole number (`IsFloat64AJSONInteger`).
///
/// The comparison is with the number without its fraction, so 2.9999999999999996 is none; below zero nothing is close enough.
pub fn is_json_integer(float: f64) -> bool {
    if float.is_nan() || float.abs() > MAX_JSON_INTEGER {
        return false;
    }
    let whole = float.trunc();
    float == whole || (whole > 0.0 && (float - whole) / (float + whole) < EPSILON)
}

/// Converts a float to Go's `int64` as amd64 does: without its fraction, and to the smallest number if it does not fit.
pub fn to_integer(float: f64) -> i64 {
    whole(float.trunc()).unwrap_or(i64::MIN)
}

/// Returns the number that a client reads of a `float64` that Go has encoded: 9223372036854775807 becomes 9223372036854776000.
pub fn encoded(float: f64) -> Value {
    let digits = json(float);
    let signed = digits.parse::<i64>().map(Value::from);
    let unsigned = || digits.parse::<u64>().map(Value::from);
    signed
        .or_else(|_| unsigned())
        .unwrap_or_else(|_| float.into())
}

/// Formats a float as `%v` does: with an exponent from 1e+06 on, and below 0.0001.
pub fn text(float: f64) -> String {
    let exponent = exponent(float);
    if float == 0.0 || (-4..6).contains(&exponent) {
        float.to_string()
    } else {
        with_exponent(float, 2)
    }
}

/// Formats a float as Go's JSON encoder does: with an exponent from 1e+21 on, and below 0.000001.
fn json(float: f64) -> String {
    if float == 0.0 || (-6..21).contains(&exponent(float)) {
        float.to_string()
    } else {
        with_exponent(float, 1)
    }
}

/// Returns the power of ten of the first digit.
fn exponent(float: f64) -> i32 {
    let text = format!("{float:e}");
    let exponent = text.split_once('e').map(|(_, exponent)| exponent.parse());
    exponent.and_then(Result::ok).unwrap_or_default()
}

/// Formats a float like `1.5e+21`: the exponent has a sign and at least `digits` digits.
fn with_exponent(float: f64, digits: usize) -> String {
    let text = format!("{float:e}");
    let (mantissa, _) = text.split_once('e').unwrap_or((&text, ""));
    let exponent = exponent(float);
    let sign = if exponent < 0 { '-' } else { '+' };
    let exponent = exponent.unsigned_abs();
    format!("{mantissa}e{sign}{exponent:0digits$}")
}

/// Formats a tree as Go's JSON encoder does.
pub fn json_text(value: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, GoNumbers);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(_) => value.to_string(),
    }
}

struct GoNumbers;

impl Formatter for GoNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(json(value).as_bytes())
    }
}

/// Converts floats that are whole numbers to integers, as they are when Go decodes them again.
pub fn settle(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) = number.as_f64().and_then(whole) {
                *value = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Object(map) => map.values_mut().for_each(settle),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_are_written_as_go_writes_them() {
        for (float, verb, in_json) in [
            (5.0, "5", "5"),
            (-0.0, "-0", "-0"),
            (1.5, "1.5", "1.5"),
            (123_456.5, "123456.5", "123456.5"),
            (1e6, "1e+06", "1000000"),
            (1_234_567.5, "1.2345675e+06", "1234567.5"),
            (1e20, "1e+20", "100000000000000000000"),
            (1.5e21, "1.5e+21", "1.5e+21"),
            (1e100, "1e+100", "1e+100"),
            (0.0001, "0.0001", "0.0001"),
            (0.00001, "1e-05", "0.00001"),
            (2e-7, "2e-07", "2e-7"),
        ] {
            assert_eq!(text(float), verb);
            assert_eq!(json(float), in_json);
        }
        assert_eq!(json_text(&json!({"a": [5.0, "b"]})), r#"{"a":[5,"b"]}"#);
    }

    #[test]
    fn floats_are_read_back_by_their_shortest_digits() {
        assert_eq!(
            encoded(i64::MAX as f64),
            json!(9_223_372_036_854_776_000_u64)
        );
        assert_eq!(encoded(2.5), json!(2.5));
        assert_eq!(encoded(1e30), json!(1e30));
        assert_eq!(encoded(-0.0), json!(0));
        assert_eq!((to_integer(-2.5), to_integer(1e19)), (-2, i64::MIN));
    }

    #[test]
    fn whole_floats_become_integers_as_far_as_there_are_any() {
        let mut value = json!({"a": 1.0, "b": [2e3, 2.5], "c": {"d": -0.0, "e": 1e30}});
        settle(&mut value);
        assert_eq!(
            value,
            json!({"a": 1, "b": [2000, 2.5], "c": {"d": 0, "e": 1e30}})
        );
    }
}
