//! The life of one simulated pod, as a pure state machine.
//!
//! [`PodSim::step`] is given the pod as it is, what its node has (images, addresses) and the present moment; it does all
//! that is due and answers with what the kubelet would write and record, and when it wants to be called again. However
//! many steps a moment holds, they lead to one status: with instant delays a pod becomes Running in a single write.
//!
//! Invariant: after [`PodSim::step`] returns, stepping again at the same moment changes nothing.
//! The order in which containers come up is in [`sync`], what they and volumes are filled from in [`config`], how they go
//! in [`stop`], how all start anew in [`restart_all`], what is said of a resize in [`resize`], what it starts again in [`replace`], the network in [`sandbox`], what devices it claims in [`devices`], what is put into it later in [`ephemeral`], what is found after a restart in [`adopt`],
//! what probes lead to in [`health`], what is written in [`report`].

mod adopt;
mod config;
pub(super) mod devices;
pub(super) mod ephemeral;
mod health;
mod replace;
mod report;
pub(super) mod resize;
mod restart_all;
mod sandbox;
mod step;
mod stop;
mod sync;

use std::{borrow::Cow, net::Ipv4Addr, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use mullion_cloud::format_bytes;

pub use config::{Need, Question};
pub use step::{Effect, Parts, PodEvent, Step};

use self::{
    config::Volumes, replace::Replacing, resize::Resize, restart_all::Restarting, sandbox::Sandbox,
};
use super::{
    admit::Rejection,
    annotations::{self, ProbeKind},
    container::{PlannedExit, Role, Unit},
    memory,
    probes::{Failing, Probes},
    restart,
    status::Transitions,
};
use crate::ownership;

/// Annotation by which the VPC resource controller tells a Windows pod its address.
pub const WINDOWS_ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// How long a container runs whose work comes to an end and of which no annotation speaks.
const WORK: SignedDuration = SignedDuration::from_secs(5);

/// A simulated pod.
#[derive(Clone, Debug)]
pub struct PodSim {
    pod: Arc<Pod>,
    uid: Arc<str>,
    life: Life,
    volumes: Volumes,
    sandbox: Sandbox,
    /// Init containers and sidecars, then the others, those that came later at the end.
    units: Box<[Unit]>,
    /// The containers that were put into it to look at it.
    ephemeral: Box<[Container]>,
    ip: Option<Ipv4Addr>,
    start_time: Option<Timestamp>,
    transitions: Transitions,
    /// Fingerprint of the status written last; the status itself is at the API server.
    written: Option<u64>,
    /// The status written last is final.
    sealed: bool,
    address_written: bool,
    deleted: bool,
    /// What became of a resize that it has not been given.
    resize: Option<Box<Resize>>,
    /// Containers that are started again because of resizes that it has been given.
    replacing: Option<Box<Replacing>>,
    /// All containers are being stopped to be started again.
    restarting: Option<Restarting>,
    /// The pod asks for another simulation than before.
    steered: bool,
    /// What the outside must do besides writing; empty between steps.
    effects: Vec<Effect>,
}

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    /// Starting or running.
    Active,
    /// Its containers are being stopped.
    Stopping {
        deadline: Timestamp,
        sidecars_told: bool,
        why: Option<Why>,
    },
    /// Nothing runs and nothing will.
    Over { why: Option<Why> },
    /// The kubelet did not take it.
    Rejected(Box<Rejection>),
}

/// Reason and message of a pod that its kubelet ended.
type Why = (&'static str, &'static str);

/// What a run of a container has ahead.
struct RunPlan {
    exit: Option<PlannedExit>,
    probes: Option<Box<Probes>>,
}

impl PodSim {
    /// A pod the node has just taken, or (if its status says that it ran already) one found after a restart.
    pub fn accepted(pod: Arc<Pod>, parts: &mut Parts<'_>, now: Timestamp) -> Self {
        let mut sim = Self::new(pod, now);
        sim.take_ephemeral();
        if sim
            .pod
            .status
            .as_ref()
            .is_none_or(|status| status.start_time.is_none())
        {
            sim.complain(None);
        }
        sim.adopt(parts, now);
        sim
    }

    /// A pod that the node refuses.
    pub fn rejected(pod: Arc<Pod>, rejection: Rejection, now: Timestamp) -> Self {
        let mut sim = Self::new(pod, now);
        sim.event(
            true,
            rejection.reason.clone(),
            rejection.message.clone(),
            None,
        );
        sim.life = Life::Rejected(Box::new(rejection));
        sim
    }

