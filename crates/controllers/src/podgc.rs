//! Deletes pods that no other controller deletes: pods on nodes that do not exist, terminating pods without a node,
//! and surplus finished pods (kube-controller-manager: pod-garbage-collector-controller).
//!
//! Runs every 20 s. A pod on a missing node is deleted only after the node has been missing for 40 s and a read from
//! the API server confirms that, because a watch may deliver a pod before its node.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use rustc_hash::FxHashMap;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::{Context, api_error, pods};

const PERIOD: Duration = Duration::from_secs(20);
/// How long a node must be missing before its pods are deleted.
const QUARANTINE: Duration = Duration::from_secs(40);
/// The number of finished pods that are kept.
const FINISHED_LIMIT: usize = 12_500;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Starts the collector.
pub fn start(context: &Context) {
    let context = context.clone();
    context.clone().tasks.spawn(async move {
        let informers = &context.informers;
        let run = async {
            if !(informers.pods.synced().await && informers.nodes.synced().await) {
                return;
            }
            let mut missing = MissingNodes::default();
            loop {
                collect(&context, &mut missing).await;
                sleep(PERIOD).await;
            }
        };
        context.shutdown.run_until_cancelled(run).await;
    });
}

async fn collect(context: &Context, missing: &mut MissingNodes) {
    let all = context.informers.pods.list();
    let nodes = &context.informers.nodes;
    // The list is one snapshot for all four rules, so a pod may be removed twice; the second time it is not
    // found.
    for pod in surplus_finished(&all) {
        remove(context, &pod, None).await;
    }
    for pod in all.iter().filter(|pod| pods::is_deleting(pod)) {
        let node = nodes.get("", pods::node_name(pod));
        if node.is_some_and(|node| is_out_of_service(&node)) {
            remove(context, pod, None).await;
        }
    }
    let due = missing.update(
        all.iter()
            .map(|pod| pods::node_name(pod))
            .filter(|node| !node.is_empty() && nodes.get("", node).is_none()),
        Instant::now(),
    );
    let live: Api<Node> = Api::all(context.client.clone());
    for node in due {
        // An error is no proof that the node is gone.
        if !matches!(live.get_opt(&node).await, Ok(None)) {
            continue;
        }
        for pod in all.iter().filter(|pod| pods::node_name(pod) == node) {
            remove(context, pod, Some("PodGC: node no longer exists")).await;
        }
    }
    for pod in all.iter().filter(|pod| pods::is_deleting(pod)) {
        if pods::node_name(pod).is_empty() {
            remove(context, pod, None).await;
        }
    }
}

/// Marks the pod as failed (with a DisruptionTarget condition if a message is given) and deletes it at once.
async fn remove(context: &Context, pod: &Pod, disruption: Option<&str>) {
    if let Err(error) = try_remove(context, pod, disruption).await {
        tracing::warn!(pod = %crate::Key::of(pod), %error, "could not collect pod");
    }
}

async fn try_remove(context: &Context, pod: &Pod, disruption: Option<&str>) -> kube::Result<()> {
    let api: Api<Pod> =
        Api::namespaced(context.client.clone(), &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    if !pods::is_finished(pod) {
        let conditions: Vec<_> = disruption
            .map(|message| {
                let now = context.now();
                let before = pods::condition(pod, "DisruptionTarget").filter(|condition| condition.status == "True");
                json!({
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": message,
                    "observedGeneration": pod.metadata.generation,
                    "lastTransitionTime": before.and_then(|before| before.last_transition_time.clone()).unwrap_or(now),
                })
            })
            .into_iter()
            .collect();
        // No kubelet will end the pod, and a finalizer may keep its object, so it would stay in its phase forever.
        let mut status = json!({"phase": "Failed"});
        if !conditions.is_empty() {
            status["conditions"] = conditions.into();
        }
        let patch = Patch::Strategic(json!({"status": status}));
        let patched = api
            .patch_status(&name, &PatchParams::default(), &patch)
            .await;
        if api_error::ignore_not_found(patched)?.is_none() {
            return Ok(());
        }
    }
    let uid = pod.meta().uid.clone();
    let params = DeleteParams::default()
        .grace_period(0)
        .preconditions(kube::api::Preconditions {
            uid,
            ..Default::default()
        });
    api_error::ignore_not_found(api.delete(&name, &params).await).map(drop)
}

/// Returns the finished pods beyond the limit, evicted ones first, then the oldest.
fn surplus_finished(all: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
    let mut finished: Vec<_> = all
        .iter()
        .filter(|pod| pods::is_finished(pod))
        .cloned()
        .collect();
    let surplus = finished.len().saturating_sub(FINISHED_LIMIT);
    if surplus == 0 {
        return Vec::new();
    }
    let rank = |pod: &Arc<Pod>| -> (bool, Option<Timestamp>, String) {
        let evicted = pod
            .status
            .as_ref()
            .and_then(|status| status.reason.as_deref())
            == Some("Evicted");
        (
            !evicted,
            pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            pod.name_any(),
        )
    };
    finished.sort_by_cached_key(rank);
    finished.truncate(surplus);
    finished
}

/// Returns whether a node is not ready and a user has tainted it as out of service.
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let tainted = taints
        .into_iter()
        .flatten()
        .any(|taint| taint.key == OUT_OF_SERVICE);
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .any(|one| one.type_ == "Ready" && one.status == "True");
    tainted && !ready
}

