//! Decides which pods are deleted first when there are too many: of a ReplicaSet (kube-controller-manager:
//! `ActivePodsWithRanks`) and of a Job (`ActivePods`).
//!
//! Pure. kube-controller-manager compares pairs of pods; this is one total order. Where kube-controller-manager
//! breaks a tie between pods of about the same age by UID alone, restarts are compared first here.

use std::{cmp::Reverse, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rustc_hash::FxHashMap;

use crate::pods;

/// The annotation with a pod's deletion cost. Pods with a lower cost (default 0) are deleted first.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Returns the `count` pods of `active` that are deleted first. `related` counts active pods of the same family by
/// node.
pub(in crate::workloads) fn first_to_go(
    active: &[Arc<Pod>],
    count: usize,
    related: &FxHashMap<String, usize>,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    let mut pods = active.to_vec();
    // All pods go anyway when the set is scaled to zero, so they need no order.
    if count < pods.len() {
        pods.sort_by_cached_key(|pod| {
            rank(
                pod,
                related
                    .get(pods::node_name(pod))
                    .copied()
                    .unwrap_or_default(),
                now,
            )
        });
        pods.truncate(count);
    }
    pods
}

/// Sorts pods by their progress alone (`ActivePods`), the first to be deleted first. Deletion costs and crowded
/// nodes do not count, and of two pods the older one stays, however close their ages are.
pub(in crate::workloads) fn least_advanced_first(mut pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
    pods.sort_by_cached_key(|pod| {
        let ready = pods::is_ready(pod);
        let since = pods::ready_since(pod);
        let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
        let progress = (!pods::node_name(pod).is_empty(), phase(pod), ready);
        let age = |at: Option<Timestamp>| (at.is_some(), Reverse(at));
        let uid = pod.metadata.uid.clone();
        let restarts = Reverse(max_restarts(pod));
        (progress, age(since), restarts, age(created), uid)
    });
    pods
}

/// The rank of a pod; the smallest is deleted first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    assigned: bool,
    phase: u8,
    ready: bool,
    deletion_cost: i32,
    pods_on_node: Reverse<usize>,
    ready_for: Age,
    restarts: Reverse<(i32, i32)>,
    created: Age,
    uid: String,
}

/// Age by orders of magnitude, so that the choice between two pods of about the same age is practically random.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Unknown,
    Future,
    Log2Nanoseconds(u32),
}

