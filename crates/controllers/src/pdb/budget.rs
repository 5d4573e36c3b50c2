//! The arithmetic of a PodDisruptionBudget. Pure.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{core::v1::Pod, policy::v1::PodDisruptionBudget},
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};
use kube::ResourceExt;

use crate::{
    pods,
    workloads::{Rounding, count, scaled},
};

/// The time within which a pod must be deleted after its eviction was granted.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);

/// Pods whose eviction was granted but whose deletion was not seen yet, with the time of the grant.
pub(super) type Disrupted = BTreeMap<String, Time>;

/// The number of replicas that the pods' controllers want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// Not needed: `minAvailable` is a number, so only the existing pods count.
    NotNeeded,
    /// The sum over all controllers, and the number of pods without a controller.
    Sum { replicas: i32, unmanaged: usize },
}

/// The numbers that the budget requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// `expectedPods`.
    pub(super) pods: i32,
    /// `desiredHealthy`.
    pub(super) desired_healthy: i32,
}

/// Returns whether the budget depends on the controllers' scale.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    let min_available = spec.and_then(|spec| spec.min_available.as_ref());
    let max_unavailable = spec.and_then(|spec| spec.max_unavailable.as_ref());
    max_unavailable.is_some() || matches!(min_available, Some(IntOrString::String(_)))
}

/// Returns the numbers that the budget requires with `members` pods.
pub(super) fn expected(budget: &PodDisruptionBudget, scale: Scale, members: usize) -> Expected {
    let spec = budget.spec.as_ref();
    let sum = match scale {
        Scale::Sum { replicas, .. } => replicas,
        Scale::NotNeeded => count(members),
    };
    if let Some(max_unavailable) = spec.and_then(|spec| spec.max_unavailable.as_ref()) {
        let desired = sum - scaled(Some(max_unavailable), sum, Rounding::Up);
        return Expected {
            pods: sum,
            desired_healthy: desired.max(0),
        };
    }
    match spec.and_then(|spec| spec.min_available.as_ref()) {
        Some(IntOrString::Int(number)) => Expected {
            pods: count(members),
            desired_healthy: *number,
        },
        Some(percent) => Expected {
            pods: sum,
            desired_healthy: scaled(Some(percent), sum, Rounding::Up),
        },
        None => Expected {
            pods: count(members),
            desired_healthy: 0,
        },
    }
}

/// Granted evictions by their state.
#[derive(Debug, Default)]
pub(super) struct Disruptions {
    /// Evictions whose pods are still expected to be deleted.
    pub(super) pending: Disrupted,
    /// Pods that should have been deleted by now.
    pub(super) overdue: Vec<Arc<Pod>>,
    /// The time until the next eviction becomes overdue.
    pub(super) recheck_in: Option<SignedDuration>,
}

/// Sorts the granted evictions by whether they still count.
pub(super) fn disrupted(
    budget: &PodDisruptionBudget,
    members: &[Arc<Pod>],
    now: Timestamp,
) -> Disruptions {
    let granted = budget
        .status
        .as_ref()
        .and_then(|status| status.disrupted_pods.as_ref());
    let mut disruptions = Disruptions::default();
    for pod in members.iter().filter(|pod| !pods::is_deleting(pod)) {
        let name = pod.name_any();
        // The eviction API enters pods here; this controller only removes entries, or grants could be lost.
        let Some(at) = granted.and_then(|granted| granted.get(&name)) else {
            continue;
        };
        let left = DELETION_TIMEOUT - now.duration_since(at.0);
        if left.is_negative() {
            disruptions.overdue.push(Arc::clone(pod));
        } else {
            disruptions.pending.insert(name, at.clone());
            disruptions.recheck_in = disruptions.recheck_in.into_iter().chain([left]).min();
        }
    }
    disruptions
}

