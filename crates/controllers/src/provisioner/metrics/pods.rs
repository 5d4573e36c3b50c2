//! How long pods wait for a node, and until they are ready (core: `controllers/metrics/pod`).
//!
//! Only pods that were seen while they were pending count, as in Karpenter: what was ready before this process says nothing about it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::{Metric, Metrics};
use crate::{pods, provisioner::KarpenterContext};

/// Pods that were seen while they were pending and have not been ready since, by uid, and whether their node has been counted.
#[derive(Clone, Debug, Default)]
pub(in crate::provisioner) struct Waiting(Arc<Mutex<HashMap<String, bool>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a pod has not been ready yet.
    pub(super) fn has(&self, uid: &str) -> bool {
        self.lock().contains_key(uid)
    }
}

/// Follows pods from now on.
pub(in crate::provisioner) fn watch(karpenter: &KarpenterContext) {
    let metrics = karpenter.metrics.clone();
    karpenter.base.informers.pods.on_change(move |change| {
        let pod = change.object();
        let uid = pod.uid().unwrap_or_default();
        match change.is_deleted() {
            true => drop(metrics.waiting.lock().remove(&uid)),
            false => note(&metrics, pod, uid),
        }
    });
}

fn note(metrics: &Metrics, pod: &Pod, uid: String) {
    if pods::phase(pod) == "Pending" {
        metrics.waiting.lock().entry(uid).or_default();
        return;
    }
    let Some(is_counted) = metrics.waiting.lock().get(&uid).copied() else {
        return;
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let seconds = |at: Timestamp| created.map(|created| at.duration_since(created).as_secs_f64());
    let scheduled = pods::condition(pod, "PodScheduled").filter(|own| own.status == "True");
    let bound = scheduled
        .and_then(|own| own.last_transition_time.as_ref())
        .and_then(|at| seconds(at.0));
    if let Some(bound) = bound.filter(|_| !is_counted) {
        metrics.observe(Metric::PodsBound, &[], bound);
        metrics.waiting.lock().insert(uid.clone(), true);
    }
    let ready = pods::ready_since(pod).and_then(seconds);
    if let Some(ready) = ready {
        metrics.observe(Metric::PodsStartup, &[], ready);
    }
    if ready.is_some() || pods::is_finished(pod) {
        metrics.waiting.lock().remove(&uid);
    }
}
