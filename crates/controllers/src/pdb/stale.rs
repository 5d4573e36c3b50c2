//! Resets a `DisruptionTarget` condition whose disruption did not happen.
//!
//! A component that is about to delete a pod sets this condition. A pod that is not being deleted two minutes later
//! was spared. The condition stays if a kubelet set it, because kubelets end pods without deleting them, and on
//! finished pods.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{Context, Key, Queue, api_error, pods};

const CONDITION: &str = "DisruptionTarget";
const TIMEOUT: SignedDuration = SignedDuration::from_secs(120);

/// Starts the part of the disruption controller that handles pods.
pub(super) fn start(context: &Context) {
    let queue = Queue::new("stale_pod_disruption");
    context.informers.pods.on_change({
        let (queue, clock) = (queue.clone(), context.clock.clone());
        move |change| {
            let pod = change.object();
            if !change.is_deleted()
                && let Some(left) = time_left(pod, clock.now())
            {
                queue.add_after(Key::of(&**pod), left);
            }
        }
    });
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        if context.informers.pods.synced().await {
            let workers = context.clone();
            let again = queue.clone();
            queue.run(&workers, 1, move |key| {
                let (context, queue) = (context.clone(), again.clone());
                async move { reset(&context, &queue, &key).await }
            });
        }
    });
}

async fn reset(context: &Context, queue: &Queue<Key>, key: &Key) -> kube::Result<()> {
    let Some(pod) = context.informers.pods.get_key(key) else {
        return Ok(());
    };
    // Computed again, because the condition may have been renewed while the key waited.
    match time_left(&pod, context.clock.now()) {
        None => return Ok(()),
        Some(left) if !left.is_zero() => {
            queue.add_after(key.clone(), left);
            return Ok(());
        }
        Some(_) => {}
    }
    let condition = json!({
        "type": CONDITION,
        "status": "False",
        "reason": null,
        "message": null,
        "observedGeneration": pod.metadata.generation,
        "lastProbeTime": null,
        "lastTransitionTime": context.now(),
    });
    // The resource version makes the write fail if another client has renewed the condition in the meantime.
    let patch = Patch::Strategic(json!({
        "metadata": {"resourceVersion": pod.metadata.resource_version},
        "status": {"conditions": [condition]},
    }));
    let api: Api<Pod> = Api::namespaced(context.client.clone(), key.namespace());
    let patched = api
        .patch_status(&pod.name_any(), &PatchParams::default(), &patch)
        .await;
    api_error::ignore_not_found(patched).map(drop)
}

/// Returns how long the pod's condition still counts, or `None` if there is none to reset.
fn time_left(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let condition = pods::condition(pod, CONDITION)?;
    let is_lasting = condition.status != "True"
        || condition.reason.as_deref() == Some("TerminationByKubelet")
        || !pods::is_active(pod);
    if is_lasting {
        return None;
    }
    let since = condition
        .last_transition_time
        .as_ref()
        .map_or(now, |time| time.0);
    let left = TIMEOUT - now.duration_since(since);
    Some(Duration::try_from(left).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn left(change: impl FnOnce(&mut Value)) -> Option<u64> {
        let mut pod = json!({
            "metadata": {"name": "web"},
            "status": {"phase": "Running", "conditions": [{
                "type": CONDITION, "status": "True", "reason": "EvictionByEvictionAPI",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        change(&mut pod);
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let now = "2026-01-01T00:00:50Z".parse().expect("a moment");
        time_left(&pod, now).map(|left| left.as_secs())
    }

    #[test]
    fn an_announcement_counts_for_two_minutes_unless_the_pod_really_goes() {
        assert_eq!(left(|_| {}), Some(70));
        assert_eq!(
            left(|pod| pod["status"]["conditions"][0]["lastTransitionTime"] =
                json!("2025-01-01T00:00:00Z")),
            Some(0)
        );
        assert_eq!(
            left(|pod| pod["status"]["conditions"][0]["status"] = json!("False")),
            None
        );
        assert_eq!(left(|pod| pod["status"]["conditions"] = json!([])), None);
        assert_eq!(
            left(|pod| pod["status"]["conditions"][0]["reason"] = json!("TerminationByKubelet")),
            None
        );
        assert_eq!(left(|pod| pod["status"]["phase"] = json!("Failed")), None);
        assert_eq!(
            left(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:10Z")),
            None
        );
    }
}
