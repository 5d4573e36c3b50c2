//! Creates and deletes pods until a Job has the right number of active ones (kube-controller-manager: `manageJob`).
//!
//! Invariant: a surplus pod loses its finalizer before it is deleted, so however it ends, the Job does not count
//! it. Only the pods of a Job that is over are deleted with the finalizer, and counted.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::Pod,
};

use super::{
    Controller, View,
    backoff::index_pause,
    pod::{self, Failures},
    tally::{self, Tally},
};
use crate::{
    Key, pods,
    workloads::{count, replica_set},
};

/// The most pods created or deleted per sync.
const BURST: usize = 500;

impl Controller {
    /// Deletes the active pods of a Job that is over; they are still counted. Returns the first error.
    pub(super) async fn delete_all(&self, view: &View<'_>, may_act: bool) -> Option<kube::Error> {
        if !may_act || view.tally.active.is_empty() {
            return None;
        }
        self.delete(view.key, view.job, &view.tally.active).await
    }

    async fn delete(&self, key: &Key, job: &Job, doomed: &[Arc<Pod>]) -> Option<kube::Error> {
        self.expectations
            .expect(key, 0, doomed.iter().map(|pod| Key::of(&**pod)));
        let failed = |pod: &Pod| {
            self.expectations.deleted(key, &Key::of(pod));
        };
        self.pods.delete(job, doomed, failed).await
    }

    /// Deletes surplus pods, which are not counted. Returns how many pods are active afterwards, and the first
    /// error.
    async fn dismiss(&self, view: &View<'_>, doomed: Vec<Arc<Pod>>) -> (i32, Option<kube::Error>) {
        let active = count(view.tally.active.len());
        // A pod that keeps its finalizer would be counted as failed when it ends by this deletion.
        let freed = join_all(doomed.iter().map(|pod| async {
            if pod::is_tracked(pod) {
                self.remove_finalizer(pod).await
            } else {
                Ok(())
            }
        }));
        let (mut free, mut first) = (Vec::with_capacity(doomed.len()), None);
        for (pod, freed) in doomed.iter().zip(freed.await) {
            match freed {
                Ok(()) => free.push(Arc::clone(pod)),
                Err(error) => first = first.or(Some(error)),
            }
        }
        // Pods that could not be freed are not deleted either; the error makes the next sync try again.
        if free.is_empty() {
            return (active, first);
        }
        let error = self.delete(view.key, view.job, &free).await;
        (active - count(free.len()), first.or(error))
    }

    /// Creates or deletes pods. Returns how many are active afterwards, and the first error.
    pub(super) async fn manage(&self, view: &View<'_>) -> (i32, Option<kube::Error>) {
        let View {
            key,
            job,
            spec,
            tally,
            ..
        } = view;
        let active = count(tally.active.len());
        let wanted = match spec.suspend {
            Some(true) => 0,
            _ => tally::wanted_of(spec, tally),
        };
        let surplus = usize::try_from(active - wanted).unwrap_or(0);
        let mut doomed = surplus_pods(spec, tally, surplus);
        doomed.truncate(BURST);
        if !doomed.is_empty() {
            // A sync either deletes or creates pods; the next one continues.
            return self.dismiss(view, doomed).await;
        }
        // With the replacement policy Failed, a terminating pod keeps its place until it has ended.
        let held = if tally::replaces_failed_only(spec) {
            tally.terminating
        } else {
            0
        };
        let missing = usize::try_from(wanted - active - held).unwrap_or(0);
        let missing = missing.min(BURST);
        if missing == 0 {
            return (active, None);
        }
        let bodies = match bodies(view, missing) {
            Ok(bodies) => bodies,
            Err(pause) => {
                self.queue.add_after((*key).clone(), pause);
                return (active, None);
            }
        };
        if bodies.is_empty() {
            return (active, None);
        }
        // Before the requests, because the watch may report the pods first.
        self.expectations.expect(key, bodies.len(), []);
        let failed = || {
            self.expectations.created(key);
        };
        let creations = self.pods.create(*job, &bodies, failed).await;
        (active + count(creations.created), creations.error)
    }
}

/// Returns at least `least` active pods to delete. Pods with an invalid or duplicate index come first and are all
/// included; then the least advanced pods follow (kube-controller-manager: `activePodsForRemoval`).
fn surplus_pods(spec: &JobSpec, tally: &Tally, least: usize) -> Vec<Arc<Pod>> {
    let (mut doomed, rest) = if tally::is_indexed(spec) {
        misplaced(spec, &tally.active)
    } else {
        (Vec::new(), tally.active.clone())
    };
    let more = least.saturating_sub(doomed.len());
    if more > 0 {
        doomed.extend(
            replica_set::least_advanced_first(rest)
                .into_iter()
                .take(more),
        );
    }
    doomed
}

