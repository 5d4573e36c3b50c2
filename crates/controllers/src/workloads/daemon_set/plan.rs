//! Decides which daemon pods to create and delete: the steady state and the rolling update. Pure.
//!
//! The input is a [`View`] per node, the output a [`Plan`]; a failed plan is made again from a fresh view. Nodes
//! are visited in the order of their names, so equal clusters give equal plans.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::eligibility::Eligibility;
use crate::pods;

pub(super) const HASH_LABEL: &str = "controller-revision-hash";
pub(super) const GENERATION_LABEL: &str = "pod-template-generation";

/// A node and the DaemonSet's pods that are meant for it.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// `None` for a node that does not exist, or no longer.
    pub(super) eligibility: Option<Eligibility>,
    pub(super) pods: Vec<Arc<Pod>>,
}

/// Views by node name.
pub(super) type Views = BTreeMap<String, View>;

/// The template revision that pods should have.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub(super) hash: String,
    pub(super) generation: Option<i64>,
    pub(super) min_ready_seconds: i32,
}

impl Revision {
    pub(super) fn is_current(&self, pod: &Pod) -> bool {
        let labels = pod.labels();
        let generation = self.generation.map(|generation| generation.to_string());
        labels.get(HASH_LABEL) == Some(&self.hash)
            // Pods from before ControllerRevisions had only this label; upstream still accepts it.
            || (generation.is_some() && labels.get(GENERATION_LABEL) == generation.as_ref())
    }

    pub(super) fn is_available(&self, pod: &Pod, now: Timestamp) -> bool {
        pods::is_available(pod, self.min_ready_seconds, now)
    }
}

/// The pods to create and delete.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Nodes on which a pod is created.
    pub(super) create_on: Vec<String>,
    /// Pods to delete.
    pub(super) delete: Vec<Arc<Pod>>,
    /// The pods in `delete` that failed, with their node; their deletion is subject to the back-off.
    pub(super) failed: Vec<(String, Arc<Pod>)>,
    /// The pods in `delete` that succeeded, which a daemon should never do, with their node.
    pub(super) succeeded: Vec<(String, Arc<Pod>)>,
}

/// Plans towards one pod on every node that should have one. With `surging`, an old pod may stay beside a new one
/// during an update.
pub(super) fn steady(views: &Views, revision: &Revision, surging: bool, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    for (node, view) in views {
        let living = view.pods.iter().filter(|pod| !pods::is_deleting(pod));
        match view.eligibility {
            // The pod garbage collector deletes bound pods of vanished nodes, but an unbound pod would wait for its
            // node forever.
            None => plan.delete.extend(
                living
                    .filter(|pod| pods::node_name(pod).is_empty())
                    .cloned(),
            ),
            Some(Eligibility {
                should_run: true, ..
            }) if view.pods.is_empty() => plan.create_on.push(node.clone()),
            Some(Eligibility {
                may_stay: false, ..
            }) => plan.delete.extend(living.cloned()),
            Some(Eligibility { should_run, .. }) => {
                let mut running = Vec::new();
                for pod in living {
                    match pods::phase(pod) {
                        "Failed" => plan.failed.push((node.clone(), Arc::clone(pod))),
                        "Succeeded" => plan.succeeded.push((node.clone(), Arc::clone(pod))),
                        _ => running.push(Arc::clone(pod)),
                    }
                }
                // A failed or succeeded pod is out of the count before the oldest is chosen, or a dead pod
                // could win.
                running.sort_by_key(seniority);
                if !surging {
                    plan.delete.extend(running.into_iter().skip(1));
                } else if running.len() > 1 {
                    prune_surge(running, revision, now, &mut plan.delete);
                } else if running.is_empty() && should_run {
                    plan.create_on.push(node.clone());
                }
            }
        }
    }
    plan
}

/// Returns the sort key by which the first of several pods on a node is kept: bound before unbound, then older,
/// then by name.
fn seniority(pod: &Arc<Pod>) -> (bool, Option<Timestamp>, String) {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (pods::node_name(pod).is_empty(), created, pod.name_any())
}

/// Keeps, of several pods on a node, the oldest new one, and the oldest old one while it serves and the new one
/// does not.
fn prune_surge(
    running: Vec<Arc<Pod>>,
    revision: &Revision,
    now: Timestamp,
    delete: &mut Vec<Arc<Pod>>,
) {
    let (mut newest, mut former) = (None, None);
    for pod in running {
        let is_new = pod.labels().get(HASH_LABEL) == Some(&revision.hash);
        let slot = if is_new { &mut newest } else { &mut former };
        if slot.is_none() {
            *slot = Some(pod)
        } else {
            delete.push(pod)
        }
    }
    if let (Some(new), Some(old)) = (newest, former)
        // An old pod that does not serve protects nothing, so it need not wait for the new one.
        && (!pods::is_ready(&old) || revision.is_available(&new, now))
    {
        delete.push(old);
    }
}

