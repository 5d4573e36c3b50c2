//! Which pods of a node that goes are asked to leave now. Pure.
//!
//! Invariant: pods leave in four waves (ordinary pods, ordinary daemons, critical pods, critical daemons), and a wave
//! starts when the one before is gone. Pods that tolerate the node's end, static pods and finished ones are not waited
//! for; `do-not-disrupt` and disruption budgets hold a node until its deadline, if it has one. A pod whose own grace period
//! would outlast the deadline is deleted as soon as that is so, whatever its wave (core: `Terminator.Drain`).

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Taint};
use mullion_api::labels;

use super::do_not_disrupt::Protection;
use crate::{
    pods,
    provisioner::pending::{is_daemon, is_static},
    state::taints::tolerates,
};

/// A pod that should have been gone this long ago is not waited for.
const STUCK: SignedDuration = SignedDuration::from_mins(1);

/// What to do with the pods of a node.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// Pods to evict.
    pub evict: Vec<Arc<Pod>>,
    /// Pods to delete whatever protects them, with the seconds they have left.
    pub delete: Vec<(Arc<Pod>, u32)>,
    /// How many pods are waited for.
    pub waiting: usize,
}

/// Returns the taint of a node that is on its way out.
pub fn disrupted_taint() -> Taint {
    Taint {
        key: labels::DISRUPTED_TAINT.to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    }
}

/// Returns the next step of draining; `deadline` is when protection ends.
pub fn step(on_node: &[Arc<Pod>], now: Timestamp, deadline: Option<Timestamp>) -> Step {
    let waiting: Vec<_> = on_node
        .iter()
        .filter(|pod| is_waited_for(pod, now))
        .collect();
    let mut step = Step {
        waiting: waiting.len(),
        ..Step::default()
    };
    let mut graceful = Vec::new();
    for pod in waiting {
        match deadline.and_then(|deadline| forced(pod, now, deadline)) {
            Some(seconds) => step.delete.push((Arc::clone(pod), seconds)),
            None => graceful.push(pod),
        }
    }
    // Pods that are terminating still hold their wave back, so critical pods outlive everything that uses
    // them.
    let first = graceful.iter().map(|pod| drain_group(pod)).min();
    let in_wave = graceful
        .into_iter()
        .filter(|pod| Some(drain_group(pod)) == first);
    step.evict = in_wave
        // A protected pod is waited for without being asked: its protection may end, or the deadline deletes
        // it.
        .filter(|pod| !pods::is_deleting(pod) && !Protection::of(pod, now).is_active())
        .map(Arc::clone)
        .collect();
    step
}

/// Returns whether a node cannot go while this pod is on it.
pub fn is_waited_for(pod: &Pod, now: Timestamp) -> bool {
    !pods::is_finished(pod) && is_drainable(pod, now)
}

/// Returns whether a pod leaves a node that goes: it is no static one, does not tolerate the node's end, and its own end is not
/// overdue (core: `IsDrainable`).
pub fn is_drainable(pod: &Pod, now: Timestamp) -> bool {
    let stuck = pod
        .metadata
        .deletion_timestamp
        .as_ref()
        .is_some_and(|at| now.duration_since(at.0) > STUCK);
    !stuck && !is_static(pod) && !tolerates_the_end(pod)
}

/// Returns whether a pod tolerates the taint of a node that goes: it stays to the end.
pub fn tolerates_the_end(pod: &Pod) -> bool {
    let taint = disrupted_taint();
    let spec = pod.spec.as_ref();
    let tolerations = spec
        .iter()
        .flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations
        .into_iter()
        .any(|toleration| tolerates(toleration, &taint))
}

/// Seconds a pod gets when it must be deleted now to be gone by the deadline, at least one, because none would leave it running unseen;
/// `None` while there is time. A pod that terminates already must be deleted again only if it would end too late.
fn forced(pod: &Pod, now: Timestamp, deadline: Timestamp) -> Option<u32> {
    let spec = pod.spec.as_ref();
    let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let left = deadline.duration_since(now);
    let is_due = match &pod.metadata.deletion_timestamp {
        // Deleting it again with a shorter grace period is the only way to move its end forward.
        Some(ends) => ends.0 > deadline,
        None => left < SignedDuration::from_secs(grace?),
    };
    let seconds = u32::try_from(left.as_secs().max(1)).unwrap_or(u32::MAX);
    is_due.then_some(seconds)
}

