//! Measures how long pods wait for a node and until they are ready (core: `controllers/metrics/pod`).
//!
//! Only pods that were seen while pending count, as in Karpenter: nothing is known about pods that were ready before
//! this process started.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Metric, Metrics};
use crate::{
    pods,
    provisioner::{KarpenterContext, pending::is_provisionable},
};

/// What is known of a pod that was seen while it was pending and has not been ready since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    /// Whether the time until it was bound has been counted.
    is_counted: bool,
    /// The time at which it was first seen to need a new node.
    pub(super) seen: Option<Timestamp>,
    /// The time of the first plan that considered it.
    pub(super) decided: Option<Timestamp>,
    /// The time since which every plan has had a place for it.
    pub(super) placed: Option<Timestamp>,
}

/// Pods that wait, by uid.
#[derive(Clone, Debug, Default)]
pub(in crate::provisioner) struct Waiting(Arc<Mutex<HashMap<String, Wait>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is recorded about a pod that has not been ready yet.
    pub(super) fn of(&self, uid: &str) -> Option<Wait> {
        self.lock().get(uid).copied()
    }
}

impl Metrics {
    /// Records that a plan has considered a pod, and whether the plan has a place for it.
    pub(in crate::provisioner) fn decided(&self, pod: &Pod, has_place: bool, now: Timestamp) {
        let uid = pod.uid().unwrap_or_default();
        let first = {
            let mut waiting = self.waiting.lock();
            let Some(wait) = waiting.get_mut(&uid) else {
                return;
            };
            wait.placed = if has_place {
                wait.placed.or(Some(now))
            } else {
                // A later place starts a new wait.
                None
            };
            match wait.decided.replace(wait.decided.unwrap_or(now)) {
                None => wait.seen,
                Some(_) => None,
            }
        };
        if let Some(seen) = first {
            let took = now.duration_since(seen).as_secs_f64();
            self.observe(Metric::SchedulingDecision, &[], took);
        }
    }
}

/// Follows pods from now on.
pub(in crate::provisioner) fn watch(karpenter: &KarpenterContext) {
    let (metrics, clock) = (karpenter.metrics.clone(), karpenter.base.clock.clone());
    for kind in ["multi", "single"] {
        // Nothing times out, and dashboards see that.
        metrics.add(
            Metric::ConsolidationTimeouts,
            &[("consolidation_type", kind)],
            0.0,
        );
    }
    karpenter.base.informers.pods.on_change(move |change| {
        let pod = change.object();
        let uid = pod.uid().unwrap_or_default();
        if change.is_deleted() {
            metrics.waiting.lock().remove(&uid);
        } else {
            note(&metrics, pod, uid, clock.now())
        }
    });
}

fn note(metrics: &Metrics, pod: &Pod, uid: String, now: Timestamp) {
    if pods::phase(pod) == "Pending" {
        let mut waiting = metrics.waiting.lock();
        let wait = waiting.entry(uid).or_default();
        if is_provisionable(pod) {
            wait.seen = wait.seen.or(Some(now));
        }
        return;
    }
    let Some(wait) = metrics.waiting.of(&uid) else {
        return;
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let since = |from: Option<Timestamp>, at: Timestamp| {
        from.map(|from| at.duration_since(from).as_secs_f64())
    };
    let scheduled = pods::condition(pod, "PodScheduled").filter(|own| own.status == "True");
    let bound = scheduled.and_then(|own| own.last_transition_time.as_ref());
    let ready = pods::ready_since(pod);
    let ends = [
        (
            bound.map(|at| at.0).filter(|_| !wait.is_counted),
            [Metric::PodsBound, Metric::ProvisioningBound],
        ),
        (ready, [Metric::PodsStartup, Metric::ProvisioningStartup]),
    ];
    for (at, [whole, planned]) in ends {
        let Some(at) = at else { continue };
        for (metric, from) in [(whole, created), (planned, wait.placed)] {
            if let Some(seconds) = since(from, at) {
                metrics.observe(metric, &[], seconds);
            }
        }
    }
    if bound.is_some()
        && let Some(wait) = metrics.waiting.lock().get_mut(&uid)
    {
        wait.is_counted = true;
    }
    // A pod that becomes unready and ready again must not be counted twice.
    if ready.is_some() || pods::is_finished(pod) {
        metrics.waiting.lock().remove(&uid);
    }
}
