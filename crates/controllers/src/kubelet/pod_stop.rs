//! How a pod ends: who is told to stop when, who is killed, and what is reported of those that never ran.
//!
//! App containers are told first and sidecars after them; whoever has not obeyed when the grace period ends is killed.
//! The grace period is real time, obeying is simulated work.

use jiff::{SignedDuration, Timestamp};

use super::{
    annotations,
    container::{Exit, PlannedExit, Role, State},
    pod::{Life, Parts, PodSim, Sandbox},
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
        why: Option<(&'static str, &'static str)>,
        parts: &Parts<'_>,
        now: Timestamp,
    ) {
        let deadline = now
            .saturating_add(SignedDuration::from_secs(grace_s.max(1)))
            .unwrap_or(Timestamp::MAX);
        self.life = Life::Stopping {
            deadline,
            sidecars_told: false,
            why,
        };
        self.tell_to_stop(|role| role != Role::Sidecar, deadline, parts, now);
    }

    fn tell_to_stop(
        &mut self,
        which: impl Fn(Role) -> bool,
        deadline: Timestamp,
        parts: &Parts<'_>,
        now: Timestamp,
    ) {
        let asked = annotations::stop_delay(self.pod.metadata.annotations.as_ref());
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
            let pre_stop = self.container(&self.units[index]).and_then(|container| {
                let sleep = container
                    .lifecycle
                    .as_ref()?
                    .pre_stop
                    .as_ref()?
                    .sleep
                    .as_ref()?;
                Some(SignedDuration::from_secs(sleep.seconds))
            });
            let work = asked.unwrap_or(parts.delays.stop) + pre_stop.unwrap_or_default();
            let obeys_at = parts.pace.after(now, work);
            let planned = if obeys_at < deadline || obeys_at == now {
                PlannedExit {
                    at: obeys_at,
                    code: 0,
                }
            } else {
                PlannedExit {
                    at: deadline,
                    code: 137,
                }
            };
            if let State::Running { exit, .. } = &mut self.units[index].state {
                let sooner = exit.filter(|own| own.at < planned.at);
                *exit = Some(sooner.unwrap_or(planned));
            }
        }
    }

    pub(super) fn advance_stop(&mut self, parts: &mut Parts<'_>, now: Timestamp) {
        let Life::Stopping {
            deadline,
            sidecars_told,
            why,
        } = self.life.clone()
        else {
            return;
        };
        // A second deletion may have shortened the grace period.
        let deletion = self.pod.metadata.deletion_timestamp.as_ref().map(|at| at.0);
        let deadline = deletion.map_or(deadline, |at| deadline.min(at.max(now)));
        self.life = Life::Stopping {
            deadline,
            sidecars_told,
            why,
        };
        self.finish_runs(deadline, now);
        if self
            .units
            .iter()
            .any(|unit| unit.role != Role::Sidecar && unit.is_running())
        {
            return;
        }
        if !sidecars_told {
            self.life = Life::Stopping {
                deadline,
                sidecars_told: true,
                why,
            };
            self.tell_to_stop(|role| role == Role::Sidecar, deadline, parts, now);
            self.finish_runs(deadline, now);
        }
        if self.units.iter().all(|unit| !unit.is_running()) {
            self.settle_for_good();
            self.sandbox = Sandbox::None;
            self.life = Life::Over { why };
            parts.addresses.release(&self.uid, now);
        }
    }

    fn finish_runs(&mut self, deadline: Timestamp, now: Timestamp) {
        let uid = &self.uid;
        for unit in &mut self.units {
            let State::Running { exit, .. } = &unit.state else {
                continue;
            };
            let ended = match exit {
                Some(planned) if planned.at <= now => Some(planned.code),
                _ if deadline <= now => Some(137),
                _ => None,
            };
            if let Some(code) = ended {
                unit.state = State::Ended(unit.exit_now(uid, code, now));
            }
        }
    }

    /// Nothing is started any more: what ended stays ended, and what never ran is reported as not found.
    fn settle_for_good(&mut self) {
        let initialized = status::has_initialized(&self.units);
        for unit in &mut self.units {
            let ended = match (&unit.state, unit.last.take()) {
                (State::Exited { exit, .. } | State::Ended(exit), _) => Some(exit.clone()),
                (_, Some(last)) => Some(last),
                (_, None) => initialized.then(Exit::unknown),
            };
            if let Some(exit) = ended {
                unit.state = State::Ended(exit);
            }
        }
    }
}