/// Returns the group in which a pod is drained; all pods of lower groups go first (Karpenter core: `groupPodsByPriority`).
fn drain_group(pod: &Pod) -> u8 {
    let spec = pod.spec.as_ref();
    let class = spec.and_then(|spec| spec.priority_class_name.as_deref());
    let critical = matches!(
        class,
        Some("system-cluster-critical" | "system-node-critical")
    );
    2 * u8::from(critical) + u8::from(is_daemon(pod))
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, edit: impl FnOnce(&mut Value)) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": { "name": name, "namespace": "d" },
            "spec": { "containers": [], "nodeName": "n", "terminationGracePeriodSeconds": 30 },
            "status": { "phase": "Running" }
        });
        edit(&mut pod);
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn daemon(name: &str) -> Arc<Pod> {
        pod(name, |pod| {
            pod["metadata"]["ownerReferences"] = json!([
                { "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": true }
            ]);
        })
    }

    fn critical(name: &str) -> Arc<Pod> {
        pod(name, |pod| {
            pod["spec"]["priorityClassName"] = "system-cluster-critical".into()
        })
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn evicted(pods: &[Arc<Pod>]) -> Vec<String> {
        step(pods, at(0), None)
            .evict
            .iter()
            .map(|pod| pod.name_any())
            .collect()
    }

    #[test]
    fn pods_leave_in_waves() {
        let all = [critical("critical"), daemon("daemon"), pod("plain", |_| {})];
        assert_eq!(evicted(&all), ["plain"]);
        assert_eq!(evicted(&all[..2]), ["daemon"]);
        assert_eq!(evicted(&all[..1]), ["critical"]);
        assert_eq!(step(&all, at(0), None).waiting, 3);
    }

    #[test]
    fn a_wave_waits_for_those_that_are_still_terminating() {
        let going = pod("going", |pod| {
            pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:10Z".into();
        });
        let all = [going, daemon("daemon")];
        let step = step(&all, at(0), None);
        assert!(step.evict.is_empty());
        assert_eq!(step.waiting, 2);
    }

    #[test]
    fn some_pods_are_not_waited_for() {
        let finished = pod("finished", |pod| {
            pod["status"]["phase"] = "Succeeded".into()
        });
        let tolerant = pod("tolerant", |pod| {
            pod["spec"]["tolerations"] = json!([{ "operator": "Exists" }])
        });
        let mirror = pod("mirror", |pod| {
            pod["metadata"]["ownerReferences"] = json!([{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true }]);
        });
        let stuck = pod("stuck", |pod| {
            pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:00:00Z".into();
        });
        assert_eq!(
            step(&[finished, tolerant, mirror, stuck], at(61), None).waiting,
            0
        );
    }

    #[test]
    fn a_protected_pod_holds_the_node_until_its_deadline() {
        let protected = pod("protected", |pod| {
            pod["metadata"]["annotations"] = json!({ "karpenter.sh/do-not-disrupt": "true" });
        });
        let all = [protected];
        let free = step(&all, at(0), None);
        assert!(free.evict.is_empty() && free.delete.is_empty());
        assert_eq!(free.waiting, 1);
        assert!(step(&all, at(0), Some(at(100))).delete.is_empty());
        let forced = step(&all, at(80), Some(at(100)));
        assert_eq!(forced.delete[0].1, 20);
        assert!(forced.evict.is_empty());
        let late = step(&all, at(200), Some(at(100)));
        assert_eq!(
            late.delete[0].1, 1,
            "never at once, which would leave it running unseen"
        );
    }

    #[test]
    fn at_the_deadline_all_waves_go_and_those_with_time_left_go_in_order() {
        let patient = pod("patient", |pod| {
            pod["spec"]["terminationGracePeriodSeconds"] = 5.into()
        });
        let quick = pod("quick", |pod| {
            pod["spec"]["priorityClassName"] = "system-node-critical".into();
            pod["spec"]["terminationGracePeriodSeconds"] = 5.into();
        });
        let all = [critical("critical"), daemon("daemon"), patient, quick];
        let step = step(&all, at(80), Some(at(100)));
        let deleted: Vec<_> = step.delete.iter().map(|(pod, _)| pod.name_any()).collect();
        assert_eq!(deleted, ["critical", "daemon"]);
        let evicted: Vec<_> = step.evict.iter().map(|pod| pod.name_any()).collect();
        assert_eq!(evicted, ["patient"]);
    }

    #[test]
    fn a_pod_that_terminates_is_hurried_only_if_it_would_end_too_late() {
        let ends = |at: &'static str| {
            pod("going", move |pod| {
                pod["metadata"]["deletionTimestamp"] = at.into()
            })
        };
        let deleted =
            |at_second: &'static str| step(&[ends(at_second)], at(10), Some(at(100))).delete.len();
        assert_eq!(deleted("1970-01-01T00:01:40Z"), 0);
        assert_eq!(deleted("1970-01-01T00:01:41Z"), 1);
    }
}
