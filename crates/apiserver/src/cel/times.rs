//! Times: their parts in a time zone, and times and durations as texts, as cel-go has them.
//!
//! Without a time zone the parts are those in UTC.

use std::ops::RangeInclusive;

use chrono::TimeDelta;
use jiff::{SignedDuration, Timestamp, civil::DateTime, tz::TimeZone};
use kube_cel::cel::Value;

use crate::{
    golang::{duration, zone},
    validation::go,
};

/// A part of a time (`getHours` and the like); `None` when the function is none of these.
///
/// # Errors
/// There is no such time zone.
pub(super) fn part(
    function: &str,
    target: &Value,
    arguments: &[Value],
) -> Option<Result<i64, String>> {
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

/// A time as it is in a time zone: of a name, or so many hours and minutes from UTC, which nobody bounds.
fn local(time: Timestamp, zone: &str) -> Result<DateTime, String> {
    let Some((hours, minutes)) = zone.split_once(':') else {
        return Ok(zone::load(zone)?.to_datetime(time));
    };
    let (hours, minutes) = (whole_number(hours)?, whole_number(minutes)?);
    let minutes = match zone.starts_with('-') {
        true => hours.saturating_mul(60).saturating_sub(minutes),
        false => hours.saturating_mul(60).saturating_add(minutes),
    };
    // Years that have no calendar here: no zone is as far away.
    let moved = time.checked_add(SignedDuration::from_secs(minutes.saturating_mul(60)));
    let moved = moved.map_err(|_| TIMESTAMP_OVERFLOW.to_owned())?;
    Ok(TimeZone::UTC.to_datetime(moved))
}

/// Go: strconv.Atoi.
fn whole_number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| go::whole("Atoi", text))
}

/// What texts and numbers stand for as times and durations; `None` when the function makes neither of them.
///
/// # Errors
/// Nothing is read from it, or it is beyond what cel-go has.
pub(super) fn made(function: &str, argument: &Value) -> Option<Result<Value, String>> {
    let unread = |kind| Err(format!("type conversion error from 'string' to '{kind}'"));
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

/// A time as Go reads it: the letters are capitals, no minute has 61 seconds, the hour may have one digit, and a comma may stand for the point.
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

const TIMESTAMP_OVERFLOW: &str = "timestamp overflow";
const DURATION_OVERFLOW: &str = "duration overflow";
/// The first and the last second of the years 1 to 9999.
const CALENDAR: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A time of the years that cel-go has.
pub(super) fn within_calendar(
    time: Option<chrono::DateTime<chrono::FixedOffset>>,
) -> Result<Value, String> {
    let time = time.filter(|time| CALENDAR.contains(&time.timestamp()));
    let time = time.map(Value::Timestamp);
    time.ok_or_else(|| TIMESTAMP_OVERFLOW.to_owned())
}

/// A duration whose nanoseconds Go can count.
pub(super) fn countable(duration: Option<TimeDelta>) -> Result<Value, String> {
    let duration = duration.filter(|duration| duration.num_nanoseconds().is_some());
    let duration = duration.map(Value::Duration);
    duration.ok_or_else(|| DURATION_OVERFLOW.to_owned())
}

/// A truth, a time or a duration as text.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Duration(duration) => Some(format!("{}s", duration.as_seconds_f64())),
        Value::Timestamp(time) => {
            let text = time.to_rfc3339();
            let at = text.len().checked_sub("+00:00".len())?;
            let (time, offset) = text.split_at(at);
            let time = match time.contains('.') {
                true => time.trim_end_matches('0').trim_end_matches('.'),
                false => time,
            };
            let offset = if offset == "+00:00" { "Z" } else { offset };
            Some(format!("{time}{offset}"))
        }
        _ => None,
    }
}
