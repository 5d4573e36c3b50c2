//! The life of one simulated pod, as a pure state machine.
//!
//! [`PodSim::step`] receives the pod, the resources of its node (images, addresses) and the present time. It does everything
//! that is due and returns what the kubelet would write and record, and when it must be called again. All steps that are due
//! at one time lead to one status: with instant delays a pod becomes Running in a single write.
//!
//! Invariant: after [`PodSim::step`] returns, stepping again at the same moment changes nothing.
//!
//! The submodules: [`sync`] starts containers in order, [`config`] resolves what they and volumes take from other objects, [`stop`]
//! stops them, [`restart_all`] restarts all of them, [`resize`] grants a resize, [`replace`] restarts what a resize needs restarted,
//! [`sandbox`] sets up the network, [`devices`] prepares claimed devices, [`ephemeral`] adds ephemeral containers, [`adopt`] takes
//! over a pod after a restart of the kubelet, [`health`] acts on probes, [`report`] writes the status.

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

pub use config::{LookupPurpose, ObjectLookup};
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

/// Annotation in which the VPC resource controller writes the address of a Windows pod.
pub const WINDOWS_ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// The run time of a container that ends by itself and has no exit annotation.
const WORK: SignedDuration = SignedDuration::from_secs(5);

/// A simulated pod.
#[derive(Clone, Debug)]
pub struct PodSim {
    pod: Arc<Pod>,
    uid: Arc<str>,
    lifecycle: Lifecycle,
    volumes: Volumes,
    sandbox: Sandbox,
    /// Init containers and sidecars, then the app containers, then ephemeral containers.
    units: Box<[Unit]>,
    /// The ephemeral containers.
    ephemeral: Box<[Container]>,
    ip: Option<Ipv4Addr>,
    start_time: Option<Timestamp>,
    transitions: Transitions,
    /// Fingerprint of the status written last; the status itself is at the API server.
    written: Option<u64>,
    /// Whether the status written last is final.
    final_status_written: bool,
    address_written: bool,
    deleted: bool,
    /// The state of a resize that is not granted yet.
    resize: Option<Box<Resize>>,
    /// The containers that granted resizes restart.
    replacing: Option<Box<Replacing>>,
    /// Set while all containers are stopped to be restarted.
    restarting: Option<Restarting>,
    /// Whether the simulation annotations have changed.
    simulation_changed: bool,
    /// Effects to carry out besides writing the status; empty between steps.
    effects: Vec<Effect>,
}

/// The phase of a pod's life in the simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lifecycle {
    /// Starting or running.
    Active,
    /// Its containers are being stopped.
    Stopping {
        deadline: Timestamp,
        sidecars_signaled: bool,
        why: Option<EndReason>,
    },
    /// No container runs, and none will start.
    Ended { why: Option<EndReason> },
    /// The kubelet rejected the pod at admission.
    Rejected(Box<Rejection>),
}

/// Reason and message of a pod that the kubelet ended.
type EndReason = (&'static str, &'static str);

/// The planned course of one run of a container.
struct RunPlan {
    exit: Option<PlannedExit>,
    probes: Option<Box<Probes>>,
}

impl PodSim {
    /// Creates a pod that the node has accepted. If its status shows that it ran already, it is adopted as after a restart
    /// of the kubelet.
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

