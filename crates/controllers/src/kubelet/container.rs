//! One container of a simulated pod: what it is doing, and what the kubelet would report of it.
//!
//! A [`Unit`] only remembers; the order in which units start and stop is decided in [`super::pod`].
//!
//! Invariant: `restarts` counts the starts after the first, and `last` is the exit before the present start.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{
        Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        ContainerStateWaiting, ContainerStatus,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::{ids, images::ImageRef, pulls::Pull};

/// The part a container plays in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Runs to completion before what comes after it.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside the app containers.
    Sidecar,
    /// An ordinary container.
    App,
}

/// A container and its history.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) name: String,
    pub(super) role: Role,
    /// Position in `spec.containers`, or in `spec.initContainers` for the other roles.
    pub(super) index: usize,
    /// The image it was last told to run.
    pub(super) image: String,
    pub(super) state: State,
    pub(super) last: Option<Exit>,
    pub(super) starts: i32,
    pub(super) crash_backoff: Backoff,
    pub(super) pull_backoff: Backoff,
}

/// What a container is doing.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// Waiting for its turn.
    Idle,
    /// Its image is on its way.
    Pulling { queued_at: Timestamp, pull: Pull },
    /// Its image cannot be had.
    NoImage {
        reason: &'static str,
        message: String,
        retry: Option<Retry>,
    },
    /// It is being created and started.
    Creating { until: Timestamp },
    /// It runs.
    Running {
        since: Timestamp,
        started_at: Timestamp,
        ready_at: Timestamp,
        exit: Option<PlannedExit>,
    },
    /// It ended, and what comes next is decided at `settle_at`.
    Exited { exit: Exit, settle_at: Timestamp },
    /// It ended and waits to be started again.
    CrashLoop {
        delay: SignedDuration,
        until: Timestamp,
    },
    /// It ended for good.
    Ended(Exit),
}

/// When a failed pull is reported as a back-off, and when it is tried again.
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
    pub(super) message: Option<String>,
    pub(super) started_at: Option<Timestamp>,
    pub(super) finished_at: Option<Timestamp>,
    pub(super) container_id: Option<String>,
}

impl Exit {
    /// A container that was never found, in a pod that is over.
    pub(super) fn unknown() -> Self {
        Self {
            code: 137,
            reason: "ContainerStatusUnknown",
            message: Some(
                "The container could not be located when the pod was terminated".to_owned(),
            ),
            started_at: None,
            finished_at: None,
            container_id: None,
        }
    }

    /// The reason the runtime gives for an exit code.
    pub(super) fn reason_for(code: i32) -> &'static str {
        if code == 0 { "Completed" } else { "Error" }
    }

    fn state(&self) -> ContainerState {
        let terminated = ContainerStateTerminated {
            container_id: self.container_id.clone(),
            exit_code: self.code,
            finished_at: self.finished_at.map(Time),
            message: self.message.clone(),
            reason: Some(self.reason.to_owned()),
            signal: None,
            started_at: self.started_at.map(Time),
        };
        ContainerState {
            terminated: Some(terminated),
            ..ContainerState::default()
        }
    }
}

/// A delay that doubles from 10 s to 300 s and is forgotten after twice its maximum without use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    delay: SignedDuration,
    renewed_at: Timestamp,
}

const FIRST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST: SignedDuration = SignedDuration::from_secs(300);

impl Backoff {
    /// The delay in force; zero if there is none, or if it is forgotten by `now`.
    pub(super) fn delay(&self, now: Timestamp) -> SignedDuration {
        let forgotten = now.duration_since(self.renewed_at) > LONGEST + LONGEST;
        if forgotten {
            SignedDuration::ZERO
        } else {
            self.delay
        }
    }

    /// Makes the delay in force longer and returns it.
    pub(super) fn lengthen(&mut self, now: Timestamp) -> SignedDuration {
        let delay = self.delay(now);
        self.delay = if delay.is_zero() {
            FIRST
        } else {
            (delay + delay).min(LONGEST)
        };
        self.renewed_at = now;
        self.delay
    }
}

impl Unit {
    pub(super) fn new(container: &Container, role: Role, index: usize) -> Self {
        Self {
            name: container.name.clone(),
            role,
            index,
            image: container.image.clone().unwrap_or_default(),
            state: State::Idle,
            last: None,
            starts: 0,
            crash_backoff: Backoff::default(),
            pull_backoff: Backoff::default(),
        }
    }

