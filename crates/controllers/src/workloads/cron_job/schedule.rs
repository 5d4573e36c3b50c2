//! Computes when a CronJob was last due and when it is due next (kube-controller-manager:
//! `mostRecentScheduleTime`). Pure.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::api::batch::v1::CronJob;
use mullion_kube_text::cron::Schedule;

/// The number of missed times beyond which the controller records a warning.
const MANY: i64 = 100;

/// A CronJob's schedule in its time zone.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    schedule: Schedule,
    /// The time zone in which the schedule is read.
    pub(super) zone: TimeZone,
}

/// The most recent due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) at: Timestamp,
    /// Whether more than [`MANY`] due times were missed.
    pub(super) many_missed: bool,
}

/// The schedule is valid, but no date ever matches it (31 February).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeverDue;

/// The state of a schedule at a moment.
struct Recent {
    /// The time after which due times count.
    earliest: Timestamp,
    /// The last due time since `earliest`.
    due: Option<Timestamp>,
    /// The approximate number of due times that have passed; 0 if at most one has.
    missed: i64,
}

/// Returns the time zone that a CronJob names, or UTC.
///
/// # Errors
/// Returns the reason and message of the event about an unknown time zone.
pub(super) fn zone(job: &CronJob) -> Result<TimeZone, (&'static str, String)> {
    let Some(name) = job.spec.time_zone.as_deref() else {
        return Ok(TimeZone::UTC);
    };
    TimeZone::get(name).map_err(|_| {
        (
            "UnknownTimeZone",
            format!("invalid timeZone: {name:?}: unknown time zone {name}"),
        )
    })
}

impl Plan {
    /// Parses the CronJob's schedule.
    ///
    /// # Errors
    /// Returns the reason and message of the event about an invalid schedule.
    pub(super) fn of(job: &CronJob, zone: TimeZone) -> Result<Self, (&'static str, String)> {
        let text = job.spec.schedule.as_str();
        let schedule = Schedule::parse(text).map_err(|why| {
            (
                "UnparseableSchedule",
                format!("unparseable schedule: {text:?} : {why}"),
            )
        })?;
        Ok(Self { schedule, zone })
    }

    /// Returns the first due time after `after`.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        self.schedule.next(after, &self.zone)
    }

    /// Returns the last due time up to `now` for which no Job was started. `last` is the due time of the last
    /// started Job.
    pub(super) fn due(
        &self,
        job: &CronJob,
        last: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Option<Due>, NeverDue> {
        let deadline = job.spec.starting_deadline_seconds;
        let recent = self.recent(job, last, deadline, now)?;
        Ok(recent.due.map(|at| Due {
            at,
            many_missed: recent.missed > MANY,
        }))
    }

    /// Returns the next due time after `now`. For an interval (`@every`) it is counted from the last due time, not
    /// from `now`.
    pub(super) fn upcoming(
        &self,
        job: &CronJob,
        last: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let recent = self.recent(job, last, None, now).ok()?;
        let since = match recent.due {
            Some(due) => due,
            None if recent.missed == 0 => recent.earliest,
            None => now,
        };
        self.next(since)
    }

    /// Computes the due times since the last started Job or the CronJob's creation, but not further back than
    /// `deadline`.
    fn recent(
        &self,
        job: &CronJob,
        last: Option<Timestamp>,
        deadline: Option<i64>,
        now: Timestamp,
    ) -> Result<Recent, NeverDue> {
        let created = job.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let mut earliest = last.or(created).unwrap_or(now);
        if let Some(seconds) = deadline {
            let limit = now.checked_sub(SignedDuration::from_secs(seconds));
            // Due times before the deadline can never start a Job, so they are not searched either.
            earliest = limit.map_or(earliest, |limit| earliest.max(limit));
        }
        let found = |due, missed| {
            Ok(Recent {
                earliest,
                due,
                missed,
            })
        };
        let first = self.next(earliest).ok_or(NeverDue)?;
        if now < first {
            return found(None, 0);
        }
        let second = self.next(first).ok_or(NeverDue)?;
        if now < second {
            return found(Some(first), 0);
        }
        let between = second.duration_since(first).as_secs().max(1);
        // Only an estimate, since the distance between due times may vary; it decides about the warning and
        // the skip.
        let missed = now.duration_since(first).as_secs() / between + 1;
        // Skips to near the end without visiting every missed time.
        let skipped = SignedDuration::from_secs((missed - 2).max(0) * between);
        let mut due = Some(first);
        let mut next = first.checked_add(skipped).ok().and_then(|at| self.next(at));
        while let Some(at) = next.filter(|at| *at <= now) {
            due = Some(at);
            next = self.next(at);
        }
        found(due, missed)
    }
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
        let due = plan(job).due(job, last(job), now.parse().expect("a time"));
        let due = due.expect("it comes")?;
        Some((due.at.to_string(), due.many_missed))
    }

    fn plan(job: &CronJob) -> Plan {
        Plan::of(job, zone(job).expect("a zone")).expect("a plan")
    }

    fn last(job: &CronJob) -> Option<Timestamp> {
        let last = job.status.as_ref()?.last_schedule_time.as_ref()?;
        Some(last.0)
    }

    fn upcoming(job: &CronJob, now: &str) -> Option<String> {
        let now = now.parse().expect("a time");
        let at = plan(job).upcoming(job, last(job), now)?;
        Some(at.to_string())
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
        let micros = job(
            json!({ "schedule": "@every 90000000us" }),
            Some("2026-01-01T00:00:00Z"),
        );
        assert_eq!(
            due(&micros, "2026-01-01T00:02:00Z"),
            Some(("2026-01-01T00:01:30Z".into(), false))
        );
        let odd = job(json!({ "schedule": "x" }), None);
        let wrong = Plan::of(&odd, TimeZone::UTC).expect_err("refused");
        assert_eq!(wrong.0, "UnparseableSchedule");
        let nowhere = job(
            json!({ "schedule": "* * * * *", "timeZone": "Mars/Base" }),
            None,
        );
        assert_eq!(zone(&nowhere).expect_err("refused").0, "UnknownTimeZone");
    }

    #[test]
    fn an_interval_goes_on_from_the_last_time_whenever_it_is_looked_at() {
        let every = json!({ "schedule": "@every 60s" });
        let fresh = job(every.clone(), None);
        for now in ["2026-01-01T00:00:30Z", "2026-01-01T00:01:02Z"] {
            let next = upcoming(&fresh, now);
            assert_eq!(next.as_deref(), Some("2026-01-01T00:01:30Z"), "{now}");
        }
        let late = upcoming(&fresh, "2026-01-01T00:05:00Z");
        assert_eq!(late.as_deref(), Some("2026-01-01T00:05:30Z"));
        let ran = job(every, Some("2026-01-01T00:01:30Z"));
        let next = upcoming(&ran, "2026-01-01T00:01:59Z");
        assert_eq!(next.as_deref(), Some("2026-01-01T00:02:30Z"));
        let clock = job(json!({ "schedule": "*/2 * * * *" }), None);
        let next = upcoming(&clock, "2026-01-01T00:02:00Z");
        assert_eq!(next.as_deref(), Some("2026-01-01T00:04:00Z"));
    }

    #[test]
    fn a_day_that_no_month_has_never_comes() {
        let never = job(json!({ "schedule": "0 0 31 2 *" }), None);
        let now = "2026-01-01T00:00:30Z".parse().expect("a time");
        assert_eq!(plan(&never).due(&never, None, now), Err(NeverDue));
    }
}
