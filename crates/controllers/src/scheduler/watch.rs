//! Turns changes of pods and nodes into inputs of the scheduling loop.
//!
//! Handlers run on the informers' tasks and only classify changes: a pending pod for this scheduler, a pod that is no
//! longer pending, or an event that may help refused pods (kube-scheduler: `eventhandlers.go`).

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Pod, PodResourceClaimStatus},
    resource::v1::ResourceClaim,
};
use mullion_engine::profile::DEFAULT_SCHEDULER;
use tokio::sync::mpsc;

use super::{
    hints,
    queue::Entry,
    requirements::PodRequirements,
    wake::{Event, NodeChanges},
    writer::Outcome,
};
use crate::{Change, Context, resource_claims::pod_claims::extended, state::convert};

/// An input of the scheduling loop.
#[derive(Debug)]
pub(super) enum Input {
    /// A pod without a node appeared or changed.
    Pending(Arc<Pod>),
    /// A pod is no longer pending.
    Settled(Arc<Pod>),
    /// Something happened that may help refused pods.
    Event(Event),
    /// A ResourceClaim was written for a pod that is being bound.
    Wrote(Box<ResourceClaim>),
    /// A binding finished.
    Bound(Box<Entry>, Outcome),
    /// A bound pod was deleted or is being deleted.
    Leaving(Arc<Pod>),
    /// The last of the pods that preemption evicts for this one is about to be evicted.
    Evicting { pod: Arc<Pod>, last: Arc<Pod> },
    /// A victim of preemption was not evicted.
    Spared(Arc<Pod>),
    /// Preemption for a pod failed.
    NotEvicted(Arc<Pod>),
}

/// Starts to report pods and nodes; pending pods only if their scheduler is one of `names`.
pub(super) fn start(
    context: &Context,
    inputs: &mpsc::UnboundedSender<Input>,
    names: BTreeSet<String>,
) {
    watch_pods(context, inputs.clone(), names);
    watch_nodes(context, inputs.clone());
}

fn watch_pods(context: &Context, inputs: mpsc::UnboundedSender<Input>, names: BTreeSet<String>) {
    let is_ours = move |pod: &Pod| names.contains(scheduler_name(pod));
    context.informers.pods.on_change(move |change| {
        // A send fails only when the process stops.
        let report = |input| {
            let _ = inputs.send(input);
        };
        let pod = change.object();
        let gone = change.is_deleted() || convert::is_finished(pod);
        if convert::node_name(pod).is_some() {
            let was_pending = |old: &Arc<Pod>| convert::node_name(old).is_none();
            // A pod that appears with a node was never in this queue.
            if change.previous().is_some_and(was_pending) && is_ours(pod) {
                report(Input::Settled(Arc::clone(pod)));
            }
            if is_leaving(change) {
                report(Input::Leaving(Arc::clone(pod)));
            }
            bound_pod_events(change, gone, |event| report(Input::Event(event)));
        } else if is_ours(pod) {
            match change {
                _ if gone => report(Input::Settled(Arc::clone(pod))),
                // Without this check each refusal's own status write would come back as a change and cost a
                // pass of the queue.
                Change::Updated { old, new } if is_same_to_scheduler(old, new) => {}
                _ => report(Input::Pending(Arc::clone(pod))),
            }
            if let Some(old) = dropped_nomination(change, gone) {
                report(Input::Event(Event::NominationDropped(Arc::clone(old))));
            }
        }
    });
}

/// Returns whether a pod was deleted or got its deletion timestamp with this change. A deleted pod may be reported
/// twice.
fn is_leaving(change: &Change<'_, Pod>) -> bool {
    let is_marked = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    match change {
        Change::Added(_) => false,
        Change::Deleted(_) => true,
        Change::Updated { old, new } => !is_marked(old) && is_marked(new),
    }
}

fn watch_nodes(context: &Context, inputs: mpsc::UnboundedSender<Input>) {
    context.informers.nodes.on_change(move |change| {
        let event = match change {
            Change::Added(node) => Event::NodeAdded(Arc::clone(node)),
            Change::Updated { old, new } => match node_event(old, new) {
                Some(event) => event,
                None => return,
            },
            Change::Deleted(node) => Event::NodeDeleted(Arc::clone(node)),
        };
        let _ = inputs.send(Input::Event(event));
    });
}

fn node_event(old: &Arc<Node>, new: &Arc<Node>) -> Option<Event> {
    let changes = NodeChanges::between(old, new);
    changes.any().then(|| Event::NodeUpdated {
        old: Arc::clone(old),
        new: Arc::clone(new),
        changes,
    })
}

