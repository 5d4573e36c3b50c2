//! What a kubelet does when the resources of a pod were changed in place, and what it says of it (upstream: pkg/kubelet/allocation and
//! pkg/kubelet/events/resize.go). A resize for which there is no room waits, and the pod goes on with what it has. In a simulation there is
//! nothing between a grant and the runtime having done it, so one event follows the other, unless containers have to be started again for it
//! (`resizePolicy`).

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodCondition, ResourceClaim},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use serde::Serialize;

use super::{Life, Parts, PodSim, container_of, grace_ends};
use crate::{
    kubelet::{admit::Pending, container::State},
    pods,
};

/// The condition of a pod whose resize waits.
pub(in crate::kubelet) const PENDING: &str = "PodResizePending";

/// A resize that the pod asks for and does not have.
#[derive(Clone, Debug)]
pub(super) struct Resize {
    /// The version of the pod with the resources it has.
    has: Arc<Pod>,
    told: Option<Told>,
}

/// The containers that a resize starts again.
#[derive(Clone, Debug)]
pub(super) struct Replacing {
    /// Their places, with how often each had been started.
    units: Vec<(usize, i32)>,
    told: bool,
    since: Timestamp,
}

/// Why it waits, as it was said.
#[derive(Clone, Debug)]
struct Told {
    pending: Pending,
    generation: Option<i64>,
    since: Timestamp,
}

impl PodSim {
    /// The version of the pod whose resources it has: the newest, unless a resize waits.
    pub fn granted(&self) -> &Arc<Pod> {
        self.resize.as_ref().map_or(&self.pod, |resize| &resize.has)
    }

    /// Whether the pod asks for other resources than it has.
    pub fn wants_resize(&self) -> bool {
        self.resize.is_some()
    }

    /// Takes note of a version that may ask for other resources than `before`.
    pub(super) fn notice_resize(&mut self, before: Arc<Pod>) {
        if self.life != Life::Active {
            return;
        }
        match &self.resize {
            None if is_resized(&before, &self.pod) => {
                self.resize = Some(Box::new(Resize {
                    has: before,
                    told: None,
                }));
            }
            Some(resize) if !is_resized(&resize.has, &self.pod) => self.resize = None,
            _ => {}
        }
    }

    /// Begins with the resources that its status says a pod had when its kubelet was restarted.
    pub(super) fn adopt_resize(&mut self) {
        if !is_pending(&self.pod) {
            return;
        }
        let mut has = Pod::clone(&self.pod);
        let status = self.pod.status.iter();
        let statuses = status.flat_map(|status| {
            let init = status.init_container_statuses.iter().flatten();
            init.chain(status.container_statuses.iter().flatten())
        });
        for status in statuses.filter(|status| status.resources.is_some()) {
            let spec = has.spec.iter_mut();
            let mut containers = spec.flat_map(|spec| {
                let init = spec.init_containers.iter_mut().flatten();
                init.chain(&mut spec.containers)
            });
            if let Some(container) = containers.find(|container| container.name == status.name) {
                container.resources.clone_from(&status.resources);
            }
        }
        self.notice_resize(Arc::new(has));
    }

    /// Gives the pod what it asks for, or says why not. Whether that changed something.
    pub fn decide_resize(&mut self, verdict: Result<(), Pending>, now: Timestamp) -> bool {
        let Some(resize) = &mut self.resize else {
            return false;
        };
        let Err(pending) = verdict else {
            let has = resize.has.clone();
            self.resize = None;
            self.tell_of_resize(false, "ResizeStarted", "started", None);
            self.replacing = self.to_replace(&has, now).map(Box::new);
            if self.replacing.is_none() {
                self.tell_of_resize(false, "ResizeCompleted", "completed", None);
            }
            return true;
        };
        let generation = self.pod.metadata.generation;
        let told = resize.told.as_ref();
        if told.is_some_and(|told| told.pending == pending && told.generation == generation) {
            return false;
        }
        resize.told = Some(Told {
            since: told.map_or(now, |told| told.since),
            pending: pending.clone(),
            generation,
        });
        let reason = match pending.reason {
            "Infeasible" => "ResizeInfeasible",
            _ => "ResizeDeferred",
        };
        self.tell_of_resize(true, reason, pending.reason, Some(&pending.message));
        true
    }

