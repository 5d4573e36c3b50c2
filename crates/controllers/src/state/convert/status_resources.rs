//! The resources of pods that are resized in place, as their status reports them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodStatus},
    apimachinery::pkg::api::resource::Quantity,
};
use mullion_engine::model::{self, PodTemplate, RESIZE_PENDING};

use super::resources;
use crate::pods;

/// The actual and allocated resources in a pod's status. Informers drop these fields if they equal the spec, so most pods
/// have none.
pub(in crate::state) struct StatusResources<'a> {
    status: &'a PodStatus,
    /// Whether the node cannot satisfy the pod's requested resize.
    pub(in crate::state) infeasible: bool,
}

/// Actual and allocated resources.
type Amounts<'a> = [Option<&'a BTreeMap<String, Quantity>>; 2];

impl<'a> StatusResources<'a> {
    pub(in crate::state) fn of(pod: &'a Pod) -> Option<Self> {
        let status = pod.status.as_ref()?;
        let pending = pods::condition(pod, RESIZE_PENDING.0);
        let reason = pending.and_then(|condition| condition.reason.as_deref());
        let held = StatusResources {
            status,
            infeasible: reason == Some(RESIZE_PENDING.1),
        };
        let some = held.of_pod().is_some()
            || held
                .statuses()
                .any(|container| container.resources.is_some());
        some.then_some(held)
    }

    fn statuses(&self) -> impl Iterator<Item = &'a ContainerStatus> {
        let others = self.status.init_container_statuses.iter().flatten();
        let all = self.status.container_statuses.iter().flatten();
        all.chain(others)
    }

    /// Returns the resources of a container.
    pub(in crate::state) fn of_container(&self, name: &str) -> Option<Amounts<'a>> {
        let status = self.statuses().find(|status| status.name == name)?;
        let has = status.resources.as_ref()?;
        Some([has.requests.as_ref(), status.allocated_resources.as_ref()])
    }

    /// Returns the resources of the pod as a whole, without its overhead.
    pub(in crate::state) fn of_pod(&self) -> Option<Amounts<'a>> {
        let has = self.status.resources.as_ref()?;
        let promised = self.status.allocated_resources.as_ref();
        Some([has.requests.as_ref(), promised])
    }
}

/// Raises the requests of a pod and its containers to the resources that they hold.
pub(super) fn hold(template: &mut PodTemplate, pod: &Pod) {
    let (Some(held), Some(spec)) = (StatusResources::of(pod), &pod.spec) else {
        return;
    };
    // The template was converted from this spec, so containers correspond by position.
    let all = template.containers.iter_mut().zip(&spec.containers);
    let others = template.init_containers.iter_mut();
    let others = others.zip(spec.init_containers.iter().flatten());
    // Among init containers, kube-scheduler considers only sidecars here.
    let sidecars = others.filter(|(container, _)| container.is_sidecar());
    for (container, body) in all.chain(sidecars) {
        if let Some(amounts) = held.of_container(&body.name) {
            let requests = &mut container.resources.requests;
            model::hold(requests, held.infeasible, &amounts.map(resources));
        }
    }
    if let Some(amounts) = held.of_pod() {
        let requests = &mut template.resources.requests;
        model::hold_pod_level(requests, held.infeasible, &amounts.map(resources));
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use mullion_engine::model::PodSpec;
    use serde_json::{Value, json};

    use crate::state::requests::held_requests;

    fn held(pod: &Value) -> PodSpec {
        let pod: Pod = serde_json::from_value(pod.clone()).expect("a pod");
        super::super::pod(&pod)
    }

    #[test]
    fn resized_pods_convert_as_the_model_reads_them() {
        let pod = |reason: &str, has: Value| {
            json!({
                "metadata": { "name": "a", "namespace": "n" },
                "spec": {
                    "resources": { "requests": { "memory": "1Gi" } }, "overhead": { "memory": "1Mi" },
                    "containers": [{ "name": "b" }, { "name": "a", "resources": { "requests": { "cpu": "2" } } }],
                    "initContainers": [{ "name": "s", "restartPolicy": "Always", "resources": { "requests": { "cpu": "1" } } }],
                },
                "status": {
                    "resources": { "requests": { "memory": "2Gi" } }, "allocatedResources": { "memory": "3Gi" },
                    "conditions": [{ "type": "PodResizePending", "status": "True", "reason": reason }],
                    "containerStatuses": [{ "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "resources": has }],
                    "initContainerStatuses": [{
                        "name": "s", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "resources": { "requests": { "cpu": "3" } }, "allocatedResources": { "cpu": "4" },
                    }],
                },
            })
        };
        let requests = |cpu: &str| json!({ "requests": { "cpu": cpu } });
        for (reason, has, cpu) in [
            ("Deferred", requests("1"), 2),
            ("Deferred", requests("5"), 5),
            ("Infeasible", requests("1"), 1),
        ] {
            let pod = pod(reason, has);
            let converted = held(&pod);
            let requests = &converted.template.containers[1].resources.requests;
            assert_eq!(requests["cpu"].value(), cpu, "{pod}");
            let read: PodSpec = serde_json::from_value(pod.clone()).expect("a pod");
            assert_eq!(converted, read);
            let pod: Pod = serde_json::from_value(pod).expect("a pod");
            let sums = held_requests(&pod);
            assert_eq!(sums["cpu"], (cpu + 4) * 1000, "{sums:?}");
            assert_eq!(sums["memory"], (3 << 30) + (1 << 20), "{sums:?}");
        }
    }
}
