//! Determines the time of the change that causes endpoints to be written, for the annotation from which the network
//! programming latency is measured.
//!
//! The time is that of the earliest new cause: the creation of the Service, or the readiness of a pod that has
//! changed since the last observation (endpointslice: `TriggerTimeTracker`). Without a new cause there is no time.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use rustc_hash::FxHashMap;

use crate::{Key, pods};

const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The state of each Service when it was last observed.
#[derive(Debug, Default)]
pub(super) struct TriggerTimes {
    services: Mutex<FxHashMap<Key, ServiceState>>,
}

#[derive(Debug, Default)]
struct ServiceState {
    created: Option<Timestamp>,
    /// The last transition of the Ready condition, by pod name.
    pods: FxHashMap<String, Timestamp>,
}

impl TriggerTimes {
    /// Observes a Service and all pods that it selects. Returns the time of the earliest change since the last
    /// observation.
    pub(super) fn observe(
        &self,
        key: &Key,
        service: &Service,
        members: &[Arc<Pod>],
    ) -> Option<Timestamp> {
        let created = service.creation_timestamp().map(|time| time.0);
        let ready_at = |pod: &Arc<Pod>| {
            let ready = pods::condition(pod, "Ready")?;
            Some((pod.name_any(), ready.last_transition_time.as_ref()?.0))
        };
        let state = ServiceState {
            created,
            pods: members.iter().filter_map(ready_at).collect(),
        };
        let mut services = self.lock();
        // The state is replaced at every sync, also when nothing is written, so that a cause is reported
        // once.
        let before = services.remove(key);
        let now = services.entry(key.clone()).or_insert(state);
        // The Service is new here: only its creation can be the trigger.
        let Some(before) = before else {
            return created;
        };
        let moved = now
            .pods
            .iter()
            .filter(|(name, at)| before.pods.get(*name).is_none_or(|known| known < *at))
            .map(|(_, at)| *at);
        let recreated = created.filter(|at| before.created < Some(*at));
        moved.chain(recreated).min()
    }

    /// Forgets a deleted Service.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<Key, ServiceState>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets the annotation to the time, or removes it if the object is written for another reason.
pub(super) fn annotate(annotations: &mut Option<BTreeMap<String, String>>, at: Option<Timestamp>) {
    match at {
        // An older time must not stay when the object is written for another reason; the latency would be
        // measured from it.
        Some(at) => {
            annotations
                .get_or_insert_default()
                .insert(ANNOTATION.to_owned(), at.to_string());
        }
        None => {
            if let Some(present) = annotations {
                present.remove(ANNOTATION);
            }
            annotations.take_if(|left| left.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::service::backend::tests::{pod, service};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a small number of seconds")
    }

    fn ready_since(name: &str, second: i64) -> Arc<Pod> {
        let mut pod = pod(name, "10.1.0.1", true, 80);
        let conditions = pod
            .status
            .as_mut()
            .and_then(|status| status.conditions.as_mut());
        conditions.expect("set by pod")[0].last_transition_time = Some(Time(at(second)));
        Arc::new(pod)
    }

    #[test]
    fn the_earliest_new_cause_gives_the_time() {
        let (times, key) = (TriggerTimes::default(), Key::new("ns", "web"));
        let mut service = service(vec![]);
        service.metadata.creation_timestamp = Some(Time(at(100)));
        let first = times.observe(&key, &service, &[ready_since("a", 50)]);
        assert_eq!(first, Some(at(100)), "a new Service is its own cause");
        let same = [ready_since("a", 50)];
        assert_eq!(times.observe(&key, &service, &same), None);
        let changed = [ready_since("a", 130), ready_since("b", 120)];
        assert_eq!(times.observe(&key, &service, &changed), Some(at(120)));
        assert_eq!(
            times.observe(&key, &service, &changed[1..]),
            None,
            "a pod that leaves has no time"
        );
        times.forget(&key);
        assert_eq!(times.observe(&key, &service, &changed), Some(at(100)));
    }

    #[test]
    fn an_object_written_without_a_cause_loses_the_annotation() {
        let mut annotations = None;
        annotate(&mut annotations, Some(at(1_700_000_000)));
        let written = annotations.as_ref().and_then(|all| all.get(ANNOTATION));
        assert_eq!(written.map(String::as_str), Some("2023-11-14T22:13:20Z"));
        annotate(&mut annotations, None);
        assert_eq!(annotations, None);
    }
}
