//! One container of a simulated pod: its state and its history.
//!
//! A [`Unit`] only stores; [`super::pod`] decides the order in which units start and stop, and [`report`] builds the
//! container status.
//!
//! Invariant: `starts` counts every start, so `starts - 1` is the number of the present or last run; `last` is the exit
//! before the present start.

mod backoff;
mod report;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus};

pub(super) use backoff::Backoff;
pub(super) use report::ReportInputs;

use super::{config::FoundObjects, probes::Probes, pulls::Pull};

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An init container: runs to completion before the next container starts.
    Init,
    /// A sidecar, that is an init container with `restartPolicy: Always`: runs beside the app containers.
    Sidecar,
    /// An app container.
    App,
    /// An ephemeral container (`kubectl debug`). It starts as soon as possible, is never restarted, and does not affect the
    /// pod's phase or readiness.
    Ephemeral,
}

impl Role {
    /// Returns whether it is listed in `initContainers`.
    pub(super) fn is_of_init(self) -> bool {
        matches!(self, Role::Init | Role::Sidecar)
    }
}

/// A container and its history.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: Box<str>,
    pub(super) role: Role,
    /// Its index in the spec's list for its role.
    pub(super) index: usize,
    /// The image of its last start.
    pub(super) image: Box<str>,
    pub(super) state: State,
    pub(super) last: Option<Box<Exit>>,
    /// Why it could not start; `None` once it has started.
    pub(super) failure: Option<Box<Failure>>,
    pub(super) starts: i32,
    /// The value of `starts` when all containers of the pod were last restarted; 0 if they never were.
    pub(super) starts_at_restart_all: i32,
    pub(super) crash_backoff: Backoff,
    pub(super) pull_backoff: Backoff,
}

/// The state of a container.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// It waits for its turn to start.
    Idle,
    /// Its image is being pulled.
    Pulling {
        queued_at: Timestamp,
        pull: Box<Pull>,
    },
    /// Its image cannot be pulled, or its environment cannot be built.
    Blocked { retry: Option<Box<Retry>> },
    /// The objects of its environment are being looked up.
    Configuring { found: Option<Box<FoundObjects>> },
    /// It is being created and started.
    Creating { until: Timestamp },
    /// It is running.
    Running {
        since: Timestamp,
        exit: Option<PlannedExit>,
        probes: Option<Box<Probes>>,
        /// Whether the container is being killed because a probe failed or a resize restarts it; it is not probed any more.
        being_killed: bool,
    },
    /// It has exited; the next state is decided at `settle_at`.
    Exited {
        exit: Box<Exit>,
        settle_at: Timestamp,
    },
    /// It has exited and will be restarted at `until`.
    CrashLoop { until: Timestamp },
    /// It has exited and will not be restarted.
    Ended(Box<Exit>),
}

/// Reason and message of a waiting container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// When a failed pull is reported as back-off, and when it is retried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) backing_off_at: Option<Timestamp>,
    pub(super) at: Timestamp,
}

/// The planned exit of a running container.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedExit {
    pub(super) at: Timestamp,
    pub(super) code: i32,
}

/// The exit of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) reason: &'static str,
    pub(super) message: Option<&'static str>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) finished_at: Option<Timestamp>,
    /// The number of the run, which determines the container id.
    pub(super) attempt: Option<i32>,
}

impl Exit {
    /// Returns the exit of a container that was not found when its pod ended.
    pub(super) fn unknown() -> Self {
        Self {
            // The kubelet reports 137 when it cannot know how a container ended.
            code: 137,
            reason: "ContainerStatusUnknown",
            message: Some("The container could not be located when the pod was terminated"),
            started_at: None,
            finished_at: None,
            attempt: None,
        }
    }

    /// Returns the exit code of a container that was killed: on Windows that of a process ended by a console event
    /// (0xC000013A), which the API shows as a signed number.
    pub(super) fn killed(windows: bool) -> i32 {
        if windows { -1_073_741_510 } else { 137 }
    }

    /// Returns the exit code of a container that the stop signal ended before its work was complete: that of a process ended
    /// by SIGTERM, on Windows by a console event.
    pub(super) fn interrupted(windows: bool) -> i32 {
        if windows { Self::killed(windows) } else { 143 }
    }

    /// Returns the reason that the container runtime gives for an exit code.
    fn reason_for(code: i32) -> &'static str {
        if code == 0 { "Completed" } else { "Error" }
    }

    fn found(terminated: &ContainerStateTerminated, attempt: i32) -> Box<Self> {
        Box::new(Self {
            code: terminated.exit_code,
            reason: Self::reason_for(terminated.exit_code),
            message: None,
            started_at: terminated.started_at.as_ref().map(|at| at.0),
            finished_at: terminated.finished_at.as_ref().map(|at| at.0),
            attempt: terminated.container_id.is_some().then_some(attempt.max(0)),
        })
    }
}

