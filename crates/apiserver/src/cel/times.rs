//! Times: their parts in a time zone, and times and durations as texts, as cel-go has them.
//!
//! Without a time zone the parts are those in UTC.

use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{Offset, TimeZone},
};
use kube_cel::cel::Value;

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
    let zone = match arguments {
        [] => Ok(TimeZone::UTC),
        [Value::String(name)] => zone(name),
        _ => return None,
    };
    let nanos = i32::try_from(time.timestamp_subsec_nanos()).ok()?;
    let time = Timestamp::new(time.timestamp(), nanos).ok()?;
    Some(zone.map(|zone| part(zone.to_datetime(time))))
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

/// A time zone by its name, or by hours and minutes from UTC.
fn zone(name: &str) -> Result<TimeZone, String> {
    if name.is_empty() {
        return Ok(TimeZone::UTC);
    }
    let Some((hours, minutes)) = name.split_once(':') else {
        return TimeZone::get(name).map_err(|_| format!("unknown time zone {name}"));
    };
    let (hours, minutes) = (hours.parse::<i32>().ok(), minutes.parse::<i32>().ok());
    let seconds = hours.zip(minutes).map(|(hours, minutes)| {
        let minutes = if name.starts_with('-') {
            -minutes
        } else {
            minutes
        };
        (hours.saturating_mul(60).saturating_add(minutes)).saturating_mul(60)
    });
    let offset = seconds.and_then(|seconds| Offset::from_seconds(seconds).ok());
    let offset = offset.ok_or_else(|| format!("unknown time zone {name}"))?;
    Ok(TimeZone::fixed(offset))
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
