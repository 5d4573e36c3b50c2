//! The order in which a pod's containers are brought up, and what follows when one of them ends.
//!
//! Init containers run one after the other, sidecars stay up beside what follows, app containers start in order. As one
//! worker looks after a pod, containers are brought up one by one, from the pull to the start; what is running may end,
//! and what was begun may be finished, at any time.
//!
//! Invariant: after a sync, whatever is due and has not been done is a start, and a start waits only for a container
//! whose own next change is ahead. So a pod that has work left always has a moment to wake at, and it is in the future.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Probe};

use super::{
    container::{Backoff, Exit, PlannedExit, Retry, Role, State, Unit},
    images::ImageRef,
    pace::go_duration,
    pod::{Parts, PodSim},
    status,
};

/// How long after an exit, or a failed pull, the kubelet looks at the pod again.
const RESYNC: SignedDuration = SignedDuration::from_secs(1);

/// Whether a container may begin to start now, or only go on with what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Has,
    Waits,
}

impl PodSim {
    /// Does what is due among the containers of a pod whose sandbox is up.
    pub(super) fn sync_containers(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        self.notice_new_images(now);
        for index in 0..self.units.len() {
            self.drive(index, Turn::Waits, parts, now);
        }
        self.start_in_order(parts, now);
        self.consider_completion(parts, now);
    }

    /// Gives the containers their turn to start, up to the first that takes time or holds up those behind it.
    fn start_in_order(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        if self.units.iter().any(Unit::is_coming_up) {
            return;
        }
        let initialized = status::has_initialized(&self.units);
        for index in 0..self.units.len() {
            let role = self.units[index].role;
            // Once an app container has run, init containers are not started again.
            if role == Role::Init && initialized {
                continue;
            }
            self.drive(index, Turn::Has, parts, now);
            let unit = &self.units[index];
            let go_on = match role {
                Role::Init => unit.ended_well(),
                Role::Sidecar => initialized || unit.is_started(now),
                Role::App => true,
            };
            if unit.is_coming_up() || !go_on {
                return;
            }
        }
    }

    /// A failed init container, or app containers that have all ended, end the pod.
    fn consider_completion(&mut self, parts: &Parts<'_>, now: Timestamp) {
        let ended = |unit: &Unit| matches!(unit.state, State::Ended(_));
        let init_failed = self
            .units
            .iter()
            .any(|unit| unit.role == Role::Init && ended(unit) && !unit.ended_well());
        let mut apps = self
            .units
            .iter()
            .filter(|unit| unit.role == Role::App)
            .peekable();
        let apps_ended = apps.peek().is_some() && apps.all(ended);
        if init_failed || apps_ended {
            self.begin_stop(
                self.spec().termination_grace_period_seconds.unwrap_or(30),
                None,
                parts,
                now,
            );
        }
    }

    /// Restarts app containers whose image was changed in the pod.
    fn notice_new_images(&mut self, now: Timestamp) {
        for index in 0..self.units.len() {
            let wanted = self
                .container(&self.units[index])
                .and_then(|container| container.image.clone())
                .unwrap_or_default();
            if wanted == self.units[index].image {
                continue;
            }
            if self.units[index].is_running() {
                let message = format!(
                    "Container {} definition changed, will be restarted",
                    self.units[index].name
                );
                self.event(false, "Killing", message, Some(index));
                let exit = self.units[index].exit_now(&self.uid, 0, now);
                self.units[index].last = Some(exit);
            }
            let unit = &mut self.units[index];
            unit.image = wanted;
            unit.pull_backoff = Backoff::default();
            if matches!(unit.state, State::Ended(_)) {
                continue;
            }
            if let State::Exited { exit, .. } = std::mem::replace(&mut unit.state, State::Idle) {
                unit.last = Some(exit);
            }
        }
    }

    /// Carries one container through every change that is due at `now`.
    fn drive(&mut self, index: usize, turn: Turn, parts: &mut Parts<'_>, now: Timestamp) {
        let may_start = turn == Turn::Has;
        loop {
            let next = match &self.units[index].state {
                State::Idle if may_start => self.try_start(index, parts, now),
                State::Pulling { queued_at, pull } if pull.done_at <= now => {
                    let (queued_at, pull) = (*queued_at, pull.clone());
                    match pull.result {
                        Ok(bytes) => {
                            let image = &self.units[index].image;
                            let message = format!(
                                "Successfully pulled image \"{image}\" in {} ({} including waiting). Image size: {bytes} bytes.",
                                go_duration(pull.work),
                                go_duration(pull.done_at.duration_since(queued_at)),
                            );
                            self.event(false, "Pulled", message, Some(index));
                            creating(parts, now)
                        }
                        Err(error) => self.pull_failed(index, error, parts, now),
                    }
                }
                State::NoImage {
                    message,
                    retry:
                        Some(Retry {
                            backing_off_at: Some(at),
                            at: again,
                        }),
                    ..
                } if *at <= now => {
                    let (error, again) = (message.clone(), *again);
                    let text = format!("Back-off pulling image \"{}\"", self.units[index].image);
                    self.event(false, "BackOff", text.clone(), Some(index));
                    self.event(
                        true,
                        "Failed",
                        "Error: ImagePullBackOff".to_owned(),
                        Some(index),
                    );
                    State::NoImage {
                        reason: "ImagePullBackOff",
                        message: format!("{text}: ErrImagePull: {error}"),
                        retry: Some(Retry {
                            backing_off_at: None,
                            at: again,
                        }),
                    }
                }
                State::NoImage {
                    retry:
                        Some(Retry {
                            backing_off_at: None,
                            at,
                        }),
                    ..
                } if may_start && *at <= now => State::Idle,
                State::Creating { until } if *until <= now => self.started(index, parts, now),
                State::Running {
                    exit: Some(planned),
                    ..
                } if planned.at <= now => {
                    let exit = self.units[index].exit_now(&self.uid, planned.code, now);
                    State::Exited {
                        exit,
                        settle_at: parts.pace.after(now, RESYNC),
                    }
                }
                State::Exited { exit, settle_at } if *settle_at <= now => {
                    let exit = exit.clone();
                    self.settle(index, exit, now)
                }
                State::CrashLoop { until, .. } if may_start && *until <= now => {
                    self.units[index].crash_backoff.lengthen(now);
                    State::Idle
                }
                _ => return,
            };
            self.units[index].state = next;
        }
    }

