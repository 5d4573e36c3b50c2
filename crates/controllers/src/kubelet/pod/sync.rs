//! Starts a pod's containers in order, and decides what follows when one of them exits.
//!
//! Init containers run one after the other, sidecars keep running beside later containers, and app containers start
//! in order. In the kubelet one worker syncs a pod, so containers are started one by one, from the pull to the
//! start. Running containers may exit, and starts in progress may finish, at any time.
//!
//! Invariant: after a sync the only due actions left are starts, and a start waits only for a container whose own
//! next change is in the future. So a pod with work left always has a next wake time, and that is in the future.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Container;
use mullion_engine::images::ImageRef;

use super::{Parts, PodSim};
use crate::kubelet::{
    annotations,
    container::{Backoff, Exit, Failure, Retry, Role, State, Unit},
    identity, ids,
    pace::go_duration,
    status::has_initialized,
};

/// The delay of the kubelet's next sync after an exit or a failed pull.
const RESYNC: SignedDuration = SignedDuration::from_secs(1);
/// The delay of the kubelet's next sync after an error without back-off.
pub(super) const RESYNC_AFTER_ERROR: SignedDuration = SignedDuration::from_secs(10);

/// Whether a container may begin to start now, or may only continue what it has begun and start later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartTurn {
    Now,
    Later,
}

impl PodSim {
    /// Carries out what is due for the containers of a pod whose sandbox is up.
    pub(super) fn sync_containers(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        if std::mem::take(&mut self.simulation_changed) {
            self.replan_runs(parts, now);
        }
        // Before the runs advance: a changed image must not let the old one start again.
        self.notice_new_images(now);
        self.begin_replacing(parts, now);
        self.go_on(parts, now);
        if !self.advance_restart(parts, now) {
            return;
        }
        self.start_in_order(parts, now);
        self.finish_replacing();
        self.consider_completion(parts, now);
    }

    /// Advances every container in what it has begun.
    pub(super) fn go_on(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        for index in 0..self.units.len() {
            self.drive(index, StartTurn::Later, parts, now);
        }
    }

    /// Lets the containers start in order, up to the first that takes time or blocks those after it.
    fn start_in_order(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        for index in 0..self.units.len() {
            // Ephemeral containers come first, because someone who debugs a pod that hangs must not wait for
            // its containers.
            if self.units[index].role == Role::Ephemeral {
                self.drive(index, StartTurn::Now, parts, now);
            }
        }
        let holds_up = |unit: &Unit| unit.role != Role::Ephemeral && unit.is_coming_up();
        // One worker starts the containers of a pod, and it is still busy with this one.
        if self.units.iter().any(holds_up) {
            return;
        }
        let initialized = has_initialized(&self.units);
        for index in 0..self.units.len() {
            let role = self.units[index].role;
            if role == Role::Ephemeral {
                continue;
            }
            // Once an app container has run, init containers are not started again.
            if role == Role::Init && initialized {
                continue;
            }
            self.drive(index, StartTurn::Now, parts, now);
            let unit = &self.units[index];
            let go_on = match role {
                Role::Init => unit.ended_well(),
                Role::Sidecar => initialized || unit.is_started(),
                Role::App | Role::Ephemeral => true,
            };
            if unit.is_coming_up() || !go_on {
                return;
            }
        }
    }

