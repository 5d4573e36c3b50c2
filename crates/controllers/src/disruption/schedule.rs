//! Cron schedules: when a budget's window is open, in UTC, and when a CronJob is due, by the clocks of a zone. Pure.
//!
//! Invariant: a window is open at a moment if the schedule hit within the duration before it, hit included, as upstream
//! computes it; day of month and day of week are alternatives when both are restricted, as in cron.

use std::time::Duration;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};

/// A five-field cron expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

impl Schedule {
    /// Reads five fields or one of the `@` names. `None` if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let fields = match text {
            "@annually" | "@yearly" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other => other,
        };
        let fields: Vec<_> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return None;
        };
        let any = |field: &str| field.starts_with('*') || field.starts_with('?');
        Some(Self {
            minutes: set(minutes, 0, 59, &[])?,
            hours: set(hours, 0, 23, &[])?,
            days: set(days, 1, 31, &[])?,
            months: set(months, 1, 12, &MONTHS)?,
            // Seven is Sunday too.
            weekdays: set(weekdays, 0, 7, &WEEKDAYS).map(|days| days | days >> 7)?,
            any_day: any(days),
            any_weekday: any(weekdays),
        })
    }

    /// Whether the window that a hit opens for `duration` is open at `now`.
    pub fn is_open(&self, duration: Duration, now: Timestamp) -> bool {
        let duration = SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        let Ok(start) = now.saturating_sub(duration) else {
            return true;
        };
        // Hits are whole minutes: the latest at or before now, then back as far as the window reaches.
        let mut minute = now.as_second().div_euclid(60) * 60;
        while minute > start.as_second() {
            let Ok(at) = Timestamp::from_second(minute) else {
                return false;
            };
            let local = at.to_zoned(TimeZone::UTC).datetime();
            if self.hits(local) {
                return true;
            }
            minute -= 60;
        }
        false
    }

    fn hits(&self, at: DateTime) -> bool {
        self.hits_day(at.date()) && self.hits_hour(at.hour()) && has(self.minutes, at.minute())
    }

    fn hits_hour(&self, hour: i8) -> bool {
        has(self.hours, hour)
    }

    fn hits_day(&self, at: Date) -> bool {
        let day = has(self.days, at.day());
        let weekday = has(self.weekdays, at.weekday().to_sunday_zero_offset());
        let on_this_day = match self.any_day || self.any_weekday {
            true => day && weekday,
            false => day || weekday,
        };
        has(self.months, at.month()) && on_this_day
    }

    /// The first hit after `after` by the clocks of `zone`; nothing for five years is nothing at all (robfig/cron).
    ///
    /// What a clock skips when it is put forward is no hit, and what it repeats is one twice.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        const MINUTE: SignedDuration = SignedDuration::from_mins(1);
        let minute = after.as_second().div_euclid(60) * 60;
        let mut at = Timestamp::from_second(minute)
            .ok()?
            .checked_add(MINUTE)
            .ok()?;
        let last = after
            .checked_add(SignedDuration::from_hours(5 * 366 * 24))
            .ok()?;
        while at < last {
            let local = at.to_zoned(zone.clone());
            at = if !self.hits_day(local.date()) {
                local.tomorrow().ok()?.start_of_day().ok()?.timestamp()
            } else if !self.hits_hour(local.hour()) {
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
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set >> value & 1 == 1)
}

/// A field as a set of numbers: `*`, `*/5`, `1-5`, `1-10/2`, `mon,wed`.
fn set(field: &str, least: u32, most: u32, names: &[&str]) -> Option<u64> {
    let number = |text: &str| {
        let lower = text.to_ascii_lowercase();
        let named = names.iter().position(|name| *name == lower);
        match named {
            Some(index) => u32::try_from(index).ok().map(|index| index + least),
            None => text.parse().ok(),
        }
    };
    let mut bits = 0_u64;
    for part in field.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0)?),
            None => (part, 1),
        };
        let (first, last) = match range {
            "*" | "?" => (least, most),
            _ => match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None if part.contains('/') => (number(range)?, most),
                None => (number(range)?, number(range)?),
            },
        };
        if first < least || last > most || first > last {
            return None;
        }
        for value in (first..=last).step_by(usize::try_from(step).ok()?) {
            bits |= 1 << value;
        }
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(schedule: &str, hours: u64, now: &str) -> bool {
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let now = now.parse().expect("a time");
        schedule.is_open(Duration::from_secs(hours * 3600), now)
    }

    #[test]
    fn a_window_opens_with_its_hit_and_closes_after_its_duration() {
        // 2026-01-27 is a Tuesday.
        let business = "0 9 * * mon-fri";
        assert!(!open(business, 8, "2026-01-27T08:59:59Z"));
        assert!(open(business, 8, "2026-01-27T09:00:00Z"));
        assert!(open(business, 8, "2026-01-27T16:59:59Z"));
        assert!(!open(business, 8, "2026-01-27T17:00:00Z"));
        assert!(!open(business, 8, "2026-01-25T10:00:00Z"), "a Sunday");
    }

    #[test]
    fn names_steps_lists_and_macros_are_read() {
        assert!(open("@daily", 1, "2026-01-27T00:30:00Z"));
        assert!(!open("@daily", 1, "2026-01-27T01:00:00Z"));
        assert!(open("*/15 * * * *", 1, "2026-01-27T12:34:56Z"));
        assert!(open("0 0 1,27 JAN *", 12, "2026-01-27T11:00:00Z"));
        assert!(
            open("0 0 * * 7", 24, "2026-01-25T11:00:00Z"),
            "seven is Sunday"
        );
    }

    #[test]
    fn day_of_month_and_day_of_week_are_alternatives() {
        let either = "0 0 1 * tue";
        assert!(open(either, 24, "2026-01-27T11:00:00Z"), "a Tuesday");
        assert!(open(either, 24, "2026-01-01T11:00:00Z"), "the first");
        assert!(!open(either, 24, "2026-01-28T11:00:00Z"));
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
            "*/0 * * * *",
            "5-1 * * * *",
            "@never",
        ] {
            assert_eq!(Schedule::parse(text), None, "{text:?}");
        }
    }
}