    /// What follows a container's exit: the end, another start, or a wait for one.
    fn settle(&mut self, index: usize, exit: Exit, now: Timestamp) -> State {
        if !self.rule(&self.units[index]).restarts(exit.code) {
            return State::Ended(exit);
        }
        let delay = self.units[index].crash_backoff.delay(now);
        let until = exit
            .finished_at
            .unwrap_or(now)
            .saturating_add(delay)
            .unwrap_or(Timestamp::MAX);
        self.units[index].last = Some(exit);
        if until <= now {
            self.units[index].crash_backoff.lengthen(now);
            return State::Idle;
        }
        let message = format!(
            "Back-off restarting failed container {} in pod {}",
            self.units[index].name,
            self.reference()
        );
        self.event(true, "BackOff", message, Some(index));
        State::CrashLoop { delay, until }
    }

    /// The first step towards a start: the image.
    fn try_start(&mut self, index: usize, parts: &mut Parts<'_>, now: Timestamp) -> State {
        let name = self.units[index].image.clone();
        let image = match ImageRef::parse(&name) {
            Ok(image) => image,
            Err(error) => {
                let message = format!("Failed to apply default image tag \"{name}\": {error}");
                self.event(true, "InspectFailed", message.clone(), Some(index));
                self.event(
                    true,
                    "Failed",
                    "Error: InvalidImageName".to_owned(),
                    Some(index),
                );
                return State::NoImage {
                    reason: "InvalidImageName",
                    message,
                    retry: None,
                };
            }
        };
        let policy = self
            .container(&self.units[index])
            .map_or("IfNotPresent", |container| pull_policy(container, &image));
        match policy {
            "Never" | "IfNotPresent" if parts.images.has(&image, now) => {
                let message = format!(
                    "Container image \"{name}\" already present on machine and can be accessed by the pod"
                );
                self.event(false, "Pulled", message, Some(index));
                creating(parts, now)
            }
            "Never" => {
                let message =
                    format!("Container image \"{name}\" is not present with pull policy of Never");
                self.event(true, "ErrImageNeverPull", message.clone(), Some(index));
                self.event(
                    true,
                    "Failed",
                    "Error: ErrImageNeverPull".to_owned(),
                    Some(index),
                );
                State::NoImage {
                    reason: "ErrImageNeverPull",
                    message,
                    retry: None,
                }
            }
            _ => {
                self.event(
                    false,
                    "Pulling",
                    format!("Pulling image \"{name}\""),
                    Some(index),
                );
                State::Pulling {
                    queued_at: now,
                    pull: parts.images.pull(&image, now),
                }
            }
        }
    }

    fn pull_failed(
        &mut self,
        index: usize,
        error: String,
        parts: &Parts<'_>,
        now: Timestamp,
    ) -> State {
        let image = &self.units[index].image;
        self.event(
            true,
            "Failed",
            format!("Failed to pull image \"{image}\": {error}"),
            Some(index),
        );
        self.event(
            true,
            "Failed",
            "Error: ErrImagePull".to_owned(),
            Some(index),
        );
        let delay = self.units[index].pull_backoff.lengthen(now);
        let retry = Retry {
            backing_off_at: Some(parts.pace.after(now, RESYNC)),
            at: now.saturating_add(delay).unwrap_or(Timestamp::MAX),
        };
        State::NoImage {
            reason: "ErrImagePull",
            message: error,
            retry: Some(retry),
        }
    }

    fn started(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) -> State {
        self.event(
            false,
            "Created",
            "Container created".to_owned(),
            Some(index),
        );
        self.event(
            false,
            "Started",
            "Container started".to_owned(),
            Some(index),
        );
        let container = self.container(&self.units[index]);
        let initial_delay = |probe: fn(&Container) -> Option<&Probe>| {
            let seconds = container
                .and_then(probe)
                .and_then(|probe| probe.initial_delay_seconds)
                .unwrap_or(0);
            SignedDuration::from_secs(i64::from(seconds))
        };
        let started_at = parts.pace.after(
            now,
            initial_delay(|container| container.startup_probe.as_ref()),
        );
        let ready_at = parts
            .pace
            .after(
                now,
                initial_delay(|container| container.readiness_probe.as_ref()),
            )
            .max(started_at);
        let exit = self
            .exit_plan(index, parts)
            .map(|(code, after)| PlannedExit {
                at: parts.pace.after(now, after),
                code,
            });
        self.units[index].starts += 1;
        State::Running {
            since: now,
            started_at,
            ready_at,
            exit,
        }
    }
}

fn creating(parts: &Parts<'_>, now: Timestamp) -> State {
    State::Creating {
        until: parts.pace.after(now, parts.delays.start),
    }
}

fn pull_policy<'a>(container: &'a Container, image: &ImageRef) -> &'a str {
    let default = if image.tag.as_deref() == Some("latest") {
        "Always"
    } else {
        "IfNotPresent"
    };
    container.image_pull_policy.as_deref().unwrap_or(default)
}