    /// Ends the pod if an init container failed or all app containers have ended.
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
                .and_then(|container| container.image.as_deref())
                .unwrap_or_default();
            if wanted == &*self.units[index].image {
                continue;
            }
            let wanted = wanted.into();
            if self.units[index].is_running() {
                let message = format!(
                    "Container {} definition changed, will be restarted",
                    self.units[index].name
                );
                self.event(false, "Killing", message, Some(index));
                // A changed definition is no failure: the old run ends at once and without back-off.
                let exit = self.units[index].exit_now(0, now);
                self.units[index].last = Some(exit);
            }
            let unit = &mut self.units[index];
            unit.image = wanted;
            // The back-off was for pulls of the old image.
            unit.pull_backoff = Backoff::default();
            if matches!(unit.state, State::Ended(_)) {
                continue;
            }
            if let State::Exited { exit, .. } = std::mem::replace(&mut unit.state, State::Idle) {
                unit.last = Some(exit);
            }
        }
    }

    /// Takes one container through every change that is due at `now`.
    fn drive(&mut self, index: usize, turn: StartTurn, parts: &mut Parts<'_>, now: Timestamp) {
        let may_start = turn == StartTurn::Now;
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
                            self.configure(index, parts, now)
                        }
                        Err(error) => self.pull_failed(index, error.to_string(), parts, now),
                    }
                }
                State::Blocked { retry: Some(retry) }
                    if retry.backing_off_at.is_some_and(|at| at <= now) =>
                {
                    // The kubelet reports a failed pull as ErrImagePull first, and as a back-off from its next sync
                    // on.
                    let again = retry.at;
                    let unit = &self.units[index];
                    let text = format!("Back-off pulling image \"{}\"", unit.image);
                    let error = unit.failure.as_ref();
                    let error = error.map_or("", |failure| failure.message.as_str());
                    let message = format!("{text}: ErrImagePull: {error}");
                    self.event(false, "BackOff", text, Some(index));
                    self.event(
                        true,
                        "Failed",
                        "Error: ImagePullBackOff".to_owned(),
                        Some(index),
                    );
                    self.failed(index, "ImagePullBackOff", message);
                    State::Blocked {
                        retry: Some(Box::new(Retry {
                            backing_off_at: None,
                            at: again,
                        })),
                    }
                }
                State::Blocked { retry: Some(retry) }
                    if may_start && retry.backing_off_at.is_none() && retry.at <= now =>
                {
                    State::Idle
                }
                State::Configuring { found: Some(found) } => {
                    let found = found.clone();
                    self.configured(index, &found, parts, now)
                }
                State::Creating { until } if *until <= now => self.started(index, parts, now),
                State::Running {
                    exit: Some(planned),
                    being_killed,
                    ..
                } if planned.at <= now => {
                    let (code, being_killed) = (planned.code, *being_killed);
                    let exit = self.units[index].exit_now(code, now);
                    // A restart for a resize has no back-off.
                    if self.is_replaced(index) {
                        self.units[index].last = Some(exit);
                        State::Idle
                    } else if being_killed && self.restarts_after_failed_probe(index) {
                        self.replace_after_failed_probe(index, exit, now)
                    } else {
                        State::Exited {
                            exit,
                            settle_at: parts.pace.after(now, RESYNC),
                        }
                    }
                }
                State::Running {
                    probes: Some(probes),
                    being_killed: false,
                    ..
                } if probes.is_due(now) => {
                    self.probe(index, parts, now);
                    continue;
                }
                State::Exited { exit, settle_at } if *settle_at <= now => {
                    let exit = exit.clone();
                    self.settle(index, exit, now)
                }
                State::CrashLoop { until } if may_start && *until <= now => {
                    let unit = &mut self.units[index];
                    // The back-off is measured from the exit, so that the wait itself does not make it expire.
                    let ended = unit.last.as_ref().and_then(|last| last.finished_at);
                    unit.crash_backoff.lengthen(ended.unwrap_or(now), now);
                    State::Idle
                }
                _ => return,
            };
            self.units[index].state = next;
        }
    }

    /// Returns what follows a container's exit: the end, a restart, or a wait for one.
    fn settle(&mut self, index: usize, exit: Box<Exit>, now: Timestamp) -> State {
        if self.restarting.is_some() || self.asks_for_restart_of_all(index, exit.code) {
            return State::Ended(exit);
        }
        if !self.restarts(&self.units[index], exit.code) {
            return State::Ended(exit);
        }
        let ended = exit.finished_at.unwrap_or(now);
        self.start_again(index, exit, ended, now)
    }

    /// Restarts a container after `exit`, or makes it wait for that. The back-off is measured from `event`.
    pub(super) fn start_again(
        &mut self,
        index: usize,
        exit: Box<Exit>,
        event: Timestamp,
        now: Timestamp,
    ) -> State {
        let later =
            |moment: Timestamp, delay| moment.saturating_add(delay).unwrap_or(Timestamp::MAX);
        let ended = exit.finished_at.unwrap_or(now);
        let unit = &mut self.units[index];
        let delay = unit.crash_backoff.delay(event);
        unit.last = Some(exit);
        // The back-off is already over, so the container restarts without a CrashLoopBackOff state.
        // Measured from `event`, while the wait below ends a delay after the exit.
        if later(event, delay) <= now {
            unit.crash_backoff.lengthen(event, now);
            return State::Idle;
        }
        let (name, reference) = (&self.units[index].name, self.reference());
        let text = format!("Back-off restarting failed container {name} in pod {reference}");
        let message = format!(
            "back-off {} restarting failed container={name} pod={reference}",
            go_duration(delay)
        );
        self.event(true, "BackOff", text, Some(index));
        self.failed(index, "CrashLoopBackOff", message);
        State::CrashLoop {
            until: later(ended, delay),
        }
    }

    /// Stores why a container does not run.
    pub(super) fn failed(&mut self, index: usize, reason: &'static str, message: String) {
        self.units[index].failure = Some(Box::new(Failure { reason, message }));
    }

    /// Begins a start by looking for the image, and pulls it if needed.
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
                self.failed(index, "InvalidImageName", message);
                return State::Blocked { retry: None };
            }
        };
        let policy = self
            .container(&self.units[index])
            .map_or("IfNotPresent", |container| pull_policy(container, &image));
        let fails = self.pull_fails(index);
        match policy {
            "Never" | "IfNotPresent" if !fails && parts.images.has(&image, now) => {
                let message = format!(
                    "Container image \"{name}\" already present on machine and can be accessed by the pod"
                );
                self.event(false, "Pulled", message, Some(index));
                self.configure(index, parts, now)
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
                self.failed(index, "ErrImageNeverPull", message);
                // Another pod may pull the image meanwhile.
                State::Blocked {
                    retry: Some(Box::new(Retry {
                        backing_off_at: None,
                        at: now
                            .saturating_add(RESYNC_AFTER_ERROR)
                            .unwrap_or(Timestamp::MAX),
                    })),
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
                    pull: Box::new(if fails {
                        parts.images.pull_in_vain(&image, now)
                    } else {
                        parts.images.pull(&image, now)
                    }),
                }
            }
        }
    }

    /// Returns whether an annotation makes pulls of the container's image fail.
    fn pull_fails(&self, index: usize) -> bool {
        let unit = &self.units[index];
        let steering = self.pod.metadata.annotations.as_ref();
        annotations::pull_fails(steering, &unit.name, unit.role == Role::App)
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
        let delay = self.units[index].pull_backoff.lengthen(now, now);
        let retry = Retry {
            backing_off_at: Some(parts.pace.after(now, RESYNC)),
            at: now.saturating_add(delay).unwrap_or(Timestamp::MAX),
        };
        self.failed(index, "ErrImagePull", error);
        State::Blocked {
            retry: Some(Box::new(retry)),
        }
    }

    /// Returns why the runtime cannot start a created container, or `None` if it can.
    fn cannot_start(&self, index: usize, parts: &Parts<'_>) -> Option<String> {
        let unit = &self.units[index];
        let container = self.container(unit)?;
        if !parts.facts.is_windows() {
            return None;
        }
        let id = ids::container_id(&self.uid, &unit.name, unit.starts);
        let id = id.trim_start_matches("containerd://");
        if let Some(why) = identity::cannot_log_on(&self.pod, container) {
            return Some(format!(
                "failed to start containerd task {id:?}: {why}: unknown"
            ));
        }
        // Windows compares the builds when hcsshim creates the container's compute system. A HostProcess container
        // has none.
        let image = ImageRef::parse(&unit.image).ok()?;
        let is_foreign = !identity::is_host_process(&self.pod, container)
            && parts.images.is_of_another_build(&image);
        is_foreign.then(|| {
            format!(
                "failed to create containerd task: failed to create shim task: hcs::CreateComputeSystem {id}: The container operating \
                 system does not match the host operating system.: unknown"
            )
        })
    }

    fn started(&mut self, index: usize, parts: &Parts<'_>, now: Timestamp) -> State {
        self.event(
            false,
            "Created",
            "Container created".to_owned(),
            Some(index),
        );
        if let Some(error) = self.cannot_start(index, parts) {
            return self.refused(index, "RunContainerError", error, now);
        }
        self.event(
            false,
            "Started",
            "Container started".to_owned(),
            Some(index),
        );
        if parts.facts.is_windows() {
            self.record_memory_limit(index);
        }
        let plan = self.plan_run(index, now, parts);
        let unit = &mut self.units[index];
        unit.starts += 1;
        unit.failure = None;
        State::Running {
            since: now,
            exit: plan.exit,
            probes: plan.probes,
            being_killed: false,
        }
    }
}

pub(super) fn creating(parts: &Parts<'_>, now: Timestamp) -> State {
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
