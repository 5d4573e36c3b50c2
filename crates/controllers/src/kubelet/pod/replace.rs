//! How the containers of a pod are started again that cannot have other resources while they run (`resizePolicy`).
//!
//! A resize that comes meanwhile adds the containers that it needs; all of them together are one thing to say: the condition
//! `PodResizeInProgress`, and one event once they are done.
//!
//! Invariant: a container is told once to stop, whatever is asked for before it has been started again.

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

/// The containers that resizes start again.
#[derive(Clone, Debug)]
pub(super) struct Replacing {
    replaced: Vec<Replaced>,
    /// The version of the pod that was granted last, and when.
    generation: Option<i64>,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Replaced {
    /// Its place.
    index: usize,
    /// How often it had been started.
    starts: i32,
    stop: Stop,
}

/// Who stops a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The resize, which has not said so yet.
    Due,
    /// The resize.
    Told,
    /// Something else, which decides about its next start, too.
    Otherwise,
}

impl Replaced {
    /// Whether it has what it was given, or will have it whenever it is started: upstream waits for nothing that does not run.
    fn is_done(self, unit: &Unit) -> bool {
        let is_under_way = unit.is_running() || unit.is_coming_up();
        unit.starts > self.starts || !is_under_way && !matches!(unit.state, State::Idle)
    }
}

impl PodSim {
    /// Takes note of what has to be started again to have what the pod asks for, which is not what it `has`.
    pub(super) fn replace(&mut self, has: &Pod, now: Timestamp) {
        let generation = self.pod.metadata.generation;
        let mut replaced = self
            .replacing
            .take()
            .map_or_else(Vec::new, |own| own.replaced);
        replaced.retain(|own| !own.is_done(&self.units[own.index]));
        for (index, unit) in self.units.iter().enumerate() {
            let stops_already = match unit.state {
                State::Running { condemned, .. } => condemned || self.restarting.is_some(),
                _ => continue,
            };
            let is_known = replaced.iter().any(|own| own.index == index);
            if !is_known && self.is_to_be_replaced(unit, has) {
                replaced.push(Replaced {
                    index,
                    starts: unit.starts,
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

    /// Whether it cannot have what the pod asks for while it runs. Init containers come to their end with what they have.
    fn is_to_be_replaced(&self, unit: &Unit, has: &Pod) -> bool {
        let before = has.spec.as_ref().and_then(|spec| container_of(spec, unit));
        let pair = before.zip(self.container(unit));
        matches!(unit.role, Role::App | Role::Sidecar)
            && pair.is_some_and(|(before, after)| asks_for_restart(before, after))
    }

    /// Goes on with what was being done when the kubelet was restarted: what runs then counts as done.
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

    /// Tells containers to stop that a resize starts again.
    pub(super) fn begin_replacing(&mut self, parts: &Parts<'_>, now: Timestamp) {
        let replaced = self.replacing.iter_mut().flat_map(|own| &mut own.replaced);
        let due = replaced.filter(|own| own.stop == Stop::Due).map(|own| {
            own.stop = Stop::Told;
            own.index
        });
        let due: Vec<_> = due.collect();
        let grace_s = self.spec().termination_grace_period_seconds.unwrap_or(30);
        for index in due {
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
        let mut replaced = self.replacing.iter().flat_map(|own| &own.replaced);
        replaced.any(|own| (own.index, own.starts, own.stop) == (index, starts, Stop::Told))
    }

    /// Says that a resize is done once all that it stopped has been started again.
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

    /// The condition that says that a resize is being done.
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