fn rank(pod: &Pod, crowd: usize, now: Timestamp) -> Rank {
    let ready = pods::is_ready(pod);
    Rank {
        assigned: !pods::node_name(pod).is_empty(),
        phase: phase(pod),
        ready,
        deletion_cost: deletion_cost(pod).unwrap_or_default(),
        pods_on_node: Reverse(crowd),
        ready_for: if ready {
            age(pods::ready_since(pod), now)
        } else {
            Age::Unknown
        },
        restarts: Reverse(max_restarts(pod)),
        created: age(
            pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            now,
        ),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

fn phase(pod: &Pod) -> u8 {
    match pods::phase(pod) {
        "Pending" => 0,
        "Unknown" => 1,
        "Running" => 2,
        // Finished pods are never ranked; kube-controller-manager's table has this value for them.
        _ => 0,
    }
}

/// Returns the annotation's value if it is written as Kubernetes writes numbers: without a plus sign or leading
/// zeros.
fn deletion_cost(pod: &Pod) -> Option<i32> {
    let text = pod.metadata.annotations.as_ref()?.get(DELETION_COST)?;
    let plain = text == "0" || text.starts_with(|first| matches!(first, '-' | '1'..='9'));
    text.parse().ok().filter(|_| plain)
}

fn age(since: Option<Timestamp>, now: Timestamp) -> Age {
    let Some(since) = since else {
        return Age::Unknown;
    };
    match u128::try_from(now.duration_since(since).as_nanos())
        .ok()
        .and_then(u128::checked_ilog2)
    {
        Some(magnitude) => Age::Log2Nanoseconds(magnitude),
        None => Age::Future,
    }
}

/// Returns the most restarts of any container, then of any sidecar.
fn max_restarts(pod: &Pod) -> (i32, i32) {
    let Some(status) = &pod.status else {
        return (0, 0);
    };
    let most = |statuses: &mut dyn Iterator<Item = &ContainerStatus>| {
        statuses.map(|s| s.restart_count).max()
    };
    let init = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_ref());
    let is_sidecar = |name: &str| {
        let mut containers = init.into_iter().flatten();
        containers.any(|container| {
            container.name == name && container.restart_policy.as_deref() == Some("Always")
        })
    };
    let containers = most(&mut status.container_statuses.iter().flatten());
    let mut sidecars = status
        .init_container_statuses
        .iter()
        .flatten()
        .filter(|status| is_sidecar(&status.name));
    (
        containers.unwrap_or_default(),
        most(&mut sidecars).unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::{
        api::core::v1::{PodCondition, PodSpec, PodStatus},
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    };

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000_000).expect("a valid moment")
    }

    /// Returns a pod that would be deleted last: on a node, running, ready, created 1,000 s ago and never
    /// restarted.
    fn settled(name: &str) -> Pod {
        Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                uid: Some(name.to_owned()),
                creation_timestamp: Some(Time(now() - SignedDuration::from_secs(1000))),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some("node".to_owned()),
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: Some("Running".to_owned()),
                conditions: Some(vec![PodCondition {
                    type_: "Ready".to_owned(),
                    status: "True".to_owned(),
                    last_transition_time: Some(Time(now() - SignedDuration::from_secs(1000))),
                    ..PodCondition::default()
                }]),
                ..PodStatus::default()
            }),
        }
    }

    fn goes_before(first: Pod, second: Pod) -> bool {
        let related = [("crowded".to_owned(), 5), ("node".to_owned(), 1)]
            .into_iter()
            .collect();
        let both = [Arc::new(second), Arc::new(first.clone())];
        first_to_go(&both, 1, &related, now())[0].metadata.name == first.metadata.name
    }

    fn edit(name: &str, change: impl FnOnce(&mut Pod)) -> Pod {
        let mut pod = settled(name);
        change(&mut pod);
        pod
    }

    fn spec(pod: &mut Pod) -> &mut PodSpec {
        pod.spec.as_mut().expect("set by settled")
    }

    fn status(pod: &mut Pod) -> &mut PodStatus {
        pod.status.as_mut().expect("set by settled")
    }

    fn ready_for(seconds: i64) -> impl FnOnce(&mut Pod) {
        move |pod| {
            let conditions = status(pod).conditions.as_mut().expect("set by settled");
            conditions[0].last_transition_time =
                Some(Time(now() - SignedDuration::from_secs(seconds)));
        }
    }

    fn restarted(count: i32) -> impl FnOnce(&mut Pod) {
        move |pod| {
            let container = ContainerStatus {
                restart_count: count,
                ..ContainerStatus::default()
            };
            status(pod).container_statuses = Some(vec![container]);
        }
    }

    #[test]
    fn each_rule_decides_only_when_those_before_it_tie() {
        let unassigned = edit("z-unassigned", |pod| spec(pod).node_name = None);
        let pending = edit("y-pending", |pod| {
            status(pod).phase = Some("Pending".to_owned())
        });
        let unready = edit("x-unready", |pod| {
            status(pod).conditions.as_mut().expect("set by settled")[0].status = "False".to_owned();
        });
        let cheap = edit("w-cheap", |pod| {
            pod.metadata.annotations = Some([(DELETION_COST.to_owned(), "-10".to_owned())].into());
        });
        let crowded = edit("v-crowded", |pod| {
            spec(pod).node_name = Some("crowded".to_owned())
        });
        let lately = edit("u-lately", ready_for(10));
        let restarted = edit("t-restarted", restarted(3));
        let young = edit("s-young", |pod| {
            pod.metadata.creation_timestamp = Some(Time(now() - SignedDuration::from_secs(10)));
        });
        let order = [
            unassigned,
            pending,
            unready,
            cheap,
            crowded,
            lately,
            restarted,
            young,
            settled("a"),
        ];
        for (i, first) in order.iter().enumerate() {
            for second in &order[i + 1..] {
                let names = (
                    first.metadata.name.as_deref(),
                    second.metadata.name.as_deref(),
                );
                assert!(goes_before(first.clone(), second.clone()), "{names:?}");
            }
        }
    }

    #[test]
    fn pods_of_about_the_same_age_are_told_apart_by_uid() {
        assert!(goes_before(
            edit("a", ready_for(1000)),
            edit("b", ready_for(1010))
        ));
        assert!(goes_before(
            edit("a", ready_for(1010)),
            edit("b", ready_for(1000))
        ));
    }

    #[test]
    fn an_unreadable_deletion_cost_counts_as_zero() {
        let costing = |name, cost: &str| {
            edit(name, |pod| {
                pod.metadata.annotations =
                    Some([(DELETION_COST.to_owned(), cost.to_owned())].into());
            })
        };
        for odd in ["much", "", "+5", "007", "2147483648", "0"] {
            assert!(goes_before(costing("a", odd), settled("b")), "{odd}");
            assert!(goes_before(settled("a"), costing("b", odd)), "{odd}");
        }
        assert!(goes_before(settled("b"), costing("a", "5")));
        assert!(goes_before(costing("b", "-5"), settled("a")));
    }

    #[test]
    fn sidecar_restarts_break_ties_of_container_restarts() {
        let sidecar = edit("z", |pod| {
            let container = k8s_openapi::api::core::v1::Container {
                name: "proxy".to_owned(),
                restart_policy: Some("Always".to_owned()),
                ..Default::default()
            };
            spec(pod).init_containers = Some(vec![container]);
            let proxy = ContainerStatus {
                name: "proxy".to_owned(),
                restart_count: 2,
                ..ContainerStatus::default()
            };
            status(pod).init_container_statuses = Some(vec![proxy]);
        });
        assert!(goes_before(sidecar.clone(), settled("a")));
        assert!(goes_before(edit("y", restarted(1)), sidecar));
    }

    #[test]
    fn when_all_go_they_go_in_the_order_given() {
        let pods = [Arc::new(settled("b")), Arc::new(settled("a"))];
        let gone = first_to_go(&pods, 2, &FxHashMap::default(), now());
        assert_eq!(gone, pods);
    }

    #[test]
    fn pods_of_a_job_go_by_how_far_they_have_come_alone() {
        let at = |seconds: i64| Some(Time(now() - SignedDuration::from_secs(seconds)));
        let pods = [
            edit("older", |pod| pod.metadata.creation_timestamp = at(1001)),
            settled("old"),
            edit("dear", |pod| {
                let cost = (DELETION_COST.to_owned(), "-5".to_owned());
                pod.metadata.annotations = Some([cost].into());
                pod.metadata.creation_timestamp = at(2000);
            }),
            edit("nowhere", |pod| spec(pod).node_name = None),
            edit("pending", |pod| {
                status(pod).phase = Some("Pending".to_owned())
            }),
        ];
        let order = least_advanced_first(pods.map(Arc::new).to_vec());
        let names: Vec<_> = order
            .iter()
            .filter_map(|pod| pod.metadata.name.as_deref())
            .collect();
        assert_eq!(names, ["nowhere", "pending", "old", "older", "dear"]);
    }
}
