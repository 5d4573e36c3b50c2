//! Decides which pods of a StatefulSet are replaced for a new template, and computes the set's status. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::Pod,
};

use super::identity;
use crate::{pods, workloads::count};

/// The rules by which a set creates and replaces its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strategy {
    /// Pods are created and deleted all at once instead of in order.
    pub(super) parallel: bool,
    /// Pods are replaced only when a user deletes them.
    pub(super) on_delete: bool,
    /// Pods whose position, counted from the first ordinal, is below this keep the old template.
    pub(super) partition: i32,
    pub(super) min_ready_seconds: i32,
}

impl Strategy {
    pub(super) fn of(set: &StatefulSet) -> Self {
        let spec = set.spec.as_ref();
        let update = spec.and_then(|spec| spec.update_strategy.as_ref());
        let rolling = update.and_then(|update| update.rolling_update.as_ref());
        let kind = update.and_then(|update| update.type_.as_deref());
        let policy = spec.and_then(|spec| spec.pod_management_policy.as_deref());
        Self {
            parallel: policy == Some("Parallel"),
            on_delete: kind == Some("OnDelete"),
            partition: rolling.and_then(|rolling| rolling.partition).unwrap_or(0),
            min_ready_seconds: spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
        }
    }
}

/// Returns whether a pod is running and has been ready for long enough.
pub(super) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && pods::is_available(pod, min_ready_seconds, now)
}

/// Returns whether a pod is running and ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::is_ready(pod)
}

fn is_unavailable(pod: &Pod, strategy: Strategy, now: Timestamp) -> bool {
    pods::is_deleting(pod) || !is_available(pod, strategy.min_ready_seconds, now)
}

/// Returns the pod that is deleted now because its template is old: the highest one, once all above it are
/// available. `replicas` are the wanted pods by ordinal, and all of them exist.
///
/// `maxUnavailable` is ignored, also with Parallel, because Kubernetes 1.36 disables the feature by default
/// (`MaxUnavailableStatefulSet`).
pub(super) fn outdated<'a>(
    replicas: &'a [Arc<Pod>],
    update: &str,
    strategy: Strategy,
    now: Timestamp,
) -> Option<&'a Arc<Pod>> {
    let partition = usize::try_from(strategy.partition).unwrap_or(0);
    let is_old = |pod: &Pod| identity::revision(pod) != update && !pods::is_deleting(pod);
    let mut due = replicas.iter().skip(partition).rev();
    // From the top down, the first pod that is old or does not serve decides: only an old one may be
    // replaced.
    let stop = due.find(|pod| is_old(pod) || is_unavailable(pod, strategy, now))?;
    Some(stop).filter(|pod| is_old(pod))
}

/// Computes the status of the set from its pods.
pub(super) fn status(
    set: &StatefulSet,
    pods_now: &[Arc<Pod>],
    current: &str,
    update: &str,
    collisions: i32,
    now: Timestamp,
) -> StatefulSetStatus {
    let strategy = Strategy::of(set);
    let number =
        |wanted: &dyn Fn(&Pod) -> bool| count(pods_now.iter().filter(|pod| wanted(pod)).count());
    let of = |revision: &str| {
        number(&|pod: &Pod| !pods::is_deleting(pod) && identity::revision(pod) == revision)
    };
    StatefulSetStatus {
        observed_generation: set.metadata.generation,
        replicas: number(&|_| true),
        ready_replicas: Some(number(&is_ready)),
        available_replicas: Some(number(&|pod: &Pod| {
            is_available(pod, strategy.min_ready_seconds, now)
        })),
        current_replicas: Some(of(current)),
        updated_replicas: Some(of(update)),
        current_revision: Some(current.to_owned()),
        update_revision: Some(update.to_owned()),
        collision_count: Some(collisions),
        conditions: None,
    }
}

/// Marks an update as complete once it is (kube-controller-manager: `completeRollingUpdate`).
pub(super) fn complete(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let strategy = Strategy::of(set);
    if !strategy.on_delete
        && status.updated_replicas == Some(status.replicas)
        && status.ready_replicas == Some(status.replicas)
        && status.replicas == identity::replicas(set)
    {
        // From here on new pods are created from this revision, also below a partition.
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(number: usize, revision: &str, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": { "name": format!("web-{number}"), "labels": { identity::REVISION: revision } },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn strategy(partition: i32, parallel: bool) -> Strategy {
        Strategy {
            parallel,
            on_delete: false,
            partition,
            min_ready_seconds: 0,
        }
    }

    fn doomed(replicas: &[Arc<Pod>], strategy: Strategy) -> Option<String> {
        let now = "2026-01-02T00:00:00Z".parse().expect("a time");
        let pod = outdated(replicas, "new", strategy, now)?;
        pod.metadata.name.clone()
    }

    #[test]
    fn the_highest_pod_of_an_old_template_goes_first_one_at_a_time() {
        let mut replicas = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "old", true),
        ];
        let doomed = |replicas: &[Arc<Pod>]| doomed(replicas, strategy(0, false));
        assert_eq!(doomed(&replicas).as_deref(), Some("web-2"));
        replicas[2] = pod(2, "new", false);
        assert_eq!(doomed(&replicas), None, "it is not ready yet");
        replicas[2] = pod(2, "new", true);
        assert_eq!(doomed(&replicas).as_deref(), Some("web-1"));
    }

    #[test]
    fn pods_below_the_partition_stay() {
        let replicas = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "new", true),
        ];
        let doomed = |partition| doomed(&replicas, strategy(partition, false));
        assert_eq!(doomed(1).as_deref(), Some("web-1"));
        assert_eq!(doomed(2), None);
    }

    #[test]
    fn broken_pods_of_an_old_template_wait_for_their_turn_also_in_parallel() {
        let mut replicas = [
            pod(0, "old", false),
            pod(1, "old", false),
            pod(2, "old", true),
        ];
        let doomed = |replicas: &[Arc<Pod>]| doomed(replicas, strategy(0, true));
        assert_eq!(doomed(&replicas).as_deref(), Some("web-2"));
        replicas[2] = pod(2, "new", false);
        assert_eq!(doomed(&replicas), None);
        replicas[2] = pod(2, "new", true);
        assert_eq!(doomed(&replicas).as_deref(), Some("web-1"));
    }
}
