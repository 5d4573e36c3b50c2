//! Validates cron schedules with the messages of `robfig/cron`, which kube-apiserver uses: five fields, or a descriptor such as `@every
//! 1h`.

use crate::golang::{duration, integer, zone};

/// The error for a text that is not a cron schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const FIELDS: [Bounds; 5] = [
    bounds(0, 59, &[]),
    bounds(0, 23, &[]),
    bounds(1, 31, &[]),
    bounds(1, 12, &MONTHS),
    bounds(0, 6, &DAYS),
];

const fn bounds(min: u64, max: u64, names: &'static [&'static str]) -> Bounds {
    Bounds { min, max, names }
}

/// Checks a schedule.
///
/// # Errors
/// The library's error for a text that is not a schedule.
pub fn check(text: &str) -> Result<(), CronError> {
    if text.is_empty() {
        return fail("empty spec string");
    }
    let mut rest = text;
    if let Some(zoned) = text.strip_prefix("TZ=").or(text.strip_prefix("CRON_TZ=")) {
        let (zone, schedule) = zoned.split_once(' ').unwrap_or((zoned, ""));
        if let Err(unknown) = zone::load(zone) {
            return fail(format!("provided bad location {zone}: {unknown}"));
        }
        rest = schedule.trim();
    }
    if rest.starts_with('@') {
        return descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        return fail(format!(
            "expected exactly {} fields, found {}: [{}]",
            FIELDS.len(),
            fields.len(),
            fields.join(" ")
        ));
    }
    for (field, bounds) in fields.iter().zip(&FIELDS) {
        for part in field.split(',').filter(|part| !part.is_empty()) {
            range(part, bounds)?;
        }
    }
    Ok(())
}

fn fail<T>(why: impl Into<String>) -> Result<T, CronError> {
    Err(CronError(why.into()))
}

fn descriptor(text: &str) -> Result<(), CronError> {
    match text {
        "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@midnight" | "@hourly" => {
            Ok(())
        }
        _ => match text.strip_prefix("@every ") {
            Some(duration) => match duration::fault(duration) {
                Some(why) => fail(format!("failed to parse duration {text}: {why}")),
                None => Ok(()),
            },
            None => fail(format!("unrecognized descriptor: {text}")),
        },
    }
}

/// Checks one range of a field: `a`, `a-b` or `*`, each with an optional `/step`.
fn range(part: &str, bounds: &Bounds) -> Result<(), CronError> {
    let pieces: Vec<&str> = part.split('/').collect();
    let ends: Vec<&str> = pieces[0].split('-').collect();
    let any = matches!(ends[0], "*" | "?");
    let (start, mut end) = match ends.as_slice() {
        _ if any => (bounds.min, bounds.max),
        [one] => {
            let number = number_or_name(one, bounds)?;
            (number, number)
        }
        [first, last] => (
            number_or_name(first, bounds)?,
            number_or_name(last, bounds)?,
        ),
        [first, ..] => {
            number_or_name(first, bounds)?;
            return fail(format!("too many hyphens: {part}"));
        }
        [] => return Ok(()),
    };
    let step = match pieces.as_slice() {
        [_] => 1,
        [_, step] => {
            let step = number(step)?;
            // A single start with a step, such as `5/10`, means the range from it to the maximum.
            if ends.len() == 1 {
                end = bounds.max;
            }
            step
        }
        _ => return fail(format!("too many slashes: {part}")),
    };
    let wrong = |what: String| fail(format!("{what}: {part}"));
    match () {
        () if start < bounds.min => wrong(format!(
            "beginning of range ({start}) below minimum ({})",
            bounds.min
        )),
        () if end > bounds.max => wrong(format!(
            "end of range ({end}) above maximum ({})",
            bounds.max
        )),
        () if start > end => wrong(format!(
            "beginning of range ({start}) beyond end of range ({end})"
        )),
        () if step == 0 => wrong("step of range should be a positive number".to_owned()),
        () => Ok(()),
    }
}

fn number_or_name(text: &str, bounds: &Bounds) -> Result<u64, CronError> {
    let lower = text.to_lowercase();
    match bounds.names.iter().position(|name| *name == lower) {
        Some(index) => Ok(bounds.min + index as u64),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u64, CronError> {
    match text.parse::<i64>() {
        Err(_) => fail(format!(
            "failed to parse int from {text}: {}",
            integer::fault("Atoi", text)
        )),
        Ok(number) if number < 0 => fail(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => Ok(number.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_have_five_fields_or_a_name() {
        for good in [
            "*/5 * * * *",
            "0 0 1,15 * mon-fri",
            "? * * JAN ?",
            "@hourly",
            "@every 1h30m",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn refusals_are_worded_as_the_library_words_them() {
        let cases = [
            ("99 * * * *", "end of range (99) above maximum (59): 99"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            (
                "5-1 * * * *",
                "beginning of range (5) beyond end of range (1): 5-1",
            ),
            (
                "*/0 * * * *",
                "step of range should be a positive number: */0",
            ),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            (
                "a * * * *",
                r#"failed to parse int from a: strconv.Atoi: parsing "a": invalid syntax"#,
            ),
            ("@never", "unrecognized descriptor: @never"),
            (
                "@every 1x",
                r#"failed to parse duration @every 1x: time: unknown unit "x" in duration "1x""#,
            ),
        ];
        for (schedule, why) in cases {
            assert_eq!(check(schedule).unwrap_err().to_string(), why);
        }
    }
}
