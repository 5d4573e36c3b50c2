//! Times and durations with the semantics of cel-go: their parts in a time zone, and their conversion from and to strings.
//!
//! Without a time zone, the parts are in UTC.

use std::ops::RangeInclusive;

use chrono::TimeDelta;
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use kube_cel::cel::Value;
use mullion_kube_text::golang::{duration, zone};

use super::error::EvalError;

/// Returns a part of a time (`getHours` and the like); `None` if the function is not one of these.
///
/// # Errors
/// The time zone does not exist.
pub(super) fn part(
    function: &str,
    target: &Value,
    arguments: &[Value],
) -> Option<Result<i64, EvalError>> {
    let part = part_named(function)?;
    let Value::Timestamp(time) = target else {
        return None;
    };
    let nanos = i32::try_from(time.timestamp_subsec_nanos()).ok()?;
    let time = Timestamp::new(time.timestamp(), nanos).ok()?;
    let time = match arguments {
        [] => Ok(TimeZone::UTC.to_datetime(time)),
        [Value::String(zone)] => local(time, zone),
        _ => return None,
    };
    Some(time.map(part))
}

fn part_named(function: &str) -> Option<fn(DateTime) -> i64> {
    // CEL counts months, days of the week and of the year from zero, but `getDate` from one.
    Some(match function {
        "getFullYear" => |time| time.year().into(),
        "getMonth" => |time| i64::from(time.month()) - 1,
        "getDate" => |time| time.day().into(),
        "getDayOfMonth" => |time| i64::from(time.day()) - 1,
        "getDayOfWeek" => |time| time.weekday().to_sunday_zero_offset().into(),
        "getDayOfYear" => |time| i64::from(time.day_of_year()) - 1,
        "getHours" => |time| time.hour().into(),
        "getMinutes" => |time| time.minute().into(),
        "getSeconds" => |time| time.second().into(),
        "getMilliseconds" => |time| time.millisecond().into(),
        _ => return None,
    })
}

/// Returns a time in a named zone, or in one with an offset from UTC, whose size is not limited.
fn local(time: Timestamp, zone: &str) -> Result<DateTime, EvalError> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return Ok(zone::load(zone)?.to_datetime(time));
    };
    let (hours, minutes) = (whole_number(hours)?, whole_number(minutes)?);
    // The sign is that of the minutes too, and the number loses it in `-00:30`.
    let minutes = if zone.starts_with('-') {
        hours.saturating_mul(60).saturating_sub(minutes)
    } else {
        hours.saturating_mul(60).saturating_add(minutes)
    };
    // A huge offset can lead beyond the years that jiff represents; no real time zone has such an offset.
    let moved = time.checked_add(SignedDuration::from_secs(minutes.saturating_mul(60)));
    let moved = moved.map_err(|_| EvalError::TimestampOverflow)?;
    Ok(TimeZone::UTC.to_datetime(moved))
}

/// Parses an integer like Go's `strconv.Atoi`.
fn whole_number(text: &str) -> Result<i64, EvalError> {
    text.parse().map_err(|_| EvalError::Offset(text.to_owned()))
}

/// Converts strings and numbers to times and durations; `None` if the function makes neither.
///
/// # Errors
/// The argument cannot be parsed, or is out of cel-go's range.
pub(super) fn made(function: &str, argument: &Value) -> Option<Result<Value, EvalError>> {
    let unread = |kind| Err(EvalError::Conversion(kind));
    Some(match (function, argument) {
        ("duration", Value::String(text)) => match duration::parse(text) {
            Some(nanos) => Ok(Value::Duration(TimeDelta::nanoseconds(nanos))),
            None => unread("google.protobuf.Duration"),
        },
        ("duration", Value::Int(nanos)) => Ok(Value::Duration(TimeDelta::nanoseconds(*nanos))),
        ("timestamp", Value::String(text)) => match read(text) {
            Some(time) => within_calendar(Some(time)),
            None => unread("google.protobuf.Timestamp"),
        },
        ("timestamp", Value::Int(seconds)) => {
            let time = chrono::DateTime::from_timestamp(*seconds, 0);
            within_calendar(time.map(Into::into))
        }
        _ => return None,
    })
}

/// Parses a time like Go: letters in upper case, no second 60, an hour with one digit is valid, and so is a comma instead of the point.
fn read(text: &str) -> Option<chrono::DateTime<chrono::FixedOffset>> {
    let (date, time) = text.split_at_checked(11)?;
    let one_digit = time.as_bytes().get(1) == Some(&b':');
    let time = if one_digit {
        format!("0{time}")
    } else {
        time.to_owned()
    };
    let (clock, rest) = time.split_at_checked(8)?;
    let has_fraction = rest.starts_with(',') && rest[1..].starts_with(|c: char| c.is_ascii_digit());
    let rest = if has_fraction {
        rest.replacen(',', ".", 1)
    } else {
        rest.to_owned()
    };
    let in_form =
        text.is_ascii() && date.ends_with('T') && !rest.ends_with('z') && !clock.ends_with("60");
    let read = || chrono::DateTime::parse_from_rfc3339(&format!("{date}{clock}{rest}"));
    in_form.then(read)?.ok()
}

/// The first and last second of the years 1 to 9999.
const CALENDAR: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Returns a time if it is in cel-go's range of years.
pub(super) fn within_calendar(
    time: Option<chrono::DateTime<chrono::FixedOffset>>,
) -> Result<Value, EvalError> {
    let time = time.filter(|time| CALENDAR.contains(&time.timestamp()));
    let time = time.map(Value::Timestamp);
    time.ok_or(EvalError::TimestampOverflow)
}

/// Returns a duration if Go can hold its nanoseconds.
pub(super) fn countable(duration: Option<TimeDelta>) -> Result<Value, EvalError> {
    let duration = duration.filter(|duration| duration.num_nanoseconds().is_some());
    let duration = duration.map(Value::Duration);
    duration.ok_or(EvalError::DurationOverflow)
}

/// Converts a boolean, a time or a duration to a string.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Duration(duration) => Some(format!("{}s", duration.as_seconds_f64())),
        Value::Timestamp(time) => {
            let text = time.to_rfc3339();
            let at = text.len().checked_sub("+00:00".len())?;
            let (time, offset) = text.split_at(at);
            // Go leaves out the zeros at the end of a fraction, chrono does not.
            let time = if time.contains('.') {
                time.trim_end_matches('0').trim_end_matches('.')
            } else {
                time
            };
            let offset = if offset == "+00:00" { "Z" } else { offset };
            Some(format!("{time}{offset}"))
        }
        _ => None,
    }
}
