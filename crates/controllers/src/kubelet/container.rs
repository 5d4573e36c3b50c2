//! One container of a simulated pod: what it is doing and what it has been through.
//!
//! A [`Unit`] only remembers; the order in which units start and stop is decided in [`super::pod`], and what the kubelet
//! reports of one is in [`report`].
//!
//! Invariant: `starts` counts every start, so that `starts - 1` numbers the run that is on or was last; and `last` is the
//! exit before the present start.

mod backoff;
mod report;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus};

pub(super) use backoff::Backoff;
pub(super) use report::Subject;

use super::{config::Found, probes::Probes, pulls::Pull};

/// The part a container plays in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs to completion before what comes after it.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside the app containers.
    Sidecar,
    /// An ordinary container.
    App,
    /// One that was put into the pod to look at it (`kubectl debug`). It starts as soon as it can and never again, and says nothing of the pod.
    Ephemeral,
}

impl Role {
    /// Whether it comes before the app containers.
    pub(super) fn is_of_init(self) -> bool {
        matches!(self, Role::Init | Role::Sidecar)
    }
}

/// A container and its history.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: Box<str>,
    pub(super) role: Role,
    /// Position in `spec.containers`, or in the list of its role.
    pub(super) index: usize,
    /// The image it was last told to run.
    pub(super) image: Box<str>,
    pub(super) state: State,
    pub(super) last: Option<Box<Exit>>,
    /// Why it could not start; forgotten when it has.
    pub(super) failure: Option<Box<Failure>>,
    pub(super) starts: i32,
    /// The starts it had when all containers of its pod were last to start anew.
    pub(super) anew_at: i32,
    pub(super) crash_backoff: Backoff,
    pub(super) pull_backoff: Backoff,
}

/// What a container is doing.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Waiting for its turn.
    Idle,
    /// Its image is on its way.
    Pulling {
        queued_at: Timestamp,
        pull: Box<Pull>,
    },
    /// Its image, or what its environment is made of, cannot be had.
    Blocked { retry: Option<Box<Retry>> },
    /// What its environment is made of is being looked up.
    Configuring { told: Option<Box<Found>> },
    /// It is being created and started.
    Creating { until: Timestamp },
    /// It runs.
    Running {
        since: Timestamp,
        exit: Option<PlannedExit>,
        probes: Option<Box<Probes>>,
        /// It is being stopped because a probe failed, and is probed no more.
        condemned: bool,
    },
    /// It ended, and what comes next is decided at `settle_at`.
    Exited {
        exit: Box<Exit>,
        settle_at: Timestamp,
    },
    /// It ended and waits to be started again.
    CrashLoop { until: Timestamp },
    /// It ended for good.
    Ended(Box<Exit>),
}

/// Reason and message of a container that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// When a failed pull is reported as a back-off, and when what failed is tried again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    pub(super) backing_off_at: Option<Timestamp>,
    pub(super) at: Timestamp,
}

/// The exit that is ahead of a running container.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedExit {
    pub(super) at: Timestamp,
    pub(super) code: i32,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) code: i32,
    pub(super) reason: &'static str,
    pub(super) message: Option<&'static str>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) finished_at: Option<Timestamp>,
    /// Which run it was, which gives its container's identifier.
    pub(super) attempt: Option<i32>,
}

impl Exit {
    /// A container that was never found, in a pod that is over.
    pub(super) fn unknown() -> Self {
        Self {
            code: 137,
            reason: "ContainerStatusUnknown",
            message: Some("The container could not be located when the pod was terminated"),
            started_at: None,
            finished_at: None,
            attempt: None,
        }
    }

    /// The exit code of a container that had to be killed: on Windows that of a process ended by a console event
    /// (0xC000013A), which the API shows as a signed number.
    pub(super) fn killed(windows: bool) -> i32 {
        if windows { -1_073_741_510 } else { 137 }
    }

    /// The exit code of a container that obeyed the stop signal in the midst of its work: that of a process ended by
    /// SIGTERM, on Windows by a console event.
    pub(super) fn interrupted(windows: bool) -> i32 {
        if windows { Self::killed(windows) } else { 143 }
    }

    /// The reason the runtime gives for an exit code.
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
            anew_at: 0,
            crash_backoff: Backoff::default(),
            pull_backoff: Backoff::default(),
        }
    }

    /// The unit as a status found at the API server shows it: what ran goes on running, what ended stays ended. `run`
    /// makes the state of a run that began then.
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
            found.starts = restarts + 1;
        }
        found
    }

    pub(super) fn restarts(&self) -> i32 {
        (self.starts - 1).max(0)
    }

    /// It ran before all containers of its pod were to start anew, and has not been started since.
    pub(super) fn is_anew(&self) -> bool {
        self.anew_at > 0 && self.starts == self.anew_at
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// The kubelet is at work on its start.
    pub(super) fn is_coming_up(&self) -> bool {
        matches!(
            self.state,
            State::Pulling { .. } | State::Configuring { .. } | State::Creating { .. }
        )
    }

    /// Its startup probe, if any, has passed.
    pub(super) fn is_started(&self) -> bool {
        match &self.state {
            State::Running { probes, .. } => probes.as_ref().is_none_or(|probes| probes.started()),
            _ => false,
        }
    }

    /// How it ended, if it is not running and not about to.
    pub(super) fn exit(&self) -> Option<&Exit> {
        match &self.state {
            State::Exited { exit, .. } | State::Ended(exit) => Some(exit),
            _ => None,
        }
    }

    pub(super) fn ended_well(&self) -> bool {
        matches!(&self.state, State::Ended(exit) if exit.code == 0)
    }

    /// Ends the present run.
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

    /// When its state changes next. A start that is due but waits for its turn has no moment of its own: it follows the
    /// container it waits for.
    pub(super) fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.state {
            // The answer to a question comes when it comes, and is followed by a step.
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
                condemned,
                ..
            } => {
                let probes = probes.as_ref().filter(|_| !condemned);
                let probe = probes.and_then(|probes| probes.wake());
                probe.into_iter().chain(exit.map(|exit| exit.at)).min()
            }
        }
    }

    /// When a run ends of itself or because it was told to: all that a pod waits for that is being stopped.
    pub(super) fn exits_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Running { exit, .. } => exit.map(|exit| exit.at),
            _ => None,
        }
    }
}
