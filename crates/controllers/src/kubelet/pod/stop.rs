//! Ends a pod: which containers get the stop signal when, which are killed, and what is reported of those that
//! never ran.
//!
//! App containers get the signal first and sidecars after them. A container that still runs when the grace period
//! ends is killed. The grace period is real time; the time to obey the signal is simulated work. A container that
//! obeys before its work is complete exits with an error.

use jiff::{SignedDuration, Timestamp};

use super::{EndReason, Lifecycle, Parts, PodSim, Sandbox, grace_ends};
use crate::kubelet::{
    annotations,
    container::{Exit, PlannedExit, Role, State},
    status,
};

impl PodSim {
    pub(super) fn consider_stopping(&mut self, parts: &Parts<'_>, now: Timestamp) {
        let meta = &self.pod.metadata;
        if meta.deletion_timestamp.is_some() {
            let grace = meta.deletion_grace_period_seconds.unwrap_or(0);
            self.begin_stop(grace, None, parts, now);
        } else if self
            .active_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            let why = (
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            );
            self.event(true, why.0, why.1.to_owned(), None);
            self.begin_stop(
                self.spec().termination_grace_period_seconds.unwrap_or(30),
                Some(why),
                parts,
                now,
            );
        }
    }

    pub(super) fn active_deadline(&self) -> Option<Timestamp> {
        let seconds = self.spec().active_deadline_seconds?;
        self.start_time?
            .saturating_add(SignedDuration::from_secs(seconds))
            .ok()
    }

    pub(super) fn begin_stop(
        &mut self,
        grace_s: i64,
        why: Option<EndReason>,
        parts: &Parts<'_>,
        now: Timestamp,
    ) {
        let deadline = grace_ends(grace_s, now);
        self.lifecycle = Lifecycle::Stopping {
            deadline,
            sidecars_signaled: false,
            why,
        };
        self.stop_containers(|role| role != Role::Sidecar, deadline, parts, now);
    }

    fn stop_containers(
        &mut self,
        which: impl Fn(Role) -> bool,
        deadline: Timestamp,
        parts: &Parts<'_>,
        now: Timestamp,
    ) {
        for index in 0..self.units.len() {
            if !which(self.units[index].role) || !self.units[index].is_running() {
                continue;
            }
            self.event(
                false,
                "Killing",
                format!("Stopping container {}", self.units[index].name),
                Some(index),
            );
            self.stop_run(index, deadline, parts, now);
        }
    }

    /// Plans the end of a run that has just received the stop signal and is killed at `deadline`.
    pub(super) fn stop_run(
        &mut self,
        index: usize,
        deadline: Timestamp,
        parts: &Parts<'_>,
        now: Timestamp,
    ) {
        let asked = annotations::stop_delay(self.pod.metadata.annotations.as_ref());
        let pre_stop = self.container(&self.units[index]).and_then(|container| {
            let hook = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
            Some(SignedDuration::from_secs(hook.sleep.as_ref()?.seconds))
        });
        let work = asked.unwrap_or(parts.delays.stop) + pre_stop.unwrap_or_default();
        let obeys_at = parts.pace.after(now, work);
        // A container that obeys without delay is never killed, even if the deadline is reached.
        let planned = if obeys_at < deadline || obeys_at == now {
            let code = if self.has_work(index) {
                Exit::interrupted(parts.facts.is_windows())
            } else {
                0
            };
            PlannedExit { at: obeys_at, code }
        } else {
            PlannedExit {
                at: deadline,
                code: Exit::killed(parts.facts.is_windows()),
            }
        };
        if let State::Running { exit, .. } = &mut self.units[index].state {
            // The container may exit by itself before it obeys.
            let sooner = exit.filter(|own| own.at < planned.at);
            *exit = Some(sooner.unwrap_or(planned));
        }
    }

    /// Returns whether a container works towards an end instead of serving until it is stopped.
    fn has_work(&self, index: usize) -> bool {
        let unit = &self.units[index];
        let steering = self.pod.metadata.annotations.as_ref();
        let inherits = unit.role == Role::App;
        annotations::exit_plan(steering, &unit.name, inherits).is_some()
            || (matches!(unit.role, Role::App | Role::Init) && self.works_to_an_end(unit))
    }

    pub(super) fn advance_stop(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        let Lifecycle::Stopping {
            deadline,
            sidecars_signaled,
            why,
        } = self.lifecycle.clone()
        else {
            return;
        };
        // A second deletion may have shortened the grace period.
        let deletion = self.pod.metadata.deletion_timestamp.as_ref().map(|at| at.0);
        let deadline = deletion.map_or(deadline, |at| deadline.min(at.max(now)));
        self.lifecycle = Lifecycle::Stopping {
            deadline,
            sidecars_signaled,
            why,
        };
        self.finish_runs(deadline, parts.facts.is_windows(), now);
        if self
            .units
            .iter()
            .any(|unit| unit.role != Role::Sidecar && unit.is_running())
        {
            return;
        }
        // Sidecars serve the app containers to their end, so they are stopped last, in what is left of the
        // grace period.
        if !sidecars_signaled {
            self.lifecycle = Lifecycle::Stopping {
                deadline,
                sidecars_signaled: true,
                why,
            };
            self.stop_containers(|role| role == Role::Sidecar, deadline, parts, now);
            self.finish_runs(deadline, parts.facts.is_windows(), now);
        }
        if self.units.iter().all(|unit| !unit.is_running()) {
            self.settle_for_good();
            self.sandbox = Sandbox::None;
            self.lifecycle = Lifecycle::Ended { why };
            // Released when the last container is gone, while the object may stay for its finalizers.
            parts.addresses.release(&self.uid, now);
        }
    }

    fn finish_runs(&mut self, deadline: Timestamp, windows: bool, now: Timestamp) {
        for unit in &mut self.units {
            let State::Running { exit, .. } = &unit.state else {
                continue;
            };
            let ended = match exit {
                Some(planned) if planned.at <= now => Some(planned.code),
                _ if deadline <= now => Some(Exit::killed(windows)),
                _ => None,
            };
            if let Some(code) = ended {
                unit.state = State::Ended(unit.exit_now(code, now));
            }
        }
    }

    /// Ends all containers for good: exited ones keep their exit, and those that never ran are reported as not
    /// found, unless init containers had not completed.
    fn settle_for_good(&mut self) {
        // The kubelet reports an unknown end only for containers that could have started.
        let initialized = status::has_initialized(&self.units)
            || !self.units.iter().any(|unit| unit.role.is_of_init());
        for unit in &mut self.units {
            let ended = match (&unit.state, unit.last.take()) {
                (State::Exited { exit, .. } | State::Ended(exit), _) => Some(exit.clone()),
                (_, Some(last)) => Some(last),
                (_, None) => initialized.then(|| Box::new(Exit::unknown())),
            };
            if let Some(exit) = ended {
                unit.state = State::Ended(exit);
            }
        }
    }
}
