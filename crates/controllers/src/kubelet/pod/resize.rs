//! What a kubelet says when the resources of a pod were changed in place (upstream: pkg/kubelet/events/resize.go). In a simulation there is
//! nothing between the allocation and the runtime having done it, so one event follows the other.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceClaim},
    apimachinery::pkg::api::resource::Quantity,
};
use serde::Serialize;

use super::{Life, PodSim};

impl PodSim {
    /// Says that the pod was resized, if it was and holds what it is given.
    pub(super) fn tell_of_resize(&mut self, before: &Pod) {
        if self.life != Life::Active || !is_resized(before, &self.pod) {
            return;
        }
        let summary = summary(&self.pod);
        for (reason, words) in [
            ("ResizeStarted", "Pod resize started"),
            ("ResizeCompleted", "Pod resize completed"),
        ] {
            self.event(false, reason, format!("{words}: {summary}"), None);
        }
    }
}

fn is_resized(before: &Pod, pod: &Pod) -> bool {
    let (Some(before), Some(spec)) = (&before.spec, &pod.spec) else {
        return false;
    };
    let containers = |list: &[Container], other: &[Container]| {
        let mut pairs = list.iter().zip(other);
        pairs.any(|(one, other)| one.resources != other.resources)
    };
    let [init, init_before] = [spec, before].map(|spec| spec.init_containers.as_deref());
    before.resources != spec.resources
        || containers(&before.containers, &spec.containers)
        || containers(init_before.unwrap_or_default(), init.unwrap_or_default())
}

/// What each container has, in the order of Go's fields.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<Named<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<Named<'a>>,
    generation: i64,
}

#[derive(Serialize)]
struct Named<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

type Amounts = BTreeMap<String, Quantity>;

#[derive(Default, Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a Amounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a Amounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claims: Option<&'a [ResourceClaim]>,
}

impl<'a> Named<'a> {
    fn of(container: &'a Container) -> Self {
        let given = |list: &'a Option<Amounts>| list.as_ref().filter(|list| !list.is_empty());
        let resources = container.resources.as_ref();
        Named {
            name: &container.name,
            resources: resources.map_or_else(Resources::default, |resources| Resources {
                limits: given(&resources.limits),
                requests: given(&resources.requests),
                claims: resources.claims.as_deref(),
            }),
        }
    }
}

fn summary(pod: &Pod) -> String {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref());
    let summary = Summary {
        init_containers: init.into_iter().flatten().map(Named::of).collect(),
        containers: spec
            .into_iter()
            .flat_map(|spec| &spec.containers)
            .map(Named::of)
            .collect(),
        generation: pod.metadata.generation.unwrap_or_default(),
    };
    // Plain data, which JSON can always express.
    serde_json::to_string(&summary).unwrap_or_default()
}