impl Unit {
    pub(super) fn new(container: &Container, role: Role, index: usize) -> Self {
        Self {
            name: container.name.as_str().into(),
            role,
            index,
            image: container.image.as_deref().unwrap_or_default().into(),
            state: State::Idle,
            last: None,
            failure: None,
            starts: 0,
            starts_at_restart_all: 0,
            crash_backoff: Backoff::default(),
            pull_backoff: Backoff::default(),
        }
    }

    /// Restores the unit from a container status at the API server: a running container continues, an exited one stays
    /// exited. `run` makes the state of a run that began at the given time.
    pub(super) fn found(
        &self,
        status: &ContainerStatus,
        run: impl FnOnce(Timestamp) -> State,
    ) -> Self {
        let mut found = self.clone();
        let terminated = |state: &Option<k8s_openapi::api::core::v1::ContainerState>| {
            state.as_ref().and_then(|state| state.terminated.clone())
        };
        let restarts = status.restart_count;
        let waits = status
            .state
            .as_ref()
            .is_some_and(|state| state.waiting.is_some());
        // Runs are numbered from 0. The last run of a waiting container has the number of its restarts, that of any
        // other container is the one before the present run.
        found.last = terminated(&status.last_state)
            .map(|last| Exit::found(&last, if waits { restarts } else { restarts - 1 }));
        let Some(state) = &status.state else {
            return found;
        };
        if let Some(running) = &state.running {
            let since = running.started_at.as_ref();
            found.starts = restarts + 1;
            found.state = run(since.map_or(Timestamp::UNIX_EPOCH, |at| at.0));
        } else if let Some(terminated) = &state.terminated {
            found.starts = restarts + 1;
            let exit = Exit::found(terminated, restarts);
            let settle_at = exit.finished_at.unwrap_or(Timestamp::UNIX_EPOCH);
            found.state = State::Exited { exit, settle_at };
        } else if found.last.is_some() {
            // A waiting container with an earlier exit has run before, so its next start counts as a restart.
            found.starts = restarts + 1;
        }
        found
    }

    pub(super) fn restarts(&self) -> i32 {
        (self.starts - 1).max(0)
    }

    /// Returns whether the container ran before all containers of its pod were restarted, and has not started since.
    pub(super) fn is_reset_by_restart_all(&self) -> bool {
        self.starts_at_restart_all > 0 && self.starts == self.starts_at_restart_all
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// Returns whether the kubelet is starting it.
    pub(super) fn is_coming_up(&self) -> bool {
        matches!(
            self.state,
            State::Pulling { .. } | State::Configuring { .. } | State::Creating { .. }
        )
    }

    /// Returns whether it runs and its startup probe, if any, has passed.
    pub(super) fn is_started(&self) -> bool {
        match &self.state {
            State::Running { probes, .. } => probes.as_ref().is_none_or(|probes| probes.started()),
            _ => false,
        }
    }

    /// Returns its exit if it has exited and is not about to be restarted.
    pub(super) fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited { exit, .. } | State::Ended(exit) => Some(exit),
            _ => None,
        }
    }

    pub(super) fn ended_well(&self) -> bool {
        matches!(&self.state, State::Ended(exit) if exit.code == 0)
    }

    /// Returns the exit of the present run at `now`.
    pub(super) fn exit_now(&self, code: i32, now: Timestamp) -> Box<Exit> {
        let since = match self.state {
            State::Running { since, .. } => Some(since),
            _ => None,
        };
        Box::new(Exit {
            code,
            reason: Exit::reason_for(code),
            message: None,
            started_at: since,
            finished_at: Some(now),
            attempt: Some(self.restarts()),
        })
    }

    /// Returns when its state changes next. A start that waits for another container has no time of its own: it follows when
    /// that container changes.
    pub(super) fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.state {
            // An answer to a lookup triggers a step by itself.
            State::Idle | State::Ended(_) | State::Configuring { .. } => None,
            State::Pulling { pull, .. } => Some(pull.done_at),
            State::Blocked { retry } => {
                let retry = retry.as_ref()?;
                retry
                    .backing_off_at
                    .or(Some(retry.at).filter(|at| *at > now))
            }
            State::Creating { until } => Some(*until),
            State::CrashLoop { until } => Some(*until).filter(|until| *until > now),
            State::Exited { settle_at, .. } => Some(*settle_at),
            State::Running {
                exit,
                probes,
                being_killed,
                ..
            } => {
                let probes = probes.as_ref().filter(|_| !being_killed);
                let probe = probes.and_then(|probes| probes.wake());
                probe.into_iter().chain(exit.map(|exit| exit.at)).min()
            }
        }
    }

    /// Returns when the present run ends, by itself or after a stop signal. A stopping pod waits for nothing else.
    pub(super) fn exits_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Running { exit, .. } => exit.map(|exit| exit.at),
            _ => None,
        }
    }
}
