//! Restarts the containers of a pod whose new resources need a restart (`resizePolicy: RestartContainer`).
//!
//! A resize that comes meanwhile adds its containers. All of them together are reported once: by the condition
//! `PodResizeInProgress`, and by one event when they are done.
//!
//! Invariant: a container gets the stop signal once per restart, whatever else is requested before it has started again.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    Parts, PodSim, container_of, grace_ends,
    resize::{Amounts, IN_PROGRESS},
};
use crate::{
    kubelet::container::{Role, State, Unit},
    pods,
};

/// The containers that resizes restart.
#[derive(Clone, Debug)]
pub(super) struct Replacing {
    replaced: Vec<Replaced>,
    /// The generation of the pod's last granted spec, and since when the resize is in progress.
    generation: Option<i64>,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Replaced {
    /// The container's index among the pod's units.
    index: usize,
    /// The number of its starts when the resize began; a higher one means that it was restarted.
    starts: i32,
    stop: Stop,
}

/// What stops a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The resize, which has not sent the stop signal yet.
    Due,
    /// The resize, which has sent the stop signal.
    Signaled,
    /// Something else, which also decides about the next start.
    Otherwise,
}

impl Replaced {
    /// Returns whether the container has its new resources, or will get them at its next start: the kubelet waits only for
    /// containers that run.
    fn is_done(self, unit: &Unit) -> bool {
        let is_under_way = unit.is_running() || unit.is_coming_up();
        unit.starts > self.starts || !is_under_way && !matches!(unit.state, State::Idle)
    }
}

impl PodSim {
    /// Records the containers that must restart to get the resources of the new spec; `has` is the pod with the present
    /// resources.
    pub(super) fn replace(&mut self, has: &Pod, now: Timestamp) {
        let generation = self.pod.metadata.generation;
        let mut replaced = self
            .replacing
            .take()
            .map_or_else(Vec::new, |own| own.replaced);
        // A container that was restarted by an earlier resize may have to restart again for this one.
        replaced.retain(|own| !own.is_done(&self.units[own.index]));
        for (index, unit) in self.units.iter().enumerate() {
            let stops_already = match unit.state {
                State::Running { being_killed, .. } => being_killed || self.restarting.is_some(),
                _ => continue,
            };
            let is_known = replaced.iter().any(|own| own.index == index);
            if !is_known && self.is_to_be_replaced(unit, has) {
                replaced.push(Replaced {
                    index,
                    starts: unit.starts,
                    // A container that is already stopping gets its new resources at its next start, without a
                    // second signal.
                    stop: if stops_already {
                        Stop::Otherwise
                    } else {
                        Stop::Due
                    },
                });
            }
        }
        if replaced.is_empty() {
            return self.complete_resize(generation);
        }
        self.replacing = Some(Box::new(Replacing {
            replaced,
            generation,
            since: now,
        }));
    }

    /// Returns whether a container must restart to get the resources of the spec. Init containers finish with what they
    /// have.
    fn is_to_be_replaced(&self, unit: &Unit, has: &Pod) -> bool {
        let before = has.spec.as_ref().and_then(|spec| container_of(spec, unit));
        let pair = before.zip(self.container(unit));
        matches!(unit.role, Role::App | Role::Sidecar)
            && pair.is_some_and(|(before, after)| asks_for_restart(before, after))
    }

    /// Resumes a resize after a restart of the kubelet: containers that run then count as done.
    pub(super) fn adopt_replacing(&mut self, now: Timestamp) {
        let Some(condition) = pods::condition(&self.pod, IN_PROGRESS) else {
            return;
        };
        let units = self.units.iter().enumerate();
        let stopped = units.filter(|(_, unit)| unit.starts > 0 && !unit.is_running());
        let replaced = stopped.map(|(index, unit)| Replaced {
            index,
            starts: unit.starts,
            stop: Stop::Otherwise,
        });
        let since = condition.last_transition_time.as_ref();
        self.replacing = Some(Box::new(Replacing {
            replaced: replaced.collect(),
            generation: condition.observed_generation,
            since: since.map_or(now, |since| since.0),
        }));
    }

    /// Sends the stop signal to the containers that a resize restarts.
    pub(super) fn begin_replacing(&mut self, parts: &Parts<'_>, now: Timestamp) {
        let replaced = self.replacing.iter_mut().flat_map(|own| &mut own.replaced);
        let due = replaced.filter(|own| own.stop == Stop::Due).map(|own| {
            own.stop = Stop::Signaled;
            own.index
        });
        let due: Vec<_> = due.collect();
        let grace_s = self.spec().termination_grace_period_seconds.unwrap_or(30);
        for index in due {
            let name = &self.units[index].name;
            let message = format!("Container {name} resize requires restart");
            self.event(false, "Killing", message, Some(index));
            self.stop_run(index, grace_ends(grace_s, now), parts, now);
            if let State::Running { being_killed, .. } = &mut self.units[index].state {
                *being_killed = true;
            }
        }
    }

    /// Returns whether a resize stopped the container, so that it starts again at once.
    pub(super) fn is_replaced(&self, index: usize) -> bool {
        let starts = self.units[index].starts;
        let mut replaced = self.replacing.iter().flat_map(|own| &own.replaced);
        replaced.any(|own| (own.index, own.starts, own.stop) == (index, starts, Stop::Signaled))
    }

    /// Reports the resize as done once all of its containers have started again.
    pub(super) fn finish_replacing(&mut self) {
        let units = &self.units;
        let is_done = |own: &Replaced| own.is_done(&units[own.index]);
        let done = self
            .replacing
            .take_if(|own| own.replaced.iter().all(is_done));
        if let Some(done) = done {
            self.complete_resize(done.generation);
        }
    }

    /// Returns the condition PodResizeInProgress while a resize is in progress.
    pub(super) fn progress_condition(&self) -> Option<PodCondition> {
        let replacing = self.replacing.as_ref()?;
        Some(PodCondition {
            type_: IN_PROGRESS.to_owned(),
            status: "True".to_owned(),
            observed_generation: replacing.generation,
            last_transition_time: Some(Time(replacing.since)),
            ..PodCondition::default()
        })
    }
}

/// Returns whether a change of resources needs a restart by the container's `resizePolicy`: CPU request or limit, or memory
/// limit.
fn asks_for_restart(before: &Container, after: &Container) -> bool {
    let amounts = |container: &Container, resource: &str| {
        let resources = container.resources.as_ref();
        let of = |list: Option<&Amounts>| list.and_then(|list| list.get(resource)).cloned();
        let request = of(resources.and_then(|own| own.requests.as_ref()));
        let limit = of(resources.and_then(|own| own.limits.as_ref()));
        // A memory request only matters to the scheduler; a running container does not notice a change of it.
        (request.filter(|_| resource != "memory"), limit)
    };
    let policies = after.resize_policy.iter().flatten();
    let mut policies = policies.filter(|policy| policy.restart_policy == "RestartContainer");
    policies.any(|policy| {
        let resource = policy.resource_name.as_str();
        amounts(before, resource) != amounts(after, resource)
    })
}
