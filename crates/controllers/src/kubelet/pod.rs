//! The life of one simulated pod, as a pure state machine.
//!
//! [`PodSim::step`] is given the pod as it is, what its node has (images, addresses) and the present moment; it does all
//! that is due and answers with what the kubelet would write and record, and when it wants to be called again. However
//! many steps a moment holds, they lead to one status: with instant delays a pod becomes Running in a single write.
//!
//! Invariant: after [`PodSim::step`] returns, stepping again at the same moment changes nothing.
//! The order in which containers come up is in `pod_sync`, how they go in `pod_stop`, what they report in `status`.

use std::{borrow::Cow, hash::Hasher, io, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Container, HostIP, Pod, PodIP, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};
use rustc_hash::FxHasher;

use super::{
    addresses::Addresses,
    annotations,
    container::{PlannedExit, Role, Unit},
    ids,
    node::NodeFacts,
    pace::{Delays, Pace},
    pulls::NodeImages,
    status::{self, Transitions, View},
};

/// Annotation by which the VPC resource controller tells a Windows pod its address.
pub const WINDOWS_ADDRESS: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// The parts of a node that its pods share.
pub struct Parts<'a> {
    /// The node.
    pub facts: &'a NodeFacts,
    /// Its images.
    pub images: &'a mut NodeImages,
    /// Its pod addresses.
    pub addresses: &'a mut Addresses,
    /// How fast it works.
    pub pace: Pace,
    /// What its work takes.
    pub delays: Delays,
}

/// What a step asks the outside to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Record an event on the pod.
    Event(PodEvent),
    /// Write the status, and the address annotation of a Windows pod with it.
    Status {
        /// All that the kubelet owns of the status.
        status: Box<PodStatus>,
        /// Value for [`WINDOWS_ADDRESS`].
        address: Option<String>,
    },
    /// Delete the pod with grace period 0 and its uid as precondition.
    Delete,
}

/// An event the kubelet records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    /// `Warning` rather than `Normal`.
    pub warning: bool,
    /// The reason.
    pub reason: Cow<'static, str>,
    /// The text.
    pub message: String,
    /// The container it is about: `spec.containers{web}`.
    pub field_path: Option<String>,
}

/// The answer of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What to do now.
    pub effects: Vec<Effect>,
    /// When to step again at the latest.
    pub wake: Option<Timestamp>,
}

/// Whether a container is started again after it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartRule {
    /// Whatever its exit code.
    Always,
    /// After a failure.
    OnFailure,
    /// Never.
    Never,
}

impl RestartRule {
    /// Whether an exit with `code` leads to another start.
    pub fn restarts(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// A simulated pod.
#[derive(Clone, Debug)]
pub struct PodSim {
    pub(super) pod: Arc<Pod>,
    pub(super) uid: String,
    pub(super) life: Life,
    pub(super) sandbox: Sandbox,
    pub(super) units: Vec<Unit>,
    ip: Option<String>,
    pub(super) start_time: Option<Timestamp>,
    transitions: Transitions,
    /// Fingerprint of the status written last; the status itself is at the API server.
    written: Option<u64>,
    /// The status written last is final.
    sealed: bool,
    address_written: bool,
    deleted: bool,
    pub(super) events: Vec<PodEvent>,
}

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Starting or running.
    Active,
    /// Its containers are being stopped.
    Stopping {
        deadline: Timestamp,
        sidecars_told: bool,
        why: Option<(&'static str, &'static str)>,
    },
    /// Nothing runs and nothing will.
    Over {
        why: Option<(&'static str, &'static str)>,
    },
    /// The kubelet did not take it.
    Rejected { reason: String, message: String },
}

/// The pause container and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sandbox {
    None,
    Creating { until: Timestamp },
    Failed { retry_at: Timestamp },
    Up,
}

impl PodSim {
    /// A pod the node has just taken, or (if its status says that it ran already) one found after a restart.
    pub fn accepted(pod: Arc<Pod>, parts: &mut Parts<'_>, now: Timestamp) -> Self {
        let mut sim = Self::new(pod, Life::Active);
        sim.start_time = Some(now);
        sim.adopt(parts, now);
        sim
    }

