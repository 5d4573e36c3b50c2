//! Says which bound pods hang: `mullion why` lists them beside those that wait for a node, and `mullion doctor` reports them.
//!
//! A container may be created for a while, so that nothing is said of it before [`PATIENCE`] is over; an image that cannot be pulled says
//! at once that its pod hangs.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::start::Start;

/// How long a pod may be on its node without an address, or without being ready.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns whether a pod has been on its node for so long that it must have an address.
pub(crate) fn is_settled(pod: &Value, now: Timestamp) -> bool {
    let since = pod["status"]["startTime"].as_str();
    since.is_some_and(|since| is_past(since, now))
}

/// Returns whether a bound pod that does not run or is not ready hangs, and is not just being started.
pub(super) fn hangs(start: &Start, now: Timestamp) -> bool {
    start.has_fault() || is_past(start.since(), now)
}

/// Returns whether more than [`PATIENCE`] has passed since a time, as RFC 3339 has it; false for a text that is no time.
fn is_past(since: &str, now: Timestamp) -> bool {
    since.parse::<Timestamp>().is_ok_and(|since| {
        Duration::try_from(now.duration_since(since)).is_ok_and(|age| age > PATIENCE)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_hangs_at_once_by_a_fault_and_otherwise_after_a_minute() {
        let now: Timestamp = "2026-01-01T00:02:00Z".parse().expect("a time");
        let said = |status: Value| {
            let pod =
                json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": status});
            Start::of(&pod).map(|start| hangs(&start, now))
        };
        let waits = |reason: &str| json!([{"name": "c", "state": {"waiting": {"reason": reason}}}]);
        let pending = |start: &str, reason: &str| {
            said(
                json!({"phase": "Pending", "startTime": start, "containerStatuses": waits(reason)}),
            )
        };
        let (early, late) = ("2026-01-01T00:00:30Z", "2026-01-01T00:01:30Z");
        assert_eq!(pending(early, "ContainerCreating"), Some(true));
        assert_eq!(pending(late, "ContainerCreating"), Some(false));
        assert_eq!(pending(late, "ErrImagePull"), Some(true));
        assert_eq!(pending("", "CreateContainerConfigError"), Some(true));
        assert_eq!(pending("", "PodInitializing"), Some(false));
        // The time since when a pod is not ready counts, and not the one when it was started.
        let unready = |since: &str| {
            said(json!({
                "phase": "Running", "startTime": early,
                "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": since}],
                "containerStatuses": [{"name": "c", "ready": false, "state": {"running": {}}}],
            }))
        };
        assert_eq!((unready(early), unready(late)), (Some(true), Some(false)));
    }
}