    /// Continues from a status found at the API server: what ran goes on running, what ended stays ended.
    pub(super) fn adopt(
        &mut self,
        status: &ContainerStatus,
        exit_at: impl FnOnce(Timestamp) -> Option<PlannedExit>,
    ) {
        self.last = status
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .map(exit_of);
        let Some(state) = &status.state else { return };
        if let Some(running) = &state.running {
            let since = running
                .started_at
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |at| at.0);
            self.starts = status.restart_count + 1;
            self.state = State::Running {
                since,
                started_at: since,
                ready_at: since,
                exit: exit_at(since),
            };
        } else if let Some(terminated) = &state.terminated {
            self.starts = status.restart_count + 1;
            let exit = exit_of(terminated);
            let settle_at = exit.finished_at.unwrap_or(Timestamp::UNIX_EPOCH);
            self.state = State::Exited { exit, settle_at };
        } else {
            self.starts = if self.last.is_some() {
                status.restart_count + 1
            } else {
                0
            };
        }
    }

    pub(super) fn restarts(&self) -> i32 {
        (self.starts - 1).max(0)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    /// The kubelet is at work on its start.
    pub(super) fn is_coming_up(&self) -> bool {
        matches!(self.state, State::Pulling { .. } | State::Creating { .. })
    }

    /// Its startup probe, if any, has passed.
    pub(super) fn is_started(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Running { started_at, .. } if started_at <= now)
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
    pub(super) fn exit_now(&self, pod_uid: &str, code: i32, now: Timestamp) -> Exit {
        let since = match self.state {
            State::Running { since, .. } => Some(since),
            _ => None,
        };
        Exit {
            code,
            reason: Exit::reason_for(code),
            message: None,
            started_at: since,
            finished_at: Some(now),
            container_id: Some(ids::container_id(pod_uid, &self.name, self.restarts())),
        }
    }

    /// When its state changes next. A start that is due but waits for its turn has no moment of its own: it follows the
    /// container it waits for.
    pub(super) fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        match &self.state {
            State::Idle | State::Ended(_) => None,
            State::Pulling { pull, .. } => Some(pull.done_at),
            State::NoImage { retry, .. } => {
                let retry = retry.as_ref()?;
                retry
                    .backing_off_at
                    .or(Some(retry.at).filter(|at| *at > now))
            }
            State::Creating { until } => Some(*until),
            State::CrashLoop { until, .. } => Some(*until).filter(|until| *until > now),
            State::Exited { settle_at, .. } => Some(*settle_at),
            State::Running {
                started_at,
                ready_at,
                exit,
                ..
            } => {
                let probes = [*started_at, *ready_at].into_iter();
                let exit = exit.map(|exit| exit.at);
                probes.filter(|at| *at > now).chain(exit).min()
            }
        }
    }

    /// The status the kubelet reports; `waiting` is the reason given while it has not been tried.
    pub(super) fn status(
        &self,
        pod_uid: &str,
        pod_ref: &str,
        waiting: &'static str,
        now: Timestamp,
    ) -> ContainerStatus {
        let mut status = ContainerStatus {
            name: self.name.clone(),
            image: self.image.clone(),
            restart_count: self.restarts(),
            started: Some(false),
            last_state: self.last.as_ref().map(Exit::state),
            ..ContainerStatus::default()
        };
        let wait = |reason: &str, message: Option<String>| ContainerState {
            waiting: Some(ContainerStateWaiting {
                reason: Some(reason.to_owned()),
                message,
            }),
            ..ContainerState::default()
        };
        let state = match &self.state {
            State::Idle | State::Pulling { .. } | State::Creating { .. } => match &self.last {
                Some(exit) => exit.state(),
                None => wait(waiting, None),
            },
            State::NoImage {
                reason, message, ..
            } => wait(reason, Some(message.clone())),
            State::CrashLoop { delay, .. } => {
                let delay = super::pace::go_duration(*delay);
                let message = format!(
                    "back-off {delay} restarting failed container={} pod={pod_ref}",
                    self.name
                );
                wait("CrashLoopBackOff", Some(message))
            }
            State::Running {
                since,
                started_at,
                ready_at,
                ..
            } => {
                status.started = Some(*started_at <= now);
                status.ready = self.role != Role::Init && *ready_at <= now;
                let running = ContainerStateRunning {
                    started_at: Some(Time(*since)),
                };
                ContainerState {
                    running: Some(running),
                    ..ContainerState::default()
                }
            }
            State::Exited { exit, .. } | State::Ended(exit) => {
                status.ready = self.role == Role::Init && exit.code == 0;
                exit.state()
            }
        };
        let ran = state.running.is_some()
            || state
                .terminated
                .as_ref()
                .is_some_and(|t| t.container_id.is_some());
        if ran || self.last.is_some() {
            status.container_id = Some(ids::container_id(pod_uid, &self.name, self.restarts()));
        }
        if let Ok(image) = ImageRef::parse(&self.image)
            && status.container_id.is_some()
        {
            status.image = image.full_name();
            status.image_id = image.repo_digest();
        }
        status.state = Some(state);
        status
    }
}

fn exit_of(terminated: &ContainerStateTerminated) -> Exit {
    Exit {
        code: terminated.exit_code,
        reason: Exit::reason_for(terminated.exit_code),
        message: terminated.message.clone(),
        started_at: terminated.started_at.as_ref().map(|at| at.0),
        finished_at: terminated.finished_at.as_ref().map(|at| at.0),
        container_id: terminated.container_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_doubles_to_five_minutes_and_is_forgotten_after_ten() {
        let mut backoff = Backoff::default();
        let mut now = Timestamp::UNIX_EPOCH;
        let delays: Vec<_> = (0..7)
            .map(|_| {
                now += SignedDuration::from_secs(400);
                backoff.lengthen(now).as_secs()
            })
            .collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(
            backoff
                .delay(now + SignedDuration::from_secs(600))
                .as_secs(),
            300
        );
        assert!(
            backoff
                .delay(now + SignedDuration::from_secs(601))
                .is_zero()
        );
    }
}