    /// Creates a pod that the node rejects.
    pub fn rejected(pod: Arc<Pod>, rejection: Rejection, now: Timestamp) -> Self {
        let mut sim = Self::new(pod, now);
        sim.event(
            true,
            rejection.reason.clone(),
            rejection.message.clone(),
            None,
        );
        sim.lifecycle = Lifecycle::Rejected(Box::new(rejection));
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
            lifecycle: Lifecycle::Active,
            volumes: Volumes::New,
            sandbox: Sandbox::None,
            units,
            ephemeral: Box::default(),
            ip: None,
            start_time: Some(now),
            written: None,
            final_status_written: false,
            address_written: false,
            deleted: false,
            resize: None,
            replacing: None,
            restarting: None,
            simulation_changed: false,
            effects: Vec::new(),
        }
    }

    /// Returns the pod as last seen at the API server.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// Returns the pod's uid.
    pub fn uid(&self) -> &Arc<str> {
        &self.uid
    }

    /// Returns whether the pod holds resources of its node: it was accepted and has not ended.
    pub fn holds_resources(&self) -> bool {
        matches!(
            self.lifecycle,
            Lifecycle::Active | Lifecycle::Stopping { .. }
        )
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

    /// Records an event if a container of a Windows pod needs more memory than its limit.
    fn record_memory_limit(&mut self, index: usize) {
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

    /// Stores a newer version of the pod. Returns `true` if it needs a step although its spec may be unchanged: its
    /// simulation annotations changed, or another client overwrote the reported readiness (as the node lifecycle controller
    /// does for a silent node), which then is reported again.
    pub fn observe(&mut self, pod: Arc<Pod>) -> bool {
        let overruled =
            // Only a readiness that this kubelet reported can be overruled; otherwise False is simply not
            // reported yet.
            report::is_ready(&self.pod) && !report::is_ready(&pod) && self.transitions.is_ready();
        if overruled {
            self.written = None;
        }
        let steered = !annotations::same_simulation(&self.pod, &pod);
        self.simulation_changed |= steered;
        let before = std::mem::replace(&mut self.pod, pod);
        if steered {
            self.complain(Some(&before));
        }
        let addressed = self.notice_address(&before);
        if before.metadata.generation != self.pod.metadata.generation {
            self.notice_resize(before);
        }
        // A finished resize that the API server still shows is reported again.
        let outdated = self.is_resize_outdated();
        if outdated {
            self.written = None;
        }
        let joined = self.take_ephemeral();
        overruled || steered || addressed || outdated || joined
    }

    /// Does all that is due at `now`.
    pub fn step(&mut self, parts: &mut Parts<'_>, now: Timestamp) -> Step {
        if self.lifecycle == Lifecycle::Active {
            self.consider_stopping(parts, now);
        }
        // Asked again: the step before may just have begun to stop the pod.
        if self.lifecycle == Lifecycle::Active {
            self.advance_sandbox(parts, now);
            if self.sandbox == Sandbox::Up {
                self.sync_containers(parts, now);
            }
        }
        if let Lifecycle::Stopping { .. } = self.lifecycle {
            self.advance_stop(parts, now);
        }
        // Taken instead of drained, so that idle pods keep no allocation: there may be ten thousand of them.
        let mut effects = std::mem::take(&mut self.effects);
        self.report(parts, now, &mut effects);
        let over = matches!(
            self.lifecycle,
            Lifecycle::Ended { .. } | Lifecycle::Rejected(_)
        );
        if over && self.pod.metadata.deletion_timestamp.is_some() && !self.deleted {
            // The object is removed only when everything in it has ended, which is what frees its name.
            self.deleted = true;
            effects.push(Effect::Delete);
        }
        Step {
            effects,
            wake: self.wake(now),
        }
    }

    /// Releases the pod's addresses after its object was deleted.
    pub fn forget(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        parts.addresses.release(&self.uid, now);
    }

    /// Returns the next time at which a step has something to do.
    fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let own = match &self.lifecycle {
            Lifecycle::Active => self
                .sandbox
                .wake()
                .into_iter()
                .chain(self.volumes.wake())
                .chain(self.active_deadline())
                .min(),
            Lifecycle::Stopping { deadline, .. } => Some(*deadline),
            Lifecycle::Ended { .. } | Lifecycle::Rejected(_) => return None,
        };
        // In a pod that is stopping, only exits of running containers matter.
        let stopping = self.lifecycle != Lifecycle::Active;
        let wake = |unit: &Unit| {
            if stopping {
                unit.exits_at()
            } else {
                unit.wake(now)
            }
        };
        self.units.iter().filter_map(wake).chain(own).min()
    }

    /// Records events about simulation annotations that cannot be parsed, unless `before` had them already.
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

    /// Returns the container with its granted resources.
    fn granted_container(&self, unit: &Unit) -> Option<&Container> {
        match unit.role {
            Role::Ephemeral => self.ephemeral.get(unit.index),
            _ => container_of(self.granted().spec.as_ref()?, unit),
        }
    }

    /// Returns whether a container ends by itself: its pod belongs to a Job, or it is not restarted after success. A
    /// container whose stdin stays open between clients waits for the next client, as the shell of `kubectl debug node/NAME`
    /// does.
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

    /// Returns whether a container is restarted after an exit with `code`.
    fn restarts(&self, unit: &Unit, code: i32) -> bool {
        match (unit.role, self.container(unit)) {
            (Role::Sidecar, _) => true,
            (Role::Ephemeral, _) => false,
            // An init container that succeeded is complete, whatever the restart policy.
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

    /// Returns `name_namespace(uid)`, as the kubelet names pods in messages.
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

    /// Plans a run of a container that began at `since`: its exit, by an annotation or because it is an init container or a
    /// Job's, and its probes.
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

/// Returns the end of a grace period that begins now; it lasts at least one second.
fn grace_ends(seconds: i64, now: Timestamp) -> Timestamp {
    now.saturating_add(SignedDuration::from_secs(seconds.max(1)))
        .unwrap_or(Timestamp::MAX)
}
