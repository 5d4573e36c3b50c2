//! Reads cron schedules as `robfig/cron` does, with its messages: five fields, or a descriptor such as `@every 1h`. kube-apiserver checks
//! CronJobs with it, and kube-controller-manager finds with it when one is due.

use jiff::{SignedDuration, Timestamp, civil::Date, tz::TimeZone};

use crate::golang::{duration, integer, zone};

/// The error for a text that is not a cron schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CronError(String);

/// A cron schedule: the times at which a job is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    times: Times,
    /// The zone that the text names (`TZ=`), if any.
    zone: Option<TimeZone>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Times {
    /// At the minutes that have all five fields in these sets.
    Fields(Fields),
    /// In intervals of whole seconds (`@every`).
    Every(SignedDuration),
}

/// The five fields as sets: bit 5 stands for 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Days or weekdays are unrestricted, so a day must be in both sets; otherwise it must be in one of them.
    any_day: bool,
}

struct Bounds {
    min: u64,
    max: u64,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MINUTE: Bounds = bounds(0, 59, &[]);
const HOUR: Bounds = bounds(0, 23, &[]);
const DAY: Bounds = bounds(1, 31, &[]);
const MONTH: Bounds = bounds(1, 12, &MONTHS);
const WEEKDAY: Bounds = bounds(0, 6, &DAYS);
/// A schedule that is not due within this time is never due.
const HORIZON: SignedDuration = SignedDuration::from_hours(5 * 366 * 24);

const fn bounds(min: u64, max: u64, names: &'static [&'static str]) -> Bounds {
    Bounds { min, max, names }
}

impl Schedule {
    /// Parses five fields or a descriptor, after an optional zone (`TZ=Europe/Berlin 0 9 * * *`).
    ///
    /// # Errors
    /// The text is not a schedule; the message is robfig/cron's.
    pub fn parse(text: &str) -> Result<Self, CronError> {
        if text.is_empty() {
            return fail("empty spec string");
        }
        let (mut rest, mut zone) = (text, None);
        if let Some(zoned) = text.strip_prefix("TZ=").or(text.strip_prefix("CRON_TZ=")) {
            let (name, schedule) = zoned.split_once(' ').unwrap_or((zoned, ""));
            match zone::load(name) {
                Ok(found) => zone = Some(found),
                Err(unknown) => return fail(format!("provided bad location {name}: {unknown}")),
            }
            rest = schedule.trim();
        }
        let times = match rest.strip_prefix("@every ") {
            Some(interval) => Times::Every(every(rest, interval)?),
            None => Times::Fields(Fields::parse(rest)?),
        };
        Ok(Schedule { times, zone })
    }

    /// Returns the first due time after `after`, or `None` if there is none within five years. The fields are compared with the local
    /// time in `zone`, unless the schedule names a zone itself. A minute that is skipped when clocks go forward is not due, and one that
    /// is repeated when they go back is due twice.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match &self.times {
            Times::Every(interval) => {
                // robfig/cron starts an interval at a full second, so that due times have no fraction.
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*interval).ok()
            }
            Times::Fields(fields) => fields.next(after, self.zone.as_ref().unwrap_or(zone)),
        }
    }
}

/// Checks a schedule.
///
/// # Errors
/// The text is not a schedule; the message is robfig/cron's.
pub fn check(text: &str) -> Result<(), CronError> {
    Schedule::parse(text).map(drop)
}

fn fail<T>(why: impl Into<String>) -> Result<T, CronError> {
    Err(CronError(why.into()))
}

/// Parses the interval after `@every`: fractions of a second are dropped, and the least interval is one second. Errors show the whole
/// `descriptor`.
fn every(descriptor: &str, interval: &str) -> Result<SignedDuration, CronError> {
    if let Some(why) = duration::fault(interval) {
        return fail(format!("failed to parse duration {descriptor}: {why}"));
    }
    let nanos = duration::parse(interval).unwrap_or_default();
    Ok(SignedDuration::from_secs((nanos / 1_000_000_000).max(1)))
}

impl Fields {
    fn parse(text: &str) -> Result<Self, CronError> {
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            name if name.starts_with('@') => {
                return fail(format!("unrecognized descriptor: {name}"));
            }
            fields => fields,
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return fail(format!(
                "expected exactly 5 fields, found {}: [{}]",
                fields.len(),
                fields.join(" ")
            ));
        };
        let is_any = |field: &str| field.split(',').any(is_whole);
        Ok(Fields {
            minutes: set(minutes, &MINUTE)?,
            hours: set(hours, &HOUR)?,
            days: set(days, &DAY)?,
            months: set(months, &MONTH)?,
            weekdays: set(weekdays, &WEEKDAY)?,
            any_day: is_any(days) || is_any(weekdays),
        })
    }

    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        const MINUTE: SignedDuration = SignedDuration::from_mins(1);
        // A job is due at the start of a minute, and that of the minute of `after` is over.
        let minute = after.as_second().div_euclid(60) * 60;
        let minute = Timestamp::from_second(minute).ok()?;
        let mut at = minute.checked_add(MINUTE).ok()?;
        let last = after.checked_add(HORIZON).ok()?;
        while at < last {
            let local = at.to_zoned(zone.clone());
            // Days and hours without a due minute are skipped as a whole, because a search minute by minute would be slow for rare
            // schedules.
            at = if !self.has_day(local.date()) {
                local.tomorrow().ok()?.start_of_day().ok()?.timestamp()
            } else if !has(self.hours, local.hour()) {
                let left = SignedDuration::from_mins(60 - i64::from(local.minute()));
                at.checked_add(left).ok()?
            } else if !has(self.minutes, local.minute()) {
                at.checked_add(MINUTE).ok()?
            } else {
                return Some(at);
            };
        }
        None
    }

    fn has_day(&self, at: Date) -> bool {
        let day = has(self.days, at.day());
        let weekday = has(self.weekdays, at.weekday().to_sunday_zero_offset());
        let on_this_day = if self.any_day {
            day && weekday
        } else {
            day || weekday
        };
        has(self.months, at.month()) && on_this_day
    }
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set >> value & 1 == 1)
}