/// Returns the pods to delete in any case, those with no valid index and all but the most advanced of an index, and
/// then the remaining pods.
fn misplaced(spec: &JobSpec, active: &[Arc<Pod>]) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let (placed, mut doomed): (Vec<_>, Vec<_>) = active
        .iter()
        .cloned()
        .partition(|pod| tally::in_range(spec, pod));
    let mut by_index = BTreeMap::<_, Vec<_>>::new();
    for pod in placed {
        by_index.entry(pod::index(&pod)).or_default().push(pod);
    }
    let mut rest = Vec::with_capacity(by_index.len());
    for pods in by_index.into_values() {
        let mut pods = replica_set::least_advanced_first(pods);
        // The most advanced pod of an index stays, since it has the most work to lose.
        rest.extend(pods.pop());
        doomed.extend(pods);
    }
    (doomed, rest)
}

/// Returns the request bodies of the missing pods, at most `missing`.
///
/// # Errors
/// Returns the time to wait if the back-off delays all of them.
fn bodies(view: &View<'_>, missing: usize) -> Result<Vec<Arc<Vec<u8>>>, Duration> {
    let View {
        job,
        spec,
        tally,
        now,
        ..
    } = view;
    let per_index = spec.backoff_limit_per_index.is_some();
    if !per_index
        // Without limits per index one back-off delays all pods of the Job.
        && let Some(pause) = Some(view.record.pause(*now)).filter(|pause| !pause.is_zero())
    {
        return Err(pause);
    }
    if !tally::is_indexed(spec) {
        let body = pod::body(job, None, None);
        return Ok(body.map(|body| vec![body; missing]).unwrap_or_default());
    }
    let held = tally::replaces_failed_only(spec);
    let holds = |pod: &&Arc<Pod>| pods::is_active(pod) || (held && pods::is_terminating(pod));
    let taken = view
        .all
        .iter()
        .filter(holds)
        .filter_map(|pod| pod::index(pod))
        .collect();
    let mut shortest: Option<Duration> = None;
    let mut bodies = Vec::new();
    for index in tally::open_indexes(spec, tally, &taken, missing) {
        let before = tally.replaced.get(&index);
        let pause = before.map_or(Duration::ZERO, |pod| index_pause(pod, *now));
        // Each index has its own back-off, so the others need not wait for this one.
        if !pause.is_zero() {
            shortest = Some(shortest.map_or(pause, |shortest| shortest.min(pause)));
            continue;
        }
        let failures = before.map(|pod| Failures::with(job, pod));
        let failures = per_index.then(|| failures.unwrap_or_default());
        bodies.extend(pod::body(job, Some(index), failures));
    }
    match shortest {
        Some(pause) if bodies.is_empty() => Err(pause),
        _ => Ok(bodies),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>, index: Option<&str>) -> Arc<Pod> {
        let annotations = index.map(|index| json!({ pod::INDEX: index }));
        let pod = json!({
            "metadata": {
                "name": name, "uid": name, "annotations": annotations,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": { "containers": [], "nodeName": node },
            "status": { "phase": "Pending" },
        });
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn doomed(active: &[Arc<Pod>], least: usize) -> Vec<String> {
        let spec = json!({ "completions": 3, "completionMode": "Indexed", "template": { "spec": { "containers": [] } } });
        let spec: JobSpec = serde_json::from_value(spec).expect("a spec");
        let tally = Tally {
            active: active.to_vec(),
            ..Tally::default()
        };
        let pods = surplus_pods(&spec, &tally, least);
        let names = pods.iter().filter_map(|pod| pod.metadata.name.clone());
        names.collect()
    }

    #[test]
    fn of_two_pods_of_an_index_the_one_that_has_come_farther_stays() {
        let pods = [
            pod("pending", None, Some("0")),
            pod("placed", Some("n"), Some("0")),
            pod("other", None, Some("1")),
        ];
        assert_eq!(doomed(&pods, 0), ["pending"]);
        assert_eq!(doomed(&pods, 2), ["pending", "other"]);
    }

    #[test]
    fn pods_without_an_index_that_there_is_go_first() {
        let pods = [
            pod("placed", Some("n"), Some("0")),
            pod("beyond", Some("n"), Some("3")),
            pod("none", Some("n"), None),
            pod("odd", Some("n"), Some("-1")),
        ];
        assert_eq!(doomed(&pods, 1), ["beyond", "none", "odd"]);
    }
}
