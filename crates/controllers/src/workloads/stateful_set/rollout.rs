//! Which pods of a StatefulSet make way for the new template, and what the set reports. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::identity;
use crate::{pods, workloads::count};

/// How a set brings its pods about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strategy {
    /// All at once, not one after the other.
    pub(super) parallel: bool,
    /// Pods are replaced only when somebody deletes them.
    pub(super) on_delete: bool,
    /// Pods below it, counted from the first, keep the old template.
    pub(super) partition: i32,
    /// How many pods may be unavailable while the template changes.
    pub(super) max_unavailable: i32,
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
            max_unavailable: max_unavailable(
                rolling.and_then(|rolling| rolling.max_unavailable.as_ref()),
                identity::replicas(set),
            ),
            min_ready_seconds: spec.and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
        }
    }
}

/// One if nothing is said; a percentage is rounded up, and never below one.
fn max_unavailable(told: Option<&IntOrString>, replicas: i32) -> i32 {
    let most = match told {
        None => 1,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let most = (i64::from(replicas) * percent + 99) / 100;
            i32::try_from(most).unwrap_or(i32::MAX)
        }
    };
    most.max(1)
}

/// Running, ready, and so for long enough.
pub(super) fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && pods::is_available(pod, min_ready_seconds, now)
}

/// Running and ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    pods::phase(pod) == "Running" && pods::is_ready(pod)
}

fn is_unavailable(pod: &Pod, strategy: Strategy, now: Timestamp) -> bool {
    pods::is_deleting(pod) || !is_available(pod, strategy.min_ready_seconds, now)
}

/// The pods that are deleted now because their template is an old one, highest number first (upstream:
/// `updateStatefulSetAfterInvariantEstablished`). `replicas` are the wanted pods by number, each of which exists.
pub(super) fn outdated(
    replicas: &[Arc<Pod>],
    update: &str,
    strategy: Strategy,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let is_old = |pod: &Arc<Pod>| identity::revision(pod) != update && !pods::is_deleting(pod);
    let unavailable = |pod: &&Arc<Pod>| is_unavailable(pod, strategy, now);
    let missing = count(replicas.iter().filter(unavailable).count());
    let lost = replicas
        .iter()
        .any(|pod| strategy.parallel && is_old(pod) && unavailable(&pod));
    if missing >= strategy.max_unavailable && !lost {
        return Vec::new();
    }
    let partition = usize::try_from(strategy.partition).unwrap_or(0);
    let due = replicas
        .iter()
        .skip(partition)
        .rev()
        .filter(|pod| is_old(pod));
    let budget = usize::try_from(strategy.max_unavailable - missing).unwrap_or(0);
    if !strategy.parallel {
        return due.take(budget).cloned().collect();
    }
    // What does not work cannot be missed.
    let (broken, working): (Vec<_>, Vec<_>) = due.partition(unavailable);
    broken
        .into_iter()
        .chain(working.into_iter().take(budget))
        .cloned()
        .collect()
}

/// What the set reports of its pods.
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

/// Says that an update is complete, once it is (upstream: `completeRollingUpdate`).
pub(super) fn complete(set: &StatefulSet, status: &mut StatefulSetStatus) {
    let strategy = Strategy::of(set);
    if !strategy.on_delete
        && status.updated_replicas == Some(status.replicas)
        && status.ready_replicas == Some(status.replicas)
        && status.replicas == identity::replicas(set)
    {
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

    fn strategy(max_unavailable: i32, partition: i32, parallel: bool) -> Strategy {
        Strategy {
            parallel,
            on_delete: false,
            partition,
            max_unavailable,
            min_ready_seconds: 0,
        }
    }

    fn doomed(replicas: &[Arc<Pod>], strategy: Strategy) -> Vec<String> {
        let now = "2026-01-02T00:00:00Z".parse().expect("a time");
        let pods = outdated(replicas, "new", strategy, now);
        pods.iter()
            .filter_map(|pod| pod.metadata.name.clone())
            .collect()
    }

    #[test]
    fn the_highest_pod_of_an_old_template_goes_first_one_at_a_time() {
        let mut replicas = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "old", true),
        ];
        assert_eq!(doomed(&replicas, strategy(1, 0, false)), ["web-2"]);
        replicas[2] = pod(2, "new", false);
        assert!(
            doomed(&replicas, strategy(1, 0, false)).is_empty(),
            "it is not ready yet"
        );
        replicas[2] = pod(2, "new", true);
        assert_eq!(doomed(&replicas, strategy(1, 0, false)), ["web-1"]);
        assert_eq!(doomed(&replicas, strategy(2, 0, false)), ["web-1", "web-0"]);
    }

    #[test]
    fn pods_below_the_partition_stay() {
        let replicas = [
            pod(0, "old", true),
            pod(1, "old", true),
            pod(2, "new", true),
        ];
        assert_eq!(doomed(&replicas, strategy(3, 1, false)), ["web-1"]);
        assert!(doomed(&replicas, strategy(3, 2, false)).is_empty());
    }

    #[test]
    fn of_pods_that_come_in_parallel_broken_ones_of_the_old_template_go_at_once() {
        let replicas = [
            pod(0, "old", false),
            pod(1, "old", true),
            pod(2, "old", true),
        ];
        assert_eq!(doomed(&replicas, strategy(1, 0, true)), ["web-0"]);
        assert_eq!(doomed(&replicas, strategy(2, 0, true)), ["web-0", "web-2"]);
        assert!(doomed(&replicas, strategy(1, 0, false)).is_empty());
    }

    #[test]
    fn a_share_of_unavailable_pods_is_rounded_up_and_at_least_one() {
        let share = |text: &str| max_unavailable(Some(&IntOrString::String(text.into())), 5);
        assert_eq!((share("30%"), share("0%"), share("100%")), (2, 1, 5));
        assert_eq!(max_unavailable(None, 5), 1);
    }
}