    /// What runs and has to be started again to have what the pod asks for, which is not what it `has`.
    fn to_replace(&self, has: &Pod, now: Timestamp) -> Option<Replacing> {
        let before = has.spec.as_ref()?;
        let units = self.units.iter().enumerate().filter(|(_, unit)| {
            let pair = container_of(before, unit).zip(self.container(unit));
            unit.is_running() && pair.is_some_and(|(before, after)| asks_for_restart(before, after))
        });
        let units: Vec<_> = units.map(|(index, unit)| (index, unit.starts)).collect();
        (!units.is_empty()).then_some(Replacing {
            units,
            told: false,
            since: now,
        })
    }

    /// Tells containers to stop that a resize starts again.
    pub(super) fn begin_replacing(&mut self, parts: &Parts<'_>, now: Timestamp) {
        let Some(replacing) = self.replacing.as_mut().filter(|own| !own.told) else {
            return;
        };
        replacing.told = true;
        let grace_s = self.spec().termination_grace_period_seconds.unwrap_or(30);
        for (index, _) in self.replaced() {
            let name = &self.units[index].name;
            let message = format!("Container {name} resize requires restart");
            self.event(false, "Killing", message, Some(index));
            self.stop_run(index, grace_ends(grace_s, now), parts, now);
            if let State::Running { condemned, .. } = &mut self.units[index].state {
                *condemned = true;
            }
        }
    }

    /// Whether a container is stopped to be started again at once.
    pub(super) fn is_replaced(&self, index: usize) -> bool {
        let starts = self.units[index].starts;
        self.replaced().contains(&(index, starts))
    }

    /// Says that a resize is done once all that it stopped runs again.
    pub(super) fn finish_replacing(&mut self) {
        let replaced = self.replaced();
        let mut units = replaced.iter().map(|(index, starts)| {
            let unit = &self.units[*index];
            unit.is_running() && unit.starts > *starts
        });
        if !replaced.is_empty() && units.all(|is_up| is_up) {
            self.replacing = None;
            self.tell_of_resize(false, "ResizeCompleted", "completed", None);
        }
    }

    fn replaced(&self) -> Vec<(usize, i32)> {
        let replacing = self.replacing.as_ref();
        replacing.map_or_else(Vec::new, |replacing| replacing.units.clone())
    }

    /// The condition that says why a resize waits, or that it is being done.
    pub(super) fn resize_condition(&self) -> Option<PodCondition> {
        if let Some(replacing) = &self.replacing {
            return Some(PodCondition {
                type_: "PodResizeInProgress".to_owned(),
                status: "True".to_owned(),
                observed_generation: self.pod.metadata.generation,
                last_transition_time: Some(Time(replacing.since)),
                ..PodCondition::default()
            });
        }
        let told = self.resize.as_ref()?.told.as_ref()?;
        Some(PodCondition {
            type_: PENDING.to_owned(),
            status: "True".to_owned(),
            reason: Some(told.pending.reason.to_owned()),
            message: Some(told.pending.message.clone()),
            observed_generation: told.generation,
            last_probe_time: None,
            last_transition_time: Some(Time(told.since)),
        })
    }

    fn tell_of_resize(
        &mut self,
        warning: bool,
        reason: &'static str,
        word: &str,
        error: Option<&str>,
    ) {
        let summary = summary(&self.pod, error);
        self.event(
            warning,
            reason,
            format!("Pod resize {word}: {summary}"),
            None,
        );
    }
}

/// Whether the API server says that a resize waits.
pub(in crate::kubelet) fn is_pending(pod: &Pod) -> bool {
    pods::condition(pod, PENDING).is_some()
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

/// Whether what a container is given cannot be given to it while it runs: its processors, or its most memory.
fn asks_for_restart(before: &Container, after: &Container) -> bool {
    let amounts = |container: &Container, resource: &str| {
        let resources = container.resources.as_ref();
        let of = |list: Option<&Amounts>| list.and_then(|list| list.get(resource)).cloned();
        let request = of(resources.and_then(|own| own.requests.as_ref()));
        let limit = of(resources.and_then(|own| own.limits.as_ref()));
        // What is asked for of memory is nothing to a container that runs.
        (request.filter(|_| resource != "memory"), limit)
    };
    let policies = after.resize_policy.iter().flatten();
    let mut policies = policies.filter(|policy| policy.restart_policy == "RestartContainer");
    policies.any(|policy| {
        let resource = policy.resource_name.as_str();
        amounts(before, resource) != amounts(after, resource)
    })
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
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
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

fn summary(pod: &Pod, error: Option<&str>) -> String {
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
        error,
    };
    // Plain data, which JSON can always express.
    serde_json::to_string(&summary).unwrap_or_default()
}
