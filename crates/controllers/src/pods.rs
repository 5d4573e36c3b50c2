//! Facts about pods that controllers need: phase, conditions, and readiness over time.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodCondition};

/// Returns `status.phase`, or the empty string.
pub fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Returns whether the pod has succeeded or failed, so that it will never run again.
pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// Returns whether the pod's deletion has begun.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Returns whether the pod counts as a replica: neither finished nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

/// Returns whether the pod is being deleted but has not finished yet.
pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && is_deleting(pod)
}

/// Returns the node the pod is bound to, or the empty string.
pub fn node_name(pod: &Pod) -> &str {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

/// Returns the condition of the given type.
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status
        .as_ref()?
        .conditions
        .as_ref()?
        .iter()
        .find(|condition| condition.type_ == kind)
}

/// Returns whether the Ready condition is True.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Returns when the Ready condition became True; `None` while it is not, or if it does not say.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Returns whether the pod has been ready for at least `min_ready_seconds` at `now`.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && available_in(pod, min_ready_seconds, now).is_some_and(|wait| wait.is_zero())
}

/// Returns how long until a ready pod becomes available (zero if it is); `None` for a pod that is not ready.
pub fn available_in(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<SignedDuration> {
    if !is_ready(pod) {
        return None;
    }
    // Without a waiting time readiness is enough, even if the condition lacks its time.
    if min_ready_seconds == 0 {
        return Some(SignedDuration::ZERO);
    }
    let waited = now.duration_since(ready_since(pod)?);
    Some((SignedDuration::from_secs(min_ready_seconds.into()) - waited).max(SignedDuration::ZERO))
}