/// Plans one step of replacing old pods. With surge, new pods are created beside old ones; without, old pods are
/// deleted first.
pub(super) fn rolling(
    views: &Views,
    revision: &Revision,
    surge: usize,
    unavailable: usize,
    now: Timestamp,
) -> Plan {
    if surge == 0 {
        replace(views, revision, unavailable, now)
    } else {
        surge_over(views, revision, surge, now)
    }
}

fn replace(views: &Views, revision: &Revision, most_unavailable: usize, now: Timestamp) -> Plan {
    let (mut unavailable, mut at_once, mut candidates) = (0, Vec::new(), Vec::new());
    for view in views.values().filter(|view| view.concerns_update()) {
        match view.by_revision(revision) {
            ByRevision::New(pod) => unavailable += usize::from(!revision.is_available(&pod, now)),
            ByRevision::Old(pod) if revision.is_available(&pod, now) => candidates.push(pod),
            ByRevision::Old(pod) => {
                // The pod does not serve, so replacing it costs nothing.
                unavailable += 1;
                at_once.push(pod);
            }
            ByRevision::None | ByRevision::Both { .. } | ByRevision::Crowd => unavailable += 1,
        }
    }
    // Only pods that serve count against the limit; those that do not are replaced without it.
    candidates.truncate(most_unavailable.saturating_sub(unavailable));
    at_once.append(&mut candidates);
    Plan {
        delete: at_once,
        ..Plan::default()
    }
}

fn surge_over(views: &Views, revision: &Revision, most_surging: usize, now: Timestamp) -> Plan {
    let (mut desired, mut available, mut surging) = (0, 0, 0);
    let (mut at_once, mut candidates) = (Vec::new(), Vec::new());
    let (mut delete, mut unwanted) = (Vec::new(), Vec::new());
    for (node, view) in views.iter().filter(|(_, view)| view.concerns_update()) {
        let should_run = view.should_run();
        desired += usize::from(should_run);
        let pods = view.by_revision(revision);
        let serves = pods
            .serving()
            .is_some_and(|pod| revision.is_available(pod, now));
        available += usize::from(serves);
        match pods {
            ByRevision::None | ByRevision::New(_) => {}
            ByRevision::Crowd => surging += 1,
            ByRevision::Old(_) if view.eligibility.is_none() => {}
            ByRevision::Old(_) if should_run && serves => candidates.push(node.clone()),
            ByRevision::Old(_) if should_run => at_once.push(node.clone()),
            ByRevision::Old(pod) if serves => unwanted.push(pod),
            ByRevision::Old(pod) => delete.push(pod),
            ByRevision::Both { new, old } => {
                if revision.is_available(&new, now) {
                    delete.push(old);
                } else {
                    surging += 1;
                }
            }
        }
    }
    candidates.truncate(most_surging.saturating_sub(surging));
    at_once.append(&mut candidates);
    // A DaemonSet with surge expects full service: pods on nodes that no longer want one stay until enough others
    // serve.
    unwanted.truncate(available.saturating_sub(desired));
    delete.append(&mut unwanted);
    Plan {
        create_on: at_once,
        delete,
        ..Plan::default()
    }
}

enum ByRevision {
    None,
    New(Arc<Pod>),
    Old(Arc<Pod>),
    Both {
        new: Arc<Pod>,
        old: Arc<Pod>,
    },
    /// More than one new or more than one old pod: the steady state has to delete the surplus first.
    Crowd,
}

impl ByRevision {
    /// Returns the pod that serves on a surging node: the old one as long as it exists.
    fn serving(&self) -> Option<&Pod> {
        match self {
            Self::Old(pod) | Self::Both { old: pod, .. } | Self::New(pod) => Some(pod),
            Self::None | Self::Crowd => None,
        }
    }
}

impl View {
    fn should_run(&self) -> bool {
        self.eligibility
            .is_some_and(|eligibility| eligibility.should_run)
    }

    /// Returns whether a rolling update concerns this node: it should run a pod or has one.
    fn concerns_update(&self) -> bool {
        !self.pods.is_empty() || self.should_run()
    }

    fn by_revision(&self, revision: &Revision) -> ByRevision {
        let (mut new, mut old) = (None, None);
        for pod in self.pods.iter().filter(|pod| !pods::is_deleting(pod)) {
            let slot = if revision.is_current(pod) {
                &mut new
            } else {
                &mut old
            };
            if slot.replace(Arc::clone(pod)).is_some() {
                return ByRevision::Crowd;
            }
        }
        match (new, old) {
            (None, None) => ByRevision::None,
            (Some(new), None) => ByRevision::New(new),
            (None, Some(old)) => ByRevision::Old(old),
            (Some(new), Some(old)) => ByRevision::Both { new, old },
        }
    }

    /// Returns the pod that represents the node in the status.
    pub(super) fn senior(&self) -> Option<&Arc<Pod>> {
        self.pods.iter().min_by_key(|pod| seniority(pod))
    }
}

#[cfg(test)]
mod tests;
