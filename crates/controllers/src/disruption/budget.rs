//! Disruption budgets: how many nodes of a pool may go at a time. Pure.
//!
//! Invariant: the most restrictive budget that is open for the reason wins; percentages round up; what cannot be read
//! allows nothing. A window is in UTC.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use mullion_api::karpenter::{Budget, DisruptionReason, NodePool};
use mullion_kube_text::{cron::Schedule, golang};

/// Returns how many of `nodes` nodes of a pool may be disrupted together for this reason. One budget that cannot be
/// read allows none, whatever reasons it is for.
pub fn allowed(pool: &NodePool, reason: DisruptionReason, nodes: usize, now: Timestamp) -> usize {
    let mut least = usize::MAX;
    for budget in &pool.spec.disruption.budgets {
        // Karpenter answers 0 for the pool when one of its budgets cannot be parsed, so no node goes until
        // that is mended.
        let Some(open) = is_open(budget, now) else {
            return 0;
        };
        let counts = budget.reasons.is_empty() || budget.reasons.contains(&reason);
        if open && counts {
            least = least.min(of(budget, nodes));
        }
    }
    least
}

/// Returns whether a budget counts now; `None` if its schedule cannot be read.
fn is_open(budget: &Budget, now: Timestamp) -> Option<bool> {
    match (&budget.schedule, &budget.duration) {
        (None, None) => Some(true),
        (Some(schedule), Some(duration)) => {
            let duration = SignedDuration::from_nanos(golang::duration::parse(duration)?);
            // A zone that the schedule names itself is refused, as by Karpenter.
            let schedule = Schedule::parse(&format!("TZ=UTC {schedule}")).ok()?;
            Some(has_hit(&schedule, duration, now))
        }
        // The schema demands both or neither; a schedule without a duration would have no end.
        _ => None,
    }
}

/// Returns whether the schedule hit within the duration up to `now`, now included: then the window that the hit opened
/// is open. The window of a schedule that never hits, such as one for February 31st, is always open (Karpenter compares
/// with the zero time that robfig/cron returns).
fn has_hit(schedule: &Schedule, duration: SignedDuration, now: Timestamp) -> bool {
    // This cannot fail: jiff refuses only spans with calendar units.
    let Ok(start) = now.saturating_sub(duration) else {
        return true;
    };
    let first = schedule.next(start, &TimeZone::UTC);
    first.is_none_or(|hit| hit <= now)
}

fn of(budget: &Budget, nodes: usize) -> usize {
    let text = budget.nodes.as_str();
    match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<usize>()
            .map_or(0, |percent| (nodes * percent).div_ceil(100)),
        None => text.parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(budgets: Value) -> NodePool {
        serde_json::from_value(json!({
            "metadata": { "name": "p" },
            "spec": {
                "template": { "spec": {
                    "nodeClassRef": { "group": "g", "kind": "k", "name": "n" }, "requirements": []
                }},
                "disruption": { "budgets": budgets }
            }
        }))
        .expect("a pool")
    }

    fn allowed(pool: &NodePool, reason: DisruptionReason, nodes: usize) -> usize {
        super::allowed(
            pool,
            reason,
            nodes,
            "2026-01-27T12:00:00Z".parse().expect("a time"),
        )
    }

    fn open(schedule: &str, hours: i64, now: &str) -> bool {
        let schedule = Schedule::parse(schedule).expect("a schedule");
        let now = now.parse().expect("a time");
        has_hit(&schedule, SignedDuration::from_hours(hours), now)
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
    fn the_window_of_a_day_that_never_comes_is_always_open() {
        assert!(open("0 0 31 2 *", 1, "2026-01-27T08:59:59Z"));
        let never = pool(json!([{ "nodes": "0", "schedule": "0 0 31 2 *", "duration": "1h" }]));
        assert_eq!(allowed(&never, DisruptionReason::Empty, 10), 0);
        assert!(!open("0 0 29 2 *", 1, "2026-01-27T08:59:59Z"));
    }

    #[test]
    fn names_steps_lists_and_macros_are_read() {
        assert!(open("@daily", 1, "2026-01-27T00:30:00Z"));
        assert!(!open("@daily", 1, "2026-01-27T01:00:00Z"));
        assert!(open("*/15 * * * *", 1, "2026-01-27T12:34:56Z"));
        assert!(open("0 0 1,27 JAN *", 12, "2026-01-27T11:00:00Z"));
        assert!(open("0 0 * * 0", 24, "2026-01-25T11:00:00Z"), "a Sunday");
    }

    #[test]
    fn a_schedule_that_karpenter_cannot_read_closes_the_pool() {
        for schedule in ["0 0 * * 7", "TZ=UTC 0 0 * * 0", "* * * *"] {
            let budget = json!([{ "nodes": "5", "schedule": schedule, "duration": "8h" }]);
            let allowed = allowed(&pool(budget), DisruptionReason::Empty, 10);
            assert_eq!(allowed, 0, "{schedule}");
        }
    }

    #[test]
    fn day_of_month_and_day_of_week_are_alternatives() {
        let either = "0 0 1 * tue";
        assert!(open(either, 24, "2026-01-27T11:00:00Z"), "a Tuesday");
        assert!(open(either, 24, "2026-01-01T11:00:00Z"), "the first");
        assert!(!open(either, 24, "2026-01-28T11:00:00Z"));
    }

    #[test]
    fn a_budget_counts_while_its_window_is_open() {
        let at_noon = pool(json!([{ "nodes": "0", "schedule": "0 9 * * *", "duration": "8h" }]));
        assert_eq!(allowed(&at_noon, DisruptionReason::Empty, 10), 0);
        let at_night = pool(json!([{ "nodes": "0", "schedule": "0 22 * * *", "duration": "8h" }]));
        assert_eq!(allowed(&at_night, DisruptionReason::Empty, 10), usize::MAX);
        let unreadable = pool(json!([{ "nodes": "5", "schedule": "soon", "duration": "8h" }]));
        assert_eq!(allowed(&unreadable, DisruptionReason::Empty, 10), 0);
        let for_another_reason = pool(json!([
            { "nodes": "5", "schedule": "soon", "duration": "8h", "reasons": ["Drifted"] }
        ]));
        assert_eq!(allowed(&for_another_reason, DisruptionReason::Empty, 10), 0);
    }

    #[test]
    fn the_most_restrictive_budget_wins() {
        let pool = pool(json!([
            { "nodes": "50%" },
            { "nodes": "3", "reasons": ["Empty"] },
            { "nodes": "0", "reasons": ["Drifted"] }
        ]));
        assert_eq!(allowed(&pool, DisruptionReason::Empty, 10), 3);
        assert_eq!(allowed(&pool, DisruptionReason::Empty, 4), 2);
        assert_eq!(allowed(&pool, DisruptionReason::Underutilized, 10), 5);
        assert_eq!(allowed(&pool, DisruptionReason::Drifted, 10), 0);
    }

    #[test]
    fn percentages_round_up() {
        assert_eq!(
            allowed(
                &pool(json!([{ "nodes": "10%" }])),
                DisruptionReason::Empty,
                1
            ),
            1
        );
        assert_eq!(
            allowed(&pool(json!([])), DisruptionReason::Empty, 1),
            usize::MAX
        );
    }
}