/// Returns whether a range covers its whole field. A range with a step does not in robfig/cron, so `0 0 */2 * 1` is due on every odd day
/// and on every Monday.
fn is_whole(part: &str) -> bool {
    let (ends, step) = part.split_once('/').unwrap_or((part, "1"));
    let start = ends.split('-').next();
    matches!(start, Some("*" | "?")) && number(step).is_ok_and(|step| step <= 1)
}

/// Parses a field: ranges with commas between them.
fn set(field: &str, bounds: &Bounds) -> Result<u64, CronError> {
    let mut bits = 0;
    // Go's `FieldsFunc` drops empty parts, so `1,,2` is valid.
    for part in field.split(',').filter(|part| !part.is_empty()) {
        bits |= range(part, bounds)?;
    }
    Ok(bits)
}

/// Parses one range of a field: `a`, `a-b` or `*`, each with an optional `/step`.
fn range(part: &str, bounds: &Bounds) -> Result<u64, CronError> {
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
            // robfig/cron parses the start before it counts the hyphens, so the error of the start comes first.
            number_or_name(first, bounds)?;
            return fail(format!("too many hyphens: {part}"));
        }
        [] => return Ok(0),
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
        () => {
            let step = usize::try_from(step).unwrap_or(usize::MAX);
            let values = (start..=end).step_by(step);
            Ok(values.fold(0, |bits, value| bits | 1 << value))
        }
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

    #[test]
    fn the_next_hit_is_found_by_the_clocks_of_a_zone() {
        let next = |schedule: &str, after: &str, zone: &str| {
            let zone = TimeZone::get(zone).expect("a zone");
            let after = after.parse().expect("a time");
            let schedule = Schedule::parse(schedule).expect("a schedule");
            schedule.next(after, &zone).map(|at| at.to_string())
        };
        let utc = |schedule: &str, after: &str| next(schedule, after, "UTC");
        let at = |text: &str| Some(text.to_owned());
        assert_eq!(
            utc("*/5 * * * *", "2026-01-27T12:34:56Z"),
            at("2026-01-27T12:35:00Z")
        );
        assert_eq!(
            utc("*/5 * * * *", "2026-01-27T12:35:00Z"),
            at("2026-01-27T12:40:00Z")
        );
        assert_eq!(
            utc("0 0 29 2 *", "2026-01-27T00:00:00Z"),
            at("2028-02-29T00:00:00Z")
        );
        assert_eq!(utc("0 0 30 2 *", "2026-01-27T00:00:00Z"), None);
        let berlin = |schedule: &str, after: &str| next(schedule, after, "Europe/Berlin");
        assert_eq!(
            berlin("0 9 * * *", "2026-01-27T08:00:00Z"),
            at("2026-01-28T08:00:00Z")
        );
        assert_eq!(
            berlin("0 9 * * *", "2026-07-27T07:00:00Z"),
            at("2026-07-28T07:00:00Z")
        );
        // The clock goes from 2 to 3 on the 29th of March, and from 3 to 2 on the 25th of October.
        assert_eq!(
            berlin("30 2 * * *", "2026-03-28T02:00:00Z"),
            at("2026-03-30T00:30:00Z")
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-24T23:00:00Z"),
            at("2026-10-25T00:30:00Z")
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-25T00:30:00Z"),
            at("2026-10-25T01:30:00Z")
        );
    }

    #[test]
    fn what_is_no_schedule_is_refused() {
        for text in [
            "",
            "* * * *",
            "60 * * * *",
            "* * * * x",
            "0 0 * * 7",
            "*/0 * * * *",
            "5-1 * * * *",
            "@never",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
    }

    /// Returns when a schedule is due first after a Tuesday's noon.
    fn next(schedule: &str) -> String {
        let after = "2026-01-27T12:34:56.5Z".parse().expect("a time");
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let at = schedule.next(after, &TimeZone::UTC).expect("it comes");
        at.to_string()
    }

    #[test]
    fn days_of_month_and_week_are_alternatives_unless_one_of_them_is_any_day() {
        assert_eq!(next("0 0 15 * fri"), "2026-01-30T00:00:00Z");
        assert_eq!(next("0 0 15 * *"), "2026-02-15T00:00:00Z");
        assert_eq!(next("0 0 15 * */1"), "2026-02-15T00:00:00Z");
        assert_eq!(next("0 0 15 * wed,*"), "2026-02-15T00:00:00Z");
        // A step makes it some days: the 29th is an odd day and no Friday.
        assert_eq!(next("0 0 */2 * fri"), "2026-01-29T00:00:00Z");
    }

    #[test]
    fn intervals_are_whole_seconds_and_a_zone_in_the_text_counts() {
        assert_eq!(next("@every 1h30m"), "2026-01-27T14:04:56Z");
        assert_eq!(next("@every 90000000us"), "2026-01-27T12:36:26Z");
        assert_eq!(next("@every 1500ms"), "2026-01-27T12:34:57Z");
        assert_eq!(next("@every -1h"), "2026-01-27T12:34:57Z");
        assert_eq!(next("TZ=Asia/Tokyo 0 9 * * *"), "2026-01-28T00:00:00Z");
    }
}
