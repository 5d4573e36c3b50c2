//! Equality, order and arithmetic of values. Numbers of different types are compared by their numeric values.

use std::{cmp::Ordering, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use kube_cel::cel::{
    Value,
    objects::{Key, Map, Opaque, OptionalValue},
};
use serde_json::Value as Json;

use super::{
    conversions::as_text,
    error::EvalError,
    keyed::{keyed, plain},
    maps::as_map,
    messages::message,
    times,
};

/// A type as a value, identified by its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeValue(pub(super) String);

impl Opaque for TypeValue {
    fn runtime_type_name(&self) -> &str {
        "type"
    }
}

/// A field that could not be evaluated; selecting it fails with this message.
#[derive(Debug, PartialEq, Eq)]
struct Broken(String);

impl Opaque for Broken {
    fn runtime_type_name(&self) -> &str {
        "error"
    }
}

/// Returns a value whose selection fails.
pub fn broken(why: String) -> Value {
    Value::Opaque(Arc::new(Broken(why)))
}

/// Returns the reason why a value cannot be selected, if it cannot.
pub(super) fn why_broken(value: &Value) -> Option<&str> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref::<Broken>().map(|broken| &*broken.0),
        _ => None,
    }
}

pub(super) fn text(value: impl Into<String>) -> Value {
    Value::String(Arc::new(value.into()))
}

/// Converts JSON: whole numbers become ints, and keys are not escaped.
pub fn of_json(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Value::Int(number),
            // Whole numbers may be written with a decimal point; below 9e15 a double holds them exactly.
            (None, Some(double)) if double.fract() == 0.0 && double.abs() < 9e15 => {
                Value::Int(double as i64)
            }
            (None, double) => Value::Float(double.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::String(Arc::new(text.clone())),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(of_json).collect())),
        Json::Object(map) => {
            let fields = map.iter();
            let fields =
                fields.map(|(name, value)| (Key::String(Arc::new(name.clone())), of_json(value)));
            Value::Map(Map {
                map: Arc::new(fields.collect()),
            })
        }
    }
}

/// The reason why a value has no JSON form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// A key of a map is not a string.
    Key(String),
    /// A value of this type has no JSON form.
    Type(String),
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JsonError::Key(key) => write!(f, "map key \"{key}\" is not a string"),
            JsonError::Type(kind) => write!(f, "a {kind} is no JSON value"),
        }
    }
}

impl std::error::Error for JsonError {}

/// Converts a value to JSON.
///
/// # Errors
/// A part of the value has no JSON form.
pub fn to_json(value: &Value) -> Result<Json, JsonError> {
    Ok(match plain(value) {
        Value::Null => Json::Null,
        Value::Bool(truth) => (*truth).into(),
        Value::Int(number) => (*number).into(),
        Value::UInt(number) => (*number).into(),
        // Go writes whole numbers without a decimal point.
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
            (*number as i64).into()
        }
        Value::Float(number) => (*number).into(),
        Value::String(text) => text.as_str().into(),
        Value::Bytes(bytes) => STANDARD.encode(&**bytes).into(),
        Value::Timestamp(time) => time.to_rfc3339().replace("+00:00", "Z").into(),
        Value::Duration(duration) => {
            let seconds = duration.as_seconds_f64();
            format!("{seconds}s").into()
        }
        Value::List(items) => items.iter().map(to_json).collect::<Result<_, _>>()?,
        other if let Some(map) = as_map(other) => {
            let entries = map.iter().map(|(key, value)| match &key {
                Value::String(name) => Ok((name.to_string(), to_json(value)?)),
                key => {
                    let shown = as_text(key).and_then(Result::ok);
                    let shown = shown.unwrap_or_else(|| type_name(key).to_owned());
                    Err(JsonError::Key(shown))
                }
            });
            Json::Object(entries.collect::<Result<_, _>>()?)
        }
        Value::Map(_) | Value::Opaque(_) | Value::Function(..) => match message(value) {
            Some(message) => {
                let fields = message.fields.iter();
                let fields = fields.map(|(name, value)| Ok((name.clone(), to_json(value)?)));
                Json::Object(fields.collect::<Result<_, JsonError>>()?)
            }
            None => return Err(JsonError::Type(type_name(value).to_owned())),
        },
    })
}

/// Returns a map with string keys.
pub fn map_of(fields: &[(String, Value)]) -> Value {
    let fields = fields.iter();
    let fields = fields.map(|(name, value)| (Key::String(Arc::new(name.clone())), value.clone()));
    Value::Map(Map {
        map: Arc::new(fields.collect()),
    })
}

/// Returns an optional with a value.
pub fn some(value: Value) -> Value {
    Value::Opaque(Arc::new(OptionalValue::of(value)))
}

/// Returns an empty optional.
pub fn none() -> Value {
    Value::Opaque(Arc::new(OptionalValue::none()))
}

/// Returns the content of an optional; `None` if the value is not one.
pub(super) fn optional(value: &Value) -> Option<Option<&Value>> {
    match value {
        Value::Opaque(opaque) => opaque
            .downcast_ref::<OptionalValue>()
            .map(OptionalValue::value),
        _ => None,
    }
}

