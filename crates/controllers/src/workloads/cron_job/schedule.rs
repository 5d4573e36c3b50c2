//! When a CronJob was due last, and is next (kube-controller-manager: `mostRecentScheduleTime`). Pure.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::CronJob;

use crate::disruption::schedule::Schedule;

/// More missed times than this are told.
const MANY: i64 = 100;

/// When a CronJob is due.
#[derive(Clone, Debug)]
pub(super) enum Plan {
    /// By the clocks of a zone.
    Cron(Schedule, TimeZone),
    /// Again and again after so long (`@every 1h`).
    Every(SignedDuration),
}

/// The last time that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    /// More than a hundred were missed.
    pub(super) many_missed: bool,
}

impl Plan {
    /// Reads schedule and zone.
    ///
    /// # Errors
    /// With the reason and message of the event that says what is wrong.
    pub(super) fn of(job: &CronJob) -> Result<Self, (&'static str, String)> {
        let text = job.spec.schedule.as_str();
        if let Some(every) = text.strip_prefix("@every ") {
            let every = duration(every).ok_or_else(|| {
                (
                    "UnparseableSchedule",
                    format!("unparseable schedule: {text:?} : failed to parse duration {text}"),
                )
            })?;
            return Ok(Self::Every(every.max(SignedDuration::from_secs(1))));
        }
        let schedule = Schedule::parse(text);
        let schedule = schedule.ok_or_else(|| {
            (
                "UnparseableSchedule",
                format!("unparseable schedule: {text:?} : it is no cron expression"),
            )
        })?;
        let zone = match job.spec.time_zone.as_deref() {
            None => TimeZone::UTC,
            Some(name) => TimeZone::get(name).map_err(|_| {
                (
                    "UnknownTimeZone",
                    format!("invalid timeZone: {name:?}: unknown time zone {name}"),
                )
            })?,
        };
        Ok(Self::Cron(schedule, zone))
    }

    /// The first due time after `after`.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Cron(schedule, zone) => schedule.next(after, zone),
            Self::Every(every) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                whole.checked_add(*every).ok()
            }
        }
    }

    /// The last due time up to `now` that nothing was started for.
    pub(super) fn due(&self, job: &CronJob, now: Timestamp) -> Option<Due> {
        let status = job.status.as_ref();
        let last = status.and_then(|status| status.last_schedule_time.as_ref());
        let created = job.metadata.creation_timestamp.as_ref();
        let mut earliest = last.or(created)?.0;
        let deadline = job.spec.starting_deadline_seconds;
        if let Some(seconds) = deadline {
            let limit = now.checked_sub(SignedDuration::from_secs(seconds)).ok()?;
            earliest = earliest.max(limit);
        }
        let first = self.next(earliest)?;
        if now < first {
            return None;
        }
        let second = self.next(first)?;
        let once = |at| {
            Some(Due {
                at,
                many_missed: false,
            })
        };
        if now < second {
            return once(first);
        }
        let between = second.duration_since(first).as_secs().max(1);
        let missed = now.duration_since(first).as_secs() / between + 1;
        // Near the end at once, however many there were.
        let skipped = SignedDuration::from_secs((missed - 2).max(0) * between);
        let mut at = first;
        let mut next = self.next(first.checked_add(skipped).ok()?.max(first))?;
        while next <= now {
            at = next;
            next = self.next(next)?;
        }
        Some(Due {
            at,
            many_missed: missed > MANY,
        })
    }
}

/// A duration as Go writes it: `1h30m`, `90s`, `1.5h`.
fn duration(text: &str) -> Option<SignedDuration> {
    let mut rest = text.trim();
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    SignedDuration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(spec: Value, last: Option<&str>) -> CronJob {
        let mut spec = spec;
        spec["jobTemplate"] = json!({});
        let metadata = json!({ "name": "c", "creationTimestamp": "2026-01-01T00:00:30Z" });
        let status = json!({ "lastScheduleTime": last });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": status }))
            .expect("a CronJob")
    }

    fn due(job: &CronJob, now: &str) -> Option<(String, bool)> {
        let due = Plan::of(job)
            .expect("a plan")
            .due(job, now.parse().expect("a time"))?;
        Some((due.at.to_string(), due.many_missed))
    }

    #[test]
    fn only_the_last_of_the_missed_times_is_due() {
        let every_minute = json!({ "schedule": "* * * * *" });
        let fresh = job(every_minute.clone(), None);
        assert_eq!(due(&fresh, "2026-01-01T00:00:59Z"), None);
        assert_eq!(
            due(&fresh, "2026-01-01T00:01:00Z"),
            Some(("2026-01-01T00:01:00Z".into(), false))
        );
        assert_eq!(
            due(&fresh, "2026-01-01T00:05:10Z"),
            Some(("2026-01-01T00:05:00Z".into(), false))
        );
        assert_eq!(
            due(&fresh, "2026-01-01T03:00:10Z"),
            Some(("2026-01-01T03:00:00Z".into(), true))
        );
        let ran = job(every_minute, Some("2026-01-01T00:05:00Z"));
        assert_eq!(due(&ran, "2026-01-01T00:05:59Z"), None);
    }

    #[test]
    fn what_is_past_the_starting_deadline_is_not_due() {
        let late = job(
            json!({ "schedule": "0 0 * * *", "startingDeadlineSeconds": 60 }),
            Some("2026-01-01T00:00:00Z"),
        );
        assert_eq!(due(&late, "2026-01-02T00:02:00Z"), None);
        assert!(due(&late, "2026-01-02T00:00:59Z").is_some());
    }

    #[test]
    fn zones_and_intervals_are_understood_and_what_is_not_says_so() {
        let berlin = job(
            json!({ "schedule": "0 1 * * *", "timeZone": "Europe/Berlin" }),
            None,
        );
        assert_eq!(
            due(&berlin, "2026-01-02T00:30:00Z"),
            Some(("2026-01-02T00:00:00Z".into(), false))
        );
        let every = job(
            json!({ "schedule": "@every 1h30m" }),
            Some("2026-01-01T00:00:00Z"),
        );
        assert_eq!(
            due(&every, "2026-01-01T01:31:00Z"),
            Some(("2026-01-01T01:30:00Z".into(), false))
        );
        let wrong = |spec: Value| Plan::of(&job(spec, None)).expect_err("refused").0;
        assert_eq!(wrong(json!({ "schedule": "x" })), "UnparseableSchedule");
        assert_eq!(
            wrong(json!({ "schedule": "* * * * *", "timeZone": "Mars/Base" })),
            "UnknownTimeZone"
        );
    }
}