    fn new(pod: Arc<Pod>, now: Timestamp) -> Self {
        let spec = pod.spec.as_ref();
        let init = spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten())
            .enumerate();
        let init = init.map(|(index, container)| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            Unit::new(
                container,
                if sidecar { Role::Sidecar } else { Role::Init },
                index,
            )
        });
        let apps = spec.iter().flat_map(|spec| &spec.containers).enumerate();
        let units = init
            .chain(apps.map(|(index, container)| Unit::new(container, Role::App, index)))
            .collect();
        Self {
            uid: pod.metadata.uid.as_deref().unwrap_or_default().into(),
            transitions: Transitions::adopt(&pod),
            pod,
            life: Life::Active,
            volumes: Volumes::New,
            sandbox: Sandbox::None,
            units,
            ephemeral: Box::default(),
            ip: None,
            start_time: Some(now),
            written: None,
            sealed: false,
            address_written: false,
            deleted: false,
            resize: None,
            replacing: None,
            restarting: None,
            steered: false,
            effects: Vec::new(),
        }
    }

    /// The pod as last seen at the API server.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// Its uid.
    pub fn uid(&self) -> &Arc<str> {
        &self.uid
    }

    /// Whether it holds resources of its node: it was taken and has not ended.
    pub fn holds_resources(&self) -> bool {
        matches!(self.life, Life::Active | Life::Stopping { .. })
    }

    /// Returns the bytes of memory that its running containers use.
    pub(super) fn memory_used(&self) -> i64 {
        let running = self.units.iter().filter(|unit| unit.is_running());
        let used = running.filter_map(|unit| {
            let container = self.container(unit)?;
            Some(memory::used(&self.pod, container, unit.role == Role::App))
        });
        used.fold(0, i64::saturating_add)
    }

    /// Says that a container of a Windows pod needs more memory than it may have.
    fn tell_of_limit(&mut self, index: usize) {
        let unit = &self.units[index];
        let Some(container) = self.container(unit) else {
            return;
        };
        let needed = memory::needed(&self.pod, container, unit.role == Role::App);
        if let (Some(needed), Some(limit)) = (needed, memory::limit(container))
            && needed > limit
        {
            let [needed, limit] = [needed, limit].map(|bytes| format_bytes(bytes.max(0) as u64));
            let message = format!(
                "Container {} needs {needed} of memory and may have {limit}: what it asks for beyond that fails. Windows ends no container \
                 for it",
                unit.name
            );
            self.event(true, "MemoryLimitReached", message, Some(index));
        }
    }

    /// Takes note of a newer version of the pod; `true` if it should be stepped even though its spec is as it was: the
    /// simulation is steered by other annotations, or somebody has overruled the readiness that was reported (as the
    /// node lifecycle does for a silent node), which is then reported again.
    pub fn observe(&mut self, pod: Arc<Pod>) -> bool {
        let overruled =
            report::is_ready(&self.pod) && !report::is_ready(&pod) && self.transitions.is_ready();
        if overruled {
            self.written = None;
        }
        let steered = !annotations::same_simulation(&self.pod, &pod);
        self.steered |= steered;
        let before = std::mem::replace(&mut self.pod, pod);
        if steered {
            self.complain(Some(&before));
        }
        let addressed = self.notice_address(&before);
        if before.metadata.generation != self.pod.metadata.generation {
            self.notice_resize(before);
        }
        // What the API server still says of a resize that is done is said anew.
        let outdated = self.is_resize_outdated();
        if outdated {
            self.written = None;
        }
        let joined = self.take_ephemeral();
        overruled || steered || addressed || outdated || joined
    }

    /// Does all that is due at `now`.
    pub fn step(&mut self, parts: &mut Parts<'_>, now: Timestamp) -> Step {
        if self.life == Life::Active {
            self.consider_stopping(parts, now);
        }
        if self.life == Life::Active {
            self.advance_sandbox(parts, now);
            if self.sandbox == Sandbox::Up {
                self.sync_containers(parts, now);
            }
        }
        if let Life::Stopping { .. } = self.life {
            self.advance_stop(parts, now);
        }
        // Taken, not drained: ten thousand quiet pods need no room for effects.
        let mut effects = std::mem::take(&mut self.effects);
        self.report(parts, now, &mut effects);
        let over = matches!(self.life, Life::Over { .. } | Life::Rejected(_));
        if over && self.pod.metadata.deletion_timestamp.is_some() && !self.deleted {
            self.deleted = true;
            effects.push(Effect::Delete);
        }
        Step {
            effects,
            wake: self.wake(now),
        }
    }

    /// Gives back what the pod holds, because its object is gone.
    pub fn forget(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        parts.addresses.release(&self.uid, now);
    }

    /// The next moment at which a step has something to do.
    fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let own = match &self.life {
            Life::Active => self
                .sandbox
                .wake()
                .into_iter()
                .chain(self.volumes.wake())
                .chain(self.active_deadline())
                .min(),
            Life::Stopping { deadline, .. } => Some(*deadline),
            Life::Over { .. } | Life::Rejected(_) => return None,
        };
        // In a pod that stops, only what runs changes any more.
        let stopping = self.life != Life::Active;
        let wake = |unit: &Unit| {
            if stopping {
                unit.exits_at()
            } else {
                unit.wake(now)
            }
        };
        self.units.iter().filter_map(wake).chain(own).min()
    }

    /// Says what cannot be understood of what the pod asks of its simulation, unless it was there before.
    fn complain(&mut self, before: Option<&Pod>) {
        for complaint in annotations::complaints(&self.pod, before) {
            self.event(true, "InvalidSimulation", complaint, None);
        }
    }

    fn spec(&self) -> &PodSpec {
        // Pods without a spec do not pass validation; an empty one simulates nothing.
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    fn container(&self, unit: &Unit) -> Option<&Container> {
        match unit.role {
            Role::Ephemeral => self.ephemeral.get(unit.index),
            _ => container_of(self.spec(), unit),
        }
    }

    /// The container with the resources it has.
    fn granted_container(&self, unit: &Unit) -> Option<&Container> {
        match unit.role {
            Role::Ephemeral => self.ephemeral.get(unit.index),
            _ => container_of(self.granted().spec.as_ref()?, unit),
        }
    }

    /// Whether a container does work that comes to an end by itself: its pod is a Job's, or it is not started again once
    /// it has succeeded. A container whose stdin stays open between clients waits for the next one, as the shell of
    /// `kubectl debug node/NAME` does.
    fn works_to_an_end(&self, unit: &Unit) -> bool {
        if is_of_a_job(&self.pod) {
            return true;
        }
        self.container(unit).is_some_and(|container| {
            let stdin_stays_open =
                container.stdin == Some(true) && container.stdin_once != Some(true);
            restart::is_once(container, self.spec()) && !stdin_stays_open
        })
    }

    /// Whether a unit is started again after an exit with `code`.
    fn restarts(&self, unit: &Unit, code: i32) -> bool {
        match (unit.role, self.container(unit)) {
            (Role::Sidecar, _) => true,
            (Role::Ephemeral, _) => false,
            // An init container that succeeded has done its work, whatever the policy.
            (Role::Init, _) if code == 0 => false,
            (_, Some(container)) => restart::after_exit(container, self.spec(), code),
            (_, None) => false,
        }
    }

    fn event(
        &mut self,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: String,
        unit: Option<usize>,
    ) {
        let field_path = unit.map(|unit| {
            let unit = &self.units[unit];
            let list = match unit.role {
                Role::App => "containers",
                Role::Init | Role::Sidecar => "initContainers",
                Role::Ephemeral => "ephemeralContainers",
            };
            format!("spec.{list}{{{}}}", unit.name)
        });
        self.effects.push(Effect::Event(PodEvent {
            warning,
            reason: reason.into(),
            message,
            field_path,
        }));
    }

    /// `name_namespace(uid)`, as the kubelet names pods in messages.
    fn reference(&self) -> String {
        let meta = &self.pod.metadata;
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!(
            "{}_{}({})",
            part(&meta.name),
            part(&meta.namespace),
            self.uid
        )
    }

    /// What is ahead of a run of a unit that began at `since`: the exit that an annotation (or, for an init container,
    /// its nature) plans, and its probes.
    fn plan_run(&self, unit: usize, since: Timestamp, parts: &Parts<'_>) -> RunPlan {
        let unit = &self.units[unit];
        let steering = self.pod.metadata.annotations.as_ref();
        let inherits = unit.role == Role::App;
        let exit = annotations::exit_plan(steering, &unit.name, inherits);
        let exit = exit.map(|plan| (plan.code, plan.after));
        let exit = exit.or(match unit.role {
            Role::Init => Some((0, parts.delays.init_run)),
            Role::App if self.works_to_an_end(unit) => Some((0, WORK)),
            Role::App | Role::Sidecar | Role::Ephemeral => None,
        });
        let failing = |kind: ProbeKind| {
            annotations::probe_failure(steering, kind, &unit.name, inherits).map(|failure| {
                let from = parts.pace.after(since, failure.after);
                Failing {
                    from,
                    until: failure
                        .lasts
                        .map_or(Timestamp::MAX, |lasts| parts.pace.after(from, lasts)),
                }
            })
        };
        RunPlan {
            exit: exit.map(|(code, after)| PlannedExit {
                at: parts.pace.after(since, after),
                code,
            }),
            // Init containers are not probed.
            probes: self
                .container(unit)
                .filter(|_| unit.role != Role::Init)
                .and_then(|container| Probes::new(container, since, parts.pace, failing))
                .map(Box::new),
        }
    }
}

fn container_of<'a>(spec: &'a PodSpec, unit: &Unit) -> Option<&'a Container> {
    match unit.role {
        Role::App => spec.containers.get(unit.index),
        Role::Init | Role::Sidecar => spec.init_containers.as_ref()?.get(unit.index),
        Role::Ephemeral => None,
    }
}

fn is_of_a_job(pod: &Pod) -> bool {
    ownership::controller_of(pod).is_some_and(|owner| owner.kind == "Job")
}

/// The end of a grace period of `seconds` that begins now; a second is the least.
fn grace_ends(seconds: i64, now: Timestamp) -> Timestamp {
    now.saturating_add(SignedDuration::from_secs(seconds.max(1)))
        .unwrap_or(Timestamp::MAX)
}