/// Returns the name of a value's type.
pub fn type_name(value: &Value) -> &str {
    match value {
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Bool(_) => "bool",
        Value::Duration(_) => "google.protobuf.Duration",
        Value::Timestamp(_) => "google.protobuf.Timestamp",
        Value::Opaque(opaque) => opaque.runtime_type_name(),
        Value::Null => "null_type",
        Value::Function(..) => "function",
    }
}

/// Returns the Go type in which cel-go holds a value, as `%T` prints it.
pub(super) fn go_type(value: &Value) -> &str {
    match value {
        Value::List(_) => "*types.baseList",
        Value::Map(_) => "*types.baseMap",
        Value::Int(_) => "types.Int",
        Value::UInt(_) => "types.Uint",
        Value::Float(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Bool(_) => "types.Bool",
        Value::Duration(_) => "types.Duration",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Null => "types.Null",
        Value::Opaque(_) | Value::Function(..) => match type_name(value) {
            "optional_type" => "*types.Optional",
            "type" => "*types.Type",
            "kubernetes.Semver" => "cel.Semver",
            "kubernetes.Quantity" => "cel.Quantity",
            "kubernetes.URL" => "cel.URL",
            "kubernetes.NamedFormat" => "*cel.Format",
            "net.IP" => "cel.IP",
            "net.CIDR" => "cel.CIDR",
            "map" => "*types.baseMap",
            other => other,
        },
    }
}

/// The first second of the year 1, the zero value of Go's `time.Time`.
const FIRST_SECOND: i64 = -62_135_596_800;

/// Returns whether a value is the zero value of its type.
pub(super) fn is_zero(value: &Value) -> bool {
    match plain(value) {
        Value::List(items) => items.is_empty(),
        other if let Some(map) = as_map(other) => map.len() == 0,
        Value::Int(number) => *number == 0,
        Value::UInt(number) => *number == 0,
        Value::Float(number) => *number == 0.0,
        Value::String(text) => text.is_empty(),
        Value::Bytes(bytes) => bytes.is_empty(),
        Value::Bool(truth) => !truth,
        Value::Duration(duration) => duration.is_zero(),
        Value::Null => true,
        // An optional is never zero, whatever it contains.
        Value::Opaque(_) => message(value).is_some_and(|message| message.fields.is_empty()),
        // The zero value of Go's `time.Time`.
        Value::Timestamp(time) => {
            time.timestamp() == FIRST_SECOND && time.timestamp_subsec_nanos() == 0
        }
        Value::Map(_) | Value::Function(..) => false,
    }
}

/// Compares two values like [`equal_within`], without a limit.
#[cfg(test)]
pub(super) fn equal(left: &Value, right: &Value) -> Result<bool, EvalError> {
    equal_within(left, right, &mut VisitLimit(u64::MAX))
}

/// The number of values that may still be visited. Parts of a list may be shared, so a value can have far more parts than memory holds.
#[derive(Debug)]
pub(super) struct VisitLimit(pub(super) u64);

impl VisitLimit {
    /// Charges for `count` visits.
    ///
    /// # Errors
    /// Fewer are left; then nothing is left.
    pub(super) fn take(&mut self, count: u64) -> Result<(), EvalError> {
        let left = self.0.checked_sub(count);
        self.0 = left.unwrap_or(0);
        left.map(|_| ()).ok_or(EvalError::TooLong)
    }
}

/// Returns whether two values are equal; the left operand's list type decides how lists are compared.
///
/// # Errors
/// The values cannot be compared, or more visits are needed than are left.
pub(super) fn equal_within(
    left: &Value,
    right: &Value,
    looks: &mut VisitLimit,
) -> Result<bool, EvalError> {
    looks.take(1)?;
    if let Some(left) = keyed(left) {
        return left.equals(right, looks);
    }
    match (plain(left), plain(right)) {
        (Value::List(left), Value::List(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for (left, right) in left.iter().zip(&**right) {
                if !equal_within(left, right, looks)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (left, right) if let (Some(left), Some(right)) = (as_map(left), as_map(right)) => {
            if left.len() != right.len() {
                return Ok(false);
            }
            // With equal sizes it is enough to look from one side.
            for (key, value) in left.iter() {
                match right.get(&key) {
                    Some(other) if equal_within(value, other, looks)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        (Value::Opaque(_), Value::Opaque(_)) => match (optional(left), optional(right)) {
            // Optionals are equal if both are empty, or if their values are equal.
            (Some(Some(left)), Some(Some(right))) => equal_within(left, right, looks),
            (Some(left), Some(right)) => Ok(left.is_none() && right.is_none()),
            _ => Ok(left == right),
        },
        (Value::String(left), Value::String(right)) => Ok(left == right),
        (Value::Bytes(left), Value::Bytes(right)) => Ok(left == right),
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        (Value::Null, Value::Null) => Ok(true),
        // NaN has no order, so it equals nothing.
        _ => Ok(compare(left, right) == Some(Ordering::Equal)),
    }
}

/// Returns the order of two values; `None` if they have none.
pub(super) fn compare(left: &Value, right: &Value) -> Option<Ordering> {
    use Value::{Bool, Bytes, Duration, Float, Int, String, Timestamp, UInt};
    match (left, right) {
        (Int(left), Int(right)) => Some(left.cmp(right)),
        (UInt(left), UInt(right)) => Some(left.cmp(right)),
        (Float(left), Float(right)) => left.partial_cmp(right),
        (Int(left), UInt(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (UInt(left), Int(right)) => Some(i128::from(*left).cmp(&i128::from(*right))),
        (Int(left), Float(right)) => compare_double(i128::from(*left), *right),
        (UInt(left), Float(right)) => compare_double(i128::from(*left), *right),
        (Float(left), Int(right)) => {
            compare_double(i128::from(*right), *left).map(Ordering::reverse)
        }
        (Float(left), UInt(right)) => {
            compare_double(i128::from(*right), *left).map(Ordering::reverse)
        }
        (String(left), String(right)) => Some(left.cmp(right)),
        (Bytes(left), Bytes(right)) => Some(left.cmp(right)),
        (Bool(left), Bool(right)) => Some(left.cmp(right)),
        (Duration(left), Duration(right)) => Some(left.cmp(right)),
        (Timestamp(left), Timestamp(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

fn compare_double(whole: i128, double: f64) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Doubles beyond the range of integers saturate, which orders them correctly.
    let floor = double.floor() as i128;
    Some(match whole.cmp(&floor) {
        Ordering::Equal if double > double.floor() => Ordering::Less,
        order => order,
    })
}

/// Applies a binary arithmetic operator.
pub(super) fn arithmetic(operator: &str, left: &Value, right: &Value) -> Result<Value, EvalError> {
    use Value::{Bytes, Duration, Float, Int, List, String, Timestamp, UInt};
    let int = |result: Option<i64>| result.map(Int).ok_or(EvalError::IntOverflow);
    let uint = |result: Option<u64>| result.map(UInt).ok_or(EvalError::UintOverflow);
    // The list type of the left operand decides how lists are joined.
    if let ("_+_", Some(left)) = (operator, keyed(left)) {
        return left.with(right);
    }
    match (operator, left, plain(right)) {
        ("_+_", Int(left), Int(right)) => int(left.checked_add(*right)),
        ("_-_", Int(left), Int(right)) => int(left.checked_sub(*right)),
        ("_*_", Int(left), Int(right)) => int(left.checked_mul(*right)),
        ("_/_", Int(_), Int(0)) | ("_/_", UInt(_), UInt(0)) => Err(EvalError::DivisionByZero),
        ("_%_", Int(_), Int(0)) | ("_%_", UInt(_), UInt(0)) => Err(EvalError::ModulusByZero),
        ("_/_", Int(left), Int(right)) => int(left.checked_div(*right)),
        ("_%_", Int(left), Int(right)) => int(left.checked_rem(*right)),
        ("_+_", UInt(left), UInt(right)) => uint(left.checked_add(*right)),
        ("_-_", UInt(left), UInt(right)) => uint(left.checked_sub(*right)),
        ("_*_", UInt(left), UInt(right)) => uint(left.checked_mul(*right)),
        ("_/_", UInt(left), UInt(right)) => uint(left.checked_div(*right)),
        ("_%_", UInt(left), UInt(right)) => uint(left.checked_rem(*right)),
        ("_+_", Float(left), Float(right)) => Ok(Float(left + right)),
        ("_-_", Float(left), Float(right)) => Ok(Float(left - right)),
        ("_*_", Float(left), Float(right)) => Ok(Float(left * right)),
        ("_/_", Float(left), Float(right)) => Ok(Float(left / right)),
        ("_+_", String(left), String(right)) => Ok(text(format!("{left}{right}"))),
        ("_+_", Bytes(left), Bytes(right)) => Ok(Bytes(Arc::new([&left[..], right].concat()))),
        ("_+_", List(left), List(right)) => Ok(List(Arc::new([&left[..], right].concat()))),
        ("_+_", Duration(left), Duration(right)) => times::countable(left.checked_add(right)),
        ("_-_", Duration(left), Duration(right)) => times::countable(left.checked_sub(right)),
        ("_+_", Timestamp(time), Duration(duration))
        | ("_+_", Duration(duration), Timestamp(time)) => {
            times::within_calendar(time.checked_add_signed(*duration))
        }
        ("_-_", Timestamp(time), Duration(duration)) => {
            times::within_calendar(time.checked_sub_signed(*duration))
        }
        ("_-_", Timestamp(left), Timestamp(right)) => times::countable(Some(*left - *right)),
        _ => Err(EvalError::NoOverload(None)),
    }
}

/// Converts a map key to a value.
pub(super) fn of_key(key: &Key) -> Value {
    match key {
        Key::Int(number) => Value::Int(*number),
        Key::Uint(number) => Value::UInt(*number),
        Key::Bool(truth) => Value::Bool(*truth),
        Key::String(text) => Value::String(text.clone()),
    }
}