/// Counts the pods that are ready and are not about to be deleted.
pub(super) fn healthy(members: &[Arc<Pod>], disrupted: &Disrupted, now: Timestamp) -> i32 {
    let is_going = |pod: &Pod| {
        let at = disrupted.get(&pod.name_any());
        at.is_some_and(|at| now.duration_since(at.0) < DELETION_TIMEOUT)
    };
    let healthy = members
        .iter()
        .filter(|pod| pods::is_ready(pod) && !pods::is_deleting(pod) && !is_going(pod));
    count(healthy.count())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::{
            core::v1::{PodCondition, PodStatus},
            policy::v1::{PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
        },
        apimachinery::pkg::apis::meta::v1::ObjectMeta,
    };

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1_000_000).expect("a valid moment")
    }

    fn percent(text: &str) -> Option<IntOrString> {
        Some(IntOrString::String(text.to_owned()))
    }

    fn of(replicas: i32) -> Scale {
        Scale::Sum {
            replicas,
            unmanaged: 0,
        }
    }

    fn budget(
        min_available: Option<IntOrString>,
        max_unavailable: Option<IntOrString>,
    ) -> PodDisruptionBudget {
        let spec = PodDisruptionBudgetSpec {
            min_available,
            max_unavailable,
            ..PodDisruptionBudgetSpec::default()
        };
        PodDisruptionBudget {
            spec: Some(spec),
            ..PodDisruptionBudget::default()
        }
    }

    fn pod(name: &str, ready: bool) -> Arc<Pod> {
        let condition = PodCondition {
            type_: "Ready".to_owned(),
            status: if ready { "True" } else { "False" }.to_owned(),
            ..PodCondition::default()
        };
        Arc::new(Pod {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            status: Some(PodStatus {
                conditions: Some(vec![condition]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        })
    }

    #[test]
    fn a_number_of_available_pods_is_taken_as_it_is() {
        let budget = budget(Some(IntOrString::Int(3)), None);
        assert!(!needs_scale(&budget));
        assert_eq!(
            expected(&budget, Scale::NotNeeded, 5),
            Expected {
                pods: 5,
                desired_healthy: 3
            }
        );
    }

    #[test]
    fn percentages_are_of_the_scale_and_round_up() {
        let available = budget(percent("50%"), None);
        assert!(needs_scale(&available));
        assert_eq!(
            expected(&available, of(7), 5),
            Expected {
                pods: 7,
                desired_healthy: 4
            }
        );
        let unavailable = budget(None, percent("30%"));
        assert_eq!(
            expected(&unavailable, of(7), 5),
            Expected {
                pods: 7,
                desired_healthy: 4
            }
        );
    }

    #[test]
    fn more_unavailable_than_there_are_leaves_nothing_to_ask_for() {
        let budget = budget(None, Some(IntOrString::Int(9)));
        assert_eq!(
            expected(&budget, of(4), 4),
            Expected {
                pods: 4,
                desired_healthy: 0
            }
        );
    }

    #[test]
    fn a_granted_eviction_counts_against_its_pod_until_it_is_overdue() {
        let members = [
            pod("a", true),
            pod("b", true),
            pod("c", true),
            pod("d", false),
        ];
        let granted = |seconds: i64| Time(now() - SignedDuration::from_secs(seconds));
        let mut budget = budget(Some(IntOrString::Int(1)), None);
        budget.status = Some(PodDisruptionBudgetStatus {
            disrupted_pods: Some(
                [
                    ("a".to_owned(), granted(10)),
                    ("b".to_owned(), granted(121)),
                ]
                .into(),
            ),
            ..PodDisruptionBudgetStatus::default()
        });
        let found = disrupted(&budget, &members, now());
        assert_eq!(found.pending.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(
            found
                .overdue
                .iter()
                .map(|pod| pod.name_any())
                .collect::<Vec<_>>(),
            ["b"]
        );
        assert_eq!(found.recheck_in, Some(SignedDuration::from_secs(110)));
        assert_eq!(healthy(&members, &found.pending, now()), 2);
    }
}