/// Reports the events that a change of a bound pod means for refused pods; one change may mean several.
fn bound_pod_events(change: &Change<'_, Pod>, gone: bool, mut report: impl FnMut(Event)) {
    match change {
        Change::Added(pod) if !gone => report(Event::PodAdded(Arc::clone(pod))),
        Change::Added(_) => {}
        // The pod released its resources when it finished; its deletion frees nothing.
        Change::Deleted(pod) if convert::is_finished(pod) => {}
        Change::Deleted(pod) => report(Event::PodDeleted(Arc::clone(pod))),
        Change::Updated { old, .. } if convert::is_finished(old) => {}
        Change::Updated { old, .. } if gone => report(Event::PodDeleted(Arc::clone(old))),
        Change::Updated { old, new } if convert::node_name(old).is_none() => {
            report(Event::PodAdded(Arc::clone(new)));
        }
        Change::Updated { old, new } => {
            let versions = || (Arc::clone(old), Arc::clone(new));
            if old.metadata.labels != new.metadata.labels {
                let (old, new) = versions();
                report(Event::PodLabels { old, new });
            }
            if hints::scaled_down(old, new, &PodRequirements::default()) {
                let (old, new) = versions();
                report(Event::PodScaledDown { old, new });
            }
        }
    }
}

/// Returns the previous version of a waiting pod that lost its nominated node by this change.
fn dropped_nomination<'a>(change: &Change<'a, Pod>, gone: bool) -> Option<&'a Arc<Pod>> {
    let (old, kept) = match change {
        Change::Added(_) => return None,
        Change::Deleted(pod) => (*pod, None),
        Change::Updated { old, new } => (*old, nominated(new).filter(|_| !gone)),
    };
    let held = nominated(old);
    (held.is_some() && held != kept).then_some(old)
}

/// Returns the pod's nominated node.
fn nominated(pod: &Pod) -> Option<&str> {
    let node = pod.status.as_ref()?.nominated_node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

/// Returns the name of the scheduler that the pod is for.
pub(super) fn scheduler_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    let name = spec.and_then(|spec| spec.scheduler_name.as_deref());
    name.filter(|name| !name.is_empty())
        .unwrap_or(DEFAULT_SCHEDULER)
}

/// Returns whether an update of a pending pod changes nothing that the scheduler reads, as the write of its own refusal
/// does.
fn is_same_to_scheduler(old: &Pod, new: &Pod) -> bool {
    old.spec == new.spec
        && old.metadata.labels == new.metadata.labels
        && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && nominated(old) == nominated(new)
        && claim_names(old) == claim_names(new)
}

/// Returns the names of the ResourceClaims that were created for the pod.
fn claim_names(pod: &Pod) -> (Option<&Vec<PodResourceClaimStatus>>, Option<&str>) {
    let status = pod.status.as_ref();
    let made = status.and_then(|status| status.resource_claim_statuses.as_ref());
    (made, extended(pod))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(labels: Value, spec: Value, status: Value) -> Arc<Pod> {
        let pod = json!({ "metadata": { "name": "a", "labels": labels }, "spec": spec, "status": status });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn nominated(node: Option<&str>) -> Arc<Pod> {
        pod(
            json!({}),
            json!({ "containers": [] }),
            json!({ "nominatedNodeName": node }),
        )
    }

    #[test]
    fn room_held_for_a_waiting_pod_is_dropped_when_it_goes_or_is_held_elsewhere() {
        let (here, there, nowhere) = (
            nominated(Some("n1")),
            nominated(Some("n2")),
            nominated(None),
        );
        let dropped = |old: &Arc<Pod>, new: &Arc<Pod>| {
            dropped_nomination(&Change::Updated { old, new }, false).is_some()
        };
        assert!(dropped(&here, &there) && dropped(&here, &nowhere));
        assert!(!dropped(&here, &here) && !dropped(&nowhere, &here));
        assert!(dropped_nomination(&Change::Deleted(&here), true).is_some());
        assert!(dropped_nomination(&Change::Deleted(&nowhere), true).is_none());
        assert!(dropped_nomination(&Change::Added(&here), false).is_none());
    }

    #[test]
    fn a_bound_pod_that_is_relabelled_and_shrunk_at_once_is_two_events() {
        let container =
            |cpu: &str| json!({ "name": "c", "resources": { "requests": { "cpu": cpu } } });
        let bound = |app: &str, cpu: &str| {
            let spec = json!({ "nodeName": "n", "containers": [container(cpu)] });
            pod(json!({ "app": app }), spec, json!({}))
        };
        let (old, new) = (bound("a", "2"), bound("b", "1"));
        let mut events = Vec::new();
        let change = Change::Updated {
            old: &old,
            new: &new,
        };
        bound_pod_events(&change, false, |event| events.push(event));
        assert!(
            matches!(
                events[..],
                [Event::PodLabels { .. }, Event::PodScaledDown { .. }]
            ),
            "{events:?}"
        );
    }

    #[test]
    fn the_scheduler_looks_again_at_a_pod_that_was_promised_a_node_but_not_at_its_conditions() {
        let refused = pod(
            json!({}),
            json!({ "containers": [] }),
            json!({ "conditions": [{ "type": "PodScheduled", "status": "False" }] }),
        );
        assert!(is_same_to_scheduler(&nominated(None), &refused));
        assert!(!is_same_to_scheduler(&refused, &nominated(Some("n1"))));
    }
}