    /// A pod that the node refuses.
    pub fn rejected(pod: Arc<Pod>, reason: String, message: String, now: Timestamp) -> Self {
        let mut sim = Self::new(pod, Life::Active);
        sim.start_time = Some(now);
        sim.event(true, reason.clone(), message.clone(), None);
        sim.life = Life::Rejected {
            reason,
            message: format!("Pod was rejected: {message}"),
        };
        sim
    }

    fn new(pod: Arc<Pod>, life: Life) -> Self {
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
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            transitions: Transitions::adopt(&pod),
            pod,
            life,
            sandbox: Sandbox::None,
            units,
            ip: None,
            start_time: None,
            written: None,
            sealed: false,
            address_written: false,
            deleted: false,
            events: Vec::new(),
        }
    }

    /// The pod as last seen at the API server.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// Whether it holds resources of its node: it was taken and has not ended.
    pub fn holds_resources(&self) -> bool {
        matches!(self.life, Life::Active | Life::Stopping { .. })
    }

    /// Takes note of a newer version of the pod; `true` if somebody has overruled the readiness that was reported, as the
    /// node lifecycle does for a silent node. It is then reported again.
    pub fn observe(&mut self, pod: Arc<Pod>) -> bool {
        let overruled = is_ready(&self.pod) && !is_ready(&pod) && self.transitions.is_ready();
        if overruled {
            self.written = None;
        }
        self.pod = pod;
        overruled
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
        let mut effects: Vec<_> = self.events.drain(..).map(Effect::Event).collect();
        self.report(parts, now, &mut effects);
        let over = matches!(self.life, Life::Over { .. } | Life::Rejected { .. });
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

    pub(super) fn spec(&self) -> &PodSpec {
        // Pods without a spec do not pass validation; an empty one simulates nothing.
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    pub(super) fn container(&self, unit: &Unit) -> Option<&Container> {
        match unit.role {
            Role::App => self.spec().containers.get(unit.index),
            Role::Init | Role::Sidecar => self.spec().init_containers.as_ref()?.get(unit.index),
        }
    }

    pub(super) fn rule(&self, unit: &Unit) -> RestartRule {
        if unit.role == Role::Sidecar {
            return RestartRule::Always;
        }
        let own = self
            .container(unit)
            .and_then(|container| container.restart_policy.as_deref());
        let rule = match own.or(self.spec().restart_policy.as_deref()) {
            Some("Never") => RestartRule::Never,
            Some("OnFailure") => RestartRule::OnFailure,
            _ => RestartRule::Always,
        };
        // An init container that succeeded has done its work, whatever the policy.
        if unit.role == Role::Init && rule == RestartRule::Always {
            RestartRule::OnFailure
        } else {
            rule
        }
    }

    pub(super) fn event(
        &mut self,
        warning: bool,
        reason: impl Into<Cow<'static, str>>,
        message: String,
        unit: Option<usize>,
    ) {
        let field_path = unit.map(|unit| {
            let unit = &self.units[unit];
            let list = if unit.role == Role::App {
                "containers"
            } else {
                "initContainers"
            };
            format!("spec.{list}{{{}}}", unit.name)
        });
        self.events.push(PodEvent {
            warning,
            reason: reason.into(),
            message,
            field_path,
        });
    }

    /// `name_namespace(uid)`, as the kubelet names pods in messages.
    pub(super) fn reference(&self) -> String {
        let meta = &self.pod.metadata;
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        format!(
            "{}_{}({})",
            part(&meta.name),
            part(&meta.namespace),
            self.uid
        )
    }

    fn host_network(&self) -> bool {
        self.spec().host_network == Some(true)
    }

    fn adopt(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        let pod = Arc::clone(&self.pod);
        let Some(status) = pod.status.as_ref() else {
            return;
        };
        let Some(start) = &status.start_time else {
            return;
        };
        self.start_time = Some(start.0);
        if let Some("Succeeded" | "Failed") = status.phase.as_deref() {
            // Its status is final: nothing is written again, only a deletion is carried out.
            self.life = Life::Over { why: None };
            self.sealed = true;
            return;
        }
        let Some(ip) = &status.pod_ip else { return };
        if let Ok(address) = ip.parse()
            && !self.host_network()
        {
            parts.addresses.adopt(&self.uid, address);
        }
        self.ip = Some(ip.clone());
        self.sandbox = Sandbox::Up;
        let found = || {
            status
                .container_statuses
                .iter()
                .chain(&status.init_container_statuses)
                .flatten()
        };
        for index in 0..self.units.len() {
            let name = &self.units[index].name;
            let Some(status) = found().find(|status| status.name == *name) else {
                continue;
            };
            let plan = self.exit_plan(index, parts);
            let planned = |since| {
                plan.map(|(code, after)| PlannedExit {
                    at: parts.pace.after(since, after),
                    code,
                })
            };
            self.units[index].adopt(status, planned);
            if self.units[index].starts > 0
                && let Ok(image) = super::images::ImageRef::parse(&self.units[index].image)
            {
                parts.images.adopt(&image, now);
            }
        }
    }

    /// The exit that an annotation (or, for an init container, its nature) plans for a unit.
    pub(super) fn exit_plan(
        &self,
        unit: usize,
        parts: &Parts<'_>,
    ) -> Option<(i32, SignedDuration)> {
        let unit = &self.units[unit];
        let annotations = self.pod.metadata.annotations.as_ref();
        let plan = annotations::exit_plan(annotations, &unit.name, unit.role == Role::App);
        let plan = plan.map(|plan| (plan.code, plan.after));
        plan.or((unit.role == Role::Init).then_some((0, parts.delays.init_run)))
    }

    fn advance_sandbox(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        match self.sandbox {
            Sandbox::Up => return,
            Sandbox::Failed { retry_at } if retry_at > now => return,
            Sandbox::None | Sandbox::Failed { .. } => match self.obtain_address(parts, now) {
                Ok(ip) => {
                    self.ip = Some(ip);
                    self.sandbox = Sandbox::Creating {
                        until: parts.pace.after(now, parts.delays.sandbox),
                    };
                }
                Err(retry_at) => {
                    self.sandbox = Sandbox::Failed { retry_at };
                    let message = self.no_address(parts.facts.is_windows(), now);
                    self.event(true, "FailedCreatePodSandBox", message, None);
                }
            },
            Sandbox::Creating { .. } => {}
        }
        if let Sandbox::Creating { until } = self.sandbox
            && until <= now
        {
            self.sandbox = Sandbox::Up;
        }
    }

    fn obtain_address(&self, parts: &mut Parts<'_>, now: Timestamp) -> Result<String, Timestamp> {
        if self.host_network() {
            return Ok(parts.facts.internal_ip.to_string());
        }
        let address = parts
            .addresses
            .assign(&self.uid, now)
            .map_err(|exhausted| {
                let retry = now.saturating_add(SANDBOX_RETRY).unwrap_or(Timestamp::MAX);
                exhausted.until.map_or(retry, |until| until.min(retry))
            })?;
        Ok(address.to_string())
    }

    fn no_address(&self, windows: bool, now: Timestamp) -> String {
        let sandbox = ids::hex64(&[&self.uid, "sandbox", &now.as_second().to_string()]);
        let plugin = if windows {
            "plugin type=\"vpc-bridge\" name=\"vpc\" failed (add): failed to parse Kubernetes args: \
             pod does not have label vpc.amazonaws.com/PrivateIPv4Address"
        } else {
            "plugin type=\"aws-cni\" name=\"aws-cni\" failed (add): add cmd: failed to assign an IP address to container"
        };
        format!(
            "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox \"{sandbox}\": {plugin}"
        )
    }

    /// The next moment at which a step has something to do.
    fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        let own = match &self.life {
            Life::Active => {
                let sandbox = match self.sandbox {
                    Sandbox::Creating { until } => Some(until),
                    Sandbox::Failed { retry_at } => Some(retry_at),
                    Sandbox::None | Sandbox::Up => None,
                };
                sandbox.into_iter().chain(self.active_deadline()).min()
            }
            Life::Stopping { deadline, .. } => Some(*deadline),
            Life::Over { .. } | Life::Rejected { .. } => return None,
        };
        // In a pod that stops, only what runs changes any more.
        let stopping = self.life != Life::Active;
        self.units
            .iter()
            .filter(|unit| !stopping || unit.is_running())
            .filter_map(|unit| unit.wake(now))
            .chain(own)
            .min()
    }

    fn report(&mut self, parts: &Parts<'_>, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.sealed {
            return;
        }
        let status = self.status(parts.facts, now);
        let fingerprint = Some(fingerprint(&status));
        if self.written == fingerprint {
            return;
        }
        let address = self
            .ip
            .as_ref()
            .filter(|_| parts.facts.is_windows() && !self.host_network() && !self.address_written);
        let address = address.map(|ip| format!("{ip}/{}", parts.facts.subnet_prefix_len));
        self.address_written |= address.is_some();
        self.written = fingerprint;
        self.sealed = matches!(self.life, Life::Over { .. });
        effects.push(Effect::Status {
            status: Box::new(status),
            address,
        });
    }

    /// The status as the kubelet would write it now.
    fn status(&mut self, facts: &NodeFacts, now: Timestamp) -> PodStatus {
        let host_ip = facts.internal_ip.to_string();
        let mut written = PodStatus {
            start_time: self.start_time.map(Time),
            observed_generation: self.pod.metadata.generation,
            ..PodStatus::default()
        };
        let why = match &self.life {
            Life::Rejected { reason, message } => {
                written.phase = Some("Failed".to_owned());
                written.reason = Some(reason.clone());
                written.message = Some(message.clone());
                return written;
            }
            Life::Stopping { why, .. } | Life::Over { why } => *why,
            Life::Active => None,
        };
        let has_init = self.units.iter().any(|unit| unit.role != Role::App);
        let waiting = if has_init {
            "PodInitializing"
        } else {
            "ContainerCreating"
        };
        let reference = self.reference();
        let statuses: Vec<_> = self
            .units
            .iter()
            .map(|unit| unit.status(&self.uid, &reference, waiting, now))
            .collect();
        let over = matches!(self.life, Life::Over { .. });
        let phase = match why {
            Some(_) => "Failed",
            None => status::phase(&self.units, |unit| self.rule(unit), over, now),
        };
        let view = View {
            pod: &self.pod,
            units: &self.units,
            statuses: &statuses,
            phase,
            sandbox_up: self.sandbox == Sandbox::Up,
            now,
        };
        written.conditions = Some(status::conditions(&view, &mut self.transitions));
        written.phase = Some(phase.to_owned());
        if let Some((reason, message)) = why {
            (written.reason, written.message) = (Some(reason.to_owned()), Some(message.to_owned()));
        }
        written.host_ips = Some(vec![HostIP {
            ip: host_ip.clone(),
        }]);
        written.host_ip = Some(host_ip);
        if !matches!(self.sandbox, Sandbox::Creating { .. }) {
            written.pod_ips = self.ip.as_ref().map(|ip| vec![PodIP { ip: ip.clone() }]);
            written.pod_ip = self.ip.clone();
        }
        let inits = self
            .units
            .iter()
            .filter(|unit| unit.role != Role::App)
            .count();
        let mut statuses = statuses;
        let apps = statuses.split_off(inits);
        written.init_container_statuses = (inits > 0).then_some(statuses);
        written.container_statuses = Some(apps);
        written
    }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// A number that differs where statuses do.
fn fingerprint(status: &PodStatus) -> u64 {
    struct Sink(FxHasher);
    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut sink = io::BufWriter::with_capacity(4096, Sink(FxHasher::default()));
    // Neither plain data nor a hash can fail to be written; if one did, the status would count as changed.
    let _ = serde_json::to_writer(&mut sink, status);
    sink.into_inner()
        .map(|sink| sink.0.finish())
        .unwrap_or_default()
}

/// How soon the kubelet tries again to make a sandbox.
const SANDBOX_RETRY: SignedDuration = SignedDuration::from_secs(10);
