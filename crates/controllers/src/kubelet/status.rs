//! Derives the phase and the conditions of a pod from its containers, as the kubelet does.
//!
//! Invariant: a condition's transition time changes exactly when its status changes.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{ContainerStatus, Pod, PodCondition},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{
    container::{Role, State, Unit},
    restart,
};

/// The pod conditions that the kubelet owns, in its order.
pub(super) const ORDER: [&str; 6] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    // Only for pods with a rule that restarts all containers.
    "AllContainersRestarting",
];

/// The index of `Ready` in [`ORDER`].
const READY: usize = 2;

/// The status of each condition in [`ORDER`], and when it last changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Transitions([Option<(bool, Timestamp)>; ORDER.len()]);

impl Transitions {
    /// Takes the transition times from the conditions of a pod at the API server.
    pub(super) fn adopt(pod: &Pod) -> Self {
        let mut transitions = Self::default();
        let conditions = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        for condition in conditions {
            if let Some(slot) = ORDER.iter().position(|name| *name == condition.type_) {
                let at = condition
                    .last_transition_time
                    .as_ref()
                    .map_or(Timestamp::UNIX_EPOCH, |at| at.0);
                transitions.0[slot] = Some((condition.status == "True", at));
            }
        }
        transitions
    }

    /// Returns whether the pod was ready when its conditions were last computed.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.0[READY], Some((true, _)))
    }

    fn at(&mut self, slot: usize, status: bool, now: Timestamp) -> Timestamp {
        match self.0[slot] {
            Some((before, at)) if before == status => at,
            _ => {
                self.0[slot] = Some((status, now));
                now
            }
        }
    }
}

/// A condition without its type and times.
struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    const YES: Self = Self {
        status: true,
        reason: None,
        message: None,
    };

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Self {
            status: false,
            reason: Some(reason),
            message,
        }
    }
}

/// The inputs from which the conditions are derived.
pub(super) struct View<'a> {
    pub(super) pod: &'a Pod,
    pub(super) units: &'a [Unit],
    pub(super) statuses: &'a [ContainerStatus],
    pub(super) phase: &'a str,
    pub(super) sandbox_up: bool,
    /// Whether all containers are being stopped to be restarted.
    pub(super) all_restarting: bool,
    pub(super) now: Timestamp,
}

/// Returns the conditions that the kubelet owns, in its order.
pub(super) fn conditions(view: &View<'_>, transitions: &mut Transitions) -> Vec<PodCondition> {
    let containers_ready = containers_ready(view);
    let ready = ready(view, &containers_ready);
    let sandbox = Verdict {
        status: view.sandbox_up,
        reason: None,
        message: None,
    };
    // In the order of ORDER, whose positions `transitions` uses.
    let verdicts = [
        sandbox,
        initialized(view),
        ready,
        containers_ready,
        Verdict::YES,
    ];
    let verdicts = verdicts.into_iter().chain(all_restarting(view));
    let generation = view.pod.metadata.generation;
    let stamp = |(slot, verdict): (usize, Verdict)| PodCondition {
        type_: ORDER[slot].to_owned(),
        status: if verdict.status { "True" } else { "False" }.to_owned(),
        reason: verdict.reason.map(str::to_owned),
        message: verdict.message,
        observed_generation: generation,
        last_probe_time: None,
        last_transition_time: Some(Time(transitions.at(slot, verdict.status, view.now))),
    };
    verdicts.enumerate().map(stamp).collect()
}

/// Returns the condition `AllContainersRestarting`; `None` for pods without a rule that restarts all containers.
fn all_restarting(view: &View<'_>) -> Option<Verdict> {
    let spec = view.pod.spec.as_ref();
    spec.filter(|spec| restart::may_be_of_all(spec))?;
    Some(match view.phase {
        "Succeeded" => Verdict::no("PodCompleted", None),
        "Failed" => Verdict::no("PodFailed", None),
        _ => Verdict {
            status: view.all_restarting,
            reason: view.all_restarting.then_some("RestartAllContainersStarted"),
            message: view
                .all_restarting
                .then(|| "container exited with restart policy rule".to_owned()),
        },
    })
}

fn containers_ready(view: &View<'_>) -> Verdict {
    match view.phase {
        "Succeeded" => return Verdict::no("PodCompleted", None),
        "Failed" => return Verdict::no("PodFailed", None),
        _ => {}
    }
    let counted = view
        .units
        .iter()
        .zip(view.statuses)
        .filter(|(unit, _)| matches!(unit.role, Role::App | Role::Sidecar));
    let unready = listed(
        counted
            .filter(|(_, status)| !status.ready)
            .map(|(unit, _)| unit),
    );
    match unready {
        Some(names) => Verdict::no(
            "ContainersNotReady",
            Some(format!("containers with unready status: {names}")),
        ),
        None => Verdict::YES,
    }
}

