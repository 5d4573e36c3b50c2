//! Conversions between types (cel-go: common/types, ConvertToType).

use std::sync::Arc;

use kube_cel::cel::Value;
use mullion_kube_text::golang::number;

use super::{error::EvalError, times, values::text};

/// Converts a value to the type that the function is named after; `None` if there is no such conversion.
///
/// # Errors
/// The value cannot be represented in that type.
pub(super) fn converted(function: &str, value: &Value) -> Option<Result<Value, EvalError>> {
    Some(match (function, value) {
        ("bool", Value::Bool(_))
        | ("bytes", Value::Bytes(_))
        | ("double", Value::Float(_))
        | ("duration", Value::Duration(_))
        | ("int", Value::Int(_))
        | ("string", Value::String(_))
        | ("timestamp", Value::Timestamp(_))
        | ("uint", Value::UInt(_)) => Ok(value.clone()),
        ("bool" | "double" | "int" | "uint", Value::String(given)) => {
            let (read, kind) = match function {
                "bool" => (truth(given).map(Value::Bool), "bool"),
                "double" => (double(given).map(Value::Float), "double"),
                "int" => (given.parse().ok().map(Value::Int), "int"),
                _ => {
                    // An unsigned number has no sign, not even the `+` that Rust's `parse` accepts.
                    let number = given.parse().ok().filter(|_| !given.starts_with('+'));
                    (number.map(Value::UInt), "uint")
                }
            };
            read.ok_or(EvalError::Conversion(kind))
        }
        ("bytes", Value::String(given)) => Ok(Value::Bytes(Arc::new(given.as_bytes().to_vec()))),
        ("double", Value::Int(number)) => Ok(Value::Float(*number as f64)),
        ("double", Value::UInt(number)) => Ok(Value::Float(*number as f64)),
        ("int", Value::UInt(number)) => i64::try_from(*number)
            .map(Value::Int)
            .map_err(|_| EvalError::IntOverflow),
        ("int", Value::Float(number)) => {
            // cel-go refuses the bounds themselves too.
            let fits = *number > i64::MIN as f64 && *number < i64::MAX as f64;
            fits.then_some(Value::Int(*number as i64))
                .ok_or(EvalError::IntOverflow)
        }
        ("int", Value::Duration(duration)) => {
            Ok(duration.num_nanoseconds().map_or(Value::Null, Value::Int))
        }
        ("int", Value::Timestamp(time)) => Ok(Value::Int(time.timestamp())),
        ("uint", Value::Int(number)) => u64::try_from(*number)
            .map(Value::UInt)
            .map_err(|_| EvalError::UintOverflow),
        ("uint", Value::Float(number)) => {
            // `u64::MAX as f64` is rounded up to 2^64, so the comparison has to be strict.
            let fits = *number >= 0.0 && *number < u64::MAX as f64;
            fits.then_some(Value::UInt(*number as u64))
                .ok_or(EvalError::UintOverflow)
        }
        ("string", value) => return as_text(value).map(|given| given.map(text)),
        ("duration" | "timestamp", value) => return times::made(function, value),
        _ => return None,
    })
}

/// Converts a value to a string; `None` if its type has no conversion.
///
/// # Errors
/// The bytes are not UTF-8.
pub(super) fn as_text(value: &Value) -> Option<Result<String, EvalError>> {
    Some(match value {
        Value::String(given) => Ok(given.to_string()),
        Value::Int(number) => Ok(number.to_string()),
        Value::UInt(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(double_text(*number)),
        Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).map_err(|_| EvalError::NotUtf8),
        other => Ok(times::text(other)?),
    })
}

/// Formats a double as Go's `%g` does.
pub(super) fn double_text(number: f64) -> String {
    special(number).map_or_else(|| number::text(number), str::to_owned)
}

/// Returns Go's text for infinities and NaN.
pub(super) fn special(number: f64) -> Option<&'static str> {
    match number {
        _ if number.is_nan() => Some("NaN"),
        f64::INFINITY => Some("+Inf"),
        f64::NEG_INFINITY => Some("-Inf"),
        _ => None,
    }
}

/// Parses a boolean like Go's `strconv.ParseBool`.
fn truth(given: &str) -> Option<bool> {
    match given {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Parses a double like Go's `strconv.ParseFloat`, which refuses numbers that are too large and a sign before `NaN`, and allows
/// underscores between digits.
fn double(given: &str) -> Option<f64> {
    let separated = given.contains('_');
    if separated && !separates(given) {
        return None;
    }
    let plain = separated.then(|| given.replace('_', ""));
    let given = plain.as_deref().unwrap_or(given);
    let unsigned = given.strip_prefix(['+', '-']);
    let digits = unsigned.unwrap_or(given);
    if let Some(hex) = digits
        .strip_prefix("0x")
        .or_else(|| digits.strip_prefix("0X"))
    {
        let number = hexadecimal(hex)?;
        return Some(if given.starts_with('-') {
            -number
        } else {
            number
        });
    }
    let number: f64 = given.parse().ok()?;
    let is_word = digits.starts_with(|first: char| first.is_ascii_alphabetic());
    let is_read = if is_word {
        // Rust accepts `-NaN`, Go does not; infinities may have a sign in both.
        number.is_infinite() || unsigned.is_none()
    } else {
        // Digits that overflow are infinite in Rust, where Go has an error.
        number.is_finite()
    };
    is_read.then_some(number)
}

/// Returns whether all underscores are between digits; the prefix `0x` counts as a digit.
fn separates(given: &str) -> bool {
    let digits = given.strip_prefix(['+', '-']).unwrap_or(given);
    let digits = digits.as_bytes();
    let is_hex = digits.len() > 1 && digits[0] == b'0' && digits[1].eq_ignore_ascii_case(&b'x');
    let is_digit = |at: usize| match digits.get(at) {
        Some(digit) if is_hex => digit.is_ascii_hexdigit() || at == 1,
        Some(digit) => digit.is_ascii_digit(),
        None => false,
    };
    (0..digits.len())
        .filter(|at| digits[*at] == b'_')
        .all(|at| at > 0 && is_digit(at - 1) && is_digit(at + 1))
}

/// Parses the rest of a hexadecimal float after `0x`, for example `1.8p-2`. The exponent is required.
fn hexadecimal(given: &str) -> Option<f64> {
    let (mantissa, exponent) = given.split_once(['p', 'P'])?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    // More digits would need rounding here.
    if digits.is_empty()
        || digits.len() > 13
        || !digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    {
        return None;
    }
    let number = u64::from_str_radix(&digits, 16).ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    let number = number as f64 * 2_f64.powi(exponent.checked_sub(places * 4)?);
    number.is_finite().then_some(number)
}