/// The time since which each node with bound pods has been missing.
#[derive(Debug, Default)]
struct MissingNodes {
    since: FxHashMap<String, Instant>,
}

impl MissingNodes {
    /// Records the nodes that are missing now; returns those that have been missing for long enough.
    fn update<'a>(&mut self, missing: impl Iterator<Item = &'a str>, now: Instant) -> Vec<String> {
        let mut still = FxHashMap::default();
        for node in missing {
            if !still.contains_key(node) {
                still.insert(
                    node.to_owned(),
                    self.since.get(node).copied().unwrap_or(now),
                );
            }
        }
        // A node that came back loses its time, so it starts anew if it goes missing again.
        self.since = still;
        let mut due: Vec<_> = self
            .since
            .iter()
            .filter(|(_, since)| now - **since >= QUARANTINE)
            .map(|(node, _)| node.clone())
            .collect();
        due.sort_unstable();
        due
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::core::v1::{NodeCondition, NodeSpec, NodeStatus, PodStatus, Taint},
        apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_must_be_missing_without_a_break() {
        let mut missing = MissingNodes::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            missing
                .update(["a", "b", "a"].into_iter(), at(0))
                .is_empty()
        );
        assert!(missing.update(["a"].into_iter(), at(20)).is_empty());
        assert_eq!(missing.update(["a", "b"].into_iter(), at(40)), ["a"]);
        assert_eq!(missing.update(["a", "b"].into_iter(), at(80)), ["a", "b"]);
    }

    #[test]
    fn the_oldest_finished_pods_beyond_the_limit_go_evicted_ones_first() {
        let finished = |index: usize, evicted: bool| {
            let second = i64::try_from(index).expect("a small number");
            let created = Time(Timestamp::from_second(second).expect("a small number of seconds"));
            Arc::new(Pod {
                metadata: ObjectMeta {
                    name: Some(format!("pod-{index}")),
                    creation_timestamp: Some(created),
                    ..ObjectMeta::default()
                },
                status: Some(PodStatus {
                    phase: Some("Failed".to_owned()),
                    reason: evicted.then(|| "Evicted".to_owned()),
                    ..PodStatus::default()
                }),
                ..Pod::default()
            })
        };
        let mut all: Vec<_> = (0..FINISHED_LIMIT)
            .map(|index| finished(index, false))
            .collect();
        all.push(Arc::new(Pod::default()));
        assert!(surplus_finished(&all).is_empty());
        all.extend([
            finished(FINISHED_LIMIT, false),
            finished(FINISHED_LIMIT + 1, true),
        ]);
        let names: Vec<_> = surplus_finished(&all)
            .iter()
            .map(|pod| pod.name_any())
            .collect();
        assert_eq!(
            names,
            [format!("pod-{}", FINISHED_LIMIT + 1), "pod-0".to_owned()]
        );
    }

    #[test]
    fn only_a_dead_node_is_out_of_service() {
        let node = |tainted: bool, ready: &str| Node {
            spec: Some(NodeSpec {
                taints: tainted.then(|| {
                    vec![Taint {
                        key: OUT_OF_SERVICE.to_owned(),
                        ..Taint::default()
                    }]
                }),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: Some(vec![NodeCondition {
                    type_: "Ready".to_owned(),
                    status: ready.to_owned(),
                    ..NodeCondition::default()
                }]),
                ..NodeStatus::default()
            }),
            ..Node::default()
        };
        assert!(is_out_of_service(&node(true, "Unknown")));
        assert!(!is_out_of_service(&node(true, "True")));
        assert!(!is_out_of_service(&node(false, "Unknown")));
    }
}