fn ready(view: &View<'_>, containers: &Verdict) -> Verdict {
    if !containers.status {
        return Verdict {
            status: false,
            reason: containers.reason,
            message: containers.message.clone(),
        };
    }
    let gates = view
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.readiness_gates.iter().flatten());
    let present = || {
        view.pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
    };
    let unmet: Vec<_> = gates
        .filter_map(|gate| {
            match present().find(|condition| condition.type_ == gate.condition_type) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {:?} does not exist.",
                    gate.condition_type
                )),
                Some(condition) if condition.status == "True" => None,
                Some(condition) => Some(format!(
                    "the status of pod readiness gate {:?} is not \"True\", but {}",
                    gate.condition_type, condition.status
                )),
            }
        })
        .collect();
    if unmet.is_empty() {
        Verdict::YES
    } else {
        Verdict::no("ReadinessGatesNotReady", Some(unmet.join(", ")))
    }
}

fn initialized(view: &View<'_>) -> Verdict {
    if view.phase == "Succeeded" {
        return Verdict {
            status: true,
            reason: Some("PodCompleted"),
            message: None,
        };
    }
    // Once an app container has started the pod stays initialized, even while a sidecar restarts.
    if has_initialized(view.units) {
        return Verdict::YES;
    }
    let incomplete = view.units.iter().filter(|unit| match unit.role {
        Role::Init => unit.exit().is_none_or(|exit| exit.code != 0),
        Role::Sidecar => !unit.is_started(),
        Role::App | Role::Ephemeral => false,
    });
    match listed(incomplete) {
        Some(names) => Verdict::no(
            "ContainersNotInitialized",
            Some(format!("containers with incomplete status: {names}")),
        ),
        None => Verdict::YES,
    }
}

/// Returns whether an app container has started since the pod began, or since all containers were last restarted.
pub(super) fn has_initialized(units: &[Unit]) -> bool {
    let has_run = |unit: &Unit| unit.role == Role::App && unit.starts > unit.starts_at_restart_all;
    units.iter().any(has_run)
}

/// Formats container names as Go prints a list; `None` for an empty list.
fn listed<'a>(units: impl Iterator<Item = &'a Unit>) -> Option<String> {
    let names: Vec<_> = units.map(|unit| &*unit.name).collect();
    (!names.is_empty()).then(|| format!("[{}]", names.join(" ")))
}

/// Returns the pod's phase. `restarts` tells whether an exit with this code leads to a restart; `terminal` means that no
/// container is restarted whatever `restarts` says.
pub(super) fn phase(
    units: &[Unit],
    restarts: impl Fn(&Unit, i32) -> bool,
    terminal: bool,
) -> &'static str {
    let initialized = has_initialized(units);
    let (mut pending_init, mut waiting, mut running, mut stopped, mut restartable, mut failed) =
        (0, 0, 0, 0, 0, 0);
    for unit in units {
        // The last exit, unless the container runs now; an idle container that has run before counts as stopped.
        let exit = unit.exit().or(unit
            .last
            .as_deref()
            .filter(|_| !unit.is_running() && !unit.is_reset_by_restart_all()));
        match (unit.role, exit) {
            (Role::Init, Some(exit)) if exit.code != 0 && !restarts(unit, exit.code) => {
                return "Failed";
            }
            (Role::Init | Role::Sidecar, Some(_)) | (Role::Ephemeral, _) => {}
            (Role::Init, None) => pending_init += 1,
            (Role::Sidecar, None) if unit.is_running() => {
                pending_init += usize::from(!initialized && !unit.is_started());
                running += 1;
            }
            (Role::Sidecar, None) => {
                pending_init += usize::from(!initialized);
                waiting += 1;
            }
            (Role::App, None) if unit.is_running() => running += 1,
            (Role::App, None) => waiting += 1,
            (Role::App, Some(exit)) => {
                stopped += 1;
                // A container in any other state is about to start again.
                let over = terminal
                    || match unit.state {
                        State::Ended(_) => true,
                        State::Exited { .. } => !restarts(unit, exit.code),
                        _ => false,
                    };
                restartable += usize::from(!over);
                failed += usize::from(exit.code != 0);
            }
        }
    }
    match () {
        // The kubelet's order: a pod is Pending while any container has not been started for the first time.
        () if pending_init > 0 || waiting > 0 => "Pending",
        () if running > 0 => "Running",
        () if stopped == 0 => "Pending",
        () if restartable > 0 => "Running",
        () if failed == 0 => "Succeeded",
        () => "Failed",
    }
}
