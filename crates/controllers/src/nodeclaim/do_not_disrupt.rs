//! Reads the `karpenter.sh/do-not-disrupt` annotation of pods: `true`, or the time for which a pod is protected after
//! its start (Karpenter core: `IsDoNotDisruptActive`). Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mullion_api::labels;
use mullion_kube_text::golang::duration;

use crate::events::EventType;

/// The protection that a pod's annotation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The pod has no annotation.
    None,
    /// The annotation is `true`.
    Always,
    /// The annotation is a duration, and the pod has not started.
    NotStarted,
    /// The annotation is a duration, which ends at this time.
    Until(Timestamp),
    /// The annotation is a duration that is over.
    Elapsed,
    /// The annotation cannot be read, so it protects nothing.
    Invalid(DurationError),
}

/// The reason why a text is not a time for which a pod is protected, with Karpenter's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is not a duration.
    #[error("failed to parse {0:?} as a duration: {fault}", fault = duration::fault(.0).unwrap_or_default())]
    Malformed(String),
    /// The duration is not positive.
    #[error("duration {0:?} must be positive")]
    NotPositive(String),
}

impl Protection {
    /// Reads the annotation of a pod.
    pub fn of(pod: &Pod, now: Timestamp) -> Self {
        let Some(value) = pod.annotations().get(labels::DO_NOT_DISRUPT) else {
            return Self::None;
        };
        if value == "true" {
            return Self::Always;
        }
        let lasts = match positive_duration(value) {
            Ok(lasts) => lasts,
            Err(fault) => return Self::Invalid(fault),
        };
        let status = pod.status.as_ref();
        // The time counts from the start; until then the pod is protected, or it might be evicted before it
        // ran.
        let Some(start) = status.and_then(|status| status.start_time.as_ref()) else {
            return Self::NotStarted;
        };
        let end = start.0.saturating_add(lasts).unwrap_or(Timestamp::MAX);
        if now < end {
            Self::Until(end)
        } else {
            Self::Elapsed
        }
    }

    /// Returns whether the pod may not be disrupted now.
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Always | Self::NotStarted | Self::Until(_))
    }

    /// Returns the event that Karpenter records on the pod: type, reason and message.
    pub fn event(&self) -> Option<(EventType, &'static str, String)> {
        match self {
            Self::None | Self::Always | Self::NotStarted => None,
            Self::Until(end) => Some((
                EventType::Normal,
                "DoNotDisruptUntil",
                format!(
                    "The {} grace period will elapse at {}",
                    labels::DO_NOT_DISRUPT,
                    end.strftime("%Y-%m-%dT%H:%M:%SZ")
                ),
            )),
            Self::Elapsed => Some((
                EventType::Normal,
                "DoNotDisruptGracePeriodElapsed",
                format!(
                    "The {} grace period has elapsed, pod is now disruptable",
                    labels::DO_NOT_DISRUPT
                ),
            )),
            Self::Invalid(fault) => Some((
                EventType::Warning,
                "InvalidDoNotDisruptAnnotation",
                format!(
                    "Invalid {} annotation: {fault}, ignoring annotation",
                    labels::DO_NOT_DISRUPT
                ),
            )),
        }
    }
}

fn positive_duration(value: &str) -> Result<SignedDuration, DurationError> {
    let Some(nanoseconds) = duration::parse(value) else {
        return Err(DurationError::Malformed(value.to_owned()));
    };
    match nanoseconds {
        1.. => Ok(SignedDuration::from_nanos(nanoseconds)),
        _ => Err(DurationError::NotPositive(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn protection(value: &str, start: Option<&str>) -> Protection {
        let pod = json!({
            "metadata": { "name": "web", "annotations": { "karpenter.sh/do-not-disrupt": value } },
            "status": { "startTime": start },
        });
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        Protection::of(&pod, "2026-01-01T00:10:00Z".parse().expect("a time"))
    }

    fn message(protection: &Protection) -> String {
        let (_, reason, message) = protection.event().expect("an event");
        format!("{reason}: {message}")
    }

    #[test]
    fn a_duration_counts_from_the_start_of_the_pod() {
        let start = Some("2026-01-01T00:00:00Z");
        let active = protection("1h30m", start);
        assert!(active.is_active());
        assert_eq!(
            message(&active),
            "DoNotDisruptUntil: The karpenter.sh/do-not-disrupt grace period will elapse at 2026-01-01T01:30:00Z"
        );
        let over = protection("10m", start);
        assert!(!over.is_active());
        assert_eq!(
            message(&over),
            "DoNotDisruptGracePeriodElapsed: The karpenter.sh/do-not-disrupt grace period has elapsed, pod is now disruptable"
        );
        assert!(protection("0.2h", start).is_active());
        assert!(protection("1ms", None).is_active());
    }

    #[test]
    fn unreadable_and_negative_durations_protect_nothing_and_say_so() {
        let cases = [
            (
                "soon",
                "failed to parse \"soon\" as a duration: time: invalid duration \"soon\"",
            ),
            (
                "5d",
                "failed to parse \"5d\" as a duration: time: unknown unit \"d\" in duration \"5d\"",
            ),
            ("-5m", "duration \"-5m\" must be positive"),
            ("0", "duration \"0\" must be positive"),
        ];
        for (value, fault) in cases {
            let invalid = protection(value, None);
            assert!(!invalid.is_active(), "{value}");
            assert_eq!(
                message(&invalid),
                format!(
                    "InvalidDoNotDisruptAnnotation: Invalid karpenter.sh/do-not-disrupt annotation: {fault}, ignoring annotation"
                )
            );
        }
    }
}
